"""k-NN accuracy on features, with DINO's weighted votes; nothing is trained."""

from typing import Any

import numpy as np

from keras_vit.errors import check_positive
from keras_vit.evaluation.arrays import checked


def knn_accuracy(
    train_x: Any,
    train_y: Any,
    test_x: Any,
    test_y: Any,
    k: int = 20,
    temperature: float = 0.07,
) -> float:
    """Share of test features whose `k` nearest training features vote for their label.

    Near is a large cosine similarity s, and a neighbour's vote weighs exp(s / temperature):
    weighted nearest neighbours with the constants of DINO (Caron et al. 2021, appendix;
    after Wu et al. 2018), by scikit-learn's `KNeighborsClassifier`.

    Args:
        train_x: Features `(n, dimension)`, as of `keras_vit.evaluation.features`.
        train_y: Integer labels `(n,)`.
        test_x: Features `(m, dimension)`.
        test_y: Integer labels `(m,)`.
        k: Number of nearest neighbours that vote, at most n.
        temperature: Small: the nearest decide; `float("inf")`: all votes weigh the same.

    Returns:
        The accuracy, from 0 to 1.

    Raises:
        ValueError: Shapes do not match, values are not finite, or an argument is out of range.

    Example:

    >>> from keras_vit.evaluation import knn_accuracy
    >>> knn_accuracy([[1, 0], [2, 0.1], [0, 1]], [0, 0, 1], [[5, 1], [0.2, 3]], [0, 1], k=1)
    1.0
    """
    from sklearn.neighbors import KNeighborsClassifier

    train_x, train_y = checked(train_x, train_y, "train")
    test_x, test_y = checked(test_x, test_y, "test", train_x.shape[1])
    check_neighbours(len(train_x), k)
    if not temperature > 0:
        raise ValueError(f"temperature={temperature!r} must be greater than 0, such as 0.07.")

    def votes(distances: np.ndarray) -> np.ndarray:
        # scikit-learn's distance is 1 - s; and exp((s - s_max) / temperature) cannot underflow to
        # nothing but zeros, whatever the temperature.
        return np.exp((distances.min(axis=1, keepdims=True) - distances) / temperature)

    classifier = KNeighborsClassifier(k, weights=votes, metric="cosine", algorithm="brute")
    return float(classifier.fit(train_x, train_y).score(test_x, test_y))


def check_neighbours(examples: int, k: int, option: str = "") -> None:
    """Raises a ValueError for a `k` that is not from 1 to the number of training examples.

    The message begins with `option`, where the number comes from the command line.
    """
    check_positive(k=k)
    if k > examples:
        raise ValueError(
            f"{option}k={k} neighbours do not exist among {examples} training examples. Give at "
            f"most {examples}."
        )
