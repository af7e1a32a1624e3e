"""Reports of a thousand classes and of 21,843: bounded in memory, pixels and rows."""

import json
import re
import tracemalloc
from functools import partialmethod
from pathlib import Path

import numpy as np
import pytest

from keras_vit import data, evaluation
from keras_vit.evaluation import classification_report, prediction
from keras_vit.evaluation.report_text import name_rows
from keras_vit.evaluation.shown_images import images_at
from keras_vit.tasks import Multilabel, Regression, Task
from keras_vit_cli.report.contact_sheet import draw_contact_sheet
from keras_vit_cli.report.report_page import MOST_SCORES, report_page
from keras_vit_cli.report.run_files import write_report
from keras_vit_cli.report.run_plots import draw_confusion
from tests.bank import TINY, fill, fresh, pixels
from tests.evaluation.outcomes import outcomes_of, results_of_classes, results_of_task
from tests.evaluation.test_run_report import texts

pytest.importorskip("matplotlib")
pytest.importorskip("tensorflow")

NAMES = tuple(f"class {i}" for i in range(1000))
LABELS = np.arange(4000) % 1000
# Class 7 is taken for class 8 three times of four, each hundredth for the next class once.
PREDICTIONS = LABELS.copy()
PREDICTIONS[[7, 1007, 2007]] = 8
PREDICTIONS[100:1000:100] += 1


def test_a_report_takes_less_than_1_gib(tmp_path: Path) -> None:
    logits = np.random.default_rng(0).normal(size=(4000, 1000)).astype("float32")
    logits[np.arange(4000), LABELS] += 3
    tracemalloc.start()
    write_report(tmp_path, results_of_classes(NAMES, LABELS, logits), {})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**30


def test_the_matrix_shows_the_worst_confusions() -> None:
    figure = draw_confusion(classification_report(LABELS, PREDICTIONS, NAMES))
    assert max(figure.get_size_inches() * figure.dpi) < 4000
    axes = figure.axes[0]
    rows = texts(axes.get_yticklabels())
    assert rows[:2] == ["class 7", "class 8"]
    assert texts(axes.get_xticklabels()) == [*rows, "any other"]
    assert "20 of 1,000 classes: those of the most frequent confusions" in axes.get_title()
    numbers = {text.get_position(): text.get_text() for text in axes.texts}
    assert (numbers[1, 0], numbers[0, 0]) == ("3", "1")
    # 60 classes, each taken for the next one, do not fit; their rows still sum to all images.
    labels = np.repeat(np.arange(60), 3)
    axes = draw_confusion(classification_report(labels, (labels + 1) % 60, NAMES[:60])).axes[0]
    sums = np.zeros(50)
    for text in axes.texts:
        sums[text.get_position()[1]] += int(text.get_text())
    assert (sums == 3).all()


def test_tables_have_the_worst_classes_and_the_file_all() -> None:
    report = classification_report(LABELS, PREDICTIONS, NAMES)
    assert [row[0] for row in name_rows(report)[1:3]] == ["class 7", "class 8"]
    text = report.to_markdown()
    assert "Shown: the 40 with the lowest F1 of 1,000; `report.json` has all." in text
    assert "The most frequent confusions, 10 of 10:" in text
    assert "| class 7 | class 8 | 3 |" in text
    text = json.dumps(report.to_dict())
    assert len(text) < 300_000  # a matrix of a million numbers would be 3 MB
    assert report.confusion.sum() == len(LABELS)
    most = classification_report([0, 21_842], [0, 1], [str(i) for i in range(21_843)])
    assert most.pairs.tolist() == [[0, 0, 1], [21_842, 1, 1]]
    with pytest.raises(ValueError, match=r"21,843 classes would take 3\.6 GiB.*report\.pairs"):
        _ = most.confusion


def test_pages_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    page = report_page("m", results_of_classes(NAMES, [0, 0, 1], np.eye(1000)[[0, 0, 1]]), {})
    assert "Not tested, as there are no images: class 2, class 3," in page
    assert "class 11 and 988 more (998 classes of 1,000)" in page
    assert "Classification into 1,000 classes: class 0, class 1," in page
    monkeypatch.setattr(Task, "scores", partialmethod(Task.scores, resamples=2))
    rng, present = np.random.default_rng(0), np.eye(1000, dtype="float32")[:4]
    shown = "Shown: the 4 with the lowest F1 of 1,000; `report.json` has all."
    more = f"{4001 - MOST_SCORES:,} more are in `report.json`."
    probabilities, values = rng.random(present.shape), rng.normal(size=present.shape)
    for task, targets, answers, words in (
        (Multilabel(NAMES), present, probabilities, shown),
        (Regression(NAMES), values, values + 0.1, more),
    ):
        split = data.ArraySplit("val", task, pixels(4, 8, 8, 1), task.check_targets(targets))
        results = results_of_task(task, targets, answers, split)
        assert words in (page := report_page("many", results, {}))
        assert len(page) < 10_000


def test_outcomes_are_those_of_all_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduced batch by batch, and a few rows at a time, as of many classes."""
    split = data.ArraySplit("val", NAMES[:10], pixels(360, 8, 8, 1), LABELS[:360] % 10)
    model = fresh(**TINY | {"input_shape": (8, 8, 1), "patch_size": 4, "num_classes": 10})
    fill(model, scale=1)
    labels, logits = evaluation.predict_split(model, split, 7)
    expected = outcomes_of(NAMES[:10], labels, logits).tally
    assert len(np.unique(expected["predictions"])) > 3
    monkeypatch.setattr(prediction, "MOST_SCORE_BYTES", 40 * 16)
    tally = prediction.predict_outcomes(model, split, 7)[0].tally
    for name in expected:
        np.testing.assert_allclose(tally[name], expected[name], rtol=1e-3)


def test_large_images_and_long_names_of_mistakes_are_reduced() -> None:
    split = data.ArraySplit("val", ("a", "b"), pixels(2, 300, 600, 1), np.array([0, 1]))
    assert [i.shape for i in images_at(split, [1], largest=60)] == [(30, 60, 3)]
    # Long names differ where they are shown.
    long = "Canis_lupus_familiaris_of_the_mountains_{}_in_the_snow_of_the_high_valleys_in_winter"
    colors = ("brown", "black", "brindled")
    siblings = tuple(long.format(color) for color in colors)
    line = (f"{siblings[1]} (90%)", siblings[0], f"{siblings[0]}/3.jpg")
    figure = draw_contact_sheet("Worst", [np.zeros((8, 8, 3), np.uint8)], [line])
    first, second, file = texts(figure.axes[0].texts)
    assert "black" in first
    assert "brown" in second
    assert re.fullmatch("Canis.*/3\\.jpg", file)
    report = classification_report([0, 1, 2], [0, 1, 1], siblings)
    shown = texts(draw_confusion(report).axes[0].get_yticklabels())
    for color, name in zip(colors, shown, strict=True):
        assert color[:4] in name
        assert len(name) < 45


def test_an_accuracy_that_says_nothing() -> None:
    names = ["benign", "malignant"]
    report = classification_report([0] * 56 + [1], [0] * 56 + [1], names)
    assert report.scores["accuracy"].value == 1
    for text in (str(report), report.notes[1]):
        assert "An accuracy of 100.0% on 57 images says nothing of the classes" in text
        assert "always predicting benign would reach 98.2%" in text
        assert "the smallest class, malignant, has 1 image. The balanced accuracy" in text
    alone = classification_report([0] * 9, [0] * 9, names)
    assert alone.notes[0].startswith("Not tested, as there are no images: malignant")
    assert "there are no images of any other class" in alone.notes[1]
