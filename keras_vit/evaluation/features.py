"""Pooled pre-logits of the images of a split, computed once and cached on disk."""

import hashlib
import json
import warnings
import zipfile
import zlib
from pathlib import Path

import keras
import numpy as np

from keras_vit import data
from keras_vit._base.errors import check_positive
from keras_vit._base.files import atomic_write
from keras_vit._base.version import __version__
from keras_vit.evaluation.prediction import padded, pipeline_arguments
from keras_vit.models.image_model import ImageModel
from keras_vit.models.layer_state import weights_digest
from keras_vit.ops import current_processes

# Arguments of a model that its pre-logits do not depend on: a new head has the same features.
_ARGUMENTS_OF_THE_HEAD = (
    *("num_classes", "task", "task_from", "class_names", "classifier_activation"),
)
_OTHER_ARGUMENTS = (
    *("name", "frozen", "thawed", "trainable", "weights", "remat", "novelty", "targets_seen"),
    "seen_images",
)


def features(
    model: ImageModel,
    split: data.Split,
    cache_dir: str | Path | None = None,
    batch_size: int = 32,
    mirrored: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Pooled pre-logits of every image of a split, and the labels.

    Images are prepared by the model's `eval_transform`. With `cache_dir` the result is cached
    there, under a digest of everything that it depends on: the weights, the model's arguments, the
    preparation, and the examples (of files: paths, sizes and modification times; otherwise their
    pixels). A damaged cache file is computed again.

    Args:
        model: A model of this package, with or without a head.
        split: One of `keras_vit.data.load(...)`.
        cache_dir: Folder of cached features; None caches nothing.
        batch_size: Images per batch.
        mirrored: Of the mirror images.

    Returns:
        float32 features `(images, dimension)` and labels, int32 `(images,)` of classes and what the
        task's loss takes of other tasks, in the split's order.

    Raises:
        ValueError: The model does not pool its tokens, an argument is out of range, or a
            distribution over several processes is set.

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
    if current_processes() is not None:  # the pipeline yields the images of this one alone
        raise ValueError(
            "features are computed in one process, and a distribution over several is set: compute "
            "them before it is set, or after keras.distribution.set_distribution(None)."
        )
    backbone = pooled_backbone(model)
    if cache_dir is None:
        return _compute(model, split, batch_size, mirrored)
    path = Path(cache_dir) / f"{_cache_key(model, split, mirrored)}.npz"
    cached = _read(path, backbone.output_shape[-1])
    if cached is None:
        cached = _compute(model, split, batch_size, mirrored)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            np.savez(temporary, features=cached[0], labels=cached[1])
    return cached


def pooled_backbone(model: ImageModel) -> keras.Model:
    """Return the model from images to one vector each; a ValueError where tokens are not pooled."""
    backbone = model.feature_model("pre_logits")
    if len(backbone.output_shape) != 2:
        raise ValueError(
            f"{model.name} has features of shape {backbone.output_shape[1:]} per image, not one "
            'vector. Build it with pooling="token", "gap" or "map".'
        )
    return backbone


def _compute(
    model: ImageModel, split: data.Split, batch_size: int, mirrored: bool
) -> tuple[np.ndarray, np.ndarray]:
    from rich.console import Console
    from rich.progress import track

    backbone, console = model.feature_model("pre_logits"), Console(stderr=True)
    batch_size = min(batch_size, max(len(split), 1))
    batches = data.pipeline(split, batch_size=batch_size, **pipeline_arguments(model))
    features = [np.zeros((0, backbone.output_shape[-1]), np.float32)]
    labels = []
    for images, batch_labels in track(
        batches.as_numpy_iterator(),
        f"features of {split.name}",
        total=-(-len(split) // batch_size),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ):
        if mirrored:
            columns = 3 if model.data_format == "channels_first" else 2
            images = np.flip(images, columns)
        with model.only_pooled_tokens():
            rows = backbone.predict_on_batch(padded(images, batch_size))[: len(images)]
        features.append(np.asarray(keras.ops.convert_to_numpy(rows)).astype(np.float32))
        labels.append(batch_labels)
    return np.concatenate(features), np.concatenate(labels or [split.labels()])


def features_digest(model: ImageModel, layer: str = "pre_logits", preparation: bool = True) -> str:
    """SHA-256 of what a model computes the features of a layer with: the weights up to there, the
    arguments that matter, and, unless the caller has it elsewhere, the preparation of files."""
    others = {*_OTHER_ARGUMENTS, *(() if layer == "logits" else _ARGUMENTS_OF_THE_HEAD)}
    if not preparation:
        others.add("evaluation")
    arguments = {k: v for k, v in model.get_config().items() if k not in others}
    weights = weights_digest(model.feature_model(layer))
    identity = json.dumps([type(model).__name__, arguments, weights], sort_keys=True, default=str)
    return hashlib.sha256(identity.encode()).hexdigest()


def _cache_key(model: ImageModel, split: data.Split, mirrored: bool) -> str:
    """Return a digest of everything that the features depend on."""
    arguments = pipeline_arguments(model)
    arguments["eval_transform"] = arguments["eval_transform"].to_dict()
    identity = [__version__, features_digest(model), arguments, split.class_names]
    if split.reader != "tensorflow":  # whose pixels are others
        identity.append(split.reader)
    if mirrored:
        identity.append("mirrored")
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode())
    if split.files is not None:
        digest.update(split.labels().tobytes())
        for file in split.files:
            status = file.stat()
            digest.update(f"{file.resolve()}|{status.st_size}|{status.st_mtime_ns}".encode())
    else:
        # Pixels identify examples in every kind of split; decoding is cheaper than the model.
        for image, label in split.decoded(split.channels):
            digest.update(f"{image.shape} {label}".encode() + image.tobytes())
    return digest.hexdigest()


def _read(path: Path, dimension: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Cached features and labels; None where the file is missing or damaged."""
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            features, labels = file["features"], file["labels"]
        if features.shape != (len(labels), dimension):
            raise ValueError(f"features are of shape {features.shape}")
    # A truncated or overwritten zip file fails in one of these ways; its checksums find the rest.
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        warnings.warn(f"{path} is damaged and computed again: {error}", stacklevel=3)
        return None
    return features, labels
