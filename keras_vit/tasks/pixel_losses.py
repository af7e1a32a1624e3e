"""The loss and the metric of a class for every pixel, of which some do not count."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit._base.errors import check_finite

IGNORED = 255  # the label of a pixel whose class is not known


@keras.saving.register_keras_serializable(package="keras_vit")
class PixelCrossentropy(keras.losses.Loss):
    """Softmax cross-entropy, averaged over the pixels of an image that have a label.

    Labels are integers `(batch, height, width)`, 255 for pixels that do not count; outputs are
    logits `(batch, height, width, classes)`. An image without a label has a loss of 0.

    Args:
        dice: How much the Dice loss is added, at least 0: 1 minus twice the overlap of
            probabilities and labels over the sum of both, the mean over the classes that an image
            has (Milletari et al. 2016, "V-Net", section 3; 1 is added above and below).
        lovasz: How much the Lovász-softmax loss is added, at least 0: the Lovász extension of 1 -
            IoU, the mean over the classes that an image has (Berman et al. 2018, equations 8, 9 and
            11, per image). It sorts all pixels for each class.
        **kwargs: Arguments of every Keras loss.

    Raises:
        ValueError: `dice` or `lovasz` is below 0 or not finite.

    Example:

    >>> import numpy as np
    >>> from keras_vit.tasks.pixel_losses import PixelCrossentropy
    >>> labels = np.array([[[0, 1], [255, 255]]])
    >>> round(float(PixelCrossentropy()(labels, np.zeros((1, 2, 2, 3)))), 4)  # log 3
    1.0986
    """

    takes_labels = "integer"
    from_logits = True
    ignore_class = IGNORED

    def __init__(
        self,
        dice: float = 0.0,
        lovasz: float = 0.0,
        name: str = "pixel_crossentropy",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        for argument, weight in (("dice", dice), ("lovasz", lovasz)):
            check_finite(**{argument: weight})
            if weight < 0:
                raise ValueError(
                    f"{argument}={weight!r} must be at least 0, such as 1.0; 0 leaves it out."
                )
        self.dice, self.lovasz = dice, lovasz

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the loss of each image, `(batch,)`."""
        logits = ops.cast(y_pred, "float32")
        labels, counts = labels_and_weights(y_true)
        truth = ops.one_hot(labels, logits.shape[-1], dtype="float32") * counts[..., None]
        chosen = ops.sum(truth * ops.log_softmax(logits, axis=-1), axis=(1, 2, 3))
        loss = -chosen / ops.maximum(ops.sum(counts, axis=(1, 2)), 1.0)
        if not (self.dice or self.lovasz):
            return loss
        seen = ops.softmax(logits, axis=-1) * counts[..., None]
        has = ops.cast(ops.any(truth > 0, axis=(1, 2)), "float32")  # (batch, classes)
        number = ops.maximum(ops.sum(has, axis=1), 1.0)
        if self.dice:
            loss = loss + self.dice * ops.sum(has * _dice(truth, seen), axis=1) / number
        if self.lovasz:
            loss = loss + self.lovasz * ops.sum(has * _lovasz(truth, seen), axis=1) / number
        return loss

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "dice": self.dice, "lovasz": self.lovasz}


@keras.saving.register_keras_serializable(package="keras_vit")
class CrossentropyDice(PixelCrossentropy):
    """`PixelCrossentropy` plus the Dice loss, which counts small classes as much as large ones.

    Example:

    >>> import numpy as np
    >>> from keras_vit.tasks.pixel_losses import CrossentropyDice
    >>> labels = np.array([[[0, 1], [255, 255]]])
    >>> round(float(CrossentropyDice()(labels, np.zeros((1, 2, 2, 2)))), 4)  # log 2 + 1 / 3
    1.0265
    """

    def __init__(self, dice: float = 1.0, name: str = "crossentropy_dice", **kwargs: Any) -> None:
        super().__init__(dice, name=name, **kwargs)


@keras.saving.register_keras_serializable(package="keras_vit")
class CrossentropyLovasz(PixelCrossentropy):
    """`PixelCrossentropy` plus the Lovász-softmax loss, which is 1 - IoU of answers that are sure.

    Example:

    >>> import numpy as np
    >>> from keras_vit.tasks.pixel_losses import CrossentropyLovasz
    >>> labels = np.array([[[0, 1], [255, 255]]])
    >>> round(float(CrossentropyLovasz()(labels, np.zeros((1, 2, 2, 2)))), 4)  # log 2 + 1 / 2
    1.1931
    """

    def __init__(
        self, lovasz: float = 1.0, name: str = "crossentropy_lovasz", **kwargs: Any
    ) -> None:
        super().__init__(lovasz=lovasz, name=name, **kwargs)


@keras.saving.register_keras_serializable(package="keras_vit")
class MeanIoU(keras.metrics.Metric):
    """Intersection over union of each class over all pixels, the mean of the classes that occur.

    Labels and outputs are those of `PixelCrossentropy`; an image may have a weight.

    Args:
        size: How many classes there are.
        name: Of the metric.
        dtype: Of its state.

    Example:

    >>> import numpy as np
    >>> from keras_vit.tasks.pixel_losses import MeanIoU
    >>> metric = MeanIoU(2)
    >>> metric.update_state(np.array([[[0, 0, 1, 255]]]), np.eye(2)[[[[0, 1, 1, 0]]]])
    >>> float(metric.result())
    0.5
    """

    _direction = "up"  # Keras looks it up where it is monitored

    def __init__(self, size: int, name: str = "mean_iou", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.size = size
        # Right, present and answered pixels of each class.
        self.counts = self.add_weight(shape=(3, size), initializer="zeros", name="counts")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Add a batch."""
        labels, weights = labels_and_weights(ops.convert_to_tensor(y_true))
        if sample_weight is not None:
            of_image = ops.reshape(ops.cast(sample_weight, "float32"), (-1, 1, 1))
            weights = weights * of_image
        truth = ops.one_hot(labels, self.size, dtype="float32") * weights[..., None]
        answers = ops.one_hot(ops.argmax(y_pred, axis=-1), self.size, dtype="float32")
        answers = answers * weights[..., None]
        right = truth * ops.cast(answers > 0, "float32")
        sums = [ops.sum(x, axis=(0, 1, 2)) for x in (right, truth, answers)]
        self.counts.assign_add(ops.cast(ops.stack(sums), self.counts.dtype))

    def result(self) -> Any:
        """Return the mean, 0 before the first pixel."""
        right, present, answered = self.counts[0], self.counts[1], self.counts[2]
        union = present + answered - right
        occurs = ops.cast(union > 0, union.dtype)
        shares = right / ops.maximum(union, keras.config.epsilon())
        return ops.sum(shares * occurs) / ops.maximum(ops.sum(occurs), 1)

    def get_config(self) -> dict[str, Any]:
        return {"size": self.size, "name": self.name, "dtype": self.dtype}


def _dice(truth: Any, seen: Any) -> Any:
    """Return the Dice loss of each class, `(batch, classes)`, of maps that are 0 where ignored."""
    overlap, present, answered = (ops.sum(x, axis=(1, 2)) for x in (truth * seen, truth, seen))
    return 1 - (2 * overlap + 1) / (present + answered + 1)


def _lovasz(truth: Any, seen: Any) -> Any:
    """Return the Lovász-softmax loss of each class, `(batch, classes)`, of the same maps.

    A pixel that is ignored has an error of 0, and is sorted behind all that count: shapes need not
    depend on how many there are.
    """
    number, classes = truth.shape[1] * truth.shape[2], truth.shape[3]

    def rows(maps: Any) -> Any:
        return ops.transpose(ops.reshape(maps, (-1, number, classes)), (0, 2, 1))

    errors, present = rows(ops.abs(truth - seen)), rows(truth)
    order = ops.argsort(-ops.stop_gradient(errors), axis=-1)
    errors, present = (ops.take_along_axis(x, order, axis=-1) for x in (errors, present))
    total = ops.sum(present, axis=-1, keepdims=True)
    # Of the pixels before and this one as mistakes: what is left of the class, and the union.
    left = total - ops.cumsum(present, axis=-1)
    union = total + ops.cumsum(1 - present, axis=-1)
    # By how much 1 - IoU grows, without the difference of two quotients that are nearly equal.
    grows = ops.where(present > 0, 1 / union, left / (union * ops.maximum(union - 1, 1.0)))
    return ops.sum(grows * errors, axis=-1)


def labels_and_weights(labels: Any) -> tuple[Any, Any]:
    """Return int32 labels, 0 where a pixel does not count, and 1 or 0 for whether it counts."""
    labels = ops.cast(labels, "int32")
    counts = ops.cast(ops.not_equal(labels, IGNORED), "float32")
    return labels * ops.cast(counts, "int32"), counts


def pixel_counts(labels: np.ndarray, size: int) -> np.ndarray:
    """Return how many pixels of each image have each class, int64 `(images, size)`.

    Args:
        labels: `(images, ...)`, integers from 0 to `size` - 1; others are not counted.
        size: How many classes there are.

    >>> pixel_counts(np.array([[[0, 1], [1, 255]]]), 3).tolist()
    [[1, 2, 0]]
    """
    rows = labels.reshape(len(labels), -1).astype(np.int64)
    known = (rows >= 0) & (rows < size)
    places = np.arange(len(rows))[:, None] * size + rows
    return np.bincount(places[known], minlength=len(rows) * size).reshape(-1, size)
