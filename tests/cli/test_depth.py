"""Maps of depth from a folder to a run, its report, and its predictions as files."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.conftest import Command
from tests.tasks.test_depth import depth_folders


@pytest.mark.slow  # as from masks, but for the files
@pytest.mark.usefixtures("here", "small_recipe")
def test_from_maps_of_depth_to_maps(command: Command) -> None:
    depth_folders(Path.cwd(), 12, (40, 48))
    for file in Path("maps").iterdir():
        depth = np.asarray(Image.open(file)) if file.suffix == ".tiff" else np.load(file)[..., 0]
        depth = np.where((depth > 0) & (depth < 9), depth, 0)
        file.unlink()
        Image.fromarray(np.rint(1000 * depth).astype("uint16")).save(file.with_suffix(".png"))
    small = "--recipe from_scratch_tiny --image-size 32 --steps 8 --task depth"
    wrong = f"train --data photos --labels maps {small} --out run"
    error = command(wrong, status=2)
    assert "give --depth-scale, what 1 is worth, such as --depth-scale 0.001" in error
    command(f"{wrong} --depth-scale 0.001")
    report = json.loads(Path("run/report.json").read_text())["report"]
    assert report["task"]["depth_scale"] == 0.001
    assert {"delta1", "abs_rel", "rmse"} == report["scores"].keys() == report["constant"].keys()
    assert report["scores"]["abs_rel"][0] < 0.6
    for name in ("report.md", "overlays.png"):
        assert Path("run", name).exists()
    assert "abs_rel" in command("evaluate run --data photos --labels maps --split all")
    command("predict run photos --out rows.csv --maps answers")
    assert Path("rows.csv").read_text().startswith('"file","error","value_minimum","value_median"')
    with Image.open("answers/photos/0.tiff") as file, Image.open("photos/0.png") as photo:
        assert (file.size, file.mode) == (photo.size, "F")
        found = np.asarray(file)
    assert 0.5 < np.median(found) < 9
    assert Path("answers/photos/0.color.png").exists()
    wrong = f"{wrong}2 --coverage 0.9 --depth-scale 1"
    assert "depth has neither" in command(wrong, status=2)
    wrong = "export run --format html --out page.html"
    assert "depth answers every pixel" in command(wrong, status=2)
