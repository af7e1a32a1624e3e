"""Test-time augmentation: answers averaged over several views of an image."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_vit._base.errors import check_choice, printable, warn_at_caller
from keras_vit.data.eval_transform import EvalTransform
from keras_vit.models.answers import answers_in_graph, outputs_in_graph
from keras_vit.models.shared_model import SharedModel

ZOOM = 0.875  # the side of a corner's view, as a part of the image's


class View(NamedTuple):
    """What of a prepared image is seen, as parts of its height and width; and whether mirrored."""

    top: float = 0.0
    left: float = 0.0
    side: float = 1.0
    mirrored: bool = False


_REST = 1 - ZOOM
_CROPS = (View(), *(View(top, left, ZOOM) for top in (0.0, _REST) for left in (0.0, _REST)))

# "flip": the image and its mirror image; "crops": those of the image and of its four corners.
VIEWS: dict[str, tuple[View, ...]] = {
    "one": (View(),),
    "flip": (View(), View(mirrored=True)),
    "crops": tuple(view._replace(mirrored=m) for view in _CROPS for m in (False, True)),
}


def eval_transform_of(model: keras.Model) -> EvalTransform:
    """Return a model's `eval_transform`; the default for a Keras model that does not have one."""
    return EvalTransform.of(getattr(model, "eval_transform", None))


def mean_of_views(model: keras.Model, views: str | None = None) -> Any:
    """Build `ImageModel.with_views` of any Keras classifier.

    Args:
        model: A classifier.
        views: A key of `VIEWS`; None for that of the model's `eval_transform`.

    Returns:
        A `keras.Model`; the model itself for one view.
    """
    name = views or eval_transform_of(model).views or "one"
    chosen = VIEWS[check_choice(name, "views", VIEWS)]
    if len(chosen) == 1:
        return model
    if reason := getattr(getattr(model, "task", None), "changes_in_mirror", ""):
        warn_at_caller(
            f'views="{name}" averages over mirror images, which show {printable(reason)}: '
            'give views="one".'
        )
    shape = model.inputs[0].shape
    first = getattr(model, "data_format", "channels_last") == "channels_first"
    rows, columns = (2, 3) if first else (1, 2)
    if None in (shape[rows], shape[columns]):
        raise ValueError(
            f'views="{name}" averages over parts of images of one size, and {model.name} takes '
            "images of any size: give model.with_input_shape((224, 224, 3)), or "
            'views="one".'
        )
    is_map = len(model.output_shape) == 4  # whose pixels are moved back
    if is_map and any(view.side < 1 for view in chosen):
        raise ValueError(
            f'views="{name}" averages over parts of images, and {model.name} returns maps of all '
            'pixels: give views="flip", or "one".'
        )
    images = keras.Input(shape[1:], name="images")
    answers = []
    for view in chosen:
        outputs = answers_in_graph(model, model(_seen(images, view, rows, columns)))
        if is_map and view.mirrored:
            outputs = ops.flip(outputs, axis=2)
            if getattr(model.task, "turns", False):  # what points to the left there, to the right
                outputs = ops.concatenate([-outputs[..., :1], outputs[..., 1:]], axis=-1)
        answers.append(outputs)
    mean = outputs_in_graph(model, ops.mean(ops.stack(answers), axis=0))
    averaged = SharedModel.of(model, images, mean, model.name)
    # What evaluation and export ask of a model.
    averaged.classifier_activation, averaged.task = model.classifier_activation, model.task
    return averaged


def _seen(images: Any, view: View, rows: int, columns: int) -> Any:
    """Return the part of the images that a view shows, at the size of the whole."""
    height, width = images.shape[rows], images.shape[columns]
    if view.side < 1:
        part = [slice(None)] * 4
        for axis, length, begin in ((rows, height, view.top), (columns, width, view.left)):
            size = round(length * view.side)
            start = round(length * begin)
            part[axis] = slice(start, start + size)
        data_format = "channels_first" if rows == 2 else "channels_last"
        images = ops.image.resize(images[tuple(part)], (height, width), data_format=data_format)
    return ops.flip(images, axis=columns) if view.mirrored else images
