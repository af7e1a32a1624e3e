"""`keras-vit compare`: models on the same images, which none of them was made with."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

import keras_vit
from keras_vit.data.seen_images import SeenImages
from keras_vit.evaluation.prediction import predict_files
from keras_vit.tasks import Classification, Regression
from tests import bank
from tests.cli.conftest import Command
from tests.cli.helpers import COLORS, color_photos, save_tiny

pytestmark = pytest.mark.usefixtures("here")


def test_scores_and_images_that_differ(command: Command) -> None:
    folder = color_photos(Path("photos"), 20, ".png", brighter=3)
    files = sorted(folder.rglob("*.png"))
    paths = [Path(f"model_{seed}.keras") for seed in (1, 2, 3)]
    for seed, path in enumerate(paths):
        model = bank.tiny(task=Classification(COLORS), num_classes=2)
        bank.fill(model, seed + 1, 1.0)
        model.save(path)
    labels = np.array([COLORS.index(file.parent.name) for file in files])
    models = map(keras_vit.load, paths)
    rows = [np.stack([row for _, row in predict_files(model, files)]) for model in models]
    answers = [row[:, :2].argmax(axis=1) for row in rows]
    assert len({accuracy_score(labels, answer) for answer in answers}) > 1  # or nothing is tested
    words = ["compare", *paths, "--data", folder, "--out", "page"]
    printed = command(*words)
    report = json.loads(Path("page/report.json").read_text("utf-8"))
    for letter, answer in zip("ABC", answers, strict=True):
        scores = {name: values[letter][0] for name, values in report["scores"].items()}
        assert scores["accuracy"] == pytest.approx(accuracy_score(labels, answer))
        assert scores["macro_f1"] == pytest.approx(f1_score(labels, answer, average="macro"))
    for letter, answer in zip("BC", answers[1:], strict=True):
        gain = accuracy_score(labels, answer) - accuracy_score(labels, answers[0])
        value, low, high = report["changes"][letter]["accuracy"]
        assert value == pytest.approx(gain)
        assert low <= gain <= high
        differ = np.flatnonzero(answers[0] != answer)
        names = {files[i].relative_to(folder).as_posix() for i in differ}
        listed = {row["file"] for row in report["differing"][letter]}
        assert listed <= names
        assert len(listed) == min(len(names), 24)
        text = Path("page/report.md").read_text()
        assert f"Of 40 images, {len(names)} have another answer" in text
        assert Path(f"page/differ_{letter}.png").is_file() == bool(names)
    assert "paired 95 % interval" in printed
    assert Path("page/report.html").read_text("utf-8").count("data:image/png") >= 1
    assert "or --overwrite" in command(*words, status=2)


def test_images_that_any_of_them_was_trained_on_are_left_out(command: Command) -> None:
    folder = color_photos(Path("photos"), 6, ".png", brighter=3)
    split = keras_vit.data.load(folder, val_fraction=None)["all"]
    digests = split.digests()
    for name, part in (("a", digests[:4]), ("b", digests[4:10])):
        model = bank.fresh(task=Classification(COLORS), num_classes=2)
        model.seen_images = SeenImages.of({"trained on": part})
        model.save(f"{name}.keras")
    printed = command("compare a.keras b.keras --out page --data", folder)
    assert "B: 2 images: 2 new; left out: 6 that the model was trained on" in printed
    assert json.loads(Path("page/report.json").read_text("utf-8"))["images"] == 2
    model.seen_images = SeenImages.of({"trained on": digests[4:]})
    model.save("b.keras")
    assert "trained on" in command("compare a.keras b.keras --out other --data", folder, status=2)


def test_what_cannot_be_compared(command: Command) -> None:
    folder, one = color_photos(Path("photos"), 2), save_tiny("one.keras")
    number = save_tiny("number.keras", task=Regression(("weight",)))
    for words, message in (
        ([one], "1 model given: give two to 8"),
        ([one, one], "one.keras is given twice"),
        ([one, number], "number.keras answers regression of 1 and one.keras classification of 2"),
        ([one, "missing.keras"], "missing.keras"),
    ):
        error = command("compare", *words, "--data", folder, "--out", "page", status=2)
        assert message in error
    assert not Path("page").exists()
