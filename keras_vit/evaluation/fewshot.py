"""Few-shot linear evaluation by regularized least squares (big_vision's `fewshot_lsr`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_vit._base.errors import check_non_negative, check_positive
from keras_vit.evaluation.checks import check_features
from keras_vit.tasks.classification import most_probable

SHOTS = (1, 5, 10, 25)
SEEDS = (0, 1, 2)
L2 = 2.0**10
BIAS = 100.0  # the constant feature: so large that its weight is hardly penalized


@dataclass(frozen=True)
class FewShot:
    """Accuracies with `shots` examples per class, one per seed.

    Attributes:
        shots: Training examples per class, or all where a class has fewer.
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
    train_x: Any, train_y: Any, test_x: Any, test_y: Any, shots: int, l2: float = L2, seed: int = 0
) -> float:
    """Accuracy, from 0 to 1, of a linear classifier trained on `shots` examples per class.

    As big_vision's `fewshot_lsr`: the sampled features are standardized by their own mean and
    standard deviation, a constant feature of 100 is appended, and one weight vector per class is
    fitted to targets -1 and +1 by least squares with an L2 penalty. All in float64: the released
    code's float32 agrees at the default penalty, and loses up to a percent at 2^0 and below, where
    the problem is ill-conditioned.

    Args:
        train_x: As for `knn_accuracy`, like the next three.
        shots: Examples to sample per class; all where a class has fewer.
        l2: L2 penalty.
        seed: Seed of the sampling.

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
    train_x, train_y = check_features(train_x, train_y, "train")
    test_x, test_y = check_features(test_x, test_y, "test", train_x.shape[1])
    check_shots(train_y, shots)
    check_non_negative(seed=seed)
    if not 0 < l2 < np.inf:
        raise ValueError(f"l2={l2!r} must be greater than 0 and finite, such as 1024.")
    num_classes = int(max(train_y.max(), test_y.max())) + 1
    sample = sample_shots(train_y, shots, num_classes, seed)
    scores = least_squares_scores(train_x[sample], train_y[sample], test_x, num_classes, l2)
    return float((most_probable(scores) == test_y).mean())


def fewshot_table(
    train_x: Any,
    train_y: Any,
    test_x: Any,
    test_y: Any,
    shots: Sequence[int] = SHOTS,
    l2: float = L2,
    seeds: Sequence[int] = SEEDS,
) -> tuple[FewShot, ...]:
    """`fewshot_accuracy` for several numbers of shots and several seeds.

    Args:
        train_x: As for `fewshot_accuracy`, like the next three and `l2`.
        shots: Numbers of examples per class, one row each.
        seeds: Seeds of the sampling; the released code uses 0, 1 and 2.

    Returns:
        One `FewShot` per number of shots, with `mean` and `spread` over the seeds.

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
    examples = (train_x, train_y, test_x, test_y)
    return tuple(
        FewShot(count, tuple(fewshot_accuracy(*examples, count, l2, seed) for seed in seeds))
        for count in shots
    )


def check_shots(labels: np.ndarray, shots: int) -> None:
    """Raises a ValueError for more `shots` than any class of the training labels has."""
    check_positive(shots=shots)
    most = int(np.bincount(labels).max())
    if shots > most:
        raise ValueError(
            f"shots={shots} is more than any class has: the largest has {most} training "
            f"examples. Give at most {most}."
        )


def sample_shots(labels: np.ndarray, shots: int, num_classes: int, seed: int) -> np.ndarray:
    """Return indices of `shots` examples of each class, in the released code's order for a seed."""
    random = np.random.default_rng(seed)
    shuffled = [random.permutation(np.flatnonzero(labels == c)) for c in range(num_classes)]
    return np.concatenate([indices[:shots] for indices in shuffled])


def least_squares_scores(
    x: np.ndarray, y: np.ndarray, test_x: np.ndarray, num_classes: int, l2: float
) -> np.ndarray:
    """Scores `(tests, classes)` of the regularized least squares fitted to `x` and `y`."""
    from sklearn.linear_model import Ridge

    mean, std = x.mean(axis=0), x.std(axis=0) + 1e-5

    def standardize(features: np.ndarray) -> np.ndarray:
        return np.pad((features - mean) / std, ((0, 0), (0, 1)), constant_values=BIAS)

    targets = np.full((len(y), num_classes), -1.0)
    targets[np.arange(len(y)), y] = 1.0
    return Ridge(l2, fit_intercept=False).fit(standardize(x), targets).predict(standardize(test_x))
