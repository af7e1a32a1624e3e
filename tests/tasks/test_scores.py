"""Scores against scikit-learn and SciPy; thresholds, intervals, the bootstrap; prediction sets."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from keras_vit import tasks
from keras_vit.tasks import Classification, Multilabel, Ordinal, PredictionSets, Regression, Task
from keras_vit.tasks.classification import softmax
from keras_vit.tasks.conformal import METHODS, SLACK, conformal_rank, dither, fewest_examples
from keras_vit.tasks.multilabel import sigmoid
from keras_vit.tasks.scores import AveragePrecision, NumberScores, bootstrap, quadratic_kappa
from keras_vit.tasks.thresholds import best_threshold
from tests.backend import refused, warned

EXAMPLES = 120


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def of_numbers(y: np.ndarray, x: np.ndarray) -> list[float]:
    errors = metrics.mean_absolute_error(y, x), metrics.root_mean_squared_error(y, x)
    return [*errors, metrics.r2_score(y, x), stats.spearmanr(y, x).statistic]


def values_of(task: Task, targets: Any, answers: Any) -> dict[str, float]:
    scores = task.scores(targets, answers, resamples=50)
    for score in scores.values():
        assert score.low <= score.value <= score.high
    return {name: score.value for name, score in scores.items()}


def test_classes_grades_and_numbers() -> None:
    targets = rng().choice(5, EXAMPLES, p=[0.5, 0.3, 0.15, 0.05, 0])  # no example of the last
    answers = rng(1).dirichlet(np.ones(6)[:5], EXAMPLES) + 0.3 * np.eye(5)[targets]
    both, macro = (targets, answers.argmax(axis=1)), {"average": "macro", "zero_division": 0}
    expected = {
        "accuracy": metrics.accuracy_score(*both),
        "balanced_accuracy": metrics.recall_score(*both, labels=range(4), **macro),
        "macro_f1": metrics.f1_score(*both, labels=range(4), **macro),
    }
    assert values_of(Classification(size=5), np.eye(5)[targets], answers) == pytest.approx(expected)
    task, targets = Ordinal(size=5), rng().integers(0, 5, EXAMPLES)
    outputs = 2.0 * (targets[:, None] - np.arange(4)) - 1 + rng(1).normal(0, 2, (EXAMPLES, 4))
    both = targets, (outputs > 0).sum(axis=1)
    expected = {
        "grade_mae": metrics.mean_absolute_error(*both),
        "accuracy": metrics.accuracy_score(*both),
        "quadratic_kappa": metrics.cohen_kappa_score(*both, weights="quadratic"),
    }
    assert values_of(task, targets, task.answers(outputs)) == pytest.approx(expected)
    for size in (1, 2):
        targets = rng().normal(10, 3, (EXAMPLES, size))
        answers = np.round(targets + rng(1).normal(size=(EXAMPLES, size)), 1)
        task = Regression([f"x{i}" for i in range(size)], scale=[5] * size)
        expected = {}
        for i in range(size):
            names = [name + f"_x{i}" * (size > 1) for name in ("mae", "rmse", "r2", "spearman")]
            expected |= zip(names, of_numbers(targets[:, i], answers[:, i]), strict=True)
        expected |= {"r2": metrics.r2_score(targets, answers)}
        assert values_of(task, targets, answers) == pytest.approx(expected)


def multilabel() -> tuple[np.ndarray, np.ndarray]:
    targets = rng().random((EXAMPLES, 4)) < [0.5, 0.2, 0.05, 0.6]
    noisy = rng(1).normal(size=(EXAMPLES, 4)) + 1.5 * targets - 1
    return targets, np.round(1 / (1 + np.exp(-noisy)), 2).astype("float32")  # with ties


def test_labels_and_their_thresholds() -> None:
    targets, answers = multilabel()
    task = Multilabel(size=4, thresholds=(0.5, 0.3, 0.2, 0.71))
    predicted = answers >= np.array(task.thresholds, "float32")
    expected = {
        "mean_average_precision": metrics.average_precision_score(targets, answers),
        "macro_f1": metrics.f1_score(targets, predicted, average="macro"),
    }
    assert values_of(task, targets, answers) == pytest.approx(expected)
    targets[:, 2] = False  # does not count
    expected = metrics.average_precision_score(targets[:, [0, 1, 3]], answers[:, [0, 1, 3]])
    assert values_of(task, targets, answers)["mean_average_precision"] == pytest.approx(expected)
    # The best for F1, where many images show it; of probabilities without a number between, too.
    for i in (0, 1, 3):
        at = [metrics.f1_score(targets[:, i], answers[:, i] >= t) for t in np.arange(0, 1, 0.005)]
        predicted = answers[:, i] >= np.float32(best_threshold(targets[:, i], answers[:, i]))
        assert metrics.f1_score(targets[:, i], predicted) == pytest.approx(max(at))
    low = np.float32(0.9999999)
    high = np.nextafter(low, np.float32(2))
    assert np.float32(best_threshold(np.array([0, 1, 1]), np.array([low, high, high]))) == high


def sure(count: int, seed: int, low: float = 0) -> tuple[np.ndarray, np.ndarray]:
    targets = rng(seed).random((count, 3)) < [0.5, 0.3, 0.4]
    noise = 3 * rng(seed + 1000).standard_t(2, (count, 3))
    return targets, sigmoid(6 * targets - 3 + noise - [0, low, 0]).astype("float32")


@pytest.mark.parametrize(("count", "low"), [(32, 0.0), (1000, 6.0)])
def test_thresholds_of_few_images_stay_near_one_half(count: int, low: float) -> None:
    """They lose nothing of what 0.5 has; many images move one that is far from the best one."""
    new = sure(4000, 99, low)

    def worth(task: Multilabel) -> tuple[float, float]:
        exact = (task.predicted(new[1]) == new[0]).all(axis=1).mean()
        return task.scores(*new, resamples=0)["macro_f1"].value, exact

    half, draws = Multilabel(size=3), [sure(count, seed, low) for seed in range(8)]
    greedy = [tuple(map(best_threshold, y.T, x.T)) for y, x in draws]
    chosen = np.mean([worth(half.calibrated(*draw)) for draw in draws], axis=0)
    best = np.mean([worth(replace(half, thresholds=t)) for t in greedy], axis=0)
    if low:
        assert chosen[0] > max(worth(half)[0] + 0.05, best[0] - 0.01)
    else:
        assert (chosen > np.maximum(np.array(worth(half)) - 0.005, best + 0.01)).all()
    targets, answers = draws[0]
    targets[:, 1] = False  # nothing to choose by
    calibrated = replace(half, thresholds=(0.5, 0.9, 0.5)).calibrated(targets, answers)
    assert calibrated.thresholds[1] == 0.9
    assert calibrated.positives == tuple(targets.sum(axis=0))


def test_bootstrap_intervals_are_those_of_scipy_and_cover() -> None:
    # Weights are numbers of copies.
    targets, answers = multilabel()
    x = answers[:, 0].astype(float)
    weights = rng(2).integers(0, 4, EXAMPLES).astype(float)
    many = np.repeat(np.arange(EXAMPLES), weights.astype(int))
    expected = metrics.average_precision_score(targets[many], answers[many], average=None)
    np.testing.assert_allclose(AveragePrecision(targets, answers)(weights), expected)
    numbers = x + rng(3).normal(size=EXAMPLES).round(1)
    (scores,) = NumberScores(numbers[:, None], x[:, None])(weights)
    assert list(scores) == pytest.approx(of_numbers(numbers[many], x[many]))
    a, b = rng(4).integers(0, 4, (2, EXAMPLES))
    expected = metrics.cohen_kappa_score(a[many], b[many], weights="quadratic")
    assert quadratic_kappa(a, b, weights) == pytest.approx(expected)
    sample = rng().exponential(size=60)
    mean = bootstrap(lambda w: [w @ sample / w.sum()], ["mean"], 60, 4000)["mean"]
    ci = stats.bootstrap((sample,), np.mean, n_resamples=4000, method="percentile", random_state=1)
    assert bootstrap(lambda w: [w @ sample[:5]], ["sum"], 5)["sum"][1:] == (-np.inf, np.inf)
    np.testing.assert_allclose(mean[1:], ci.confidence_interval, rtol=0.02)
    # That of an accuracy is Wilson's: the bootstrap's would be 1 to 1 where every answer is right.
    scores = Classification(size=2).scores(np.zeros(30, int), np.tile([0.9, 0.1], (30, 1)))
    expected = stats.binomtest(30, 30).proportion_ci(method="wilson")
    np.testing.assert_allclose(scores["accuracy"], (1, *expected), rtol=1e-4)
    assert scores["balanced_accuracy"] == (1, -np.inf, np.inf)  # where resamples are equal


def test_scores_and_calibrations_that_are_not_defined() -> None:
    for constant in (1.0, 0.1, 1 / 3):
        scores = Regression(size=1).scores(np.full(10, constant), np.arange(10.0), resamples=20)
        assert np.isnan([*scores["r2"], *scores["spearman"]]).all()
    none = Multilabel(size=2).scores(np.zeros((5, 2)), np.full((5, 2), 0.5), resamples=5)
    assert np.isnan(none["mean_average_precision"]).all()
    # Few examples cannot be calibrated with, and some tasks not at all.
    numbers, few = Regression(size=1), np.arange(8.0)
    nine = numbers.calibrated(np.arange(9.0), np.zeros(9))
    assert nine.margins == (8.0,)
    assert warned("hold out at least 9", nine.calibrated, few, few) == numbers
    two, rows = Regression(size=2), np.arange(18.0).reshape(9, 2)
    inside = two.calibrated(rows, 0 * rows).name_scores(two.tally(rows, rows))
    assert (inside["inside"].tolist(), inside["high"].tolist()) == ([1, 1], [1, 1])


@pytest.mark.parametrize("coverage", [0.8, 0.95])
def test_prediction_intervals_cover(coverage: float) -> None:
    """Errors that are skewed and of different sizes in two numbers, 400 calibrations."""
    inside, new = np.zeros(2), 50
    for seed in range(400):
        targets = rng(seed).exponential([1, 20], (99 + new, 2))
        answers = np.zeros_like(targets)
        task = Regression(size=2).with_intervals(targets[:99], answers[:99], coverage)
        inside += (np.abs(targets[99:] - answers[99:]) <= task.margins).mean(axis=0)
    # The coverage of a calibration is Beta(rank, 100 - rank): the mean of 400 lies near its own.
    rank = np.ceil(100 * coverage)
    spread = (rank * (100 - rank) / 100**2 / 101 + coverage * (1 - coverage) / new) ** 0.5
    np.testing.assert_allclose(inside / 400, rank / 100, atol=4 * spread / 400**0.5)
    row = task.describe([1.0, 2.0])["predictions"][1]
    assert (row["low"], row["high"]) == (2 - task.margins[1], 2 + task.margins[1])


FOLDER = Path(__file__).parents[1] / "golden"  # whose README.md says how they were recorded
GOLDEN = dict(np.load(FOLDER / "prediction_sets.npz"))
LABELS, NEW = GOLDEN["labels"], softmax(GOLDEN["new"])
PROBABILITIES = softmax(GOLDEN["logits"])
calibrated = partial(PredictionSets.calibrated, LABELS, PROBABILITIES)


@pytest.mark.parametrize("coverage", [0.95, 0.9])
@pytest.mark.parametrize("kind", ["marginal", "conditional"])
@pytest.mark.parametrize("method", ["lac", "aps", "raps"])
def test_the_sets_of_torchcp_and_mapie(method: str, kind: str, coverage: float) -> None:
    sets = calibrated(coverage, method, conditional=kind == "conditional")
    torchcp = f"torchcp/{method}/{kind}/{coverage}"
    theirs, quantiles = GOLDEN[f"{torchcp}/sets"], GOLDEN[f"{torchcp}/q"]
    # float32 in theirs; the slack is ours.
    np.testing.assert_allclose(sets.thresholds, 1 - quantiles, rtol=2 * SLACK, atol=1e-6)
    np.testing.assert_array_equal(sets.evidence(NEW) >= np.array(sets.thresholds), theirs)
    if method != "lac":  # and the most probable class
        theirs = theirs | (NEW.max(axis=1, keepdims=True) == NEW)
    np.testing.assert_array_equal(sets.contains(NEW), theirs)
    if (kind, method) in (("marginal", "lac"), ("marginal", "aps")):
        mapie = GOLDEN[f"mapie/{method}/marginal/{coverage}/sets"]
        np.testing.assert_array_equal(sets.contains(NEW), mapie)


def in_graph(sets: PredictionSets, rows: np.ndarray) -> np.ndarray:
    tensor = keras.ops.convert_to_tensor(rows.astype("float32"))
    return keras.ops.convert_to_numpy(sets.contains_in_graph(tensor))


@pytest.mark.every_backend
def test_a_graph_has_the_same_sets() -> None:
    for method in METHODS:
        sets = calibrated(0.9, method)
        np.testing.assert_array_equal(in_graph(sets, PROBABILITIES), sets.contains(PROBABILITIES))
    # Confident models keep their class and their digits: 1 - cumsum in float32 is 0 for each.
    rows = softmax(np.float32([[20, 0, -2], [18, 1, 0], [22, 3, 1]] * 10))
    sets = PredictionSets.calibrated(np.zeros(30, int), rows, 0.9, "aps")
    assert 0 < sets.thresholds[0] < 1e-6
    assert sets.contains(rows)[:, 0].all()
    np.testing.assert_array_equal(in_graph(sets, rows), sets.contains(rows))


@pytest.mark.parametrize("coverage", [0.9, 0.95])
@pytest.mark.parametrize("method", ["lac", "aps_randomized"])
def test_coverage_over_random_splits_is_beta_binomial(method: str, coverage: float) -> None:
    """Of a fixed pool, the number of covered images over random splits is beta-binomial, exactly.

    (Where no two scores are equal; Angelopoulos and Bates 2021, section 3.2 and appendix C.)
    """
    file = np.load(FOLDER / "flowers_probe.npz")
    pool, labels = file["probabilities"], file["labels"].astype(int)
    calibration = len(labels) // 2
    new, counts = len(labels) - calibration, []
    options = {"coverage": coverage, "method": method, "conditional": False}
    for seed in range(200):
        order = np.random.default_rng(seed).permutation(len(labels))
        some, rest = order[:calibration], order[calibration:]
        sets = PredictionSets.calibrated(labels[some], pool[some], **options)
        counts.append(sets.contains(pool[rest])[np.arange(new), labels[rest]].sum())
    excluded = int(round((calibration + 1) * (1 - coverage), 9))
    band = stats.betabinom(new, calibration + 1 - excluded, excluded)
    assert band.ppf(1e-5) <= min(counts) <= max(counts) <= band.ppf(1 - 1e-5)
    inside = (band.ppf(0.025) <= counts) & (counts <= band.ppf(0.975))
    assert stats.binomtest(int(inside.sum()), 200, 0.95).pvalue > 0.01
    assert abs(np.mean(counts) - band.mean()) < 3.3 * band.std() / np.sqrt(200)


def test_sets_up_to_a_sum_by_the_definition_of_their_papers() -> None:
    """Romano et al. 2020 with the random part u of the image: S - u p; MAPIE includes the last."""
    rows, truth = np.sort(NEW)[:, ::-1], np.zeros(len(NEW), int)
    part, sums = dither(rows[:, 0], rows[:, 1], np), np.cumsum(rows, axis=1)
    for method, u in (("aps_randomized", part), ("aps_inclusive", np.ones(len(rows)))):
        sets = PredictionSets.calibrated(truth, rows, 0.9, method, conditional=False)
        quantile = np.sort(rows[:, 0] * (1 - part))[conformal_rank(len(rows), 0.9) - 1]
        expected = sums - u[:, None] * rows <= quantile + SLACK * (1 - quantile)
        np.testing.assert_array_equal(sets.contains(rows), expected)
        assert (method == "aps_inclusive") == sets.contains(rows).any(axis=1).all()


def test_the_fewest_images_are_enough_and_a_class_with_fewer_has_the_threshold_of_all() -> None:
    keep = (LABELS < 5) | (np.cumsum(LABELS == 5) <= 4)
    rows = LABELS[keep], PROBABILITIES[keep], 0.9
    sets, everything = (PredictionSets.calibrated(*rows, conditional=own) for own in (True, False))
    assert sets.conditional == (0, 1, 2, 3, 4)
    assert sets.thresholds[5] == everything.thresholds[0]
    few = fewest_examples(0.95)
    PredictionSets.calibrated(LABELS[:few], PROBABILITIES[:few], 0.95)
    with pytest.raises(ValueError, match=f"need at least {few} images"):
        PredictionSets.calibrated(LABELS[: few - 1], PROBABILITIES[: few - 1], 0.95)


def test_a_task_with_sets_is_saved_and_describes_them() -> None:
    plain, row = Classification(tuple("abcdef")), [0.4, 0.0, 0.0, 0.6, 0.0, 0.0]
    task = replace(plain, sets=calibrated(0.95, "raps"))
    assert tasks.get(json.loads(json.dumps(task.get_config()))) == task
    assert task.describe(row, top=1)["set"] == ["d", "a"]
    damaged = task.get_config()["sets"] | {"thresholds": [float("nan")]}
    refused("does not have prediction sets", plain.names_in_set, row)
    refused("sets of 6 classes do not fit 2", Classification, ("a", "b"), sets=task.sets)
    refused("must be finite numbers", replace, plain, sets=damaged)
    refused("are not prediction sets", replace, plain, sets={"method": "lac"})
