"""Pooled pre-logits of the images of a split, computed once and cached on disk."""

import hashlib
import json
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit import data
from keras_vit.errors import check_positive
from keras_vit.evaluation.prediction import preparation
from keras_vit.files import atomic_write
from keras_vit.version import __version__

# Arguments of a model that its pre-logits do not depend on: a new head finds the same features.
_NOT_OF_FEATURES = (
    "name",
    "num_classes",
    "class_names",
    "classifier_activation",
    "frozen",
    "weights",
    "remat",
)


def features(
    model: Any,
    split: data.Split,
    cache_dir: str | Path | None = None,
    batch_size: int = 32,
) -> tuple[np.ndarray, np.ndarray]:
    """Pooled pre-logits of every image of a split, and the labels.

    Images are prepared as the model's `evaluation` says. With `cache_dir` the result is cached
    there, under a name made of everything it depends on: the weights' content, the model's
    arguments, the preparation, and the examples (of files: paths, sizes and times of change; else
    their pixels). A damaged file there is computed anew.

    Args:
        model: A model of this package, under any head or none.
        split: One of `keras_vit.data.load(...)`.
        cache_dir: Folder of cached features; None caches nothing.
        batch_size: Images per batch.

    Returns:
        float32 features `(images, dimension)` and int32 labels `(images,)`, in the split's order.

    Raises:
        ValueError: The model does not pool its tokens, or an argument is out of range.

    Example:

    >>> import keras_vit
    >>> from keras_vit.evaluation import features
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=4, hidden_dim=16, depth=1, num_heads=2, input_shape=(8, 8, 1))
    >>> x, y = features(model, keras_vit.data.load("digits").val, batch_size=128)
    >>> x.shape, y.shape
    ((360, 16), (360,))
    """
    check_positive(batch_size=batch_size)
    backbone = model.feature_model("pre_logits")
    if len(backbone.output_shape) != 2:
        raise ValueError(
            f"{model.name} gives features of shape {backbone.output_shape[1:]} per image, not one "
            'vector. Build it with pooling="token", "gap" or "map".'
        )
    prepared = preparation(model)
    if cache_dir is None:
        return _compute(backbone, split, prepared, batch_size, model.data_format)
    path = Path(cache_dir) / f"{_key(model, split, prepared)}.npz"
    found = _read(path, backbone.output_shape[-1])
    if found is None:
        found = _compute(backbone, split, prepared, batch_size, model.data_format)
        _write(path, *found)
    return found


def _compute(
    backbone: keras.Model,
    split: data.Split,
    prepared: dict[str, Any],
    batch_size: int,
    data_format: str,
) -> tuple[np.ndarray, np.ndarray]:
    from rich.console import Console
    from rich.progress import track

    batch_size = min(batch_size, max(len(split), 1))
    batches = data.pipeline(split, batch_size=batch_size, **prepared)
    found, labels = [], []
    for images, its_labels in track(
        batches.as_numpy_iterator(),
        f"features of {split.name}",
        total=-(-len(split) // batch_size),
        console=Console(stderr=True),
        transient=True,
    ):
        # The last batch is filled up: another size would be compiled anew.
        missing = batch_size - len(images)
        filled = np.pad(images, ((0, missing), (0, 0), (0, 0), (0, 0)), mode="edge")
        if data_format == "channels_first":
            filled = np.moveaxis(filled, -1, 1)
        rows = backbone.predict_on_batch(filled)[: len(images)]
        found.append(np.asarray(keras.ops.convert_to_numpy(rows)).astype(np.float32))
        labels.append(its_labels)
    if not found:
        return np.zeros((0, backbone.output_shape[-1]), np.float32), np.zeros(0, np.int32)
    return np.concatenate(found), np.concatenate(labels)


def weights_digest(model: Any) -> str:
    """SHA-256 of what a model computes its features with: its weights, without the head's, and
    the arguments that matter."""
    digest = hashlib.sha256()
    arguments = {k: v for k, v in model.get_config().items() if k not in _NOT_OF_FEATURES}
    facts = [type(model).__name__, arguments]
    digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
    for variable in model.feature_model("pre_logits").weights:
        value = keras.ops.convert_to_numpy(variable)
        digest.update(f"{value.dtype} {value.shape}".encode() + value.tobytes())
    return digest.hexdigest()


def _key(model: Any, split: data.Split, prepared: dict[str, Any]) -> str:
    """A digest of everything that the features depend on."""
    facts = [__version__, weights_digest(model), prepared, split.class_names]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    if split.files is not None:
        digest.update(split.labels().tobytes())
        for file in split.files:
            status = file.stat()
            digest.update(f"{file.resolve()}|{status.st_size}|{status.st_mtime_ns}".encode())
    else:
        # Pixels tell examples apart whatever a split keeps them as; decoding is cheap beside the
        # model.
        for image, label, *_ in split.images(split.dataset()).as_numpy_iterator():
            digest.update(f"{image.shape} {label}".encode() + image.tobytes())
    return digest.hexdigest()


def _read(path: Path, dimension: int) -> tuple[np.ndarray, np.ndarray] | None:
    """What `_write` wrote, or None where there is nothing or nothing whole."""
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            found, labels = file["features"], file["labels"]
        if found.shape != (len(labels), dimension):
            raise ValueError(f"features are of shape {found.shape}")
    # A cut or overwritten zip file fails in one of these ways; its checksums find the rest.
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        warnings.warn(f"{path} is damaged and computed anew: {error}", stacklevel=3)
        return None
    return found, labels


def _write(path: Path, found: np.ndarray, labels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        np.savez(temporary, features=found, labels=labels)
