"""Keras's files: `.keras` and legacy `.h5` of whole models, `.weights.h5` of weights alone."""

import io
import json
import math
import warnings
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import keras

from keras_vit.models import ImageModel
from keras_vit.trainer.saved_file import LONGEST_CONFIG
from keras_vit.weights.checkpoint_error import CheckpointError, reason
from keras_vit.weights.claims import check_claims
from keras_vit.weights.containers.h5_file import h5_shapes
from keras_vit.weights.containers.npz import check_zip
from keras_vit.weights.containers.tensors import Tensor, checked_float32, is_finite
from keras_vit.weights.containers.weights_h5 import named_tensors
from keras_vit.weights.tables.conventions import STORED_FAMILIES, stored_family
from keras_vit.weights.tables.layout import Checkpoint, SourceConventions
from keras_vit.weights.variables import bindings

SUFFIXES = (".keras", ".weights.h5", ".h5", ".hdf5")
CONFIG, WEIGHTS = "config.json", "model.weights.h5"
ENTRIES = ("metadata.json", CONFIG, WEIGHTS)
# Where legacy files have the configuration.
LEGACY_CONFIG = "model_config"
CLASSES = {family.model.__name__: family.model for family in STORED_FAMILIES.values()}


def is_whole_model(path: Path) -> bool:
    """Return whether a file that Keras wrote has a model's architecture as well as its weights."""
    if path.name.endswith(".keras"):
        return True
    try:
        with h5py.File(path, "r") as file:
            return LEGACY_CONFIG in file.attrs
    except Exception:  # HDF5 fails in many ways, all with one meaning
        return False  # `h5_shapes` has the reason


def load_keras_model(path: Path, max_parameters: int | None = None) -> ImageModel:
    """Load the model of a `.keras` or legacy `.h5` file, uncompiled, after checking its claims."""
    if path.name.endswith(".keras"):
        _check_archive(path, max_parameters)
        model = _as_checkpoint_error(path, lambda: keras.saving.load_model(path, compile=False))
    else:
        model = _as_checkpoint_error(path, lambda: _load_legacy(path, max_parameters))
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
    """Return the weights of a file that Keras wrote.

    Those of a whole model are read into a separate one, so a file that fails half-way harms
    nothing; those alone are found by the names of the layers of `model`.
    """
    if is_whole_model(path):
        source: Any = load_keras_model(path, max_parameters)
        return _checkpoint(source, _tensors_of(source), source.get_config().get("position_grid"))
    shapes = h5_shapes(path)
    if model is None:
        raise CheckpointError(
            f"{path} holds weights without an architecture. Build the model and call "
            "keras_vit.load_weights(model, file), or give the .keras file."
        )
    tensors = named_tensors(path, shapes, model)
    if tensors is not None:
        # Of as many positions as the model's, the grid is the model's, though they be a square.
        return _checkpoint(model, tensors, model.get_config().get("position_grid"))
    source = type(model).from_config(model.get_config())
    _as_checkpoint_error(path, lambda: source.load_weights(path))
    return _checkpoint(source, _tensors_of(source), source.get_config().get("position_grid"))


def _tensors_of(source: Any) -> dict[str, Tensor]:
    """Return the weights of a model by canonical name."""
    tensors: dict[str, Tensor] = {}
    for binding in bindings(source):
        for name, shape in binding.shapes().items():
            read = partial(lambda b, n: checked_float32(n, b.values()[n]), binding, name)
            tensors[name] = Tensor(name, shape, binding.variable.dtype, read)
    return tensors


def _checkpoint(source: Any, tensors: dict[str, Tensor], grid: Any) -> Checkpoint:
    """Tensors with what a model of the same options states beyond them."""
    config = source.get_config()
    arguments = {"keras": config, "evaluation": source.eval_transform, "task": source.task}
    conventions = SourceConventions(
        config.get("activation", ""),
        config.get("norm_epsilon", 0.0),
        source.normalization,
        "zoom",
    )
    return Checkpoint(
        "keras",
        stored_family(source),
        conventions,
        tensors,
        has_class_position="class_token" in tensors,
        arguments={**arguments, "seen_images": source.seen_images, "novelty": source.novelty},
        class_names=source.class_names,
        grid=grid,
    )


def _as_checkpoint_error(path: Path, read: Any) -> Any:
    try:
        with warnings.catch_warnings():
            # Keras only warns where it would leave weights as they are.
            warnings.filterwarnings("error", message="Skipping")
            return read()
    except CheckpointError:
        raise
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
    model, config = _config(path, content[CONFIG])
    shapes = h5_shapes(path, io.BytesIO(content[WEIGHTS]))
    weights = [shape for name, shape in shapes.items() if not name.startswith("optimizer/")]
    check_claims(path, model, config, sum(map(math.prod, weights)), len(weights), max_parameters)


def side_of_images(path: Path) -> int | None:
    """Return the larger side of the images of a `.keras` file's model; None for any size."""
    check_zip(path)
    with zipfile.ZipFile(path) as archive:
        if CONFIG not in archive.namelist():
            return None  # `_check_archive` says what is wrong
        _, config = _config(path, _read_entry(path, archive, CONFIG))
    shape = [*(config.get("input_shape") or ())]
    sides = shape[1:] if config.get("data_format") == "channels_first" else shape[:2]
    return max(sides) if len(shape) == 3 and all(type(side) is int for side in sides) else None


def _load_legacy(path: Path, max_parameters: int | None) -> ImageModel:
    """Return the model in a legacy `.h5` file, of which Keras itself reads the arrays alone."""
    shapes = h5_shapes(path)
    with h5py.File(path, "r") as file:
        text = file.attrs[LEGACY_CONFIG]
    text = text if isinstance(text, bytes) else str(text).encode()
    model_class, config = _config(path, text, legacy=True)
    weights = [shape for name, shape in shapes.items() if name.startswith("model_weights/")]
    values = sum(map(math.prod, weights))
    check_claims(path, model_class, config, values, len(weights), max_parameters)
    model = model_class.from_config(config)
    model.load_weights(path)
    return model


def _read_entry(path: Path, archive: zipfile.ZipFile, name: str) -> bytes:
    try:
        return archive.read(name)  # compares the checksum
    except Exception as error:  # of zlib, struct or zipfile, all with one meaning
        offset = archive.getinfo(name).header_offset
        raise CheckpointError(
            f"{name} (byte {offset:,} of {path}) is damaged: {reason(error)}. Download the file "
            "again, or take an earlier checkpoint."
        ) from error


def _config(
    path: Path, text: bytes, legacy: bool = False
) -> tuple[type[ImageModel], dict[str, Any]]:
    """Return the model's class, one of this package or registered by the caller, and its arguments.

    Keras would import a class that it does not know by the name of its module.
    """
    if len(text) > LONGEST_CONFIG:
        raise CheckpointError(
            f"{CONFIG} of {path} has {len(text):,} bytes; at most {LONGEST_CONFIG:,} are accepted."
        )
    try:
        model = json.loads(text)
        name, config = model["class_name" if legacy else "registered_name"], model["config"]
        registered = keras.saving.get_registered_object(name)
        if legacy and registered is None:  # by `keras.saving.save_model`, with the bare name
            registered = CLASSES.get(name)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{CONFIG} of {path} does not describe a model: {reason(error)}"
        ) from error
    if not isinstance(registered, type) or not issubclass(registered, ImageModel):
        raise CheckpointError(
            f"{path} holds a {model.get('class_name')}, not a model of keras_vit. Give one, or "
            "weights of timm, transformers or the released code. If you trust the file, "
            "keras.saving.load_model reads it, to use as Keras does."
        )
    if not isinstance(config, dict) or not _is_plain(config.get("dtype"), keras.dtype_policies):
        raise CheckpointError(
            f"{CONFIG} of {path} has dtype={str(config)[:100]!r}; a dtype policy of Keras is "
            "accepted."
        )
    quantizers = config.get("quantizers", {})
    if not isinstance(quantizers, dict) or not all(
        _is_plain(quantizer, keras.quantizers) for quantizer in quantizers.values()
    ):
        raise CheckpointError(
            f"{CONFIG} of {path} has quantizers={str(quantizers)[:100]!r}; those of Keras are "
            "accepted."
        )
    return registered, config


def _is_plain(value: Any, known: Any) -> bool:
    """Return whether a file's dtype or quantizer is a name, or built from Keras classes alone."""
    if not isinstance(value, dict):
        return value is None or isinstance(value, str)
    kind = getattr(known, str(value.get("class_name")), None)
    if not isinstance(kind, type) or not str(value.get("module")).startswith("keras"):
        return False
    nested = value.get("config")
    if not isinstance(nested, dict):
        return False
    members = [*nested.values(), *(nested.get("policy_map") or {}).values()]
    return all(_is_plain(m, known) for m in members if isinstance(m, dict) and "class_name" in m)


def _is_finite(variable: Any) -> bool:
    return is_finite(keras.ops.convert_to_numpy(variable).astype("float32", copy=False))
