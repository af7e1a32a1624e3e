"""`keras-vit combine` and `compare`: several models, and what a beginner gets wrong of them."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import accuracy_score, f1_score

import keras_vit
from keras_vit.data.seen_images import SeenImages
from keras_vit.evaluation.prediction import predict_files
from keras_vit.tasks import Classification, Regression
from tests import bank
from tests.cli.conftest import Command
from tests.cli.helpers import COLORS, color_photos, rows_of, save_tiny
from tests.models.test_combined import heads_of


@pytest.mark.usefixtures("here")
def test_from_runs_to_rows_and_maps(command: Command) -> None:
    models = heads_of()
    del models["labels"], models["depth"]
    for name, model in models.items():
        keras_vit.save_weights(model, f"runs/{name}/model.keras")
    for i in range(3):
        Image.new("RGB", (40, 36), (60 * i, 9, 200)).save(f"{i}.png")
    Path("bad.png").write_text("no image")
    printed = command("combine runs/kinds runs/scenes --out both --eval-transform stretch")
    assert "next: keras-vit predict both photos/ --out rows.csv --maps maps/" in printed
    command("predict both 0.png 1.png bad.png --out rows.csv --maps maps", status=1)
    command("predict both 0.png 1.png bad.png 2.png --out rows.csv --resume", status=0)
    rows = rows_of("rows.csv")
    assert [row["file"] for row in rows] == ["0.png", "1.png", "bad.png", "2.png"]
    for name, head in (("kinds", "classification"), ("scenes", "segmentation")):
        command(f"predict runs/{name} 0.png 1.png --out {name}.csv")
        for own, row in zip(rows_of(f"{name}.csv"), rows, strict=False):
            for column in own.keys() - {"file", "error"}:
                both = row[f"{head}_{column}"]
                if column.startswith("class"):
                    assert both == own[column]
                else:
                    assert float(both) == pytest.approx(float(own[column]), abs=1e-6)
    assert sorted(file.name for file in Path("maps").iterdir()) == ["0.png", "1.png"]
    command("predict runs/scenes 0.png --out own.csv --maps own")
    assert Path("own/0.png").read_bytes() == Path("maps/0.png").read_bytes()
    command("predict both 0.png --out rows.jsonl")
    row = json.loads(Path("rows.jsonl").read_text())
    assert row.keys() == {"file", "error", "classification", "segmentation"}
    for words, message in (
        ("combine runs/kinds --out x", "two heads or more"),
        ("combine runs/kinds runs/kinds runs/kinds/model.keras --out x", "--names head1 head2"),
        ("combine runs/kinds runs/scenes --names a --out x", "--names has 1 for 2 runs"),
        ("combine runs/kinds runs/scenes --out both", "Give another --out, or --overwrite"),
        ("evaluate both --data .", "'both/classification.keras' or 'both/segmentation.keras'"),
        ("serve both", "give 'both/classification.keras' or"),
        ("predict both 0.png --windows --out x.csv", "give the model of one head"),
    ):
        assert message in command(words, status=2), words


pytestmark = pytest.mark.usefixtures("here")


def test_scores_and_images_that_differ(command: Command) -> None:
    folder = color_photos(Path("photos"), 20, ".png", brighter=3)
    files = sorted(folder.rglob("*.png"))
    paths = [save_tiny(f"model_{seed}.keras", seed) for seed in (1, 2, 3)]
    labels = np.array([COLORS.index(file.parent.name) for file in files])
    models = map(keras_vit.load, paths)
    rows = [np.stack([row for _, row in predict_files(model, files)]) for model in models]
    answers = [row[:, :2].argmax(axis=1) for row in rows]
    assert len({accuracy_score(labels, answer) for answer in answers}) > 1  # or nothing is tested
    words = ["compare", *paths, "--data", folder, "--out", "page"]
    command(*words)
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
    assert "or --overwrite" in command(*words, status=2)


def test_images_that_any_of_them_was_trained_on_are_left_out(command: Command) -> None:
    folder = color_photos(Path("photos"), 6, ".png", brighter=3)
    digests = keras_vit.data.load(folder, val_fraction=None)["all"].digests()
    for name, part in (("a", digests[:4]), ("b", digests[4:10]), ("c", digests[4:])):
        model = bank.fresh(task=Classification(COLORS), num_classes=2)
        model.seen_images = SeenImages.of({"trained on": part})
        model.save(f"{name}.keras")
    printed = command("compare a.keras b.keras --out page --data", folder)
    assert "B: 2 images: 2 new; left out: 6 that the model was trained on" in printed
    assert json.loads(Path("page/report.json").read_text("utf-8"))["images"] == 2
    assert "trained on" in command("compare a.keras c.keras --out other --data", folder, status=2)


def test_what_cannot_be_compared(command: Command) -> None:
    folder, one = color_photos(Path("photos"), 2), save_tiny("one.keras")
    number = save_tiny("number.keras", task=Regression(("weight",)))
    for words, message in (
        ([one], "1 model given: give two to 8"),
        ([one, one], "one.keras is given twice"),
        ([one, number], "number.keras answers regression of 1 and one.keras classification of 2"),
    ):
        error = command("compare", *words, "--data", folder, "--out", "page", status=2)
        assert message in error
    assert not Path("page").exists()
