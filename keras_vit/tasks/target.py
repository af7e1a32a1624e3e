"""`Target`: how labels are checked, split and balanced, and what a model learns from them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import keras
import numpy as np

from keras_vit._base.errors import check_arguments, check_choice
from keras_vit.tasks.balance import BALANCES
from keras_vit.tasks.pixel_losses import IGNORED
from keras_vit.tasks.splitting import held_out

# Of targets in rows: how many, the means and the standard deviations of the columns; or nothing.
Seen = tuple[float, ...]


class Target:
    """What a model learns from: the half of a `Task` that labels meet.

    `check_targets` turns what a user has into what batches hold; every other method takes what
    the user has.
    """

    kind: ClassVar[str]
    # Whether a target is a map with a value for every pixel, which moves as its image does: in a
    # file beside the image, read with it.
    per_pixel: ClassVar[bool] = False
    # Of such a map: the shape of a pixel's value, `()` of one number; the type of its numbers; and
    # those of a pixel of which nothing is known.
    pixel_shape: ClassVar[tuple[int, ...]] = ()
    pixel_dtype: ClassVar[str] = "int32"
    unknown_pixel: ClassVar[float] = IGNORED
    # Whether a pixel's first two numbers are a direction in the image, to the right and down, such
    # as that of a surface's normal: it turns, and is mirrored, as the image is.
    turns: ClassVar[bool] = False
    mixes: ClassVar[bool] = True  # whether a mixture of two targets is a target
    is_one_name: ClassVar[bool] = False  # whether it is one of several names
    are_numbers: ClassVar[bool] = False  # whether they are, of any scale
    # Whether a mirror image usually has the same target: an angle or a side does not.
    keeps_in_mirror: ClassVar[bool] = False
    # Whether a part of the image, enlarged, has the same target: a distance looks smaller there.
    keeps_in_crop: ClassVar[bool] = True
    # Whether a new head begins at the mean target rather than at zero, as the released code's do.
    begins_at_mean: ClassVar[bool] = True
    # The losses by name, the default first.
    losses: ClassVar[Mapping[str, type[keras.losses.Loss]]]
    # What a student learns from a teacher's outputs, by kind: functions of both.
    distillation: ClassVar[Mapping[str, Callable[..., Any]]]
    # The ways of `keras_vit.tasks.balance` that suit the task, with the losses for which they do.
    balances: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    unbalanced: ClassVar[str] = "they are numbers, of which none is rare"  # why not all of them

    def check_targets(self, targets: Any) -> np.ndarray:
        """Return targets as the loss takes them.

        Args:
            targets: One per example: numbers or names, as the subclass describes.

        Raises:
            ValueError: A target is not accepted; the message has its row, its value and what is
                accepted.
        """
        raise NotImplementedError

    def to_targets(self, checked: Any) -> np.ndarray:
        """Return what `check_targets` takes for what batches hold; numbers in units."""
        return np.asarray(checked)

    def summary(self, targets: Any) -> np.ndarray:
        """Return what is kept of targets once they are scored: all, but for maps."""
        return np.asarray(targets)

    def split(self, targets: Any, fraction: float, seed: int = 0, groups: Any = None) -> np.ndarray:
        """Return which examples to hold out, stratified by the targets; the seed decides.

        Args:
            targets: As `check_targets` takes them.
            fraction: The part to hold out, in (0, 1).
            seed: Another one gives another split.
            groups: One per example, of any type that can be compared, such as patients: the
                examples of a group are never on both sides.

        Returns:
            `(examples,)` of bool, True for those to hold out.

        Raises:
            ValueError: The fraction is out of range, targets are not accepted, or one side would
                be empty.
        """
        return held_out(self._strata(targets, fraction), fraction, seed, groups)

    def _strata(self, targets: Any, fraction: float) -> np.ndarray:
        """Return what `held_out` keeps in proportion, `(examples,)` or `(examples, strata)`."""
        raise NotImplementedError

    def fitted(self, targets: Any) -> Self:
        """Return the task with what it takes from the training targets: `Regression`'s scale."""
        return self

    def not_scaled(self, seen: Seen) -> str:
        """Say what is wrong with targets that seem not to have been scaled; "" where they do."""
        return ""

    def initial_bias(self, targets: Any) -> np.ndarray | None:
        """Return the bias `(outputs,)` of a zero head that predicts the mean; None for zeros."""
        return None

    def loss(self, name: str | None = None, **options: Any) -> keras.losses.Loss:
        """Return a loss of this task's outputs and its `check_targets`.

        Args:
            name: A key of `losses`; None for the first.
            **options: Arguments of its class, such as `label_smoothing`.

        Raises:
            ValueError: The name or an option is unknown.
        """
        known = self.losses
        cls = known[check_choice(name or next(iter(known)), f"{self.kind} loss", known)]
        check_arguments(cls, options)
        return cls(**options)

    def metrics(self) -> list[keras.metrics.Metric]:
        """Return new metrics of this task's outputs, for `compile`."""
        raise NotImplementedError

    def counts(self, targets: Any) -> np.ndarray | None:
        """Return how many examples have each name, `(size,)`; None where targets are numbers."""
        return None

    def check_balance(self, balance: str, loss: str) -> None:
        """Raise a ValueError where a way of `keras_vit.tasks.balance` does not suit a loss."""
        check_choice(balance, "balance", BALANCES)
        if balance != "none" and balance not in self.balances:
            fitting = "".join(f"give {way!r}, or " for way in self.balances)
            raise ValueError(
                f"balance={balance!r} is not for {self.kind} targets: {self.unbalanced}; {fitting}"
                "leave it out."
            )
        if balance != "none" and loss not in self.balances[balance]:
            losses = " or ".join(self.balances[balance])
            raise ValueError(
                f"balance={balance!r} changes the loss {losses}, and this one is {loss}: give "
                "another of the two, or leave one out."
            )

    def balanced(self, loss: keras.losses.Loss, balance: str, targets: Any) -> keras.losses.Loss:
        """Return a loss that makes up for names that are rare among the training targets."""
        return loss


def as_array(targets: Any) -> np.ndarray:
    """Return targets as an array with an example per row.

    Raises:
        ValueError: There is no example, or rows have different lengths.
    """
    try:
        array = np.asarray(keras.ops.convert_to_numpy(targets) if _is_tensor(targets) else targets)
    except ValueError as error:  # NumPy's own is about sequences and shapes
        raise ValueError("Targets are rows of different lengths: give one value each.") from error
    if array.ndim == 0 or not len(array):
        raise ValueError(f"Targets {array.shape} do not have an example per row, or are empty.")
    return array


def _is_tensor(targets: Any) -> bool:
    return not isinstance(targets, np.ndarray | Sequence) and keras.ops.is_tensor(targets)
