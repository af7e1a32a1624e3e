"""The best linear head on frozen features, by its answers to training images it was not fitted to.

    features ── folds, drawn several times ──► scores of every method and setting
                                                 └──► HeadChoice: a table, and the head of the best

No image is held out for it: whatever is trained on chooses, and the validation images take no part.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from keras_vit._base.errors import check_choice, counted
from keras_vit.evaluation.checks import check_features
from keras_vit.evaluation.linear_heads import (
    HEADS_BY_NAME,
    LOGISTIC,
    MEANS,
    NEIGHBORS,
    Head,
    fit_head,
    left_out,
    stratified_folds,
)
from keras_vit.evaluation.probes import ABSENT
from keras_vit.evaluation.temperature import fit_temperature
from keras_vit.tasks.balance import BALANCES, class_weights, differs_much, sampling_rates
from keras_vit.tasks.classification import most_probable, softmax

ANSWERS = 200  # folds are drawn anew until there are so many answers, at most `MOST_DRAWS` times
MOST_DRAWS = 10
# Images times features times classes above which a logistic regression takes minutes, and is left
# out: there a ridge has images enough.
MOST_PRODUCTS = 1e9


class HeldOutAnswers(NamedTuple):
    """What is known of answers to images that nothing was fitted to, an entry per image.

    Attributes:
        right: The part of its answers that is right, `(n,)`.
        loss: The mean negative logarithm of the right class's probability, `(n,)`.
    """

    right: np.ndarray
    loss: np.ndarray


@dataclass(frozen=True)
class Candidate:
    """A row of the table.

    Attributes:
        name: The method, or `"fine-tuned"`.
        setting: The best penalty, or the learning rates, as text.
        score: Accuracy, or balanced accuracy, on images that the answers were not fitted to.
        error: Its standard error; None of one image.
        log_loss: Mean log-loss of the calibrated probabilities on these images.
        note: Why it cannot be chosen; "" where it can.
    """

    name: str
    setting: str
    score: float
    error: float | None
    log_loss: float
    note: str = ""


@dataclass(frozen=True)
class HeadChoice:
    """The methods that were compared, and the best of them.

    Attributes:
        candidates: One per method, with its best setting.
        measure: `"accuracy"`, or `"balanced_accuracy"` where classes differ much in size.
        method: The best one that is a head.
        temperature: By which its scores are divided, so that probabilities are as sure as right.
        balance: As in `choose_head`.
    """

    candidates: tuple[Candidate, ...]
    measure: str
    method: str
    setting: float
    temperature: float
    classes: int
    balance: str
    reason: str

    def fit(self, features: Any, labels: Any) -> Head:
        """Fit the best head to features and labels; its scores are calibrated logits."""
        y = np.asarray(labels)
        weights = _fitting_weights(y, self.classes, self.balance)
        head = fit_head(self.method, features, y, self.classes, self.setting, weights)
        return head.divided(self.temperature)


def choose_head(
    features: Any,
    labels: Any,
    classes: int,
    *,
    groups: Any = None,
    balance: str = "none",
    seed: int = 0,
) -> HeadChoice:
    """Compare class means, ridge and logistic regression on frozen features, and choose one.

    Each setting answers every image by heads of the other folds. Of a method, the setting with the
    smallest log-loss is kept, after a temperature that its scores set; of methods, likewise:
    a few images have one accuracy for many settings. Nearest neighbors are in the table alone.

    Args:
        features: `(n, dimension)`, as from `keras_vit.evaluation.features`.
        labels: Integers `(n,)`.
        groups: One per image, such as its patient, which stays in one fold; or None.
        balance: Of `keras_vit.tasks.balance.BALANCES`: other than `"none"`, every class counts the
            same in the fits (`"weights"`: by the effective number of its images).

    Raises:
        ValueError: Features and labels do not match, or the balance is unknown.
    """
    check_choice(balance, "balance", BALANCES)
    x, y = check_features(features, labels, "training")
    counts = np.bincount(y, minlength=classes)
    is_balanced = balance != "none" or differs_much(counts)
    measure = "balanced_accuracy" if is_balanced else "accuracy"
    draws = int(np.clip(-(-ANSWERS // len(y)), 1, MOST_DRAWS))
    all_folds = [stratified_folds(y, groups, seed + draw) for draw in range(draws)]
    # Only what can be right counts: a class whose images are all in one fold is never answered.
    known = [is_known(y, folds) for folds in all_folds]
    counted_in = np.mean(known, axis=0)
    if not counted_in.any():
        reason = "no class has two images, so that nothing can be compared"
        spread = float(np.std(fit_head(MEANS, x, y, classes).scores(x))) or 1.0
        return HeadChoice((), measure, MEANS, 1.0, spread, classes, balance, reason)
    weights = counted_in / counts[y] if is_balanced else counted_in
    weights = weights / weights.mean()
    fitting, units = _fitting_weights(y, classes, balance), groups_of(y, groups)
    best: dict[str, tuple[float, float, float, HeldOutAnswers]] = {}
    is_quick = len(y) * x.shape[1] * classes <= MOST_PRODUCTS
    methods = [name for name in HEADS_BY_NAME if is_quick or name != LOGISTIC]
    for method in (*methods, NEIGHBORS):
        ways = [left_out(method, x, y, classes, folds, fitting) for folds in all_folds]
        for answered in zip(*ways, strict=True):
            scores = [scores for _, scores in answered]
            temperature, answers = judge(np.tile(y, draws), np.concatenate(scores), weights)
            loss = float(np.average(answers.loss, weights=weights))
            if method not in best or loss < best[method][0]:
                best[method] = (loss, answered[0][0], temperature, answers)
    rows = []
    for method, (loss, setting, _, answers) in best.items():
        score, error = mean_and_error(answers.right, weights, units)
        text = "" if method in (MEANS, NEIGHBORS) else f"{setting:.3g}"
        note = "not a head" if method == NEIGHBORS else ""
        rows.append(Candidate(method, text, score, error, loss, note))
    method = min(methods, key=lambda name: best[name][0])
    _, setting, temperature, _ = best[method]
    times = f", {counted(draws, 'time')} in folds" if draws > 1 else " in folds"
    reason = f"{method}: the smallest log-loss on {counted(len(y), 'training image')}{times}"
    return HeadChoice(tuple(rows), measure, method, setting, temperature, classes, balance, reason)


def judge(
    labels: np.ndarray, scores: np.ndarray, weights: np.ndarray
) -> tuple[float, HeldOutAnswers]:
    """Return the temperature that suits scores of unseen images, and what is right with it.

    Args:
        labels: Integers `(draws * n,)`.
        scores: `(draws * n, classes)`; those of a class that was not fitted are very low.
        weights: Of the images, `(n,)`.
    """
    is_usual = scores > ABSENT / 2
    scores = np.where(is_usual, scores, scores[is_usual].min())  # of a class without images
    spread = float(scores.std()) or 1.0
    can_be_right = np.tile(weights > 0, len(scores) // len(weights))
    # A few images that are all right would ask for probabilities of 1: one more, of which nothing
    # is known, keeps them from it.
    temperature = spread * fit_temperature(
        labels[can_be_right], scores[can_be_right] / spread, 1 / (len(weights) + 1)
    )
    probabilities = softmax(scores / temperature)[np.arange(len(labels)), labels]
    right = (most_probable(scores) == labels).astype(float)
    # Not 0, where a class is unknown.
    loss = -np.log(np.maximum(probabilities, 1e-6))
    shape = (-1, len(weights))
    return temperature, HeldOutAnswers(
        right.reshape(shape).mean(axis=0), loss.reshape(shape).mean(axis=0)
    )


def mean_and_error(
    values: np.ndarray, weights: np.ndarray, units: np.ndarray
) -> tuple[float, float]:
    """Return the weighted mean of values per image, and its standard error over units.

    Args:
        values: `(n,)`: of one answer, or the differences of two answers to the same images.
        weights: `(n,)`.
        units: The number of each image's group, from 0, `(n,)`: images of a group err together.

    >>> mean_and_error(np.array([1.0, 0.0, 1.0, 0.0]), np.ones(4), np.arange(4))
    (0.5, 0.28867513459481287)
    """
    mean = float(np.average(values, weights=weights))
    sums = np.bincount(units, weights * (values - mean))
    count = len(np.unique(units[weights > 0]))
    if count < 2:
        return mean, float("inf")  # of one image nothing is known
    return mean, float(np.sqrt((sums**2).sum() * count / (count - 1)) / weights.sum())


def groups_of(labels: np.ndarray, groups: Any = None) -> np.ndarray:
    """Return the number of each image's group, `(n,)`: its own without groups."""
    if groups is None:
        return np.arange(len(labels))
    return np.unique(np.asarray(groups), return_inverse=True)[1]


def is_known(labels: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """Return whether each image's class has images in other folds, `(n,)`."""
    table = np.zeros((labels.max() + 1, folds.max() + 1))
    np.add.at(table, (labels, folds), 1)
    return (table.sum(axis=1)[labels] > table[labels, folds]).astype(float)


def _fitting_weights(labels: np.ndarray, classes: int, balance: str) -> np.ndarray:
    counts = np.bincount(labels, minlength=classes)
    if balance == "none":
        return np.ones(len(labels))
    return (class_weights if balance == "weights" else sampling_rates)(counts)[labels]
