"""What a loss expects of labels and outputs, and what kind of task it is for."""

import functools
from dataclasses import dataclass, replace
from typing import Any

import keras

from keras_vit.tasks import TASKS


@dataclass(frozen=True)
class Crossentropy:
    """What a loss expects of labels and predictions.

    Attributes:
        name: The name used in messages.
        kind: The class in `keras.losses`, or the one to propose instead.
        of_logits: The class of the same loss that takes `from_logits=True`.
        labels: `"integer"`, `"one-hot"`, `"binary"` (a 0 or 1 per class), or `"any"`.
        from_logits: Whether it takes logits; otherwise probabilities.
        ignore_class: The label that it ignores, or None.
    """

    name: str
    kind: str = "SparseCategoricalCrossentropy"
    labels: str = "any"
    from_logits: bool = False
    ignore_class: int | None = None

    @property
    def of_logits(self) -> str:
        return "CategoricalCrossentropy" if self.kind == "KLDivergence" else self.kind


# Keras's classes and their functions, with the labels that they take.
_LABELS = {
    ("SparseCategoricalCrossentropy", "sparse_categorical_crossentropy"): "integer",
    ("CategoricalCrossentropy", "categorical_crossentropy"): "one-hot",
    ("CategoricalFocalCrossentropy", "categorical_focal_crossentropy"): "one-hot",
    ("BinaryCrossentropy", "binary_crossentropy"): "binary",
    ("BinaryFocalCrossentropy", "binary_focal_crossentropy"): "binary",
    # A crossentropy but for a constant, which the entropy of the labels is.
    ("KLDivergence", "kl_divergence"): "one-hot",
}
# Those of numbers.
_OF_NUMBERS = (
    ("MeanSquaredError", "mean_squared_error"),
    ("MeanAbsoluteError", "mean_absolute_error"),
    ("MeanAbsolutePercentageError", "mean_absolute_percentage_error"),
    ("MeanSquaredLogarithmicError", "mean_squared_logarithmic_error"),
    ("Huber", "huber"),
    ("LogCosh", "log_cosh"),
)
CROSSENTROPY = ("crossentropy", "ce")  # Keras chooses among three, by the shape of the labels


def crossentropy_of(loss: Any) -> Crossentropy | None:
    """Return what a loss, as `compile` takes it, expects; None unless it is a single crossentropy.

    Raises:
        ValueError: Keras does not have a loss of that name.

    >>> crossentropy_of(["sparse_categorical_crossentropy"]).labels
    'integer'
    >>> crossentropy_of("mse") is None
    True
    """
    losses = [one for one in keras.tree.flatten(loss) if one is not None]
    if len(losses) != 1:
        return None
    loss, options = losses[0], {}
    if isinstance(loss, functools.partial):
        loss, options = loss.func, loss.keywords
    class_name = getattr(loss, "__name__", type(loss).__name__)
    name = f"loss={loss!r}" if isinstance(loss, str) else f"The loss {class_name}"
    if loss in CROSSENTROPY:
        return Crossentropy(name)
    loss = keras.losses.get(loss)
    row = next((row for row in _LABELS if _is_loss(loss, *row)), None)
    if row is not None and isinstance(loss, keras.losses.Loss):
        # That of Keras's class: a subclass may leave options out of its own.
        options = getattr(keras.losses, row[0]).get_config(loss)
    from_logits = bool(getattr(loss, "from_logits", options.get("from_logits")))
    ignored = getattr(loss, "ignore_class", options.get("ignore_class"))
    known = Crossentropy(name, from_logits=from_logits, ignore_class=ignored)
    if (labels := getattr(loss, "takes_labels", None)) is not None:  # a loss of this package
        return replace(known, labels=labels)
    return None if row is None else replace(known, kind=row[0], labels=_LABELS[row])


def _is_loss(loss: Any, kind: str, function: str) -> bool:
    """Return whether a loss is Keras's class of that name, a subclass of it, or the function."""
    return isinstance(loss, getattr(keras.losses, kind)) or loss is getattr(keras.losses, function)


def kind_of_loss(loss: Any) -> str | None:
    """Return the kind of task, in `keras_vit.tasks`, that a loss is for; None where it may be any.

    >>> kind_of_loss("bce"), kind_of_loss("mae"), kind_of_loss("poisson")
    ('multilabel', 'regression', None)
    """
    losses = [one for one in keras.tree.flatten(loss) if one is not None]
    if len(losses) != 1:
        return None
    one = losses[0].func if isinstance(losses[0], functools.partial) else losses[0]
    if one in CROSSENTROPY:
        return "classification"
    try:
        one, known = keras.losses.get(one), crossentropy_of(loss)
    except ValueError:  # Keras's own error names it, in `fit`
        return None
    for kind, task in TASKS.items():
        if isinstance(one, tuple(task.losses.values())):
            return kind
    if known is not None:
        return "multilabel" if known.labels == "binary" else "classification"
    return "regression" if any(_is_loss(one, *row) for row in _OF_NUMBERS) else None
