"""Few-shot linear evaluation by regularised least squares (big_vision's `fewshot_lsr`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_vit.errors import check_positive
from keras_vit.evaluation.arrays import check_seed, checked

SHOTS = (1, 5, 10, 25)
SEEDS = (0, 1, 2)
L2 = 2.0**10
BIAS = 100.0  # the constant feature: so large that its weight is hardly penalised


@dataclass(frozen=True)
class FewShot:
    """Accuracies from `shots` examples per class, one for each seed.

    Attributes:
        shots: Training examples of every class, or all where a class has fewer.
        accuracies: From 0 to 1, in the order of the seeds.
    """

    shots: int
    accuracies: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean accuracy over the seeds."""
        return float(np.mean(self.accuracies))

    @property
    def spread(self) -> float:
        """Standard deviation of the accuracy over the seeds; 0 for a single one."""
        return float(np.std(self.accuracies, ddof=1)) if len(self.accuracies) > 1 else 0.0


def fewshot_accuracy(
    train_x: Any,
    train_y: Any,
    test_x: Any,
    test_y: Any,
    shots: int,
    l2: float = L2,
    seed: int = 0,
) -> float:
    """Accuracy of a linear classifier from `shots` examples per class (big_vision's `fewshot_lsr`).

    The chosen features are whitened by their own mean and standard deviation, a constant feature
    of 100 is appended, and one weight vector per class is fitted to targets -1 and +1 by least
    squares with an L2 penalty. All in float64: the released code's float32 agrees at the default
    penalty, and loses up to a percent at 2^0 and below, where the problem is ill-conditioned.

    Args:
        train_x: Features `(n, dimension)`, as of `keras_vit.evaluation.features`.
        train_y: Integer labels `(n,)`.
        test_x: Features `(m, dimension)`.
        test_y: Integer labels `(m,)`.
        shots: Examples to draw per class; all where a class has fewer.
        l2: L2 penalty.
        seed: Which examples are drawn.

    Returns:
        The accuracy, from 0 to 1.

    Raises:
        ValueError: Shapes do not match, values are not finite, an argument is out of range, or no
            class has `shots` examples.

    Example:

    >>> import numpy as np
    >>> from keras_vit.evaluation import fewshot_accuracy
    >>> x, y = np.eye(3)[[0, 1, 2] * 4] * [[5.0]], np.array([0, 1, 2] * 4)
    >>> fewshot_accuracy(x, y, x, y, shots=2)
    1.0
    """
    train_x, train_y = checked(train_x, train_y, "train")
    test_x, test_y = checked(test_x, test_y, "test", train_x.shape[1])
    check_shots(train_y, shots)
    check_seed(seed)
    if not 0 < l2 < np.inf:
        raise ValueError(f"l2={l2!r} must be greater than 0 and finite, such as 1024.")
    num_classes = int(max(train_y.max(), test_y.max())) + 1
    chosen = draw(train_y, shots, num_classes, seed)
    scores = least_squares_scores(train_x[chosen], train_y[chosen], test_x, num_classes, l2)
    return float((scores.argmax(axis=1) == test_y).mean())


def fewshot_table(
    train_x: Any,
    train_y: Any,
    test_x: Any,
    test_y: Any,
    shots: Sequence[int] = SHOTS,
    l2: float = L2,
    seeds: Sequence[int] = SEEDS,
) -> tuple[FewShot, ...]:
    """`fewshot_accuracy` for several numbers of shots and several draws of examples.

    Args:
        train_x: As for `fewshot_accuracy`.
        train_y: As for `fewshot_accuracy`.
        test_x: As for `fewshot_accuracy`.
        test_y: As for `fewshot_accuracy`.
        shots: Numbers of examples per class, one row each.
        l2: L2 penalty.
        seeds: One draw of examples each; the released code takes 0, 1 and 2.

    Returns:
        One `FewShot` for each of `shots`, with `mean` and `spread` over the seeds.

    Raises:
        ValueError: As `fewshot_accuracy`; or `shots` or `seeds` is empty.

    Example:

    >>> import numpy as np
    >>> from keras_vit.evaluation import fewshot_table
    >>> x, y = np.eye(3)[[0, 1, 2] * 4], np.array([0, 1, 2] * 4)
    >>> [(row.shots, row.mean, row.spread) for row in fewshot_table(x, y, x, y, shots=[1, 2])]
    [(1, 1.0, 0.0), (2, 1.0, 0.0)]
    """
    for name, values in (("shots", shots), ("seeds", seeds)):
        if not len(values):
            raise ValueError(f"{name}={values!r} is empty. Give at least one integer, such as [1].")
    return tuple(
        FewShot(
            count,
            tuple(
                fewshot_accuracy(train_x, train_y, test_x, test_y, count, l2, seed)
                for seed in seeds
            ),
        )
        for count in shots
    )


def check_shots(labels: np.ndarray, shots: int, option: str = "") -> None:
    """Raises a ValueError for `shots` that no class of the training labels has.

    The message begins with `option`, where the number comes from the command line.
    """
    check_positive(shots=shots)
    most = int(np.bincount(labels).max())
    if shots > most:
        raise ValueError(
            f"{option}shots={shots} is more than any class has: the largest has {most} training "
            f"examples. Give at most {most}."
        )


def draw(labels: np.ndarray, shots: int, num_classes: int, seed: int) -> np.ndarray:
    """Indices of the first `shots` of every class in the released code's order for this seed."""
    random = np.random.default_rng(seed)
    shuffled = [random.permutation(np.flatnonzero(labels == c)) for c in range(num_classes)]
    return np.concatenate([indices[:shots] for indices in shuffled])


def least_squares_scores(
    x: np.ndarray, y: np.ndarray, test_x: np.ndarray, num_classes: int, l2: float
) -> np.ndarray:
    """Scores `(tests, classes)` of the regularised least squares fitted to `x` and `y`."""
    mean, deviation = x.mean(axis=0), x.std(axis=0) + 1e-5

    def whiten(features: np.ndarray) -> np.ndarray:
        constant = np.full((len(features), 1), BIAS)
        return np.concatenate([(features - mean) / deviation, constant], axis=1)

    x, targets = whiten(x), 2.0 * np.eye(num_classes)[y] - 1.0
    # (x'x + l2)^-1 x'y = x' (xx' + l2)^-1 y: the smaller of the two matrices is decomposed.
    if len(x) >= x.shape[1]:
        eigenvalues, q = np.linalg.eigh(x.T @ x)
        left, right = q, q.T @ (x.T @ targets)
    else:
        eigenvalues, q = np.linalg.eigh(x @ x.T)
        left, right = x.T @ q, q.T @ targets
    return whiten(test_x) @ ((left / (eigenvalues + l2)) @ right)
