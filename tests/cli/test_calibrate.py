"""`keras-vit calibrate` and `train --coverage`: from held-out images to sets in every answer."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit import data, evaluation, tasks
from keras_vit.models.answers import answers_of
from keras_vit.tasks import Segmentation, conformal
from keras_vit_cli.options import calibrate as options
from tests import bank
from tests.cli.conftest import Command
from tests.cli.helpers import COLORS, color_photos, rows_of, save_tiny, write_rows
from tests.data.image_fixtures import plain, write

pytestmark = pytest.mark.usefixtures("here")
DIGITS = tuple("0123456789")


def save(file: str, names: tuple[str, ...] = DIGITS) -> None:
    sizes = {"num_classes": len(names), "patch_size": 4, "input_shape": (8, 8, 1)}
    model = bank.tiny(task=tasks.Classification(names), **sizes, filled=False)
    head = model.get_layer("head")
    head.kernel.assign(np.random.default_rng(0).normal(0, 0.5, head.kernel.shape))
    model.save(file)


def test_calibrate_predict_and_evaluate(command: Command) -> None:
    assert options.METHODS == conformal.METHODS
    save("model.keras")
    printed = command("calibrate --data digits --split val --coverage 0.9 model.keras")
    assert "calibrated on 360 images for a coverage of 0.9" in printed
    assert "10 classes with a threshold and a coverage of its own" in printed
    assert "novelty: above 1 for at most 0.1 of new images like these" in printed
    model = keras_vit.load("model-calibrated.keras")
    labels, outputs = evaluation.predict_split(model, data.load("digits").val)
    answers = answers_of(model, outputs)
    assert model.task.sets == tasks.PredictionSets.calibrated(labels, answers, 0.9)
    sizes, inside = np.bincount(labels), model.task.sets.contains(answers)
    covered = np.bincount(labels, inside[np.arange(360), labels])
    np.testing.assert_array_equal(covered, np.ceil((sizes + 1) * 0.9))
    printed = command("evaluate --data digits model-calibrated.keras")
    assert "Prediction sets of 0.9 coverage, from 360 images" in printed
    write(Path("images"), {f"{i}.png": plain(60 * i) for i in range(5)})
    for file in ("a.csv", "a.jsonl"):
        command(f"predict model-calibrated.keras images --top 10 --out {file}")
    rows = rows_of("a.csv")
    records = [json.loads(line) for line in Path("a.jsonl").read_text().splitlines()]
    for row, record in zip(rows, records, strict=True):
        number = {row[f"class_{i}"]: float(row[f"probability_{i}"]) for i in range(1, 11)}
        names = model.task.names_in_set([number[name] for name in DIGITS])
        assert (row["set"], record["set"]) == (";".join(names), names)
        assert row["novel"] == str(record["novel"]).lower()
        assert float(row["novelty"]) == pytest.approx(record["novelty"], rel=1e-4)
        assert record["novel"] is (record["novelty"] > 1)
    assert any(row["set"] for row in rows)


def test_what_cannot_be_calibrated(command: Command) -> None:
    save("model.keras")
    Path("others").mkdir()
    save("others/model.keras", ("a", "b"))
    for words, message in (
        ("model.keras --split val --coverage 0.999", "at least 999 images"),
        ("model.keras --split test", "--split test is not known"),
        ("model.keras --out a.h5", "must end in .keras"),
        ("model.keras --out others/model.keras", "exists. Give --overwrite"),
        ("others/model.keras", "predicts 2 classes"),
    ):
        assert message in command(f"calibrate --data digits {words}", status=2)


@pytest.mark.thorough  # the images are kept apart in test_scored_images.py
def test_train_with_a_coverage(command: Command) -> None:
    save("model.keras")
    out = Path("run")
    train = "train --data digits --weights model.keras --out run --image-size 8 --recipe finetune"
    train = f"{train} --freeze-backbone --coverage"
    assert "needs at least 999 training images" in command(f"{train} 0.999", status=2)
    printed = command(f"{train} 0.9")
    facts = json.loads((out / "report.json").read_text())
    count = facts["calibrated_on"]
    assert facts["data"] == {"train": 1437 - count, "val": 360}
    assert count == pytest.approx(144, abs=10)
    model = keras_vit.load(out)
    scores = model.novelty.scores(evaluation.features(model, data.load("digits").val)[0])
    assert facts["report"]["novelty"] == {"images": 360, "novel": int((scores > 1).sum())}
    novel = f"Novel, unlike the training images: {(scores > 1).mean():.2%} of 360 images."
    page = (out / "report.md").read_text()
    for text in (printed, page, command("evaluate --data digits run/saved_models/run/1")):
        assert novel in text
    contract = keras_vit.exporting.load_exported(out / "saved_models/run/1").contract
    assert contract.task.sets == model.task.sets


def test_labels_of_another_task_are_named(command: Command) -> None:
    """By every command that takes them, whichever of model and labels has pixels."""
    photos = color_photos(Path("photos"), 2, ".png")
    for file in photos.rglob("*.png"):
        mask = Path("masks") / file.relative_to(photos)
        mask.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.eye(20, 24, dtype="uint8")).save(mask)
    rows = [(f"{color}/{i}.png", color) for color in COLORS for i in range(2)]
    write_rows("photos/t.csv", ("file", "label"), *rows)
    save_tiny("classes.keras")
    save_tiny("masks.keras", task=Segmentation(COLORS))
    for model, labels, words in (
        ("masks", "t.csv", "answers segmentation of green, red, and the data has classification"),
        ("classes", "masks", "answers classification of green, red, and the data has segmentation"),
    ):
        for name in ("calibrate", "evaluate"):
            wrong = f"{name} {model}.keras --data photos --labels {labels}"
            assert words in command(wrong, status=2)
    wrong = "evaluate masks.keras --data photos --labels masks --probe"
    assert "score classes, and the data has segmentation of" in command(wrong, status=2)
