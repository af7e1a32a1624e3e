"""Keras's files: `.keras` with the architecture, `.weights.h5` for a model that is built."""

import io
import json
import math
import warnings
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import keras

from keras_vit.checkpoints.claims import check_claims
from keras_vit.checkpoints.errors import CheckpointError, reason
from keras_vit.checkpoints.families import family_of
from keras_vit.checkpoints.h5_file import h5_shapes
from keras_vit.checkpoints.layout import Checkpoint, SourceConventions
from keras_vit.checkpoints.npz import check_zip
from keras_vit.checkpoints.tensors import Array, Tensor, checked_float32, is_finite
from keras_vit.checkpoints.variables import Binding, bindings
from keras_vit.models import ImageModel

SUFFIXES = (".keras", ".weights.h5")
CONFIG, WEIGHTS = "config.json", "model.weights.h5"
ENTRIES = ("metadata.json", CONFIG, WEIGHTS)
# Enough for the names of 21,843 classes.
LONGEST_CONFIG = 2**22


def load_keras_model(path: Path, max_parameters: int | None = None) -> ImageModel:
    """The model in a `.keras` file, not compiled; what the file claims is checked before."""
    _check_archive(path, max_parameters)
    model = _as_checkpoint_error(path, lambda: keras.saving.load_model(path, compile=False))
    damaged = [v.path for v in model.variables if "float" in v.dtype and not _is_finite(v)]
    if damaged:
        raise CheckpointError(
            f"{path} holds NaN or infinity in {', '.join(damaged[:3])}"
            f"{f' and {len(damaged) - 3} more' if len(damaged) > 3 else ''}: the training had "
            "diverged, or the file is damaged. Take an earlier checkpoint."
        )
    return model


def read_keras_file(
    path: Path, model: keras.Model | None, max_parameters: int | None = None
) -> Checkpoint:
    """The weights of a file that Keras wrote.

    Keras reads it into a separate model, so a file that fails half-way harms nothing.
    """
    if path.name.endswith(".keras"):
        source: Any = load_keras_model(path, max_parameters)
    elif model is None:
        raise CheckpointError(
            f"{path} holds weights without an architecture. Build the model and call "
            "keras_vit.load_weights(model, file), or give the .keras file."
        )
    else:
        h5_shapes(path)
        source = type(model).from_config(model.get_config())
        _as_checkpoint_error(path, lambda: source.load_weights(path))
    tensors: dict[str, Tensor] = {}
    for binding in bindings(source):
        for name, shape in binding.shapes().items():
            read = partial(_read_variable, binding, name)
            tensors[name] = Tensor(name, shape, binding.variable.dtype, read)
    config = source.get_config()
    conventions = SourceConventions(
        config.get("activation", ""),
        config.get("norm_epsilon", 0.0),
        source.include_preprocessing,
        "zoom",
    )
    return Checkpoint(
        "keras",
        family_of(source),
        conventions,
        tensors,
        has_class_position=config.get("class_token"),
        arguments={"keras": config, "evaluation": source.eval_transform},
        class_names=source.class_names,
        grid=config.get("position_grid"),
    )


def _as_checkpoint_error(path: Path, read: Any) -> Any:
    try:
        with warnings.catch_warnings():
            # Keras only warns where it would leave weights as they are.
            warnings.filterwarnings("error", message="Skipping")
            return read()
    except Exception as error:  # Keras and HDF5 fail in many ways, all with one meaning
        raise CheckpointError(f"{path} cannot be read by Keras: {reason(error)}") from error


def _check_archive(path: Path, max_parameters: int | None) -> None:
    """Checks everything that a `.keras` file shows before a model is built."""
    check_zip(path)
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        if names != set(ENTRIES):
            raise CheckpointError(
                f"{path} holds {', '.join(sorted(names)) or 'nothing'}, where a model of "
                f"keras_vit has {', '.join(ENTRIES)}: it is damaged, or of something else."
            )
        content = {name: _read_entry(path, archive, name) for name in ENTRIES}
    config = _config(path, content[CONFIG])
    shapes = h5_shapes(path, io.BytesIO(content[WEIGHTS]))
    weights = [shape for name, shape in shapes.items() if not name.startswith("optimizer/")]
    check_claims(path, config, sum(map(math.prod, weights)), len(weights), max_parameters)


def _read_entry(path: Path, archive: zipfile.ZipFile, name: str) -> bytes:
    try:
        return archive.read(name)  # compares the checksum
    except Exception as error:  # of zlib, struct or zipfile, all with one meaning
        offset = archive.getinfo(name).header_offset
        raise CheckpointError(
            f"{name} (byte {offset:,} of {path}) is damaged: {reason(error)}. Download the file "
            "again, or take an earlier checkpoint."
        ) from error


def _config(path: Path, text: bytes) -> dict[str, Any]:
    """The arguments of the model; its class is one of this package, or registered by the caller.

    Keras would import a class that it does not know by the name of its module.
    """
    if len(text) > LONGEST_CONFIG:
        raise CheckpointError(
            f"{CONFIG} of {path} has {len(text):,} bytes; at most {LONGEST_CONFIG:,} are accepted."
        )
    try:
        model = json.loads(text)
        name, config = model["registered_name"], model["config"]
        registered = keras.saving.get_registered_object(name)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{CONFIG} of {path} does not describe a model: {reason(error)}"
        ) from error
    if not isinstance(registered, type) or not issubclass(registered, ImageModel):
        raise CheckpointError(
            f"{path} holds a {model.get('class_name')}, not a model of keras_vit. "
            "If you trust the file, keras.saving.load_model reads it."
        )
    if not isinstance(config, dict) or not _is_plain(config.get("dtype")):
        raise CheckpointError(
            f"{CONFIG} of {path} has dtype={str(config)[:100]!r}; a dtype policy of Keras is "
            "accepted."
        )
    return config


def _is_plain(dtype: Any) -> bool:
    """Whether a dtype in a file is a name, or made of Keras's policies."""
    if not isinstance(dtype, dict):
        return dtype is None or isinstance(dtype, str)
    policy = getattr(keras.dtype_policies, str(dtype.get("class_name")), None)
    if not isinstance(policy, type) or not str(dtype.get("module")).startswith("keras"):
        return False
    nested = dtype.get("config")
    if not isinstance(nested, dict):
        return False
    members = [*nested.values(), *(nested.get("policy_map") or {}).values()]
    return all(_is_plain(m) for m in members if isinstance(m, dict) and "class_name" in m)


def _is_finite(variable: Any) -> bool:
    return is_finite(keras.ops.convert_to_numpy(variable).astype("float32", copy=False))


def _read_variable(binding: Binding, name: str) -> Array:
    return checked_float32(name, binding.values()[name])
