"""`keras-vit` on folders of bands, from training to the answers of the exported file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from keras_vit import load, recipes
from tests.cli.conftest import Command
from tests.cli.helpers import rows_of

tifffile = pytest.importorskip("tifffile")
pytest.importorskip("grain")
pytest.importorskip("tensorflow")


@pytest.fixture
def tiles(tmp_path: Path) -> Path:
    """Five bands of 16 bits, of which the fourth shows the class; a few images end in nodata."""
    random = np.random.default_rng(0)
    for i in range(60):
        image = random.integers(200, 4000, (12, 12, 5)).astype("uint16")
        image[..., 3] = 1500 + 400 * (i % 2) + random.integers(0, 200, (12, 12))
        image[6:] *= i % 4 > 0
        file = tmp_path / "tiles" / ("forest", "water")[i % 2] / f"{i}.tif"
        file.parent.mkdir(parents=True, exist_ok=True)
        options = {"photometric": "minisblack", "planarconfig": "contig"}
        tifffile.imwrite(file, image, **options, extratags=[(42113, "s", 0, "0", True)])
    return tmp_path / "tiles"


@pytest.mark.thorough  # tests/data/test_rasters.py has what differs
def test_from_training_to_the_exported_file(
    tiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    small = {"patch_size": 4, "hidden_dim": 16, "depth": 1, "num_heads": 2, "pooling": "gap"}
    recipe = replace(recipes.get("digits"), model=small, epochs=0, steps=60, batch_size=16)
    monkeypatch.setitem(recipes.RECIPES, "digits", recipe)
    run = tmp_path / "run"
    command("train --bands 4,2 --image-size 12 --recipe digits --data", tiles, "--out", run)
    model = load(run)
    assert (model.input_shape, model.eval_transform.bands) == ((None, 12, 12, 2), (4, 2))
    assert [round(mean, -2) for mean in model.normalization[0]] == [1800, 2100]
    report = json.loads((run / "report.json").read_text())
    assert report["bands"] == [4, 2]
    assert "| image size | 12 x 12 pixels, bands 4, 2 |" in (run / "report.md").read_text()
    assert (run / "mistakes.png").is_file() or report["mistakes"] == []
    files = [tiles / "water" / f"{i}.tif" for i in (1, 3)]
    for each in (run, run / "saved_models" / "run" / "1"):
        printed = command("evaluate", each, "--data", tiles)
        assert float(printed.split("accuracy")[1].split()[0]) > 0.8
        answers = tmp_path / f"{each.name}.csv"
        command("predict", each, *files, "--out", answers)
        assert answers.read_text().count("water") >= 4
    command("inspect", run, files[0], "--out", tmp_path / "look")
    # An index shows its tiles, and an audit can read them.
    index, names = tmp_path / "index", ("like.html", "clusters.html", "audit/index.html")
    pages = [tmp_path / name for name in names]
    command("embed", tiles, "--model", run, "--out", index)
    command("search", index, files[0], "--out", pages[0])
    command("cluster", index, "--clusters", "3", "--out", pages[1])
    command("audit", tiles, "--model", run, "--index", index, "--out", pages[2].parent)
    for page in pages:
        text = page.read_text("utf-8")
        assert "data:image/jpeg" in text
        assert "cannot be read" not in text
    assert "unreadable" not in {row["problem"] for row in rows_of(tmp_path / "audit/audit.csv")}
    assert len(rows_of(tmp_path / "audit/cleaned.csv")) == 60
    assert "the server takes photographs" in command("serve", run, status=2)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("", "--bands all"),
        ("--bands 7", "the file has 5 bands, and band 7 was asked for"),
        ("--bands all --nodata median", "Give mean, refuse, or a number"),
        ("--nodata 0", "is for raster files: give --bands too"),
        ("--bands all --augment randaugment --image-size 12", "bands have a range of their own"),
    ],
)
def test_the_errors_of_a_beginner(words: str, reason: str, tiles: Path, command: Command) -> None:
    out = tiles.parent / "run"
    assert reason in command(f"train {words} --data", tiles, "--out", out, status=2)
