"""Prediction sets against torchcp's, mapie's, and the exact distribution of their coverage.

`golden/prediction_sets.npz` is of torchcp 1.2.1 and mapie 1.6.0, 300 rows of six logits:

    labels, logits = rng.integers(0, 6, n), round(rng.normal(0, 1, (n, 6)) + 2 * eye(6)[labels], 3)
    predictor = SplitPredictor(LAC(), alpha=alpha)      # or ClassConditionalPredictor;
    predictor.calculate_threshold(logits, labels)       # APS(randomized=False) and
    predictor.predict_with_logits(new)                  # RAPS(randomized=False, penalty=.1, kreg=1)
    SplitConformalClassifier(fixed, level, "lac", prefit=True).conformalize(logits, labels)
    score = APSConformityScore()                        # without its random part:
    cumulated, _ = score.get_true_label_cumsum_proba(labels, probabilities, range(6))
    score.quantiles_ = _compute_classification_quantile(cumulated, [alpha])
    score.get_prediction_sets(of_new, cumulated, [alpha], "prefit", include_last_label=False)

`golden/flowers_probe.npz` has 1,240 flowers, and their probabilities by a logistic regression on
`pre_logits` of ViT-Ti/16 (augreg_in21k_ft_in1k) of 1,000 others.
"""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import keras
import numpy as np
import pytest
from scipy.stats import betabinom, binomtest

from keras_vit import tasks
from keras_vit.tasks import Classification, PredictionSets
from keras_vit.tasks.classification import softmax
from keras_vit.tasks.conformal import METHODS, SLACK, conformal_rank, dither, fewest_examples
from tests.backend import refused

FOLDER = Path(__file__).parents[1] / "golden"
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
    band = betabinom(new, calibration + 1 - excluded, excluded)
    assert band.ppf(1e-5) <= min(counts) <= max(counts) <= band.ppf(1 - 1e-5)
    inside = (band.ppf(0.025) <= counts) & (counts <= band.ppf(0.975))
    assert binomtest(int(inside.sum()), 200, 0.95).pvalue > 0.01
    assert abs(np.mean(counts) - band.mean()) < 3.3 * band.std() / np.sqrt(200)


def test_sets_up_to_a_sum_by_the_definition_of_their_papers() -> None:
    """Romano et al. 2020 with the random part u of the image: S - u p; MAPIE includes the last."""
    rows, truth = np.sort(NEW)[:, ::-1], np.zeros(len(NEW), int)
    part = dither(rows[:, 0], rows[:, 1], np)
    sums = np.cumsum(rows, axis=1)
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
    for words, call in (
        ("does not have prediction sets", lambda: plain.names_in_set(row)),
        ("sets of 6 classes do not fit 2", lambda: Classification(("a", "b"), sets=task.sets)),
        ("must be finite numbers", lambda: replace(plain, sets=damaged)),
        ("are not prediction sets", lambda: replace(plain, sets={"method": "lac"})),
    ):
        refused(words, call)
