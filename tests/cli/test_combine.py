"""`keras-vit combine`, what takes its folder, and what a beginner gets wrong."""

import csv
import json
from pathlib import Path

import pytest
from PIL import Image

import keras_vit
from tests.cli.conftest import Command
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
    rows = list(csv.DictReader(Path("rows.csv").read_text().splitlines()))
    assert [row["file"] for row in rows] == ["0.png", "1.png", "bad.png", "2.png"]
    for name, head in (("kinds", "classification"), ("scenes", "segmentation")):
        command(f"predict runs/{name} 0.png 1.png --out {name}.csv")
        of_run = csv.DictReader(Path(f"{name}.csv").read_text().splitlines())
        for own, row in zip(of_run, rows, strict=False):
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
    assert "segmentation" in command("predict both 0.png")
    for words, message in (
        ("combine runs/kinds --out x", "two heads or more"),
        ("combine runs/kinds runs/kinds runs/kinds/model.keras --out x", "--names head1 head2"),
        ("combine runs/kinds runs/scenes --names a --out x", "--names has 1 for 2 runs"),
        ("combine runs/kinds runs/scene --out x", "Did you mean runs/scenes?"),
        ("combine runs/kinds runs/scenes --out both", "Give another --out, or --overwrite"),
        ("evaluate both --data .", "'both/classification.keras' or 'both/segmentation.keras'"),
        ("serve both", "give 'both/classification.keras' or"),
        ("predict both 0.png --windows --out x.csv", "give the model of one head"),
    ):
        assert message in command(words, status=2), words
    for file in Path("both").glob("*.keras"):
        assert "0.png" in command(f"predict {file} 0.png")
