"""From a table of labels to a report, on the command line: several labels, numbers, grades."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import keras_vit
from examples import label_tables
from keras_vit.evaluation.unseen_images import table_arguments
from keras_vit_cli.train import run
from keras_vit_cli.train.job import Job
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
    assert keras_vit.load(out).task.kind == kind
    command("predict", out, tmp_path / name / "0000.png")


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
