"""Which labels are probably wrong: what held-out probes and nearest neighbors say of each.

features, labels ──┬── a linear probe per fold, of the rows outside of it ──┐
                   └── votes of the nearest neighbors, itself not among them ┴── mean
mean of both ──┬── margin of the label          how good it is, in [0, 1]
               └── confident learning           which ones are most surely wrong
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_vit._base.errors import (
    check_choice,
    check_non_negative,
    check_positive,
    counted,
    warn_at_caller,
)
from keras_vit._base.version import install_command
from keras_vit.curation.feature_index import FeatureIndex
from keras_vit.curation.nearest import (
    BLOCK,
    TEMPERATURE,
    VOTERS,
    label_rows,
    nearest_neighbors,
    rows_of,
    weighted_votes,
)
from keras_vit.data._imports import require
from keras_vit.evaluation.probes import STRENGTHS
from keras_vit.tasks.classification import most_probable

QUALITIES = ("normalized_margin", "self_confidence", "by_noise")
# Of the labels of a class that confident learning calls wrong, the part that it gives to one other
# class, in the mean of the classes, from which on wrong labels are taken to be of similar classes.
# Chosen on flowers at 96 pixels; docs/curation.md has what it gains on other images.
_CONCENTRATED = 0.6
# Rows that a probe is fitted to, drawn where there are more; all rows get their probabilities.
MOST_FITTED = 50_000
# Part of the labels that are suspects and not confident. By ViT-Ti/16 at 224 pixels, 5 to 9 % of
# flowers with 10 to 30 % wrong labels, and 60 to 83 % of the suspects are wrong; at 96 pixels 12 to
# 18 %, and 33 to 59 % of the suspects.
MOST_UNSURE, FEWEST_JUDGED = 0.12, 100
# Added to the part of the votes that each class has: that all are for one class does not prove that
# the others are impossible.
_DOUBT = 0.05
# cleanlab's tolerances, so that its sets of suspects are ours.
_TOLERANCE, _LEAST_THRESHOLD = 1e-6, 2e-6


@dataclass(frozen=True)
class LabelErrors:
    """How good each label is.

    Attributes:
        quality: float32 `(n,)` in [0, 1], near 0 where another class is far more probable than the
            label; NaN for rows without a label, and of a class that is one group.
        suggested: int32 `(n,)`, the most probable class.
        suspects: int64 `(m,)`, the rows of which another class is more probable, the worst first:
            for a person to look at.
        confident: bool `(n,)`, the labels that confident learning calls wrong: fewer, of which more
            are.
        probabilities: float32 `(n, classes)`, the mean of probes and nearest neighbors.
    """

    quality: np.ndarray
    suggested: np.ndarray
    suspects: np.ndarray
    confident: np.ndarray
    probabilities: np.ndarray


def find_label_errors(
    features: FeatureIndex | np.ndarray,
    labels: Any,
    groups: Any = None,
    *,
    folds: int = 5,
    k: int = VOTERS,
    seed: int = 0,
) -> LabelErrors:
    """Scores every label by how probable it is to models that have not seen it.

    The probabilities are the mean of those of `probe_probabilities` and `neighbor_probabilities`,
    and the quality is their margin, or where wrong labels are of any class its mean with the
    probability of the label (`label_quality`, `"by_noise"`). Not the loss of a model trained on the
    labels, which learns the wrong ones, too: of 1,800 photographs of flowers, a fifth of them with
    the label of the similar class, the quality finds them with an average precision of 94 %, the
    loss with 71 % (`python examples/wrong_labels.py`). Of those, 96 % are suspects, and 76 % of the
    suspects are wrong; 82 % and 93 % of what is confident.

    Args:
        features: An index, or an array `(n, dimension)`.
        labels: `(n,)` integers from 0; -1 where the class is not known.
        groups: `(n,)` integers; rows of one group, such as copies of a photograph, are not compared
            with each other. None where there are no groups.
        folds: Number of probes, each fitted to the rows outside of its fold.
        k: Number of nearest neighbors that vote.
        seed: Which rows are in which fold.

    Warns where the features do not separate the classes: then most suspects may be right.

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: Shapes do not match, a number is out of range, or fewer than two classes have
            two examples.

    Source: Northcutt, Jiang and Chuang, "Confident Learning" (2021).

    Example:

    >>> import numpy as np
    >>> from keras_vit.curation import find_label_errors
    >>> labels = np.repeat([0, 1], 20)
    >>> features = np.eye(2)[labels] + np.random.default_rng(0).normal(0, 0.1, (40, 2))
    >>> labels[3] = 1
    >>> find_label_errors(features, labels, k=5).suspects.tolist()
    [3]
    """
    labels = _check_labels(features, labels)
    probabilities = (
        probe_probabilities(features, labels, groups, folds=folds, seed=seed)
        + neighbor_probabilities(features, labels, groups, k=k)
    ) / 2
    known = np.flatnonzero(labels >= 0)
    quality = np.full(len(labels), np.nan, np.float32)
    quality[known] = label_quality(labels[known], probabilities[known], "by_noise")
    confident = np.zeros(len(labels), bool)
    confident[known] = confident_errors(labels[known], probabilities[known])
    suggested = most_probable(probabilities)
    # Not where all classes are as probable, of rows that have nothing to be compared with.
    of_label, best = (probabilities[known, c[known]] for c in (labels, suggested))
    alone = _in_one_group(labels, groups)
    quality[alone], confident[alone] = np.nan, False
    suspects = known[(best > of_label) & ~alone[known]]
    unsure = (~confident[suspects]).sum() / len(known)
    if unsure > MOST_UNSURE and len(known) >= FEWEST_JUDGED:
        warn_at_caller(
            f"For {unsure:.0%} of {len(known):,} labels the features prefer another class without "
            "being sure: they do not separate the classes well, and most of these labels may be "
            "right. Look at the confident ones first, or embed with a larger model or image size."
        )
    return LabelErrors(
        quality,
        suggested.astype(np.int32),
        suspects[np.argsort(quality[suspects], kind="stable")],
        confident,
        probabilities.astype(np.float32),
    )


def _in_one_group(labels: np.ndarray, groups: Any) -> np.ndarray:
    """Return of which rows all others of the class are in their group, bool `(n,)`.

    They are compared with other classes alone, one of which is the most probable in any case.
    """
    known = np.flatnonzero(labels >= 0)
    if groups is None:
        return np.zeros(len(labels), bool)
    pairs = np.unique([labels[known], np.asarray(groups)[known]], axis=1)
    counts = np.bincount(pairs[0], minlength=labels.max() + 1)
    return (labels >= 0) & (counts[labels] < 2)


def label_quality(
    labels: np.ndarray, probabilities: np.ndarray, method: str = "normalized_margin"
) -> np.ndarray:
    """Return how good each label is by the probabilities of models that have not seen it.

    Args:
        labels: `(n,)` integers from 0.
        probabilities: `(n, classes)`, rows of sum 1.
        method: `"self_confidence"`, the probability of the label; `"normalized_margin"`, that
            less the largest probability of another class, moved to [0, 1]: both are cleanlab's. Or
            `"by_noise"`: the margin where the probably wrong labels of a class are mostly of one
            other class, which it finds best, and elsewhere the mean of both.

    Returns:
        `(n,)` in [0, 1], low where the label is probably wrong.

    Raises:
        ValueError: The method is unknown, or shapes do not match.

    Example:

    >>> import numpy as np
    >>> from keras_vit.curation import label_quality
    >>> label_quality(np.array([0, 0]), np.array([[0.75, 0.25], [0.25, 0.75]]))
    array([0.75, 0.25])
    """
    check_choice(method, "method", QUALITIES)
    labels, probabilities = _check_probabilities(labels, probabilities)
    rows = np.arange(len(labels))
    confidence = probabilities[rows, labels]
    if method == "self_confidence":
        return confidence
    others = probabilities.copy()
    others[rows, labels] = -np.inf
    margin = (confidence - others.max(axis=1) + 1) / 2
    if method == "normalized_margin" or _concentration(labels, probabilities) >= _CONCENTRATED:
        return margin
    return (margin + confidence) / 2


def _concentration(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Return the part of a class's probably wrong labels that is of one other class, in the mean.

    A class without any counts as 0.
    """
    wrong, classes = confident_errors(labels, probabilities), probabilities.shape[1]
    # Of the pairs that there are: classes may be tens of thousands.
    pairs = labels[wrong].astype(np.int64) * classes + most_probable(probabilities[wrong])
    pairs, counts = np.unique(pairs, return_counts=True)
    of_class = pairs // classes
    most, total = np.zeros(classes), np.zeros(classes)
    np.maximum.at(most, of_class, counts)
    np.add.at(total, of_class, counts)
    return float((most / np.maximum(total, 1)).mean())


def confident_errors(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return which labels confident learning calls wrong, bool `(n,)`.

    A class is confident where its probability reaches the mean that it has among its own examples.
    A label is wrong where the most probable confident class is another one, which is cleanlab's
    `filter_by="confident_learning"`.

    Args:
        labels: `(n,)` integers from 0.
        probabilities: `(n, classes)`, of models that have not seen the label.

    Raises:
        ValueError: Shapes do not match.

    Source: Northcutt, Jiang and Chuang (2021), equation 1.

    Example:

    >>> import numpy as np
    >>> from keras_vit.curation import confident_errors
    >>> probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.9, 0.1]])
    >>> confident_errors(np.array([0, 0, 1, 1]), probabilities).tolist()
    [False, False, False, True]
    """
    labels, probabilities = _check_probabilities(labels, probabilities)
    means = [
        probabilities[labels == c, c].mean() if (labels == c).any() else 2.0
        for c in range(probabilities.shape[1])
    ]
    thresholds = np.maximum(means, _LEAST_THRESHOLD)
    is_confident = probabilities >= thresholds - _TOLERANCE
    several = is_confident.sum(axis=1) > 1
    confident = np.where(several, probabilities.argmax(axis=1), is_confident.argmax(axis=1))
    favored = probabilities.copy()
    favored[np.arange(len(labels)), labels] += _TOLERANCE
    is_other = favored.argmax(axis=1) != labels
    return is_confident.any(axis=1) & (confident != labels) & is_other


def probe_probabilities(
    features: FeatureIndex | np.ndarray,
    labels: Any,
    groups: Any = None,
    *,
    folds: int = 5,
    seed: int = 0,
    most: int = MOST_FITTED,
    strengths: Sequence[float] = STRENGTHS,
) -> np.ndarray:
    """Class probabilities `(n, classes)` of linear probes that have not seen the row.

    Multinomial logistic regression on standardized features, one per fold; the strength of its
    penalty is the one with the smallest log-loss on the first fold. Rows without a label get the
    mean of all probes. Arguments and errors are those of `find_label_errors`; a probe
    is fitted to `most` rows, drawn where there are more, and `strengths` are scikit-learn's C.

    Example:

    >>> import numpy as np
    >>> from keras_vit.curation import probe_probabilities
    >>> labels = np.repeat([0, 1], 10)
    >>> probe_probabilities(np.eye(2)[labels], labels).argmax(axis=1).tolist() == labels.tolist()
    True
    """
    log_loss = require("sklearn.metrics", install_command("search")).log_loss
    labels = _check_labels(features, labels)
    if folds < 2:
        raise ValueError(f"folds={folds!r} must be an integer of at least 2.")
    check_non_negative(seed=seed)
    random = np.random.default_rng(seed)
    fold = _folds(labels, groups, folds, random)
    classes = int(labels.max()) + 1
    parts = [np.flatnonzero((labels >= 0) & (fold != f)) for f in range(folds)]
    parts = [np.sort(random.permutation(part)[:most]) for part in parts]
    tuned = fold[labels >= 0].min()  # others may have groups without a label alone
    first = np.flatnonzero((labels >= 0) & (fold == tuned))[:most]
    x, y = rows_of(features, first), labels[first]
    train_x, train_y = rows_of(features, parts[tuned]), labels[parts[tuned]]
    losses = [
        log_loss(
            y, _predict(_fit(train_x, train_y, strength), x, classes), labels=np.arange(classes)
        )
        for strength in strengths
    ]
    strength = strengths[int(np.argmin(losses))]
    probabilities = np.zeros((len(labels), classes))
    unknown = np.flatnonzero(labels < 0)
    for number, part in enumerate(parts):
        probe = _fit(rows_of(features, part), labels[part], strength)
        for rows in _in_blocks(np.flatnonzero((labels >= 0) & (fold == number))):
            probabilities[rows] = _predict(probe, rows_of(features, rows), classes)
        for rows in _in_blocks(unknown):
            probabilities[rows] += _predict(probe, rows_of(features, rows), classes) / folds
    return probabilities


def neighbor_probabilities(
    features: FeatureIndex | np.ndarray, labels: Any, groups: Any = None, *, k: int = VOTERS
) -> np.ndarray:
    """Class probabilities `(n, classes)` by the votes of each row's nearest neighbors.

    A row of cosine s votes with the weight exp(s / 0.07), as in `knn_accuracy`; those without
    a label, and those of the same group, do not. Arguments and errors are those of
    `find_label_errors`.

    Example:

    >>> import numpy as np
    >>> from keras_vit.curation import neighbor_probabilities
    >>> features = np.array([[9, 1], [9, 2], [1, 9], [2, 9]])
    >>> neighbor_probabilities(features, [0, 0, 1, 1], k=1).round(2).tolist()
    [[0.95, 0.05], [0.95, 0.05], [0.05, 0.95], [0.05, 0.95]]
    """
    labels = _check_labels(features, labels)
    check_positive(k=k)
    group = _check_groups(labels, groups)
    near = nearest_neighbors(features, k=k)
    excluded = (labels[near.rows] < 0) | (group[near.rows] == group[:, None])
    classes = int(labels.max()) + 1
    votes = weighted_votes(near, np.eye(classes)[labels], TEMPERATURE, excluded)
    votes[excluded.all(axis=1)] = 1 / classes
    return (votes + _DOUBT) / (1 + _DOUBT * classes)


def _check_labels(features: FeatureIndex | np.ndarray, labels: Any) -> np.ndarray:
    labels = label_rows(features, labels)
    counts = np.bincount(labels[labels >= 0])
    if (counts > 1).sum() < 2:
        raise ValueError(
            "Wrong labels are found among two classes or more with two labeled images each; here "
            f"{counted(int((counts > 1).sum()), 'class', 'classes')} of {(counts > 0).sum()} have "
            "them."
        )
    return labels


def _check_groups(labels: np.ndarray, groups: Any) -> np.ndarray:
    group = np.arange(len(labels)) if groups is None else np.asarray(groups)
    if group.shape != labels.shape:
        raise ValueError(
            f"Groups of shape {group.shape} do not fit {counted(len(labels), 'label')}: give one "
            "per row."
        )
    return group


def _check_probabilities(
    labels: np.ndarray, probabilities: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    labels, probabilities = np.asarray(labels), np.asarray(probabilities)
    if (
        probabilities.ndim != 2
        or probabilities.shape[1] < 2
        or labels.shape != (len(probabilities),)
    ):
        raise ValueError(
            f"Labels {labels.shape} and probabilities {probabilities.shape} do not match: give "
            "(n,) and (n, classes), with two classes or more."
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < probabilities.shape[1]:
        raise ValueError(
            f"Labels from {labels.min()} to {labels.max()} are not classes of 0 to "
            f"{probabilities.shape[1] - 1}. Leave rows without a label out."
        )
    return labels, probabilities


def _folds(labels: np.ndarray, groups: Any, folds: int, random: np.random.Generator) -> np.ndarray:
    """Return each row's fold; folds keep groups whole and have the same share of each class."""
    _, first, group = np.unique(
        _check_groups(labels, groups), return_index=True, return_inverse=True
    )
    order = np.lexsort((random.permutation(len(first)), labels[first]))
    fold = np.empty(len(first), int)
    fold[order] = np.arange(len(first)) % folds
    return fold[group.reshape(-1)]


def _in_blocks(rows: np.ndarray) -> list[np.ndarray]:
    return [rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK)]


def _fit(x: np.ndarray, y: np.ndarray, strength: float) -> Any:
    """Return a probe; None of no row, where all that have a label are one group."""
    if not len(y):
        return None
    if len(np.unique(y)) == 1:  # the others are groups of another fold, each as a whole
        dummy = require("sklearn.dummy", install_command("search"))
        return dummy.DummyClassifier(strategy="prior").fit(x, y)
    linear = require("sklearn.linear_model", install_command("search"))
    pipeline = require("sklearn.pipeline", install_command("search"))
    preprocessing = require("sklearn.preprocessing", install_command("search"))
    regression = linear.LogisticRegression(C=strength, max_iter=1000)
    return pipeline.make_pipeline(preprocessing.StandardScaler(), regression).fit(x, y)


def _predict(probe: Any, x: np.ndarray, classes: int) -> np.ndarray:
    """Return probabilities `(n, classes)`; a class that the probe has not seen gets 0."""
    if probe is None:
        return np.full((len(x), classes), 1 / classes)
    probabilities = np.zeros((len(x), classes))
    probabilities[:, probe.classes_] = probe.predict_proba(x)
    return probabilities / probabilities.sum(axis=1, keepdims=True)  # float32's do not sum to 1
