"""Keras's own files: `.keras` with its architecture, `.weights.h5` for a model like another."""

import io
import json
import math
import warnings
import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.checkpoints.binding import Binding, bindings
from keras_vit.checkpoints.claims import check_claims
from keras_vit.checkpoints.errors import CheckpointError, reason
from keras_vit.checkpoints.families import family_of
from keras_vit.checkpoints.h5_file import h5_shapes
from keras_vit.checkpoints.layout import Checkpoint, Origin
from keras_vit.checkpoints.npz import check_unique, check_zip_sizes
from keras_vit.checkpoints.tensors import Array, Tensor, checked_float32
from keras_vit.models import ImageModel

SUFFIXES = (".keras", ".weights.h5")
CONFIG, WEIGHTS = "config.json", "model.weights.h5"
ENTRIES = ("metadata.json", CONFIG, WEIGHTS)
# Enough for the names of 21,843 classes.
LONGEST_CONFIG = 2**22


def load_keras_model(path: Path, max_parameters: int | None = None) -> ImageModel:
    """The model in a `.keras` file, not compiled; what the file claims is checked before.

    Raises:
        CheckpointError: Damaged, hostile, or not a model of this package.
    """
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

    Keras reads it into a model of its own, so a file that fails half-way harms nothing.

    Raises:
        CheckpointError: Damaged, of another kind of model, or `.weights.h5` without a model.
    """
    if path.name.endswith(".keras"):
        own: Any = load_keras_model(path, max_parameters)
    elif model is None:
        raise CheckpointError(
            f"{path} holds weights without an architecture. Build the model and call "
            "keras_vit.load_weights(model, file), or give the .keras file."
        )
    else:
        h5_shapes(path)
        own = type(model).from_config(model.get_config())
        _as_checkpoint_error(path, lambda: own.load_weights(path))
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
        arguments={"keras": config, "evaluation": own.eval_transform},
        class_names=own.class_names,
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
    """Everything that can be known of a `.keras` file before a model is built."""
    check_zip_sizes(path)
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        check_unique(entries, path)
        names = {entry.filename for entry in entries}
        if names != set(ENTRIES):
            raise CheckpointError(
                f"{path} holds {', '.join(sorted(names)) or 'nothing'}, where a model of "
                f"keras_vit has {', '.join(ENTRIES)}: it is damaged, or of something else."
            )
        content = {name: _read_entry(path, archive, name) for name in ENTRIES}
    config = _config(path, content[CONFIG])
    shapes = h5_shapes(path, io.BytesIO(content[WEIGHTS]))
    own = [shape for name, shape in shapes.items() if not name.startswith("optimizer/")]
    check_claims(path, config, sum(map(math.prod, own)), len(own), max_parameters)


def _read_entry(path: Path, archive: zipfile.ZipFile, name: str) -> bytes:
    try:
        return archive.read(name)  # compares the checksum
    except Exception as error:  # zlib's, struct's and zipfile's own, all with one meaning
        offset = archive.getinfo(name).header_offset
        raise CheckpointError(
            f"{name} (byte {offset:,} of {path}) is damaged: {reason(error)}. Fetch the file "
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
        whole = json.loads(text)
        name, config = whole["registered_name"], whole["config"]
        known = keras.saving.get_registered_object(name)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{CONFIG} of {path} does not describe a model: {reason(error)}"
        ) from error
    if not isinstance(known, type) or not issubclass(known, ImageModel):
        raise CheckpointError(
            f"{path} holds a {whole.get('class_name')}, not a model of keras_vit. "
            "If you trust the file, keras.saving.load_model reads it."
        )
    if not isinstance(config, dict) or not _is_plain(config.get("dtype")):
        raise CheckpointError(
            f"{CONFIG} of {path} has dtype={str(config)[:100]!r}; a dtype policy of Keras is "
            "accepted."
        )
    return config


def _is_plain(dtype: Any) -> bool:
    """Whether a dtype in a file is a name, or made of Keras's own policies."""
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
    values = keras.ops.convert_to_numpy(variable).astype("float32", copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(values.sum()) or np.isfinite(values).all())


def _reader(binding: Binding, name: str) -> Any:
    def read() -> Array:
        return checked_float32(name, binding.values()[name])

    return read
