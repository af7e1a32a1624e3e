"""The report's numbers are scikit-learn's, and its table shows them."""

import itertools
import json

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics
from sklearn.dummy import DummyClassifier, DummyRegressor

from keras_vit.evaluation import Report, classification_report, report
from keras_vit.evaluation.report_text import name_rows
from keras_vit.evaluation.set_report import set_report
from keras_vit.tasks import Classification, Multilabel, Ordinal, PredictionSets, Regression, Task
from keras_vit.tasks.scores import wilson_interval

NAMES = ("daisy", "rose", "tulip")
LABELS = np.random.default_rng(0).integers(0, 3, 200)
SCORES = np.random.default_rng(1).normal(size=(200, 3)) + 2 * np.eye(3)[LABELS]


def test_numbers_equal_scikit_learn() -> None:
    of_rows, both = classification_report(LABELS, SCORES, NAMES), (LABELS, SCORES.argmax(1))
    expected = metrics.classification_report(*both, target_names=NAMES, output_dict=True)
    keys = {"precision": "precision", "recall": "recall", "F1": "f1-score", "images": "support"}
    for title, key in keys.items():
        theirs = [expected[name][key] for name in NAMES]
        assert of_rows.names[title].tolist() == pytest.approx(theirs)
    np.testing.assert_array_equal(of_rows.confusion, metrics.confusion_matrix(*both))
    # A class that is never predicted scores zero.
    one = classification_report([0, 1, 2], [0, 0, 0], NAMES)
    assert one.names["precision"].tolist() == [pytest.approx(1 / 3), 0, 0]
    # The table and JSON have them.
    (line,) = (x for x in str(of_rows).splitlines() if x.startswith("rose"))
    assert f"{of_rows.names['recall'][1]:.3f}" in line
    assert "| rose | " in of_rows.to_markdown()
    assert json.loads(json.dumps(of_rows.to_dict()))["task"]["names"][2] == "tulip"


def test_scores_are_scikit_learns_beside_the_most_frequent_class() -> None:
    predicted, most = SCORES.argmax(1), np.full_like(LABELS, np.bincount(LABELS).argmax())
    of_rows = classification_report(LABELS, predicted, NAMES)
    for scores, answers in ((of_rows.scores, predicted), (of_rows.constant, most)):
        expected = {
            "accuracy": metrics.accuracy_score(LABELS, answers),
            "balanced_accuracy": metrics.balanced_accuracy_score(LABELS, answers),
            "macro_f1": metrics.f1_score(LABELS, answers, average="macro"),
        }
        assert {name: score.value for name, score in scores.items()} == pytest.approx(expected)
    assert all(score.low < score.value < score.high for score in of_rows.scores.values())
    accuracy, *interval = of_rows.scores["accuracy"]
    assert tuple(interval) == wilson_interval(accuracy, len(LABELS))
    # Where classes have one image each, intervals hold their value: of 100 classes, a resample
    # lacks 37, and their F1 of 0 would be the resample's, not ours.
    labels = np.arange(100)
    of_rows = classification_report(labels, np.where(labels < 90, labels, 0), labels.astype(str))
    for score in of_rows.scores.values():
        assert score.low < score.value < score.high
        assert score.high - score.low < 0.2
    # Macro scores come first where classes differ much.
    labels, cats = np.repeat([0, 1], [90, 9]), np.zeros(99, int)
    of_rows = classification_report(labels, cats, ["cat", "dog"])
    assert list(of_rows.scores) == ["balanced_accuracy", "macro_f1", "accuracy"]
    theirs = metrics.balanced_accuracy_score(labels, cats)
    assert of_rows.scores["balanced_accuracy"].value == theirs == 0.5
    assert "The largest class has 10 times as many images as the smallest" in str(of_rows)
    fewer = classification_report(labels[50:], labels[50:], ["cat", "dog"])
    assert next(iter(fewer.scores)) == "accuracy"


LABELED = np.array([[1, 0, 1], [0, 0, 1], [1, 0, 0], [1, 0, 1], [0, 1, 1], [1, 0, 1]], float)
NUMBERS, GRADES = np.array([3.0, 1, 9, 2, 2, 8, 40]), np.array([0, 3, 3, 3, 1, 1, 0, 2, 0, 0])


@pytest.mark.parametrize(("task", "targets", "constants"), [
    (Classification(size=4), GRADES, np.eye(4)),
    (Ordinal(size=4), GRADES, np.eye(4)),
    (Multilabel(size=3), LABELED, np.array([*itertools.product((0, 1), repeat=3)])),
    (Regression(("x",)), NUMBERS, np.append(NUMBERS.mean(), np.arange(0, 41, 0.5))[:, None]),
])  # fmt: skip
def test_the_best_constant_of_each_score_is_that_of_brute_force(
    task: Task, targets: np.ndarray, constants: np.ndarray
) -> None:
    of_rows = report(task, targets, np.tile(constants[0], (len(targets), 1)))
    tried = [task.scores(targets, np.tile(c, (len(targets), 1)), 0) for c in constants]
    for name, score in of_rows.constant.items():
        values = [scores[name].value for scores in tried]
        best = min(values) if name in ("mae", "rmse", "grade_mae") else max(values)
        assert score.value == pytest.approx(best, nan_ok=True), name
    assert "the labels of the evaluated images" in str(of_rows)
    # Those of scikit-learn, which are fitted to the training labels.
    if isinstance(task, Regression):
        x, train = np.zeros((7, 1)), np.array([1.0, 2, 3, 30, 5, 6, 7])
        of_rows = report(task, targets, targets[:, None], train)
        for name, way, error in (
            ("mae", "median", metrics.mean_absolute_error),
            ("rmse", "mean", metrics.root_mean_squared_error),
            ("r2", "mean", metrics.r2_score),
        ):
            dummy = DummyRegressor(strategy=way).fit(x, train).predict(x)
            assert of_rows.constant[name].value == pytest.approx(error(targets, dummy))
        assert "the labels of the training images" in str(of_rows)
    again = Report.from_dict(json.loads(json.dumps(of_rows.to_dict())))
    assert str(again) == str(of_rows)
    assert again.to_dict() == of_rows.to_dict()
    if isinstance(task, Multilabel):  # every label, whose F1 is not that of none
        dummy = DummyClassifier(strategy="constant", constant=[1, 1, 1]).fit(LABELED, LABELED)
        f1 = metrics.f1_score(LABELED, dummy.predict(LABELED), average="macro")
        assert of_rows.constant["macro_f1"].value == pytest.approx(f1)


def test_reports_show_what_thresholds_and_intervals_stand_on() -> None:
    present = LABELED.astype(bool)
    task = Multilabel(("a", "b", "c"), thresholds=(0.1, 0.5, 0.5), positives=(9, 2, 8))
    of_rows = report(task, present, 0.2 + 0.6 * present)
    assert "macro F1 0.933 and exactly the labels of 66.7% of images; at 0.5 for every l" in str(
        of_rows
    )
    row = [name_rows(of_rows)[1][i] for i in range(7)]
    assert row == ["a", "1.000", "0.800", "0.100", "9", "1.000", "4"]
    assert "macro F1 1.000 and exactly the labels of 100.0% of images." in str(of_rows)
    # Numbers: 60 images set the margin, and the interval is SciPy's.
    rng = np.random.default_rng(0)
    numbers = rng.normal(50, 10, 140)
    answers = numbers[:, None] + rng.normal(0, 4, (140, 1))
    task = Regression(("weight",), units=("kg",)).with_intervals(numbers[:60], answers[:60], 0.9)
    of_rows = report(task, numbers[60:], answers[60:])
    inside = int((np.abs(numbers - answers[:, 0])[60:] <= task.margins[0]).sum())
    low, high = stats.binomtest(inside, 80).proportion_ci(method="wilson")
    row = [float(column[0]) for column in of_rows.names.values()]
    assert row == pytest.approx([task.margins[0], inside / 80, low, high, 80], rel=1e-4)
    beta = stats.beta(55, 6).ppf([0.025, 0.975])
    promise = f"calibrations on 60 images realize a coverage from {beta[0]:.1%} to {beta[1]:.1%};"
    assert promise in str(of_rows)
    sets = PredictionSets("lac", 0.9, (0.4, 0.4, 0.3), 60, (0, 2))
    text = str(set_report(sets, [1, 2, 0, 1], [True, True, False, False]))
    assert promise in text
    assert "2 of 3 have a threshold of their own, which takes 9 images of the class or mo" in text
