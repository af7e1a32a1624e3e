"""The models that commands are given: files, folders of runs, released weights, exported files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from keras_vit.export import ExportedModel, load_exported
from keras_vit.export.exported import format_of
from keras_vit.weights import load_model


def open_model(name: str | Path, role: str = "model") -> Any:
    """A model of a file, a run's folder, or `MODEL:TAG`; its role is named in errors.

    Raises:
        FileNotFoundError: There is none of that name.
    """
    if ":" not in str(name) and not Path(name).expanduser().exists():
        raise FileNotFoundError(
            f"There is no {role} at {name}. Give a .keras or weights file, the folder of a "
            "training run, or MODEL:TAG of released weights, which keras-vit list --weights prints."
        )
    return load_model(name)


def open_classifier(path: Path, decoder: str | None = None, views: str | None = None) -> Any:
    """A model, or a file that `keras-vit export` wrote, with another decoder or other views.

    Raises:
        ValueError: An exported file sees what its model saw, and `views` are others.
    """
    model = load_exported(path) if format_of(path) else open_model(path)
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
