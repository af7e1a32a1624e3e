"""Keras's legacy files, `.h5`: what its writer leaves out so that nothing could read them again."""

import json
import warnings
from collections.abc import Callable
from typing import Any

import h5py
import keras

LEGACY_SUFFIXES = (".h5", ".hdf5")


def save_legacy(
    model: keras.Model, save: Callable[..., None], filepath: Any, *args: Any, **options: Any
) -> None:
    """Saves a model as `.h5`, without its optimizer, for `keras.saving.load_model` to read.

    Keras's writer stores the bare name of the model's class, under which no class is registered.
    And of a compiled model it stores what its reader turns into an error (a loss by name), or into
    an optimizer that `fit` does not run with.

    Args:
        model: The model.
        save: `keras.Model.save` of this model.
        filepath: Where to, as the other arguments of `keras.Model.save`.

    Raises:
        ValueError: The model has weights that these files cannot hold.
    """
    instead = f"{str(filepath).rpartition('.')[0]}.keras"
    unfit = sorted({v.dtype for v in model.variables if "bfloat16" in v.dtype})
    if unfit:
        raise ValueError(
            f"{filepath} is a legacy file, which cannot hold weights in {', '.join(unfit)}. "
            f"Save {instead}."
        )
    if getattr(model, "optimizer", None) is not None and not options.get("include_optimizer"):
        warnings.warn(
            f"{filepath} is in Keras's legacy format, from which a compiled model cannot be "
            "restored: it is saved without its optimizer, loss and metrics. To go on with the "
            f"training later, save {instead}.",
            stacklevel=4,  # whoever calls `model.save`
        )
    save(filepath, *args, **{"include_optimizer": False, **options})
    with h5py.File(filepath, "r+") as file:
        config = json.loads(file.attrs["model_config"])
        config["class_name"] = keras.saving.get_registered_name(type(model))
        file.attrs["model_config"] = json.dumps(config).encode()
