"""From a table of labels to a report, on the command line: several labels, numbers, grades."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import keras_vit
from examples import label_tables
from keras_vit.evaluation.task_probe import TaskProbe, task_probe
from keras_vit.evaluation.unseen_images import table_arguments
from keras_vit.models.answers import answers_of
from keras_vit_cli.train import run
from keras_vit_cli.train.job import Job
from tests import bank
from tests.cli.conftest import Command

pytestmark = pytest.mark.usefixtures("small_recipe", "no_export")
Table = Callable[[str], list[str]]
SHORT = "--steps 3 --augment none --image-size 16"
SCORES = {
    "pairs": ("multilabel", "mean_average_precision", "precision_recall.png"),
    "angles": ("regression", "mae", "numbers.png"),
    "counts": ("ordinal", "quadratic_kappa", "grades.png"),
}


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:

    def write(name: str) -> list[str]:
        monkeypatch.setattr(label_tables, "IMAGES", 120)
        monkeypatch.setattr(label_tables, "VALIDATION", 30)
        label_tables.write(name, tmp_path / name, seed=0)
        words = ["--data", str(tmp_path / name), "--labels", str(tmp_path / name / "labels.csv")]
        return words + (["--task", "ordinal"] if name == "counts" else [])

    return write


@pytest.mark.parametrize(
    "name", ["pairs", *(pytest.param(n, marks=pytest.mark.slow) for n in SCORES if n != "pairs")]
)
def test_from_a_table_to_answers(name: str, table: Table, tmp_path: Path, command: Command) -> None:
    data, out = table(name), tmp_path / "run"
    kind, score, plot = SCORES[name]
    printed = command(f"train --batch-size 16 {SHORT}", *data, "--out", out)
    assert f"task {kind}: " in printed
    record = json.loads((out / "report.json").read_text("utf-8"))
    assert (record["report"]["task"]["kind"], record["report"]["examples"]) == (kind, 30)
    assert score in record["report"]["scores"]
    assert {plot, "curves.png", "mistakes.png", "report.md"} <= {p.name for p in out.iterdir()}
    card = (out / "report.md").read_text("utf-8")
    assert f"| {score} |" in card
    assert "| training | 90 images: " in card
    assert str(tmp_path) not in card
    assert "accuracy" not in card or kind == "ordinal"
    value = record["report"]["scores"][score][0]
    assert f"{value:.4g}" in command("evaluate", out, *data)
    model = keras_vit.load(out)
    assert model.task.kind == kind
    file = tmp_path / name / "0000.png"
    command("predict", out, file)
    pixels = np.asarray(Image.open(file).convert("RGB").resize((16, 16)))[None]
    answer = answers_of(model, bank.outputs(model, pixels.astype("float32")))[0]
    assert answer.shape == (model.task.size,)
    first = model.task.describe(answer)["predictions"][0]
    assert first.get("class", first.get("label", first.get("name", first.get("grade"))))


@pytest.mark.slow
def test_a_frozen_backbone_and_a_teacher(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    data, frozen, weights = table("pairs"), tmp_path / "frozen", tmp_path / "weights.keras"
    model = bank.tiny(num_classes=1000)
    model.save(weights)
    probes = []

    def probe(*arguments: Any) -> TaskProbe:
        probes.append(task_probe(*arguments))
        return probes[-1]

    monkeypatch.setattr(run, "task_probe", probe)
    printed = command("train --freeze-backbone", *data, "--weights", weights, "--out", frozen)
    assert "on frozen features: linear probe mean_average_precision 0." in printed
    assert "the head alone is trained" in printed
    trained = keras_vit.load(frozen)
    for layer, weights in (
        ("head", [probes[0].kernel, probes[0].bias]),
        ("block_0", model.get_layer("block_0").get_weights()),
    ):
        for actual, expected in zip(trained.get_layer(layer).get_weights(), weights, strict=True):
            np.testing.assert_array_equal(actual, expected)
    words = ["--teacher", frozen, "--out", tmp_path / "taught"]
    assert "learns from " in command(f"train --batch-size 16 {SHORT}", *data, *words)


def test_the_order_of_grades(table: Table, tmp_path: Path) -> None:
    words, file = table("counts"), tmp_path / "counts" / "labels.csv"
    text = file.read_text("utf-8")
    for number, word in enumerate(("nil", "one", "two", "three", "four", "five")):
        text = text.replace(f",{number},", f",{word},")
    file.write_text(text, "utf-8")
    job = Job(data=words[1], labels=words[3], out=tmp_path / "run", task="ordinal")
    with pytest.raises(ValueError, match=r"Ordinal\(\('five', 'four', 'nil'"):
        run.load_splits(job)
    order = "nil, one,two,three,four,five"
    task = run.load_splits(replace(job, order=order)).task
    assert task.names == ("nil", "one", "two", "three", "four", "five")
    # The table is read for a model by the order of the model.
    assert table_arguments(vars(job), task)["task"] == task


def test_the_loss_of_another_task(table: Table, tmp_path: Path, command: Command) -> None:
    words = [*table("angles"), "--out", tmp_path / "run"]
    assert "'squared_error'" in command("train --loss zlpr --augment none", *words, status=2)
