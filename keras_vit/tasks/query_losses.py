"""The loss of queries that are matched with masks (DETR; Mask2Former, section 3; EoMT)."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit._base.errors import check_positive
from keras_vit.ops import assigned_rows, without_gradient
from keras_vit.tasks.pixel_losses import PixelCrossentropy

Draw = Callable[[Any], Any]
NO_OBJECT_WEIGHT = 0.1
MOST_POINTS = 12544  # of a mask
OVERSAMPLED, UNCERTAIN = 3, 0.75  # points to choose from; the part that is chosen by uncertainty


@keras.saving.register_keras_serializable(package="keras_vit")
class QueryLoss(PixelCrossentropy):
    """Matches queries with the classes of an image, and sums the losses of masks and of classes.

    Each class that an image has is a mask, and is assigned the query of least cost: -2 times the
    probability of the class, 5 times the cross-entropy and 5 times the Dice loss of the mask, over
    random points that all share. The loss is 5 times the cross-entropy and 5 times the Dice loss of
    the matched masks, over points of which three quarters are the most uncertain of three times as
    many, and twice the cross-entropy of the classes of all queries, with a weight of 0.1 where a
    query is not matched. The numbers are those of transformers' `EomtLoss`, in which pixels of 255
    are outside of each mask, and an image without any class does not have objects.

    A model with an EoMT head that is compiled with it takes the sum over its predictions as the
    loss of a training step. Of maps of logits, as in validation, it is `PixelCrossentropy`.

    Args:
        points: How many points of a mask are compared; None for one per pixel of the predicted
            masks, at most 12,544, as many as in the paper.
        steps: Steps of the whole training, over which queries are freed from the masks of their
            attention (see `models.eomt_training.masked_share`); None to train without these masks,
            on the last prediction alone.
        **kwargs: Arguments of `PixelCrossentropy`.

    Raises:
        ValueError: `points` or `steps` is not a positive integer.

    Example:

    >>> import numpy as np
    >>> from keras_vit.tasks.query_losses import QueryLoss
    >>> labels = np.zeros((2, 8, 8), "int32")
    >>> masks, classes = np.zeros((2, 4, 4, 5), "float32"), np.zeros((2, 5, 4), "float32")
    >>> round(float(QueryLoss(points=64).of_queries(labels, masks, classes)))  # of random points
    8
    """

    calls_host = True  # within a step, which XLA does not on TensorFlow

    def __init__(
        self,
        points: int | None = None,
        steps: int | None = None,
        name: str = "queries",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        check_positive(**{} if points is None else {"points": points})
        check_positive(**{} if steps is None else {"steps": steps})
        self.points, self.steps = points, steps

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "points": self.points, "steps": self.steps}

    def of_queries(
        self, labels: Any, mask_logits: Any, class_logits: Any, draw: Draw = keras.random.uniform
    ) -> Any:
        """Return the loss of a prediction of a batch, a scalar.

        Args:
            labels: Integers `(batch, height, width)`; 255 for pixels that are of no class.
            mask_logits: `(batch, rows, columns, queries)`.
            class_logits: `(batch, queries, classes + 1)`.
            draw: From a shape to uniform random numbers in [0, 1), float32.
        """
        masks, logits = (ops.cast(x, "float32") for x in (mask_logits, class_logits))
        labels = ops.cast(labels, "int32")
        masks = ops.transpose(masks, (0, 3, 1, 2))
        classes = ops.arange(logits.shape[-1] - 1)
        is_present = ops.any(labels[:, None] == classes[:, None, None], axis=(2, 3))
        rows = assigned_rows(without_gradient(self._costs, labels, masks, logits, draw), is_present)
        matched = ops.cast(rows >= 0, "float32")
        number = ops.maximum(ops.sum(ops.cast(is_present, "float32")), 1.0)
        of_masks = self._mask_losses(labels, masks, rows, draw) * matched
        return 5 * ops.sum(of_masks) / number + 2 * _class_loss(logits, rows, matched)

    def _number(self, masks: Any) -> int:
        """Return how many points of masks `(batch, masks, height, width)` are compared."""
        return self.points or min(masks.shape[2] * masks.shape[3], MOST_POINTS)

    def _costs(self, labels: Any, masks: Any, logits: Any, draw: Draw) -> Any:
        """Return `(batch, queries, classes)`."""
        batch, queries, number = ops.shape(masks)[0], masks.shape[1], self._number(masks)
        points = draw((batch, number, 2))
        shape = (batch, queries, number, 2)
        x = sampled(masks, ops.broadcast_to(points[:, None], shape))
        truth = _sampled_truth(labels, points[:, None], logits.shape[-1] - 1)
        targets = ops.transpose(truth, (0, 2, 1))  # (batch, points, classes)
        ones, zeros = ops.softplus(-x), ops.softplus(x)
        entropy = (ops.matmul(ones, targets) + ops.matmul(zeros, 1 - targets)) / number
        inside = ops.sigmoid(x)
        overlap = 2 * ops.matmul(inside, targets)
        total = ops.sum(inside, axis=-1)[:, :, None] + ops.sum(targets, axis=1)[:, None]
        dice = 1 - (overlap + 1) / (total + 1)
        return 5 * entropy + 5 * dice - 2 * ops.softmax(logits, axis=-1)[..., :-1]

    def _mask_losses(self, labels: Any, masks: Any, rows: Any, draw: Draw) -> Any:
        """Return cross-entropy and Dice loss of each matched mask, `(batch, classes)`."""
        batch, classes = ops.shape(rows)[0], rows.shape[1]
        first = ops.arange(batch)[:, None] * masks.shape[1]
        every = ops.reshape(masks, (-1, *masks.shape[2:]))
        chosen = ops.take(every, first + ops.maximum(rows, 0), axis=0)
        points = without_gradient(self._uncertain_points, chosen, batch, classes, draw)
        x = sampled(chosen, points)
        truth = _sampled_truth(labels, points, classes)
        entropy = ops.mean(ops.softplus(x) - x * truth, axis=-1)
        inside = ops.sigmoid(x)
        overlap = 2 * ops.sum(inside * truth, axis=-1)
        total = ops.sum(inside, axis=-1) + ops.sum(truth, axis=-1)
        return entropy + 1 - (overlap + 1) / (total + 1)

    def _uncertain_points(self, masks: Any, batch: Any, classes: int, draw: Draw) -> Any:
        """Return `(batch, classes, points, 2)`: the most uncertain ones, and others at random."""
        number = self._number(masks)
        uncertain = int(UNCERTAIN * number)
        many = draw((batch, classes, OVERSAMPLED * number, 2))
        others = draw((batch, classes, number - uncertain, 2))
        places = ops.top_k(-ops.abs(sampled(masks, many)), uncertain)[1]
        places = ops.broadcast_to(places[..., None], (batch, classes, uncertain, 2))
        return ops.concatenate([ops.take_along_axis(many, places, axis=2), others], axis=2)


def query_loss(loss: Any, head: str) -> QueryLoss | None:
    """Return the loss of queries among what `compile` took as `loss`; None for others.

    Raises:
        ValueError: The head does not have queries, or there are other losses beside it.
    """
    losses = keras.tree.flatten(loss)
    matching = next((one for one in losses if isinstance(one, QueryLoss)), None)
    if matching is not None and (head != "eomt" or len(losses) > 1):
        raise ValueError(
            f"QueryLoss, one of {len(losses)} losses for a head of the kind {head!r}, matches the "
            'queries of an EoMT head: give it alone to a model with map_head="eomt", or give '
            "keras_vit.tasks.pixel_losses.PixelCrossentropy()."
        )
    return matching


def sampled(maps: Any, points: Any) -> Any:
    """Return the bilinear values of maps at points, 0 outside, as torch's `grid_sample`.

    Args:
        maps: `(batch, maps, height, width)`.
        points: `(batch, maps, points, 2)`, x and y from 0 to 1 over the map.

    Returns:
        `(batch, maps, points)`.
    """
    height, width = maps.shape[2:]
    first = ops.reshape(ops.arange(ops.shape(maps)[0] * maps.shape[1]), (-1, maps.shape[1], 1))
    flat, first = ops.reshape(maps, (-1,)), first * (height * width)
    # In one row of all numbers: `take_along_axis` is forty operations of a graph of TensorFlow.
    corners = _corners(points, height, width)
    return sum(weight * ops.take(flat, first + place, axis=0) for place, weight in corners)


def _sampled_truth(labels: Any, points: Any, classes: int) -> Any:
    """Return how much of each class is at points `(batch, 1 or classes, points, 2)`.

    What `sampled` returns of the masks of all classes, `(batch, classes, points)`.
    """
    height, width = labels.shape[1:]
    which = ops.arange(classes)[:, None]
    first = ops.arange(ops.shape(labels)[0])[:, None, None] * (height * width)
    flat, truth = ops.reshape(labels, (-1,)), ops.zeros(())
    for place, weight in _corners(points, height, width):
        at_corner = ops.take(flat, first + place, axis=0)
        truth = truth + weight * ops.cast(ops.equal(at_corner, which), "float32")
    return truth


def _corners(points: Any, height: int, width: int) -> list[tuple[Any, Any]]:
    """Return the four pixels around each point: their places in a row of all, and weights."""
    x, y = points[..., 0] * width - 0.5, points[..., 1] * height - 0.5
    corners = []
    for left in (ops.floor(x), ops.floor(x) + 1):
        for top in (ops.floor(y), ops.floor(y) + 1):
            weight = (1 - ops.abs(x - left)) * (1 - ops.abs(y - top))
            is_inside = (left >= 0) & (left < width) & (top >= 0) & (top < height)
            place = ops.clip(top, 0, height - 1) * width + ops.clip(left, 0, width - 1)
            corners.append((ops.cast(place, "int32"), weight * ops.cast(is_inside, "float32")))
    return corners


def _class_loss(logits: Any, rows: Any, matched: Any) -> Any:
    """Return the cross-entropy of the classes of all queries, the last being no object."""
    rows = ops.one_hot(ops.maximum(rows, 0), logits.shape[1], dtype="float32")
    truth = ops.transpose(rows * matched[..., None], (0, 2, 1))
    empty = 1 - ops.sum(truth, axis=-1, keepdims=True)
    truth = ops.concatenate([truth, NO_OBJECT_WEIGHT * empty], axis=-1)
    return -ops.sum(truth * ops.log_softmax(logits, axis=-1)) / ops.sum(truth)
