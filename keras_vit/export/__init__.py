"""Export a trained model: a SavedModel that takes the bytes of image files."""

from keras_vit.export.formats import export_model

__all__ = ["export_model"]
