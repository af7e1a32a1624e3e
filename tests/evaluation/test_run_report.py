"""Calibration, mistakes, model card, and the folder of a run."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import keras_vit
from keras_vit import data
from keras_vit.evaluation import (
    calibration,
    classification_report,
    predict_split,
    worst_mistakes,
)
from keras_vit.evaluation.mistakes import images_at
from keras_vit_cli.report.model_card import model_card
from keras_vit_cli.report.run_files import write_report
from tests.data.image_fixtures import flat_folder

NAMES = ("daisy", "rose", "tulip")
RANDOM = np.random.default_rng(0)
LABELS = RANDOM.integers(0, 3, 400)
LOGITS = 2 * RANDOM.normal(size=(400, 3)) + 2 * np.eye(3)[LABELS]
PROBABILITIES = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_error_by_its_definition(bins: int) -> None:
    confidence, predictions = PROBABILITIES.max(1), PROBABILITIES.argmax(1)
    error = 0.0
    for m in range(bins):
        inside = (confidence > m / bins) & (confidence <= (m + 1) / bins)
        if inside.any():
            gap = (predictions == LABELS)[inside].mean() - confidence[inside].mean()
            error += inside.sum() / 400 * abs(gap)
    assert calibration(LABELS, PROBABILITIES, bins).error == pytest.approx(error, abs=1e-12)


def test_diagram_equals_scikit_learn() -> None:
    curve = pytest.importorskip("sklearn.calibration").calibration_curve
    result = calibration(LABELS, PROBABILITIES, 10)
    filled = result.counts > 0
    correct = PROBABILITIES.argmax(1) == LABELS
    accuracy, confidence = curve(correct, PROBABILITIES.max(1), n_bins=10)
    np.testing.assert_allclose(result.accuracy[filled], accuracy)
    np.testing.assert_allclose(result.confidence[filled], confidence)
    assert result.counts.sum() == 400
    assert json.loads(json.dumps(result.to_dict()))["confidence"][0] is None


def test_certainty_is_calibrated_where_it_is_correct() -> None:
    certain = np.eye(2)[[0, 1, 1]]
    assert calibration([0, 1, 1], certain).error == 0
    assert calibration([1, 0, 0], certain).error == 1
    assert calibration([0, 1, 1], certain).counts[-1] == 3


def test_mistakes_are_the_most_confident_errors() -> None:
    files = [f"{i}.jpg" for i in range(400)]
    mistakes = worst_mistakes(LABELS, PROBABILITIES, 10, files)
    predictions = PROBABILITIES.argmax(1)
    wrong = np.flatnonzero(predictions != LABELS)
    assert {m.index for m in mistakes} == set(wrong[np.argsort(-PROBABILITIES.max(1)[wrong])[:10]])
    assert [m.probability for m in mistakes] == sorted(
        (m.probability for m in mistakes), reverse=True
    )
    for mistake in mistakes:
        assert mistake.label == LABELS[mistake.index] != mistake.prediction
        assert mistake.probability == PROBABILITIES[mistake.index, mistake.prediction]
        assert mistake.label_probability == PROBABILITIES[mistake.index, mistake.label]
        assert mistake.file == f"{mistake.index}.jpg"
    assert worst_mistakes(predictions, PROBABILITIES) == ()


@pytest.mark.parametrize("function", [calibration, worst_mistakes])
def test_errors(function) -> None:
    with pytest.raises(ValueError, match=r"not probabilities\. Apply keras\.ops\.softmax"):
        function(LABELS, LOGITS)
    with pytest.raises(ValueError, match=r"\(399,\) labels do not match \(400, 3\)"):
        function(LABELS[1:], PROBABILITIES)


def test_what_is_out_of_range() -> None:
    digits = data.ArraySplit("val", NAMES, np.zeros((3, 8, 8, 1), np.uint8), np.arange(3))
    for call, words in (
        (lambda: calibration(LABELS + 1, PROBABILITIES), "Labels range from 1 to 3"),
        (lambda: calibration(LABELS / 2, PROBABILITIES), "Labels are float64"),
        (lambda: calibration(LABELS, np.nan * PROBABILITIES), "not finite"),
        (lambda: worst_mistakes(LABELS, PROBABILITIES, count=0), "count=0"),
        (lambda: images_at(digits, [3]), "indices from 3 to 3"),
        (lambda: images_at(digits, [-1, 1]), "indices from -1 to 1"),
        (lambda: images_at(digits, [0], channels=2), "channels=2"),
        (lambda: classification_report(LABELS - 1, LOGITS, NAMES), "Labels range from -1"),
        (lambda: classification_report(LABELS, LOGITS, NAMES[:2]), "one column per class"),
        (lambda: classification_report(LABELS, LOGITS * np.inf, NAMES), "400 of 400 examples"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_history_that_is_not_finite_is_refused(value: float, tmp_path: Path) -> None:
    report, out = classification_report(LABELS, LOGITS, NAMES), tmp_path / "out"
    history = {"loss": [1.0, value]}
    with pytest.raises(ValueError, match=rf"loss is {value} in epoch 2: the training diverged"):
        write_report(out, report, {}, labels=LABELS, logits=LOGITS, history=history)
    assert not out.exists()


def test_images_come_in_the_order_of_their_indices(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    split = data.load(flat_folder(tmp_path), val_fraction=0.5).val
    images = images_at(split, [7, 2, 4])
    assert [image.shape for image in images] == [(16, 20, 3)] * 3
    # The gray level of each image is the number in its name.
    assert [image[0, 0, 0] for image in images] == [int(split.files[i].stem) for i in (7, 2, 4)]


def test_skipped_files_do_not_shift_images_and_labels(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    folder = flat_folder(tmp_path)
    complete = data.load(folder, val_fraction=0.5).val
    broken = 2
    complete.files[broken].write_bytes(b"not an image")
    split = data.load(folder, val_fraction=0.5, verify=False).val
    assert split.files == complete.files
    readable = [file for i, file in enumerate(split.files) if i != broken]
    images = images_at(split, [5, 0, 3])
    assert [image[0, 0, 0] for image in images] == [int(readable[i].stem) for i in (5, 0, 3)]
    model = keras_vit.VisionTransformer(
        patch_size=8, hidden_dim=8, depth=1, num_heads=2, input_shape=(8, 8, 3), num_classes=2
    )
    labels, scores = predict_split(model, split)
    np.testing.assert_array_equal(labels, np.delete(complete.labels(), broken))
    assert scores.shape == (len(readable), 2)


FACTS = {
    "seconds": 61.2,
    "parameters": 5526346,
    "data": {"train": 1800, "val": 400},
    "bad_files": [["rose/x|y.jpg", "the file is empty"]],
    "beside": ["SVC 0.5"],
}
CONFIG = {
    "command": "keras-vit train --data photos",
    "job": {"data": "photos", "weights": "ViT-Ti/16:augreg_in21k"},
    "recipe": {"learning_rate": 0.03, "source": "table 4 | here"},
    "versions": {"keras": "3.15"},
}


def test_card_has_hugging_faces_sections_and_every_fact() -> None:
    report = classification_report(LABELS, LOGITS, NAMES)
    mistakes = worst_mistakes(LABELS, PROBABILITIES)
    card = model_card(
        "flowers",
        report,
        FACTS,
        CONFIG,
        calibration(LABELS, PROBABILITIES),
        mistakes,
        ("confusion.png",),
    )
    assert card.startswith("---\nlicense:")
    for section in (
        "Model details",
        "Uses",
        "Bias, risks and limitations",
        "How to get started",
        "Training details",
        "Evaluation",
        "Technical specifications",
        "Citation",
        "Contact",
    ):
        assert f"\n## {section}\n" in card
    for fact in (
        f"{report.accuracy:.2%}",
        "5,526,346",
        "ViT-Ti/16:augreg_in21k",
        "`photos`",
        "1800 train, 400 val",
        "`rose/x|y.jpg`: the file is empty",
        "- SVC 0.5",
        "| learning_rate | 0.03 |",
        "| source | table 4 \\| here |",
        "61 seconds",
        "| keras | 3.15 |",
        "keras-vit train --data photos",
        "![confusion](confusion.png)",
        "**License:** [fill in]",
        f"{mistakes[0].probability:.1%}",
    ):
        assert fact in card
    weakest = min(report.classes, key=lambda scores: scores.recall)
    assert f"The weakest class is {weakest.name}" in card


def test_card_of_an_untested_class_without_facts() -> None:
    card = model_card("pets", classification_report([0, 0], [0, 0], ["cat", "dog"]), {})
    assert "Not tested, as there are no validation images: dog (1 class of 2)." in card
    assert "95 % confidence interval 34.2% to 100.0%" in card  # Wilson, 2 of 2
    assert "None" not in card


def test_folder(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib")
    pytest.importorskip("tensorflow")
    pixels = RANDOM.integers(0, 256, (400, 8, 8, 1), np.uint8)
    split = data.ArraySplit("val", NAMES, pixels, LABELS)
    report = classification_report(LABELS, LOGITS, NAMES)
    history = {"loss": [2.0, 1.0], "val_loss": [2.0, 1.5]}
    write_report(
        tmp_path / "ビオラ",
        report,
        FACTS,
        labels=LABELS,
        logits=LOGITS,
        split=split,
        history=history,
        config=CONFIG,
    )
    names = {path.name for path in (tmp_path / "ビオラ").iterdir()}
    plots = {"confusion.png", "curves.png", "calibration.png", "mistakes.png"}
    assert names == {"report.json", "report.md", *plots}
    for name in plots:
        colors = np.asarray(image.open(tmp_path / "ビオラ" / name).convert("RGB"))
        assert min(colors.shape[:2]) > 300
        assert len(np.unique(colors.reshape(-1, 3), axis=0)) > 20
    record = json.loads((tmp_path / "ビオラ" / "report.json").read_text("utf-8"))
    assert record["accuracy"] == report.accuracy
    assert record["bad_files"] == FACTS["bad_files"]
    assert record["history"] == history
    assert record["report"]["classes"][1]["name"] == "rose"
    error = calibration(LABELS, PROBABILITIES).error
    assert record["calibration"]["expected_calibration_error"] == pytest.approx(error, abs=1e-6)
    assert len(record["mistakes"]) == 24
    card = (tmp_path / "ビオラ" / "report.md").read_text("utf-8")
    assert "# ビオラ" in card
    assert all(f"]({name})" in card for name in plots)


def test_commands_use_the_folder_of_the_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = classification_report(LABELS, LOGITS, NAMES)
    facts = {"labels": LABELS, "logits": LOGITS}
    write_report(tmp_path / "partial", report, {}, **facts, run="runs/my photos")
    card = (tmp_path / "partial" / "report.md").read_text("utf-8")
    assert "\n# my photos\n" in card
    assert "\nkeras-vit predict 'runs/my photos' photo.jpg\n" in card
    assert 'load_model("runs/my photos/model.keras")' in card
    write_report(tmp_path / "here", report, {}, **facts)
    card = (tmp_path / "here" / "report.md").read_text("utf-8")
    assert f"\nkeras-vit predict {tmp_path / 'here'} photo.jpg\n" in card


def full_disk_at(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the writing of one file fail as on a full disk."""
    move = os.replace

    def fail(source: str, target: str) -> None:
        if Path(target).name == name:
            raise OSError(28, "No space left on device")
        move(source, target)

    monkeypatch.setattr(os, "replace", fail)


@pytest.mark.parametrize(
    "name",
    ["report.json", "report.md", "confusion.png", "calibration.png", "curves.png", "mistakes.png"],
)
def test_a_full_disk_leaves_the_previous_report(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("tensorflow")
    split = data.ArraySplit("val", ("a", "b"), np.zeros((2, 8, 8, 3), np.uint8), np.array([0, 1]))
    report = classification_report([0, 1], [0, 1], ("a", "b"))
    options = {"labels": [0, 1], "logits": 9 * np.eye(2), "split": split}

    def write(loss: float) -> None:
        write_report(tmp_path, report, {}, **options, history={"loss": [loss]})

    write(1.0)
    before = (tmp_path / name).read_bytes()
    full_disk_at(name, monkeypatch)
    with pytest.raises(OSError, match=name):
        write(2.0)
    assert (tmp_path / name).read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 6


def test_a_plot_without_mistakes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    split = data.ArraySplit("val", ("a", "b"), np.zeros((2, 8, 8, 3), np.uint8), np.array([0, 1]))
    report = classification_report([0, 1], [0, 1], ("a", "b"))
    write_report(tmp_path, report, {}, labels=[0, 1], logits=9 * np.eye(2), split=split)
    assert (tmp_path / "mistakes.png").stat().st_size > 1000
    assert json.loads((tmp_path / "report.json").read_text())["mistakes"] == []
