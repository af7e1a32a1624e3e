"""Masks from a folder to a run, its report, and its predictions as images."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit import data
from tests.cli.conftest import Command
from tests.tasks.test_segmentation import scenes


@pytest.mark.usefixtures("here", "small_recipe", "no_export")  # tests/exporting has one
def test_from_masks_to_maps(command: Command) -> None:
    scenes(Path.cwd(), 16)
    with Image.open("masks/a/0.png") as first:  # the colors of all
        palette = Image.fromarray(np.asarray(first), "P")
    palette.putpalette([0, 0, 200, 0, 200, 0, 90, 90, 90] + 759 * [0])
    palette.save("masks/a/0.png")
    small = "--recipe from_scratch_tiny --image-size 32 --steps 4"
    command(f"train --data photos --labels masks {small} --out run")
    report = json.loads(Path("run/report.json").read_text())
    assert report["report"]["task"]["names"] == ["sky", "tree", "road"]
    assert {"mean_iou", "pixel_accuracy"} == report["report"]["scores"].keys()
    for name in ("report.md", "iou.png", "overlays.png"):
        assert Path("run", name).exists()
    assert "mean_iou" in command("evaluate run --data photos --labels masks --split all")
    command("predict run photos --out rows.csv --maps maps --top 2")
    assert Path("rows.csv").read_text().startswith('"file","error","class_1","part_1","class_2"')
    files = sorted(Path("maps").rglob("*.png"))
    assert len(files) == 16
    model = keras_vit.load("run")
    splits = data.load("photos", labels="masks", val_fraction=None)["all"]
    _, ours = keras_vit.evaluation.predict_split(model, splits)
    with Image.open(f"maps/{splits.files[0]}") as answer:
        image, colors = np.asarray(answer), answer.getpalette()
    assert image.shape == (40, 48)
    assert colors[:9] == [0, 0, 200, 0, 200, 0, 90, 90, 90]
    shrunk = model.task.answers(ours)[0].argmax(-1)
    middle = np.asarray(Image.fromarray(image).resize((32, 32), Image.Resampling.NEAREST))
    assert (middle == shrunk).mean() > 0.9
    command("predict run photos --maps own --windows own --out own.csv")
    with Image.open(f"own/{splits.files[0]}") as answer:
        assert (answer.size, answer.mode) == ((48, 40), "P")
    out = "evaluate run --data photos --labels masks --split all --windows --out scores"
    assert "mean_iou" in command(out)
    assert Path("scores/overlays.png").exists()
    assert "'big' is not accepted. Give model, own" in command(
        "predict run photos --windows big", status=2
    )
    command("inspect run photos/a/0.png --out inspection")
    page = Path("inspection/index.html").read_text()
    assert "sky" in page
    assert "Answers to every pixel" in page
    assert Path("inspection/pixels.png").exists()
    assert "is not an empty folder" in command("predict run photos --maps maps", status=2)
    for words, message in (
        ("--coverage 0.9", "segmentation has neither"),
        ("--held-out 0.2", "--held-out 0.2 keeps"),
        ("--weights run --freeze-backbone --recipe finetune_small", "by the recipe linear_pixels"),
        ("--weights run --recipe measured", "that is for one class per image"),
    ):
        wrong = f"train --data photos --labels masks --out b {words}"
        assert message in command(wrong, status=2)
