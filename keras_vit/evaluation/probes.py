"""What frozen features know of new classes: k-NN and a linear probe, by scikit-learn."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_vit._base.errors import check_choice, check_non_negative, check_positive
from keras_vit.evaluation.checks import check_features
from keras_vit.tasks.balance import BALANCES, class_weights, log_priors, sampling_rates
from keras_vit.tasks.classification import most_probable

# Candidates for the inverse strength of the L2 penalty, scikit-learn's C.
STRENGTHS = tuple(float(c) for c in np.logspace(-4, 1, 6))
ABSENT = -1e4  # bias of a class without training examples


def knn_accuracy(
    train_x: Any, train_y: Any, test_x: Any, test_y: Any, k: int = 20, temperature: float = 0.07
) -> float:
    """Accuracy, from 0 to 1, of a weighted k-NN classifier on features; nothing is trained.

    Features are compared by cosine similarity s, and each of the `k` nearest neighbors votes with
    the weight exp(s / temperature). The constants are those of DINO (Caron et al. 2021, appendix;
    after Wu et al. 2018).

    Args:
        train_x: Features `(n, dimension)`, as from `keras_vit.evaluation.features`.
        train_y: Integer labels `(n,)`.
        test_x: Features `(m, dimension)`.
        test_y: Integer labels `(m,)`.
        k: Number of nearest neighbors that vote, at most n.
        temperature: A small value lets the nearest ones decide; with `float("inf")` all votes
            weigh the same.

    Raises:
        ValueError: Shapes do not match, values are not finite, or an argument is out of range.

    Example:

    >>> from keras_vit.evaluation import knn_accuracy
    >>> knn_accuracy([[1, 0], [2, 0.1], [0, 1]], [0, 0, 1], [[5, 1], [0.2, 3]], [0, 1], k=1)
    1.0
    """
    from sklearn.neighbors import KNeighborsClassifier

    train_x, train_y = check_features(train_x, train_y, "train")
    test_x, test_y = check_features(test_x, test_y, "test", train_x.shape[1])
    check_neighbors(len(train_x), k)
    if not temperature > 0:
        raise ValueError(f"temperature={temperature!r} must be greater than 0, such as 0.07.")

    def vote_weights(distances: np.ndarray) -> np.ndarray:
        # scikit-learn's distance is 1 - s; and exp((s - s_max) / temperature) does not underflow
        # for the nearest neighbor, whatever the temperature.
        return np.exp((distances.min(axis=1, keepdims=True) - distances) / temperature)

    classifier = KNeighborsClassifier(k, weights=vote_weights, metric="cosine", algorithm="brute")
    return float(classifier.fit(train_x, train_y).score(test_x, test_y))


def check_neighbors(examples: int, k: int) -> None:
    """Raises a ValueError for a `k` that is not from 1 to the number of training examples."""
    check_positive(k=k)
    if k > examples:
        raise ValueError(
            f"k={k} is more than the {examples} training examples. Give at most {examples}."
        )


@dataclass(frozen=True)
class LinearProbe:
    """A linear classifier on features, and its accuracy.

    Attributes:
        accuracy: On the test features, from 0 to 1.
        strength: The inverse penalty that cross-validation chose, scikit-learn's C.
        kernel: `(dimension, classes)`, for the features as they are: the standardization is folded
            in.
        bias: `(classes,)`. `head.set_weights([kernel, bias])` makes the probe a model's head.
    """

    accuracy: float
    strength: float
    kernel: np.ndarray
    bias: np.ndarray


def linear_probe(
    train_x: Any,
    train_y: Any,
    test_x: Any,
    test_y: Any,
    folds: int = 5,
    seed: int = 0,
    balance: str = "none",
    num_classes: int = 0,
) -> LinearProbe:
    """Multinomial logistic regression on standardized features.

    The L2 penalty is the one with the smallest cross-validated log-loss on the training features,
    or, of one example per class, scikit-learn's; the test features are used once, at the end.

    Args:
        train_x: As for `knn_accuracy`, also for `test_x` and `test_y`.
        train_y: Integer labels `(n,)`, of two classes or more.
        folds: Number of folds of the cross-validation; fewer where a class has fewer examples.
        seed: Seed of the folds.
        balance: What makes up for classes with few examples, of `keras_vit.tasks.balance.BALANCES`:
            `"weights"` of the examples; `"logits"`, the bias less the logarithm of the classes'
            parts, which is the minimum of the adjusted loss; `"sampling"`, the weights that drawing
            every class as often has in the mean; or `"none"`.
        num_classes: Columns of the kernel, at least; 0 for as many as the labels need.

    Raises:
        ValueError: Shapes do not match, values are not finite, classes are too small, or an
            argument is out of range or unknown.

    Example:

    >>> import numpy as np
    >>> from keras_vit.evaluation import linear_probe
    >>> x = np.random.default_rng(0).normal(size=(60, 3))
    >>> y = (x[:, 0] > 0).astype(int)
    >>> linear_probe(x[:40], y[:40], x[40:], y[40:]).accuracy > 0.9
    True
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    train_x, train_y = check_features(train_x, train_y, "train")
    test_x, test_y = check_features(test_x, test_y, "test", train_x.shape[1])
    if not isinstance(folds, int) or folds < 2:
        raise ValueError(f"folds={folds!r} must be an integer of at least 2.")
    check_non_negative(seed=seed)
    check_choice(balance, "balance", BALANCES)
    counts = np.bincount(train_y)
    ways = {"weights": class_weights, "sampling": sampling_rates}
    weights = ways[balance](counts) if balance in ways else np.ones(len(counts))

    def score(classifier: Any, x: np.ndarray, y: np.ndarray) -> float:
        probabilities = classifier.predict_proba(x)
        return -log_loss(y, probabilities, sample_weight=weights[y], labels=classifier.classes_)

    folds = min(folds, smallest_class(train_y))
    of_classes = dict(enumerate(weights)) if balance in ways else None
    regression = LogisticRegression(max_iter=2000, class_weight=of_classes)
    classifier = make_pipeline(StandardScaler(), regression)
    best = {"logisticregression__C": 1.0}  # scikit-learn's own
    if folds > 1:
        # A class of one example is in one fold alone: it is trained on, and does not choose.
        several = np.bincount(train_y)[train_y] > 1
        search = GridSearchCV(
            classifier,
            {"logisticregression__C": STRENGTHS},
            scoring=score,
            cv=StratifiedKFold(folds, shuffle=True, random_state=seed),
            refit=False,
        )
        best = search.fit(train_x[several], train_y[several]).best_params_
    classifier.set_params(**best).fit(train_x, train_y)
    scaler, regression = (step for _, step in classifier.steps)
    kernel, bias = as_head(regression, max(num_classes, 1 + int(max(train_y.max(), test_y.max()))))
    kernel /= scaler.scale_[:, None]
    bias -= scaler.mean_ @ kernel
    if balance == "logits":
        bias[: len(counts)] -= log_priors(counts)
    return LinearProbe(
        accuracy=float((most_probable(test_x @ kernel + bias) == test_y).mean()),
        strength=best["logisticregression__C"],
        kernel=kernel.astype(np.float32),
        bias=bias.astype(np.float32),
    )


def smallest_class(labels: np.ndarray) -> int:
    """Return the number of examples of the smallest class that has two or more.

    Where fewer than two classes have two, none can be left out of a fit to choose by: 1.

    Raises:
        ValueError: There is one class.
    """
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2:
        raise ValueError(
            f"A linear probe needs training examples of two classes; all {len(labels)} are of "
            f"class {classes[0]}."
        )
    several = counts[counts > 1]
    return int(several.min()) if len(several) > 1 else 1


def as_head(regression: Any, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return one column per class; a class without training examples is never predicted."""
    coefficients, intercepts = regression.coef_, regression.intercept_
    if len(coefficients) == 1:  # of two classes scikit-learn keeps the difference only
        coefficients = np.concatenate([np.zeros_like(coefficients), coefficients])
        intercepts = np.concatenate([[0.0], intercepts])
    kernel = np.zeros((coefficients.shape[1], num_classes))
    bias = np.full(num_classes, ABSENT)
    kernel[:, regression.classes_] = coefficients.T
    bias[regression.classes_] = intercepts
    return kernel, bias
