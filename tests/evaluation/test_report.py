"""The report's numbers are scikit-learn's, and its table shows them."""

import json

import numpy as np
import pytest
from sklearn import metrics

from keras_vit.evaluation import ClassificationReport, classification_report
from keras_vit.tasks.scores import wilson_interval

NAMES = ("daisy", "rose", "tulip")
LABELS = np.random.default_rng(0).integers(0, 3, 200)
SCORES = np.random.default_rng(1).normal(size=(200, 3)) + 2 * np.eye(3)[LABELS]


def test_numbers_equal_scikit_learn() -> None:
    report, both = classification_report(LABELS, SCORES, NAMES), (LABELS, SCORES.argmax(1))
    expected = metrics.classification_report(*both, target_names=NAMES, output_dict=True)
    for scores in (*report.classes, report.macro, report.weighted):
        row = expected[scores.name.replace("average", "avg")]
        theirs = [row[key] for key in ("precision", "recall", "f1-score", "support")]
        assert (scores.precision, scores.recall, scores.f1, scores.support) == pytest.approx(theirs)
    assert report.accuracy == pytest.approx(expected["accuracy"])
    np.testing.assert_array_equal(report.confusion, metrics.confusion_matrix(*both))
    # A class that is never predicted scores zero.
    one = classification_report([0, 1, 2], [0, 0, 0], NAMES)
    assert [s.precision for s in one.classes] == [pytest.approx(1 / 3), 0, 0]
    # The table and JSON have them.
    lines = str(report).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert f"{report.classes[1].recall:.3f}" in next(x for x in lines if x.startswith("rose"))
    assert f"{report.accuracy:.3f}" in lines[-1]
    assert report.to_markdown().count("\n") == len(lines) - 2 + 1 - 1
    assert json.loads(json.dumps(report.to_dict()))["classes"][2]["name"] == "tulip"


def test_scores_are_scikit_learns_beside_the_most_frequent_class() -> None:
    predicted, most = SCORES.argmax(1), np.full_like(LABELS, np.bincount(LABELS).argmax())
    report = classification_report(LABELS, predicted, NAMES)
    for scores, answers in ((report.scores, predicted), (report.constant, most)):
        expected = {
            "accuracy": metrics.accuracy_score(LABELS, answers),
            "balanced_accuracy": metrics.balanced_accuracy_score(LABELS, answers),
            "macro_f1": metrics.f1_score(LABELS, answers, average="macro"),
        }
        assert {name: score.value for name, score in scores.items()} == pytest.approx(expected)
    assert all(score.low < score.value < score.high for score in report.scores.values())
    assert report.scores["accuracy"][1:] == wilson_interval(report.accuracy, len(LABELS))
    again = ClassificationReport.from_dict(json.loads(json.dumps(report.to_dict())))
    assert again.scores == report.scores
    # Where classes have one image each, intervals hold their value: of 100 classes, a resample
    # lacks 37, and their F1 of 0 would be the resample's, not ours.
    labels = np.arange(100)
    report = classification_report(labels, np.where(labels < 90, labels, 0), labels.astype(str))
    for score in report.scores.values():
        assert score.low < score.value < score.high
        assert score.high - score.low < 0.2
    # Macro scores come first where classes differ much.
    labels, cats = np.repeat([0, 1], [90, 9]), np.zeros(99, int)
    report = classification_report(labels, cats, ["cat", "dog"])
    assert list(report.scores) == ["balanced_accuracy", "macro_f1", "accuracy"]
    theirs = metrics.balanced_accuracy_score(labels, cats)
    assert report.scores["balanced_accuracy"].value == theirs == 0.5
    first = str(report).split("\n")[0]
    assert first.startswith("balanced accuracy 0.500, macro F1 0.476, accuracy 0.909 (the largest")
    fewer = classification_report(labels[50:], labels[50:], ["cat", "dog"])
    assert next(iter(fewer.scores)) == "accuracy"
    assert str(fewer).split()[0] == "class"
