"""From pictures to scores and words: what a model sees in a split, or in photographs."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit import data
from keras_vit.data import read_image
from keras_vit.data._imports import tf
from keras_vit.errors import check_positive

Guesses = list[tuple[str, float]]


def predict_files(
    model: Any,
    files: Sequence[str | Path],
    top: int = 5,
    batch_size: int = 32,
    max_pixels: int = data.MAX_PIXELS,
) -> Iterator[tuple[Path, Guesses | str]]:
    """The classes of photographs with their probabilities, best first.

    Args:
        model: A classifier of this package that takes pixels.
        files: Image files of any size.
        top: How many classes to name.
        batch_size: Photographs to predict at once.
        max_pixels: Height times width of a file that is decoded.

    Yields:
        Every file in order with `(class name, probability)` pairs, or with the reason why it
        cannot be decoded.

    Raises:
        ValueError: `top` or `batch_size` is below 1.
    """
    check_positive(top=top, batch_size=batch_size)
    size, channels = input_of(model)
    first = _channels_first(model)
    for start in range(0, len(files), batch_size):
        paths = [Path(file) for file in files[start : start + batch_size]]
        read = [
            read_image(path, size, channels, max_pixels=max_pixels, **model.evaluation)
            for path in paths
        ]
        images = [
            np.moveaxis(image, -1, 0) if first else image
            for image in read
            if not isinstance(image, str)
        ]
        scores = iter(_probabilities(model, np.stack(images)) if images else ())
        for path, image in zip(paths, read, strict=True):
            yield path, image if isinstance(image, str) else _best(model, next(scores), top)


def predict_split(
    model: Any, split: data.Split, batch_size: int = 32
) -> tuple[np.ndarray, np.ndarray]:
    """A classifier's scores for every image of a split, prepared as its `evaluation` says.

    Args:
        model: A Keras classifier that takes pixels.
        split: One of `keras_vit.data.load(...)`.
        batch_size: Images at once.

    Returns:
        int32 labels `(images,)` and scores `(images, classes)`, logits unless the model has a
        `classifier_activation`, in the split's order.

    Example:

    >>> import keras_vit
    >>> from keras_vit.evaluation import predict_split
    >>> model = keras_vit.VisionTransformer(patch_size=4, hidden_dim=16, depth=1, num_heads=2,
    ...     input_shape=(8, 8, 1), num_classes=10)
    >>> labels, scores = predict_split(model, keras_vit.data.load("digits").val, batch_size=180)
    >>> labels.shape, scores.shape
    ((360,), (360, 10))
    """
    batches = data.pipeline(split, batch_size=batch_size, **preparation(model))
    # Labels come with their images: a split may skip files that it cannot decode.
    labels = [its_labels for _, its_labels in batches.as_numpy_iterator()] if split.skips else None
    first = _channels_first(model)
    images = batches.map(lambda images, _: tf.transpose(images, (0, 3, 1, 2)) if first else images)
    scores = model.predict(images, verbose=0)
    return (split.labels() if labels is None else np.concatenate(labels)), scores


def preparation(model: Any) -> dict[str, Any]:
    """How `data.pipeline` brings images to a model: the arguments that the model decides.

    A Keras model of another kind gets them resized and cropped at the centre. The channels come
    last, as in all batches of `data.pipeline`.
    """
    size, channels = input_of(model)
    transform = dict(getattr(model, "evaluation", {}))
    return {"image_size": size, "channels": channels, "eval_transform": transform}


def _channels_first(model: Any) -> bool:
    return getattr(model, "data_format", "channels_last") == "channels_first"


def input_of(model: Any) -> tuple[tuple[int, int], int]:
    """Height and width, 224 where a model takes any size, and the number of channels."""
    shape = model.input_shape[1:]
    channels, height, width = shape if _channels_first(model) else (shape[-1], *shape[:-1])
    return (height or 224, width or 224), channels


def _probabilities(model: Any, images: np.ndarray) -> np.ndarray:
    scores = model.predict_on_batch(images)
    if model.classifier_activation is not None:
        return scores
    return keras.ops.convert_to_numpy(keras.ops.softmax(scores))


def _best(model: Any, probabilities: np.ndarray, top: int) -> Guesses:
    names = model.class_names or tuple(map(str, range(len(probabilities))))
    order = np.argsort(-probabilities, kind="stable")[:top]
    return [(names[i], float(probabilities[i])) for i in order]
