"""From pictures to scores and words: what a model sees in a split, or in photographs."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit import data
from keras_vit.data import read_image

Guesses = list[tuple[str, float]]


def predict_files(
    model: Any, files: Sequence[str | Path], top: int = 5, batch_size: int = 32
) -> Iterator[tuple[Path, Guesses | str]]:
    """The classes of photographs with their probabilities, best first.

    Args:
        model: A classifier of this package that takes pixels.
        files: Image files of any size.
        top: How many classes to name.
        batch_size: Photographs to predict at once.

    Yields:
        Every file in order with `(class name, probability)` pairs, or with the reason why it
        cannot be decoded.
    """
    height, width, channels = model.input_shape[1:]
    size = (height or 224, width or 224)
    for start in range(0, len(files), batch_size):
        paths = [Path(file) for file in files[start : start + batch_size]]
        read = [read_image(p, size, channels, **model.evaluation) for p in paths]
        images = [image for image in read if not isinstance(image, str)]
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
    scores = model.predict(batches.map(lambda images, _: images), verbose=0)
    return (split.labels() if labels is None else np.concatenate(labels)), scores


def preparation(model: Any) -> dict[str, Any]:
    """How `data.pipeline` brings pictures to a model: the arguments that the model decides.

    A Keras model of another kind gets them resized and cropped at the centre.
    """
    height, width = getattr(model, "image_size", model.input_shape[1:3])
    own = getattr(model, "evaluation", {})
    arguments = {
        "image_size": (height or 224, width or 224),
        "channels": getattr(model, "channels", model.input_shape[-1]),
        "evaluation": own.get("mode", "crop"),
    }
    if "crop_fraction" in own:
        arguments["crop_fraction"] = own["crop_fraction"]
    return arguments


def _probabilities(model: Any, images: np.ndarray) -> np.ndarray:
    scores = model.predict_on_batch(images)
    if model.classifier_activation is not None:
        return scores
    return keras.ops.convert_to_numpy(keras.ops.softmax(scores))


def _best(model: Any, probabilities: np.ndarray, top: int) -> Guesses:
    names = model.class_names or tuple(map(str, range(len(probabilities))))
    order = np.argsort(-probabilities, kind="stable")[:top]
    return [(names[i], float(probabilities[i])) for i in order]
