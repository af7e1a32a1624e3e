"""The losses and metrics of the tasks: of raw outputs, without an activation."""

from collections.abc import Sequence
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_vit._base.errors import check_above_zero, check_rate


def one_hot_labels(y_true: Any, y_pred: Any) -> Any:
    """Return labels as rows with `y_pred`'s shape: integers become one-hot, rows do not change.

    Args:
        y_true: Integers `(batch,)` or `(batch, 1)` of any dtype, or rows `(batch, classes)`.
        y_pred: Scores `(batch, classes)`.

    >>> np.asarray(one_hot_labels(np.array([2, 0]), np.zeros((2, 3)))).tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    classes = y_pred.shape[-1]
    if len(y_true.shape) == len(y_pred.shape):
        if y_true.shape[-1] == classes:
            return y_true
        if y_true.shape[-1] is None:  # rows, or an error
            return ops.reshape(y_true, ops.shape(y_pred))
        if y_true.shape[-1] == 1:
            y_true = ops.squeeze(y_true, axis=-1)
    return ops.one_hot(ops.cast(y_true, "int32"), classes, dtype="float32")


@keras.saving.register_keras_serializable(package="keras_vit")
class SoftmaxCrossentropy(keras.losses.CategoricalCrossentropy):
    """`keras.losses.CategoricalCrossentropy` of logits that takes integer labels, too.

    Labels are integers `(batch,)`, or rows `(batch, classes)` in [0, 1], one-hot or mixed.

    Args:
        label_smoothing: Fraction of a label that is spread over all classes, in [0, 1).

    Raises:
        ValueError: `label_smoothing` is out of range.

    >>> loss = SoftmaxCrossentropy(label_smoothing=0.1)
    >>> logits = np.array([[1.0, 0.0], [0.0, 3.0]])
    >>> float(loss(np.array([0, 1]), logits)) == float(loss(np.eye(2), logits))
    True
    """

    takes_labels = "any"  # integers, or rows

    def __init__(
        self, label_smoothing: float = 0.0, name: str = "softmax_crossentropy", **kwargs: Any
    ) -> None:
        check_rate(label_smoothing=label_smoothing)
        options = {"from_logits": True, "name": name, **kwargs}
        super().__init__(label_smoothing=label_smoothing, **options)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return super().call(one_hot_labels(y_true, y_pred), y_pred)


@keras.saving.register_keras_serializable(package="keras_vit")
class SigmoidCrossentropy(keras.losses.Loss):
    """One yes-or-no question per class: summed over the classes, averaged over the batch.

    Keras's `BinaryCrossentropy` averages over the classes, a thousand times less for ImageNet.
    Source: big_vision's `sigmoid_xent`, the loss of its pre-training.

    Takes integer labels `(batch,)` or labels `(batch, classes)` in [0, 1], one-hot, mixed or
    several of them 1, and logits `(batch, classes)`; computes in float32.

    Args:
        label_smoothing: As for `SoftmaxCrossentropy`, also for the other arguments.

    Raises:
        ValueError: `label_smoothing` is out of range.

    >>> round(float(SigmoidCrossentropy()(np.eye(2), np.zeros((2, 2)))), 4)  # two times log 2
    1.3863
    """

    takes_labels = "any"  # integers, or rows

    def __init__(
        self, label_smoothing: float = 0.0, name: str = "sigmoid_crossentropy", **kwargs: Any
    ) -> None:
        super().__init__(name=name, **kwargs)
        check_rate(label_smoothing=label_smoothing)
        self.label_smoothing = label_smoothing
        self.from_logits = True

    def call(self, y_true: Any, y_pred: Any) -> Any:
        logits = ops.cast(y_pred, "float32")
        labels = ops.cast(one_hot_labels(y_true, y_pred), "float32")
        if self.label_smoothing:
            labels = labels * (1 - self.label_smoothing) + self.label_smoothing / labels.shape[-1]
        # -labels log p - (1 - labels) log(1 - p), with log p = -softplus(-logits).
        each = labels * ops.softplus(-logits) + (1 - labels) * ops.softplus(logits)
        return ops.sum(each, axis=-1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable(package="keras_vit")
class BalancedLoss(keras.losses.Loss):
    """A loss of classes that makes up for rare ones: by weights, or by priors added to the logits.

    Weights multiply the loss of an example, those of a mixed label by their mean (Cui et al. 2019).
    Log priors are added to the logits in the loss alone (Menon et al. 2021, equation 10): a model
    trained so returns logits as if all classes were equally frequent. `keras_vit.tasks.balance` has
    both formulas.

    Args:
        loss: `SoftmaxCrossentropy` or `SigmoidCrossentropy`.
        weights: Per class; none for 1.
        log_priors: Per class; none for 0.

    >>> loss = BalancedLoss(SoftmaxCrossentropy(), log_priors=np.log([0.75, 0.25]))
    >>> round(float(np.exp(-loss(np.array([1]), np.zeros((1, 2))))), 4)
    0.25
    """

    takes_labels = "any"  # integers, or rows

    def __init__(
        self,
        loss: keras.losses.Loss,
        weights: Sequence[float] = (),
        log_priors: Sequence[float] = (),
        name: str = "balanced",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.loss = loss
        self.weights, self.log_priors = tuple(map(float, weights)), tuple(map(float, log_priors))
        self.from_logits = True

    def call(self, y_true: Any, y_pred: Any) -> Any:
        logits = ops.cast(y_pred, "float32")
        if self.log_priors:
            logits = logits + ops.convert_to_tensor(np.array(self.log_priors, np.float32))
        losses = self.loss.call(y_true, logits)
        if self.weights:
            labels = ops.cast(one_hot_labels(y_true, y_pred), "float32")
            losses = losses * ops.sum(labels * np.array(self.weights, np.float32), axis=-1)
        return losses

    def get_config(self) -> dict[str, Any]:
        loss = keras.saving.serialize_keras_object(self.loss)
        arguments = {"weights": list(self.weights), "log_priors": list(self.log_priors)}
        return {**super().get_config(), "loss": loss, **arguments}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        loss = keras.saving.deserialize_keras_object(config["loss"])
        return cls(**{**config, "loss": loss})


@keras.saving.register_keras_serializable(package="keras_vit")
class LabelAccuracy(keras.metrics.CategoricalAccuracy):
    """`keras.metrics.CategoricalAccuracy` that takes integer labels, too.

    >>> accuracy = LabelAccuracy()
    >>> accuracy.update_state(np.array([0, 1]), np.eye(2))
    >>> accuracy.update_state(np.eye(2), np.array([[1.0, 0.0], [1.0, 0.0]]))
    >>> float(accuracy.result())
    0.75
    """

    def __init__(self, name: str = "accuracy", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
        return super().update_state(one_hot_labels(y_true, y_pred), y_pred, sample_weight)


@keras.saving.register_keras_serializable(package="keras_vit")
class BinaryCrossentropy(keras.losses.BinaryCrossentropy):
    """`keras.losses.BinaryCrossentropy` of logits: one yes-or-no question per label, their mean.

    Args:
        label_smoothing: How far labels move towards one half, in [0, 1).
        positive_weights: Per label, how much a present one counts, as torch's `pos_weight`; none
            for 1.
        **kwargs: Arguments of every Keras loss.

    Raises:
        ValueError: `label_smoothing` is out of range.

    Example:

    >>> import numpy as np
    >>> from keras_vit.tasks.losses import BinaryCrossentropy
    >>> round(float(BinaryCrossentropy()(np.eye(2), np.zeros((2, 2)))), 4)  # log 2
    0.6931
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        positive_weights: Sequence[float] = (),
        name: str = "binary_crossentropy",
        **kwargs: Any,
    ) -> None:
        check_rate(label_smoothing=label_smoothing)
        options = {"from_logits": True, "name": name, **kwargs}
        super().__init__(label_smoothing=label_smoothing, **options)
        self.positive_weights = tuple(map(float, positive_weights))

    def call(self, y_true: Any, y_pred: Any) -> Any:
        if not self.positive_weights:
            return super().call(y_true, y_pred)
        logits, labels = ops.cast(y_pred, "float32"), ops.cast(y_true, "float32")
        labels = labels * (1 - self.label_smoothing) + 0.5 * self.label_smoothing
        weighted = labels * np.array(self.positive_weights, np.float32)
        each = weighted * ops.softplus(-logits) + (1 - labels) * ops.softplus(logits)
        return ops.mean(each, axis=-1)

    def get_config(self) -> dict[str, Any]:
        weights = {"positive_weights": list(self.positive_weights)} if self.positive_weights else {}
        return {**super().get_config(), **weights}


@keras.saving.register_keras_serializable(package="keras_vit")
class AsymmetricLoss(keras.losses.Loss):
    """Binary cross-entropy in which easy labels count less, absent ones least: ASL.

    Summed over the labels, averaged over the batch. Ben-Baruch, Ridnik et al. 2021, "Asymmetric
    Loss For Multi-Label Classification", equations 3 to 6; soft labels as in timm's
    `AsymmetricLossMultiLabel`. Takes labels `(batch, labels)` in [0, 1] and logits.

    Args:
        gamma_negative: Focusing of absent labels: a probability `p` counts `p ** gamma_negative`.
        gamma_positive: Focusing of present labels: it counts `(1 - p) ** gamma_positive`.
        clip: Absent labels below this probability do not count, in [0, 1).
        label_smoothing: How far labels move towards one half, in [0, 1).

    Raises:
        ValueError: A rate is out of range, or a gamma is negative.

    >>> loss = AsymmetricLoss()
    >>> easy, hard = np.array([[-6.0]]), np.array([[6.0]])
    >>> float(loss(np.zeros((1, 1)), easy)), round(float(loss(np.zeros((1, 1)), hard)), 3)
    (0.0, 2.376)
    """

    def __init__(
        self,
        gamma_negative: float = 4.0,
        gamma_positive: float = 1.0,
        clip: float = 0.05,
        label_smoothing: float = 0.0,
        name: str = "asymmetric",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        check_rate(clip=clip, label_smoothing=label_smoothing)
        for argument, gamma in (
            ("gamma_negative", gamma_negative),
            ("gamma_positive", gamma_positive),
        ):
            if not 0 <= gamma < float("inf"):
                raise ValueError(f"{argument}={gamma!r} must be a finite number of at least 0.")
        self.gamma_negative, self.gamma_positive = gamma_negative, gamma_positive
        self.clip, self.label_smoothing = clip, label_smoothing
        self.from_logits = True

    def call(self, y_true: Any, y_pred: Any) -> Any:
        logits, labels = ops.cast(y_pred, "float32"), ops.cast(y_true, "float32")
        labels = labels * (1 - self.label_smoothing) + 0.5 * self.label_smoothing
        present = ops.sigmoid(logits)
        absent = ops.minimum(1 - present + self.clip, 1.0)
        # Softplus keeps the gradient of logits whose probability is 0 or 1 in float32.
        log_absent = ops.log(absent) if self.clip else -ops.softplus(logits)
        each = labels * ops.softplus(-logits) - (1 - labels) * log_absent
        right = labels * present + (1 - labels) * absent  # the probability of the true answer
        gamma = self.gamma_positive * labels + self.gamma_negative * (1 - labels)
        # Above 0: the gradient of 0 ** gamma is not a number where gamma is below 1.
        return ops.sum(each * ops.power(ops.maximum(1 - right, 1e-8), gamma), axis=-1)

    def get_config(self) -> dict[str, Any]:
        names = ("gamma_negative", "gamma_positive", "clip", "label_smoothing")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@keras.saving.register_keras_serializable(package="keras_vit")
class ZLPRLoss(keras.losses.Loss):
    """Ranks present labels above 0 and absent ones below: zero-bounded log-sum-exp, ZLPR.

    `log(1 + sum exp(-s_present)) + log(1 + sum exp(s_absent))`: Su et al. 2022, "ZLPR: A Novel Loss
    for Multi-label Classification", equation 7. A batch is averaged. It needs no weights where few
    of many labels are present; its outputs are ordered well, and their sigmoid is not calibrated.
    Takes labels `(batch, labels)` in [0, 1] and logits.

    >>> round(float(ZLPRLoss()(np.array([[1.0, 0.0]]), np.zeros((1, 2)))), 4)  # two times log 2
    1.3863
    """

    def __init__(self, name: str = "zlpr", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.from_logits = True

    def call(self, y_true: Any, y_pred: Any) -> Any:
        logits, labels = ops.cast(y_pred, "float32"), ops.cast(y_true, "float32")
        zero = ops.zeros_like(logits[..., :1])

        def bounded(scores: Any, weights: Any) -> Any:
            # A finite number for log 0: the gradient at minus infinity is not a number.
            log_weights = ops.where(weights > 0, ops.log(ops.maximum(weights, 1e-30)), -1e30)
            terms = ops.concatenate([zero, scores + log_weights], axis=-1)
            return ops.logsumexp(terms, axis=-1)

        return bounded(-logits, labels) + bounded(logits, 1 - labels)


@keras.saving.register_keras_serializable(package="keras_vit")
class QuantileLoss(keras.losses.Loss):
    """The pinball loss, whose minimum is a quantile of the numbers; the median by default.

    `max(q e, (q - 1) e)` with the error `e = target - output`, averaged: Koenker and Bassett 1978.

    Args:
        quantile: `q`, in (0, 1): the part of the targets that lie below the output.

    Raises:
        ValueError: `quantile` is out of range.

    >>> round(float(QuantileLoss(0.9)(np.array([[2.0]]), np.array([[0.0]]))), 4)
    1.8
    """

    def __init__(self, quantile: float = 0.5, name: str = "quantile", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        if not 0 < quantile < 1:
            raise ValueError(f"quantile={quantile!r} must lie in (0, 1), such as 0.5 or 0.9.")
        self.quantile = quantile

    def call(self, y_true: Any, y_pred: Any) -> Any:
        error = ops.cast(y_true, "float32") - ops.cast(y_pred, "float32")
        return ops.mean(ops.maximum(self.quantile * error, (self.quantile - 1) * error), axis=-1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "quantile": self.quantile}


@keras.saving.register_keras_serializable(package="keras_vit")
class CumulativeCrossentropy(keras.losses.Loss):
    """For each grade but the last, whether the true one is above it: binary cross-entropy, summed.

    Li and Lin 2006, "Ordinal Regression by Extended Binary Classification". Takes integer grades
    `(batch,)` or `(batch, 1)` and logits `(batch, grades - 1)`; a batch is averaged.

    >>> round(float(CumulativeCrossentropy()(np.array([2]), np.array([[9.0, 0.0]]))), 3)
    0.693
    """

    takes_labels = "integer"

    def __init__(self, name: str = "cumulative_crossentropy", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.from_logits = True

    def call(self, y_true: Any, y_pred: Any) -> Any:
        logits = ops.cast(y_pred, "float32")
        below = ops.cast(ops.arange(logits.shape[-1]), "float32")
        above = ops.cast(ops.reshape(y_true, (-1, 1)), "float32") > below
        return ops.sum(ops.softplus(ops.where(above, -logits, logits)), axis=-1)


@keras.saving.register_keras_serializable(package="keras_vit")
class UnitError(keras.metrics.Mean):
    """The mean absolute error of one number, in its unit.

    Args:
        scale: What one of the scaled targets is in the unit.
        column: Which of the numbers.

    >>> error = UnitError(scale=10.0)
    >>> error.update_state(np.array([[1.0]]), np.array([[0.5]]))
    >>> float(error.result())
    5.0
    """

    _direction = "down"  # Keras looks it up where it is monitored

    def __init__(
        self, scale: float = 1.0, column: int = 0, name: str = "mae", dtype: Any = None
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        check_above_zero(scale=scale)
        self.scale, self.column = scale, column

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        y_pred = ops.convert_to_tensor(y_pred, "float32")
        y_true = ops.reshape(ops.convert_to_tensor(y_true, "float32"), ops.shape(y_pred))
        error = ops.abs(y_true - y_pred)[:, self.column] * self.scale
        return super().update_state(error, sample_weight)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "scale": self.scale, "column": self.column}


@keras.saving.register_keras_serializable(package="keras_vit")
class GradeError(keras.metrics.Mean):
    """The mean absolute error of grades: by how many grades a prediction is wrong.

    >>> error = GradeError()
    >>> error.update_state(np.array([2, 0]), np.array([[5.0, 4.0], [3.0, -1.0]]))
    >>> float(error.result())
    0.5
    """

    _direction = "down"  # Keras looks it up where it is monitored

    def __init__(self, name: str = "grade_mae", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        predicted = ops.sum(ops.cast(ops.convert_to_tensor(y_pred) > 0, "float32"), axis=-1)
        grades = ops.reshape(ops.convert_to_tensor(y_true, "float32"), (-1,))
        return super().update_state(ops.abs(grades - predicted), sample_weight)
