"""`keras-vit` on folders of bands, from training to the answers of the exported file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from keras_vit import load_model, recipes
from keras_vit_cli import commands as cli
from keras_vit_cli.arguments import parse
from keras_vit_cli.options.option import UsageError

tifffile = pytest.importorskip("tifffile")
pytest.importorskip("grain")
pytest.importorskip("tensorflow")


@pytest.fixture
def tiles(tmp_path: Path) -> Path:
    """Five bands of 16 bits, of which the fourth shows the class."""
    random = np.random.default_rng(0)
    for i in range(60):
        image = random.integers(200, 4000, (12, 12, 5)).astype("uint16")
        image[..., 3] = 1500 + 400 * (i % 2) + random.integers(0, 200, (12, 12))
        file = tmp_path / "tiles" / ("forest", "water")[i % 2] / f"{i}.tif"
        file.parent.mkdir(parents=True, exist_ok=True)
        tifffile.imwrite(file, image, photometric="minisblack", planarconfig="contig")
    return tmp_path / "tiles"


def test_from_training_to_the_exported_file(
    tiles: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = {"patch_size": 4, "hidden_dim": 16, "depth": 1, "num_heads": 2, "pooling": "gap"}
    recipe = replace(recipes.get("digits"), model=small, epochs=0, steps=60, batch_size=16)
    monkeypatch.setitem(recipes.RECIPES, "digits", recipe)
    run = tmp_path / "run"
    train = ["train", "--data", str(tiles), "--bands", "4,2", "--image-size", "12"]
    assert cli.main([*train, "--recipe", "digits", "--out", str(run)]) == 0
    model = load_model(run)
    assert model.input_shape == (None, 12, 12, 2)
    assert model.eval_transform.bands == (4, 2)
    assert [round(mean, -2) for mean in model.normalization[0]] == [1800, 2100]
    report = json.loads((run / "report.json").read_text())
    assert report["bands"] == [4, 2]
    assert "| image size | 12 x 12 pixels, bands 4, 2 |" in (run / "report.md").read_text()
    assert (run / "mistakes.png").is_file() or report["accuracy"] == 1
    saved = run / "saved_models" / "run" / "1"
    for each in (run, saved):
        capsys.readouterr()
        assert cli.main(["evaluate", str(each), "--data", str(tiles)]) == 0
        assert float(capsys.readouterr().out.split("accuracy")[1].split()[0]) > 0.8
    files = [str(tiles / "water" / f"{i}.tif") for i in (1, 3)]
    for each, name in ((run, "model.csv"), (saved, "file.csv")):
        answers = tmp_path / name
        assert cli.main(["predict", str(each), *files, "--out", str(answers)]) == 0
        assert answers.read_text().count("water") >= 4
    assert cli.main(["inspect", str(run), files[0], "--out", str(tmp_path / "look")]) == 0
    assert cli.main(["serve", str(run)]) == 2
    assert "the server takes photographs" in capsys.readouterr().err


def test_the_errors_of_a_beginner(tiles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("0", "4,4", "red", "1,,2", ""):
        with pytest.raises((UsageError, SystemExit)):
            parse(["train", "--data", str(tiles), "--bands", wrong])
    out = str(tiles.parent / "run")
    assert cli.main(["train", "--data", str(tiles), "--out", out]) == 2
    said = capsys.readouterr().err
    assert "--bands all" in said
    assert cli.main(["train", "--data", str(tiles), "--bands", "7", "--out", out]) == 2
    assert "the file has 5 bands, and band 7 was asked for" in capsys.readouterr().err
    options = ["--bands", "all", "--augment", "randaugment", "--image-size", "12"]
    assert cli.main(["train", "--data", str(tiles), *options, "--out", out]) == 2
    assert "bands have a range of their own" in capsys.readouterr().err
