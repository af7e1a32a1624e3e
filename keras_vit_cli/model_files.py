"""The classifiers that commands are given: models, and files that `keras-vit export` wrote."""

from dataclasses import replace
from pathlib import Path

from keras_vit.export import ExportedModel, load_classifier
from keras_vit.models import ImageModel


def open_classifier(
    path: str | Path, decoder: str | None = None, views: str | None = None
) -> ImageModel | ExportedModel:
    """A model, or a file that `keras-vit export` wrote, with another decoder or other views.

    Raises:
        ValueError: An exported file sees what its model saw, and `views` are others.
    """
    model = load_classifier(path)
    if decoder is not None:
        model.eval_transform = replace(model.eval_transform, decoder=decoder)
    if views is None or (isinstance(model, ExportedModel) and views == "one"):
        return model
    if isinstance(model, ExportedModel):
        raise ValueError(
            f"{model.name} is an exported file, which sees what its model saw: export the model "
            f"with keras-vit train --views {views}, or leave --views out."
        )
    model.eval_transform = replace(model.eval_transform, views=views)
    return model
