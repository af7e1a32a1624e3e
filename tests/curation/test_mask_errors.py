"""Masks that are wrong: planted errors are found, on the page and in the table."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit import data
from keras_vit.curation import find_mask_errors
from tests import bank
from tests.cli.conftest import Command, command, here
from tests.tasks.test_segmentation import scenes

__all__ = ["command", "here"]
SWAPPED, ERASED = "a/4.png", "b/9.png"


@pytest.mark.usefixtures("here")
def test_a_swap_and_an_erased_object_are_found(command: Command) -> None:
    scenes(Path.cwd(), 16, (48, 64))
    for name, change in (
        (SWAPPED, lambda mask: np.where(mask == 255, 255, np.array([0, 2, 1])[mask % 3])),
        (ERASED, lambda mask: np.where(mask == 1, 0, mask)),
    ):
        mask = np.asarray(Image.open(Path("masks", name)))
        Image.fromarray(change(mask).astype(np.uint8)).save(Path("masks", name))
    model = keras_vit.VisionTransformer(
        patch_size=4, hidden_dim=16, depth=1, num_heads=2, input_shape=(48, 64, 3), num_classes=0
    )
    bank.fill(model)
    split = data.load("photos", labels="masks", val_fraction=None)["all"]
    errors = find_mask_errors(model, split)
    names = [str(split.files[i].relative_to("photos")) for i in errors.order]
    assert set(names[:2]) == {SWAPPED, ERASED}
    scores = errors.disagreement[errors.order]
    assert scores[1] > 5 * scores[2]
    # Of what was erased the region and its class are named, and little else.
    i = int(errors.order[names.index(ERASED)])
    truth = np.asarray(Image.open(Path("photos", ERASED)))[2::4, 2::4, :2].mean(-1) > 200
    inside = errors.wrong[i] & truth
    assert inside.sum() > 0.6 * errors.wrong[i].sum() > 0.3 * truth.sum() > 1
    assert (errors.suggested[i][inside] == 1).all()

    model.save("model.keras")
    printed = command("audit photos --masks masks --model model.keras --out found --most 2")
    assert "of 16 with regions that are probably wrong" in printed
    with open("found/masks.csv", newline="") as file:
        rows = [(row["file"], row["labeled"], row["rather"]) for row in csv.DictReader(file)]
    assert {file for file, *_ in rows[:2]} == {f"photos/{SWAPPED}", f"photos/{ERASED}"}
    assert (f"photos/{ERASED}", "sky", "tree") in rows
    assert len(rows) == 16
    page = Path("found/index.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 2
    assert "mostly labeled sky, rather tree" in page
    for arguments, message in (
        ("--masks masks", "--masks needs the --model"),
        ("--masks masks --model model.keras --index here", "--index is for labels of images"),
        ("--masks nowhere --model model.keras", "nowhere"),
    ):
        assert message in command(f"audit photos {arguments} --out other", status=2)
    for i, file in enumerate(sorted(Path("masks").rglob("*.png"))):  # noise is no mask
        noise = np.random.default_rng(i).integers(0, 3, (6, 8)).astype(np.uint8)
        Image.fromarray(np.kron(noise, np.ones((8, 8), np.uint8))).save(file)
    noisy = data.load("photos", labels="masks", val_fraction=None)["all"]
    with pytest.warns(UserWarning, match="of 16 masks somewhere: they do not separate"):
        find_mask_errors(model, noisy)
    with pytest.raises(ValueError, match="labels of classification, and not a mask"):
        find_mask_errors(model, data.load("digits").val)
