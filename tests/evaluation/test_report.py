"""The report's numbers are scikit-learn's, and its table shows them."""

import json

import numpy as np
import pytest
from sklearn import metrics

from keras_vit.evaluation import classification_report
from keras_vit_cli.report.run_plots import plot_confusion, plot_curves

NAMES = ("daisy", "rose", "tulip")
LABELS = np.random.default_rng(0).integers(0, 3, 200)
SCORES = np.random.default_rng(1).normal(size=(200, 3)) + 2 * np.eye(3)[LABELS]


def test_numbers_equal_scikit_learn() -> None:
    report = classification_report(LABELS, SCORES, NAMES)
    expected = metrics.classification_report(
        LABELS, SCORES.argmax(1), target_names=NAMES, output_dict=True
    )
    for scores in (*report.classes, report.macro, report.weighted):
        row = expected[scores.name.replace("average", "avg")]
        assert scores.precision == pytest.approx(row["precision"])
        assert scores.recall == pytest.approx(row["recall"])
        assert scores.f1 == pytest.approx(row["f1-score"])
        assert scores.support == row["support"]
    assert report.accuracy == pytest.approx(expected["accuracy"])
    np.testing.assert_array_equal(
        report.confusion, metrics.confusion_matrix(LABELS, SCORES.argmax(1))
    )


def test_table_and_json() -> None:
    report = classification_report(LABELS, SCORES.argmax(1), NAMES)
    lines = str(report).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert f"{report.classes[1].recall:.3f}" in next(x for x in lines if x.startswith("rose"))
    assert f"{report.accuracy:.3f}" in lines[-1]
    assert report.to_markdown().count("\n") == len(lines) - 2 + 1 - 1
    assert json.loads(json.dumps(report.to_dict()))["classes"][2]["name"] == "tulip"


def test_a_class_that_is_never_predicted_scores_zero() -> None:
    report = classification_report([0, 1, 2], [0, 0, 0], NAMES)
    assert [s.precision for s in report.classes] == [pytest.approx(1 / 3), 0, 0]


@pytest.mark.parametrize(
    ("labels", "predictions", "words"),
    [
        ([0, 1], [0], r"\(2,\) labels do not match \(1,\)"),
        ([], [], "one class per example"),
        ([0, 3], [0, 1], "Class 3 does not have a name"),
    ],
)
def test_errors(labels: list[int], predictions: list[int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        classification_report(np.array(labels), np.array(predictions), NAMES)


def test_plots_are_not_empty(tmp_path) -> None:
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib")
    plot_curves({"loss": [2, 1], "val_loss": [2, 1.5], "accuracy": [0, 1]}, tmp_path / "c.png")
    plot_confusion(classification_report(LABELS, SCORES, NAMES), tmp_path / "m.png")
    for name in ("c.png", "m.png"):
        pixels = np.asarray(image.open(tmp_path / name).convert("RGB"))
        assert min(pixels.shape[:2]) > 300
        assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20
