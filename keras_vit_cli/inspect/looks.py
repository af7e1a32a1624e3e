"""Everything that the page shows of images, from one pass over them."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from keras_vit._base.errors import check_choice
from keras_vit.inspection.attribution import Classes, returns_scores, run_gradients
from keras_vit.inspection.forward_pass import as_numpy, run
from keras_vit.models.answers import answers_of

METHODS = ("attribution", "rollout")


@dataclass(frozen=True)
class Looks:
    """What a model looks at in images.

    Attributes:
        method: One of `METHODS`.
        maps: By that method, of all layers: `(images, grid_h, grid_w)`.
        classes: The number of the class that attribution explains of each image; () for rollout.
        attention: Of each layer and head, `(images, depth, heads, grid_h, grid_w)`.
        distances: Mean attention distance in pixels, `(images, depth, heads)`.
        outputs: What the model returned, float32; of one with views, averaged over them.
        reader: What the prediction is read from, as text.
        patch_pixels: Height and width of a patch in pixels of what the Transformer gets.
        image_size: Height and width in pixels of what it gets.
        covered: Height and width in pixels of the images that the patches cover.
        largest: The largest absolute value in what patches are cut from; of a hybrid, 0.
    """

    method: str
    maps: np.ndarray
    classes: tuple[int, ...]
    attention: np.ndarray
    distances: np.ndarray
    outputs: np.ndarray
    reader: str
    patch_pixels: tuple[int, int]
    image_size: tuple[int, int]
    covered: tuple[int, int]
    largest: float


def look(
    model: Any,
    images: np.ndarray,
    size: tuple[int, int],
    batch_size: int,
    method: str | None = None,
    classes: Classes = None,
    averaged: Any = None,
) -> Looks:
    """Runs a model on images of a height and width; the other arguments are `inspect_files`'.

    The maps are of one view; answers, and the class that is explained, are those of the model's
    `mean_of_views`, which is `averaged`.

    Raises:
        ValueError: As `class_attribution`, if that is the method, and as `attention_rollout`.
    """
    check_choice(method, "method", (*METHODS, None))
    if method is None:
        method = "attribution" if returns_scores(model) else "rollout"
    if method == "rollout" and classes is not None:
        raise ValueError(
            f"Rollout is the same for every class: class {classes!r} needs the method "
            '"attribution", and a model that returns scores of classes.'
        )
    answers = None
    if averaged not in (None, model) and getattr(model, "task", None) is not None:
        answers = averaged.predict(images, batch_size, verbose=0)
        if classes is None and method == "attribution":
            classes = model.task.explained(answers_of(model, answers)).tolist()
    parts: list[tuple[np.ndarray, ...]] = []
    numbers: list[int] = []
    if method == "rollout":
        for forward in run(model, images, batch_size):
            parts.append((forward.rollout(), *_of_layers(forward)))
    else:
        for each in run_gradients(model, images, classes, batch_size):
            forward = each.forward
            parts.append((each.attribution(), *_of_layers(forward)))
            numbers += each.classes.tolist()
    maps, attention, distances, outputs = map(np.concatenate, zip(*parts, strict=True))
    return Looks(
        method,
        maps,
        tuple(numbers),
        attention,
        distances,
        outputs if answers is None else answers,
        forward.reader,
        forward.patch_pixels,
        forward.image_size,
        forward.covered(size),
        forward.largest_value,
    )


def _of_layers(forward: Any) -> tuple[np.ndarray, ...]:
    outputs = as_numpy(keras.tree.flatten(forward.outputs)[0])
    return forward.readout_attention(), forward.distances(), outputs
