"""From files to words: what a model sees in photographs."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

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


def _probabilities(model: Any, images: np.ndarray) -> np.ndarray:
    scores = model.predict(images, verbose=0)
    if model.classifier_activation is not None:
        return scores
    return keras.ops.convert_to_numpy(keras.ops.softmax(scores))


def _best(model: Any, probabilities: np.ndarray, top: int) -> Guesses:
    names = model.class_names or tuple(map(str, range(len(probabilities))))
    order = np.argsort(-probabilities, kind="stable")[:top]
    return [(names[i], float(probabilities[i])) for i in order]
