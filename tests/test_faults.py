"""A full disk or a lost permission at any write leaves what was there; a second try succeeds."""

import dataclasses
import errno
import os
import random
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_vit
from keras_vit._base.manifest import read_manifest
from keras_vit.training.recipes import RECIPES
from keras_vit_cli import commands as cli
from tests.cli.helpers import TRAIN, color_photos, outcome_of, save_tiny, sums
from tests.faults import fault, limited_files
from tests.quick_tensorflow import without_graphs

image = pytest.importorskip("PIL.Image")
pytest.importorskip("tensorflow")

PARTS = 8  # of `test_every_fault`, for `--numprocesses`: `train` alone has over a hundred writes
SMALL = {"hidden_dim": 16, "mlp_dim": 16, "depth": 1, "num_heads": 2, "conv_stem": ((8, 4),)}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs, notes, a model, and what each command has written before."""
    root = tmp_path_factory.mktemp("start")
    color_photos(root / "photos", 10)
    (root / "notes.txt").write_text("mine")
    save_tiny(root / "model.keras")
    return root


@pytest.fixture
def folder(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where small models train; of the ways to train, one exports."""
    without_graphs(monkeypatch)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "cache"))
    recipe = RECIPES["from_scratch_tiny"]
    model = {**recipe.model, **SMALL}
    monkeypatch.setitem(RECIPES, "from_scratch_tiny", dataclasses.replace(recipe, model=model))
    if command.startswith("train-"):
        monkeypatch.setattr(keras_vit, "export", lambda *_, **__: None)
    return tmp_path


CACHED = f"{TRAIN} --epochs 3 --coverage 0.6 --cache 16 --reader"
# What is called first, and what is added when it is called again after it has failed.
COMMANDS = {
    "train-cached": (f"{CACHED} tensorflow", "--resume"),
    "train-cached-grain": (f"{CACHED} grain", "--resume"),
    "train": (f"{TRAIN} --epochs 3", "--resume"),
    "export": ("export model.keras --out saved/1 --overwrite", ""),
    "convert": ("convert model.keras vit.safetensors --layout timm", "--overwrite"),
    "convert-folder": ("convert model.keras vit --layout huggingface", "--overwrite"),
    "evaluate": ("evaluate model.keras --data photos --probe --cache-dir features", ""),
    "inspect": ("inspect model.keras photos/red/0.jpg --out page --overwrite", ""),
    "embed": ("embed photos --model model.keras --out index", ""),
}


def result(folder: Path, command: str) -> list[np.ndarray]:
    """What must be the same however the command got there."""
    if command.startswith("train"):
        assert not (folder / "run.partial").exists()
        return outcome_of(folder / "run")
    if command == "export":
        import tensorflow as tf

        served = tf.saved_model.load(folder / "saved/1").signatures["serving_default"]
        photograph = tf.constant([(folder / "photos/red/0.jpg").read_bytes()])
        return [served(contents=photograph)["probabilities"].numpy()]
    found = sums(folder)
    found.pop("index/.lock", None)  # where removing it failed
    if command in ("evaluate", "inspect"):  # whose files depend on the photographs' folder
        found = {name.split("/")[0] if "features" in name else name: "" for name in found}
    assert not [name for name in found if ".part" in name]
    return [np.array(sorted(found.items()))]


Disturb = Callable[[Path], AbstractContextManager[Any]]


def survives(command: str, start: Path, folder: Path, faults: Any) -> None:
    """Disturbs a command, once in each of as many tries, by what `faults` has for its writes."""
    first, more = COMMANDS[command]
    mine, trains = sums(start), command.startswith("train")

    def fresh(name: str) -> Path:
        shutil.copytree(start, folder / name)
        os.chdir(folder / name)
        return folder / name

    place = fresh("whole")
    with fault(place, 10**9) as counted:
        assert cli.main(first.split()) == 0
    wanted = result(place, command)
    for number, disturbed in enumerate(faults(counted.seen)):
        place = fresh(f"fault{number}")
        with disturbed(place) as hit:
            status = cli.main(first.split())
        assert {name: digest for name, digest in sums(place).items() if name in mine} == mine
        # What is only cleaning up may fail without harm; then the work is done.
        assert status in (0, 2), hit
        if status == 2:
            resume = read_manifest(place / "run.partial") is not None or (place / "run").exists()
            again = f"{first} {more}" if resume or not trains else first
            assert cli.main(again.split()) == 0, hit
        for one, other in zip(result(place, command), wanted, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=str(hit))
        assert not [file for file in place.rglob(".*") if file.name != ".lock"], hit
        shutil.rmtree(place)


def at_write(number: int) -> Disturb:
    return lambda place: fault(place, number, random.choice([errno.ENOSPC, errno.EACCES]))


def limit_of(size: int) -> Disturb:
    return lambda place: limited_files(size)


SIZES = (10, 300, 1000, 3000, 10_000, 30_000, 100_000)


@pytest.mark.parametrize("command", COMMANDS)
def test_some_faults(command: str, start: Path, folder: Path, capsys: Any) -> None:
    limit = limit_of(random.choice(SIZES))
    survives(command, start, folder, lambda n: [at_write(random.randrange(n)), limit])
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    # Others tell the progress of long work.
    for line in (line for line in errors.splitlines() if line.startswith("keras-vit: ")):
        assert re.search("No space left|Permission denied|File too large", line), line
        assert re.search(r"['/]|(left on device|denied|large): \S", line), f"{line} names no file"


@pytest.mark.slow
@pytest.mark.usefixtures("capsys")  # not a file, which the limits would be of, too
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("command", COMMANDS)
def test_every_fault(command: str, part: int, start: Path, folder: Path) -> None:
    limits = map(limit_of, SIZES[part::PARTS])
    survives(command, start, folder, lambda n: [*map(at_write, range(part, n, PARTS)), *limits])
