"""Files that Keras writes of a model: what is written is what this package's readers accept.

Unnecessary from Keras: none yet. Legacy files of registered models do not load.
"""

import json
import warnings
from collections.abc import Callable
from typing import Any

import h5py
import keras

LEGACY_SUFFIXES = (".h5", ".hdf5")
# Bytes of a model's configuration as JSON, nearly all of them names of classes: 100,000 names of
# 300 characters. It is parsed before anything in it can be checked.
LONGEST_CONFIG = 2**25


def check_config_size(model: keras.Model) -> None:
    """Raises a ValueError for a configuration longer than `LONGEST_CONFIG`, which no reader takes.

    >>> import keras_vit
    >>> check_config_size(keras_vit.create("ViT-Ti/16"))
    """
    size = len(json.dumps(model.get_config(), default=str))
    if size > LONGEST_CONFIG:
        names = getattr(model, "class_names", None) or ()
        raise ValueError(
            f"The configuration of {model.name}, with the names of its {len(names):,} classes, has "
            f"{size:,} bytes; at most {LONGEST_CONFIG:,} are accepted when the file is read. Give "
            "shorter model.class_names, or None and keep the names in a file of their own."
        )


def save_legacy(
    model: keras.Model, save: Callable[..., None], filepath: Any, *args: Any, **options: Any
) -> None:
    """Saves a model as legacy `.h5`, without its optimizer, for `keras.saving.load_model` to read.

    Keras's writer stores the bare name of the model's class, under which no class is registered.
    And of a compiled model it stores what its reader turns into an error (a loss by name), or into
    an optimizer that `fit` does not run with.

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
