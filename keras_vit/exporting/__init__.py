"""Export a trained model: files that run without Keras, in the engines of other systems."""

from keras_vit.exporting.contract import Contract
from keras_vit.exporting.exported import ExportedModel, load_classifier, load_exported
from keras_vit.exporting.format_table import FORMATS
from keras_vit.exporting.formats import export
from keras_vit.exporting.peer_folder import prove_folder
from keras_vit.exporting.self_check import Check, check
from keras_vit.exporting.smallest import Smallest, export_smallest

__all__ = [
    "FORMATS",
    "Check",
    "Contract",
    "ExportedModel",
    "Smallest",
    "check",
    "export",
    "export_smallest",
    "load_classifier",
    "load_exported",
    "prove_folder",
]
