"""`keras-vit pretrain`: what is trained on, what is compared, and which weights are kept."""

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.data.seen_images import TRAINED, VALIDATED
from keras_vit.models import variants
from keras_vit_cli.pretrain import pretrain_command
from tests import processes
from tests.cli.conftest import Command
from tests.cli.helpers import color_photos, sums, weights_of
from tests.data.image_fixtures import write

SIZES = {"patch_size": 4, "hidden_dim": 16, "depth": 2, "num_heads": 2, "input_shape": (8, 8, 3)}
PRETRAIN = "pretrain photos --weights one.keras --blocks 1 --epochs 2 --batch-size 16 --out out"


def save(file: Path, is_blind: bool) -> None:
    """A model that sees colors, or does not see anything, with a head that must not stay."""
    keras.utils.set_random_seed(0)
    model = keras_vit.VisionTransformer(**SIZES, num_classes=3)
    if is_blind:
        kernel = model.get_layer("patch_embedding").weights[0]
        kernel.assign(np.zeros(kernel.shape, "float32"))
    keras_vit.save_weights(model, file)


@pytest.fixture
def inside(here: Path) -> Path:
    photos = color_photos(here / "photos", 60, ".png")
    shutil.copy(photos / "red/0.png", photos / "red/copy.png")
    write(photos, {"red/broken.png": b"\x89PNG no", "notes.txt": b"mine"})
    save(here / "one.keras", is_blind=False)
    save(here / "blind.keras", is_blind=True)
    return here


def stub(monkeypatch: pytest.MonkeyPatch, becomes: str | None = None) -> list[Any]:
    """Training leaves the weights as they are, or makes them those of another file."""
    calls: list[Any] = []

    def train(model: Any, images: Any, folder: Path, **options: Any) -> dict[str, list[float]]:
        calls.append(images)
        if becomes is not None:
            model.set_weights(keras_vit.load(becomes, num_classes=0).get_weights())
        return {"loss": [1.0]}

    monkeypatch.setattr(pretrain_command, "train_on_instances", train)
    return calls


def facts() -> dict[str, Any]:
    return json.loads(Path("out/report.json").read_text("utf-8"))


def test_the_better_weights_are_kept(
    inside: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = stub(monkeypatch)
    words = PRETRAIN.replace("one.keras", "blind.keras")
    printed = command(words)
    assert "no gain: kept blind.keras" in printed
    assert facts()["kept"] == "before"
    # One copy and the broken file are left out; what is compared by is not trained on.
    images = calls[0]
    splits = keras_vit.data.load("photos", verify=False)
    apart = {file.name for file in splits.val.files if file.parent.name == "red"}
    trained = {file.name for file in images.files if file.parent.name == "red"}
    assert not apart & trained
    assert len(images) == len({*images.digests()})
    scored = facts()["comparison"]["scored"]
    assert scored in (23, 24)  # a copy may be one of them
    # A gain replaces them, and the model knows which images it was made with.
    stub(monkeypatch, "one.keras")
    printed = command(f"{words} --overwrite")
    assert "a gain of k-NN and linear probe: kept the trained weights" in printed
    model: Any = keras_vit.load("out")
    assert (model.num_classes, facts()["kept"]) == (0, "after")
    assert model.seen_images.counts[TRAINED] == len(images)
    assert model.seen_images.counts[VALIDATED] in (scored, scored - 1)
    for one, other in zip(weights_of(Path("out")), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    # A loss does not, unless it is asked for.
    stub(monkeypatch, "blind.keras")
    assert "a loss of k-NN and linear probe: kept one" in command(f"{PRETRAIN} --overwrite")


def test_a_whole_call_and_what_follows(
    inside: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = variants.Width(hidden_dim=16, depth=2, num_heads=2, mlp_dim=16)
    monkeypatch.setitem(variants.WIDTHS, "Ti", small)
    words = PRETRAIN.replace("--weights one.keras --blocks 1", "--weights none --image-size 16")
    printed = command(f"{words} --epochs 1 --budget 1s --keep after --labels none")
    assert "no labels: kept the trained weights, and nothing says that they are better" in printed
    assert facts()["comparison"] is None
    stub(monkeypatch)
    command(f"{PRETRAIN} --out again --weights out --image-size 32 --keep after --labels none")
    assert "with other options" in command(f"{PRETRAIN} --out again --resume", status=2)
    # A score of images that the weights were made with would say nothing.
    error = command(f"{PRETRAIN} --out third --weights out --image-size 16", status=2)
    assert "None of the 24 images of photos can be scored" in error


def test_what_cannot_be_told_is_refused(inside: Path, command: Command) -> None:
    rows = [f"{c}/{i}.png,{c}" for c in ("red", "green") for i in range(30)]
    table = "\n".join(["file,label", *rows]).encode()
    write(inside, {"few.csv": table, "mine/notes.txt": b"mine"})
    for words, error in (
        ("--labels photos/few.csv", "There is no table at"),
        ("--labels few.csv", "12 labeled images to compare the weights by, and it takes 20"),
        ("--labels none", "--labels none has none"),
        ("--weights none --blocks 1", "--blocks has no effect"),
        ("--blocks 9", "has 2 blocks"),
        ("--out mine --overwrite", "files that are not of an earlier pretraining"),
        ("--out photos/out", "is, holds or lies in photos"),
    ):
        assert error in command(f"{PRETRAIN} --out failed {words}", status=2)
        assert not Path("failed").exists()


@pytest.mark.thorough
def test_a_killed_process_ends_with_the_same_weights(inside: Path) -> None:
    photos, printed = sums(inside / "photos"), inside / "printed"

    def start(more: str) -> processes.WarmProcess:
        words = f"{PRETRAIN} --labels none --keep after {more}"
        return processes.start("-m keras_vit_cli", *words.split(), printed=printed)

    whole = start("--out whole")
    assert whole.wait() == 0, whole.output()
    process = start("--checkpoint-every 0")
    while process.poll() is None and not [*inside.glob("out.partial/checkpoints/blocks/**/step-*")]:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, process.output()
    process = start("--resume")
    assert process.wait() == 0, process.output()
    assert "continues with step" in process.output()
    for one, other in zip(weights_of(inside / "out"), weights_of(inside / "whole"), strict=True):
        np.testing.assert_array_equal(one, other)
    assert sums(inside / "photos") == photos
    assert not (inside / "out.partial").exists()
