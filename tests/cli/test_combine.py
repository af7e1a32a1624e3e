"""`keras-vit combine`, `compare` and `calibrate`: what is made of models, and beside each other."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import accuracy_score, f1_score

import keras_vit
from keras_vit import data, evaluation, tasks
from keras_vit.data.seen_images import SeenImages
from keras_vit.evaluation.outcomes import Outcomes
from keras_vit.evaluation.prediction import predict_files
from keras_vit.evaluation.unseen_images import Scored
from keras_vit.models.answers import answers_of
from keras_vit_cli.compare.compared import Compared
from keras_vit_cli.model_files import name_of_model
from keras_vit_cli.options import score_options as options
from tests import bank
from tests.cli.helpers import COLORS, color_photos, rows_of, save_tiny
from tests.conftest import Command
from tests.data.image_fixtures import plain, write
from tests.models.test_combined import heads_of

pytestmark = pytest.mark.usefixtures("here")


def test_from_runs_to_rows_and_maps(command: Command) -> None:
    models = heads_of()
    del models["labels"], models["depth"]
    for name, model in models.items():
        keras_vit.save_weights(model, f"runs/{name}/model.keras")
    models["kinds"].eval_transform = {"mode": "stretch", "views": "flip"}
    keras_vit.save_weights(models["kinds"], "runs/twice/model.keras")
    for i in range(3):
        Image.new("RGB", (40, 36), (60 * i, 9, 200)).save(f"{i}.png")
    Path("bad.png").write_text("no image")
    Path("runs/v1.5").mkdir()
    assert name_of_model(Path("runs/v1.5")) == "v1.5"
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
        ("combine runs/twice runs/scenes --out x", "--views one, or give --eval-transform stretch"),
        ("combine runs/kinds runs/scenes --out both", "Give another --out, or --overwrite"),
        ("evaluate both --data .", "'both/classification.keras' or 'both/segmentation.keras'"),
        ("serve both", "give 'both/classification.keras' or"),
        ("export both --format onnx --out x.onnx --quantize auto", "give the model of one head"),
        ("predict both 0.png --windows --out x.csv", "give the model of one head"),
    ):
        assert message in command(words, status=2), words


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


def test_each_model_is_scored_by_its_own_task() -> None:
    x, images = np.random.default_rng(0).normal(50, 10, (40, 1)), data.load("digits")
    scales = [tasks.Regression(("x",), offset=(o,), scale=(s,)) for o, s in ((50, 10), (48, 12))]
    thresholds = [tasks.Multilabel(("x",), thresholds=(t,)) for t in (0.9, 0.5)]
    for both, targets, answers in ((scales, x, x + np.sin(x)), (thresholds, x > 50, x / 100)):
        outcomes = [Outcomes.of(task, targets, answers) for task in both]
        compared = Compared(outcomes, "", "ab", Scored(images.val, None, "", ""))
        own = [task.scores(targets, answers) for task in both]
        assert compared.scores == {name: [scores[name] for scores in own] for name in own[0]}
        gains = [own[1][name].value - own[0][name].value for name in own[0]]
        assert [c.value for c in compared.changes[0].values()] == pytest.approx(gains, abs=1e-9)
        assert not compared.differing(1).size


def test_images_that_any_of_them_was_trained_on_are_left_out(command: Command) -> None:
    folder = color_photos(Path("photos"), 6, ".png", brighter=3)
    digests = keras_vit.data.load(folder, val_fraction=None)["all"].digests()
    parts = ("a", digests[:4], digests[10:11]), ("b", digests[4:10], None), ("c", digests[4:], None)
    for name, part, validated in parts:
        model = bank.fresh(task=tasks.Classification(COLORS), num_classes=2)
        model.seen_images = SeenImages.of({"trained on": part, "validated on": validated})
        model.save(f"{name}.keras")
    printed = command("compare a.keras b.keras --out page --data", folder)
    assert "B: 2 images: 2 new; left out: 6 that the model was trained on" in printed
    (verdict,) = json.loads(Path("page/report.json").read_text("utf-8"))["verdicts"]
    assert "on 2 images, too few to know" in verdict
    assert "1 by A, 0 by B were validated on" in printed
    assert r"\[unknown\]" in Path("page/report.md").read_text("utf-8")
    assert "trained on" in command("compare a.keras c.keras --out other --data", folder, status=2)


DIGITS = tuple("0123456789")


def test_calibrate_predict_and_evaluate(command: Command) -> None:
    sizes = {"num_classes": 10, "patch_size": 4, "input_shape": (8, 8, 1)}
    model = bank.tiny(task=tasks.Classification(DIGITS), **sizes, filled=False)
    head = model.get_layer("head")
    head.kernel.assign(np.random.default_rng(0).normal(0, 0.5, head.kernel.shape))
    model.save("model.keras")
    assert options.METHODS == tasks.conformal.METHODS
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
    scores = model.novelty.scores(evaluation.features(model, data.load("digits").train)[0])
    novel = f"Novel, unlike the training images: {(scores > 1).mean():.2%} of 1,437 images."
    assert novel in printed
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
