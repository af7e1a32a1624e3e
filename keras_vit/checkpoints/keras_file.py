"""Keras's own files: `.keras` with its architecture, `.weights.h5` for a model like another."""

import warnings
from pathlib import Path
from typing import Any

import keras

from keras_vit.checkpoints.binding import Binding, bindings
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.families import family_of
from keras_vit.checkpoints.layout import Checkpoint, Origin
from keras_vit.checkpoints.npz import check_zip_sizes
from keras_vit.checkpoints.tensors import Array, Tensor, checked_float32

SUFFIXES = (".keras", ".weights.h5")


def read_keras_file(path: Path, model: keras.Model | None) -> Checkpoint:
    """The weights of a file that Keras wrote.

    Keras reads it into a model of its own, so a file that fails half-way harms nothing.

    Raises:
        CheckpointError: Damaged, of another kind of model, or `.weights.h5` without a model.
    """
    if path.name.endswith(".keras"):
        check_zip_sizes(path)
    elif model is None:
        raise CheckpointError(
            f"{path} holds weights without an architecture. Build the model and call "
            "keras_vit.load_weights(model, file), or give the .keras file."
        )
    try:
        with warnings.catch_warnings():
            # Keras only warns where it would leave weights as they are.
            warnings.filterwarnings("error", message="Skipping")
            own = _read(path, model)
    except Exception as error:  # Keras and HDF5 fail in many ways, all with one meaning
        raise CheckpointError(f"{path} cannot be read by Keras: {error}") from error
    tensors: dict[str, Tensor] = {}
    for binding in bindings(own):
        for name, shape in binding.shapes().items():
            tensors[name] = Tensor(name, shape, binding.variable.dtype, _reader(binding, name))
    config = own.get_config()
    origin = Origin(
        config.get("activation", ""),
        config.get("norm_epsilon", 0.0),
        own.include_preprocessing,
        "zoom",
    )
    return Checkpoint(
        "keras",
        family_of(own),
        origin,
        tensors,
        class_entry=config.get("class_token"),
        arguments={"keras": config, "evaluation": own.evaluation},
        class_names=own.class_names,
        grid=config.get("position_grid"),
    )


def _read(path: Path, model: Any) -> Any:
    if path.name.endswith(".keras"):
        return keras.saving.load_model(path, compile=False)
    own = type(model).from_config(model.get_config())
    own.load_weights(path)
    return own


def _reader(binding: Binding, name: str) -> Any:
    def read() -> Array:
        return checked_float32(name, binding.values()[name])

    return read
