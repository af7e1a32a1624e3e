"""From a table of labels to a report, on the command line: several labels, numbers, grades."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import keras_vit
from examples import label_tables
from keras_vit.evaluation.task_probe import TaskProbe, task_probe
from keras_vit.models.answers import answers_of
from keras_vit_cli import commands as cli
from keras_vit_cli.train import run

SCORES = {
    "pairs": ("multilabel", "mean_average_precision", "precision_recall.png"),
    "angles": ("regression", "mae", "numbers.png"),
    "counts": ("ordinal", "quadratic_kappa", "grades.png"),
}


@pytest.fixture(
    params=["pairs", *(pytest.param(n, marks=pytest.mark.slow) for n in SCORES if n != "pairs")]
)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_train_evaluate_and_predict(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(label_tables, "IMAGES", 120)
    monkeypatch.setattr(label_tables, "VALIDATION", 30)
    label_tables.write(name, tmp_path / name, seed=0)
    kind, score, plot = SCORES[name]
    data = ["--data", str(tmp_path / name), "--labels", str(tmp_path / name / "labels.csv")]
    data += ["--task", "ordinal"] if kind == "ordinal" else []
    out = tmp_path / "run"
    options = ["--steps", "3", "--batch-size", "16", "--augment", "none", "--image-size", "16"]
    assert cli.main(["train", *data, "--out", str(out), *options]) == 0
    printed = capsys.readouterr().out
    assert f"task {kind}: " in printed
    record = json.loads((out / "report.json").read_text("utf-8"))
    assert record["report"]["task"]["kind"] == kind
    assert record["report"]["examples"] == 30
    assert score in record["report"]["scores"]
    assert {plot, "curves.png", "mistakes.png", "report.md"} <= {p.name for p in out.iterdir()}
    card = (out / "report.md").read_text("utf-8")
    assert f"| {score} |" in card
    assert "| training | 90 images: " in card
    assert str(tmp_path) not in card
    assert "accuracy" not in card or kind == "ordinal"

    assert cli.main(["evaluate", str(out), *data]) == 0
    value = record["report"]["scores"][score][0]
    assert f"{value:.4g}" in capsys.readouterr().out

    model = keras_vit.load_model(out)
    assert model.task.kind == kind
    files = [str(tmp_path / name / "0000.png")]
    assert cli.main(["predict", str(out), *files]) == 0
    pixels = np.asarray(Image.open(files[0]).convert("RGB").resize((16, 16)))[None]
    answer = answers_of(model, model.predict(pixels.astype("float32"), verbose=0))[0]
    assert answer.shape == (model.task.size,)
    first = model.task.describe(answer)["predictions"][0]
    assert first.get("class", first.get("label", first.get("name", first.get("grade"))))


@pytest.mark.slow
def test_a_frozen_backbone_and_a_teacher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(label_tables, "IMAGES", 120)
    monkeypatch.setattr(label_tables, "VALIDATION", 30)
    label_tables.write("pairs", tmp_path / "pairs", seed=0)
    data = ["--data", str(tmp_path / "pairs"), "--labels", str(tmp_path / "pairs" / "labels.csv")]
    model = keras_vit.VisionTransformer(
        patch_size=8, hidden_dim=16, depth=1, num_heads=2, input_shape=(16, 16, 3)
    )
    model.save(tmp_path / "weights.keras")
    probes = []

    def probe(*arguments: Any) -> TaskProbe:
        probes.append(task_probe(*arguments))
        return probes[-1]

    monkeypatch.setattr(run, "task_probe", probe)
    frozen = str(tmp_path / "frozen")
    options = ["--weights", str(tmp_path / "weights.keras"), "--freeze-backbone"]
    assert cli.main(["train", *data, *options, "--out", frozen]) == 0
    printed = capsys.readouterr().out
    assert "on frozen features: linear probe mean_average_precision 0." in printed
    assert "the head alone is trained" in printed
    trained = keras_vit.load_model(frozen)
    for layer, weights in (
        ("head", [probes[0].kernel, probes[0].bias]),
        ("block_0", model.get_layer("block_0").get_weights()),
    ):
        for actual, expected in zip(trained.get_layer(layer).get_weights(), weights, strict=True):
            np.testing.assert_array_equal(actual, expected)

    options = ["--teacher", frozen, "--steps", "2", "--batch-size", "16", "--image-size", "16"]
    options += ["--augment", "none", "--out", str(tmp_path / "taught")]
    assert cli.main(["train", *data, *options]) == 0
    assert "learns from " in capsys.readouterr().out


def test_the_loss_of_another_task_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    label_tables.write("angles", tmp_path / "angles", seed=0)
    data = ["--data", str(tmp_path / "angles"), "--labels", str(tmp_path / "angles/labels.csv")]
    words = ["train", *data, "--out", str(tmp_path / "run"), "--loss", "zlpr", "--augment", "none"]
    assert cli.main(words) == 2
    assert "'squared_error'" in capsys.readouterr().err
