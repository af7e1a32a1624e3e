"""Classes of which some have many times the examples of others: weights, priors, sampling rates."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit._base.errors import printable

BALANCES = ("none", "weights", "logits", "sampling")
BETA = 0.999  # of iNaturalist and ImageNet-LT in Cui et al. 2019, table 4
MUCH = 10  # times as many examples of the largest class as of the smallest
SHOWN = 3  # classes at either end of a printed list


def class_weights(counts: Any, beta: float = BETA) -> np.ndarray:
    """Return the weight of each class's examples, by the effective number of its examples.

    `1 / E(n)` with `E(n) = (1 - beta**n) / (1 - beta)`: Cui et al. 2019, "Class-Balanced Loss Based
    on Effective Number of Samples", equation 2. Their mean over the examples is 1, so that the
    learning rate of a recipe keeps its meaning; in the paper, it is 1 over the classes.

    Args:
        counts: Examples of each class, `(classes,)`. A class without any counts as one with one.
        beta: In [0, 1]. With 0 all weights are 1, with 1 they are scikit-learn's "balanced".

    Raises:
        ValueError: `beta` is out of range, or there are no examples.

    Example:

    >>> from keras_vit.tasks.balance import class_weights
    >>> class_weights([90, 10], beta=1.0).round(3).tolist()
    [0.556, 5.0]
    """
    n = _checked(counts)
    weights = 1 / effective_number(np.maximum(n, 1), beta)
    return weights * n.sum() / (weights @ n)


def effective_number(counts: Any, beta: float = BETA) -> np.ndarray:
    """`(1 - beta**n) / (1 - beta)`: how many of n examples differ, if each new one may repeat."""
    if not 0 <= beta <= 1:
        raise ValueError(f"beta={beta!r} must lie in [0, 1], such as {BETA}.")
    n = np.asarray(counts, np.float64)
    return n if beta == 1 else (1 - beta**n) / (1 - beta)


def positive_weights(positive: Any, examples: int, beta: float = BETA) -> np.ndarray:
    """Return the loss weight of a label's presence against its absence, by effective numbers.

    With `beta=1` absent by present examples, as for torch's `pos_weight`. 1 for a label that all or
    no examples have.

    Example:

    >>> from keras_vit.tasks.balance import positive_weights
    >>> positive_weights([10, 0], 100, beta=1.0).tolist()
    [9.0, 1.0]
    """
    n = _checked(positive)
    present, absent = effective_number(n, beta), effective_number(examples - n, beta)
    mixed = (n > 0) & (n < examples)
    return np.where(mixed, absent / np.where(mixed, present, 1), 1.0)


def log_priors(counts: Any) -> np.ndarray:
    """Return the logarithm of each class's share, which logit adjustment adds to the logits.

    Menon et al. 2021, "Long-Tail Learning via Logit Adjustment", equation 10 with tau = 1. A class
    without examples gets 0, as if all were of it: it is not preferred to those that are known.

    Example:

    >>> from keras_vit.tasks.balance import log_priors
    >>> log_priors([75, 25, 0]).round(3).tolist()
    [-0.288, -1.386, 0.0]
    """
    n = _checked(counts)
    return np.log(np.where(n > 0, n, n.sum()) / n.sum())


def sampling_rates(counts: Any) -> np.ndarray:
    """Return how often an image of each class is drawn, so that every class is drawn as often.

    Their mean over the examples is 1: a pass has as many images as without. Class-balanced sampling
    of Kang et al. 2020, "Decoupling Representation and Classifier", equation 1 with q = 0.
    """
    return class_weights(counts, beta=1.0)


def imbalance(counts: Any) -> float:
    """Return the size of the largest class divided by that of the smallest one with examples.

    Example:

    >>> from keras_vit.tasks.balance import imbalance
    >>> imbalance([200, 50, 4, 0])
    50.0
    """
    n = np.asarray(counts, np.float64)
    n = n[n > 0]
    return float(n.max() / n.min()) if n.size else 1.0


def differs_much(counts: Any) -> bool:
    """Return whether classes differ so much that an accuracy is mostly that of the largest ones.

    Args:
        counts: Examples of each class, `(classes,)`.

    Returns:
        True from `MUCH` times as many examples of the largest class as of the smallest on.
    """
    return imbalance(counts) >= MUCH


def describe_counts(names: Sequence[str], counts: Any) -> str:
    """Return the largest and the smallest classes and their ratio, in one line."""
    n = np.asarray(counts)
    order = [i for i in np.argsort(-n, kind="stable").tolist() if n[i]]

    def listing(indices: Sequence[int]) -> str:
        return ", ".join(f"{printable(names[i])} {n[i]:,.0f}" for i in indices)

    ends = order[:SHOWN], order[max(SHOWN, len(order) - SHOWN) :]
    between = ", ..., " if len(order) > 2 * SHOWN else ", "
    return (
        f"{between.join(listing(end) for end in ends if end)}: "
        f"{imbalance(n):,.0f} times as many of the largest as of the smallest"
    )


def _checked(counts: Any) -> np.ndarray:
    n = np.asarray(counts, np.float64)
    if n.ndim != 1 or not n.size or not np.isfinite(n).all() or n.min() < 0 or not n.sum():
        raise ValueError(f"counts={counts!r} must be the examples of each class, some above 0.")
    return n
