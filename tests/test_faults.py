"""A full disk or a lost permission at any write leaves what was there; a second try succeeds."""

import errno
import itertools
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_vit
from keras_vit._base.manifest import read_manifest
from keras_vit_cli import commands as cli
from tests.cli.helpers import TRAIN, color_photos, save_tiny, sums, weights_of
from tests.faults import fault

image = pytest.importorskip("PIL.Image")
pytest.importorskip("tensorflow")

PARTS = 8


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs, notes, a model, and what each command has written before."""
    root = tmp_path_factory.mktemp("start")
    color_photos(root / "photos", 10)
    (root / "notes.txt").write_text("mine")
    save_tiny(root / "model.keras")
    return root


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "cache"))
    return tmp_path


# What is called first, and what is added when it is called again after it has failed.
COMMANDS = {
    "train": (f"{TRAIN} --epochs 3", "--resume"),
    "export": ("export model.keras --out saved/1 --overwrite", ""),
    "convert": ("convert model.keras vit.safetensors --layout timm", "--overwrite"),
    "convert-folder": ("convert model.keras vit --layout huggingface", "--overwrite"),
    "evaluate": ("evaluate model.keras --data photos --probe --cache-dir features", ""),
    "inspect": ("inspect model.keras photos/red/0.jpg --out page --overwrite", ""),
}


def calls(command: str) -> tuple[list[str], list[str]]:
    first, more = COMMANDS[command]
    return first.split(), [*first.split(), *more.split()]


def result(folder: Path, command: str) -> list[np.ndarray]:
    """What must be the same however the command got there."""
    if command == "train":
        assert not (folder / "run.partial").exists()
        return weights_of(folder / "run")
    if command == "export":
        import tensorflow as tf

        served = tf.saved_model.load(folder / "saved/1").signatures["serving_default"]
        photograph = tf.constant([(folder / "photos/red/0.jpg").read_bytes()])
        return [served(contents=photograph)["probabilities"].numpy()]
    if command == "convert":
        return keras_vit.from_checkpoint(folder / "vit.safetensors").get_weights()
    if command == "convert-folder":
        files = {"README.md", "config.json", "preprocessor_config.json", "model.safetensors"}
        assert {file.name for file in (folder / "vit").iterdir()} == files
        return keras_vit.from_checkpoint(folder / "vit").get_weights()
    # Features are kept under names that depend on the photographs' folder.
    names = {name.split("/")[0] if "features" in name else name for name in sums(folder)}
    assert not [name for name in names if ".part" in name]
    return [np.array(sorted(names))]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return len(one) == len(other) and all(map(np.array_equal, one, other))


def survives(command: str, start: Path, folder: Path, numbers: Callable[[int], list[int]]) -> int:
    """Lets the numbered writes of a command fail, one in each of as many tries."""
    first, again = calls(command)
    mine = sums(start)

    def fresh(name: str) -> Path:
        shutil.copytree(start, folder / name)
        os.chdir(folder / name)
        return folder / name

    place = fresh("whole")
    with fault(place, 10**9) as counted:
        assert cli.main(first) == 0
    wanted = result(place, command)
    for number in numbers(counted.seen):
        place = fresh(f"fault{number}")
        with fault(place, number, random.choice([errno.ENOSPC, errno.EACCES])) as hit:
            status = cli.main(first)
        if hit.happened is None:
            assert status == 0
            continue
        assert {name: digest for name, digest in sums(place).items() if name in mine} == mine
        # What is only cleaning up may fail without harm; then the work is done.
        if status == 0:
            assert same(result(place, command), wanted), hit.happened
            continue
        assert status == 2, hit.happened
        partial = read_manifest(place / "run.partial")
        resume = command == "train" and (partial is not None or (place / "run").exists())
        assert cli.main(again if resume or command != "train" else first) == 0, hit.happened
        assert same(result(place, command), wanted), hit.happened
        shutil.rmtree(place)
    return counted.seen


# How often each runs: what is not here is thorough.
MARKS = {"convert": [], "evaluate": [], "train": [pytest.mark.slow]}


@pytest.mark.parametrize(
    "command", [pytest.param(c, marks=MARKS.get(c, [pytest.mark.thorough])) for c in COMMANDS]
)
def test_some_faults(command: str, start: Path, folder: Path, capsys: Any) -> None:
    survives(command, start, folder, lambda total: [random.Random().randrange(total)])
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    # Others tell the progress of long work.
    for line in (line for line in errors.splitlines() if line.startswith("keras-vit: ")):
        assert "No space left" in line or "Permission denied" in line, line
        assert re.search(r"['/]|(left on device|denied): \S", line), f"{line} names no file"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("command", COMMANDS)
def test_every_fault(command: str, part: int, start: Path, folder: Path) -> None:
    """In parts, for `--numprocesses`: `train` alone has over a hundred writes."""
    survives(command, start, folder, lambda total: list(range(part, total, PARTS)))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "export"])
def test_a_full_disk(command: str, start: Path, folder: Path) -> None:
    """A disk that is really full, at many sizes: native code writes there, too."""
    disk = folder / "disk"
    disk.mkdir()
    first, again = calls(command)
    sizes = itertools.chain(range(40, 1000, 120), range(1000, 4000, 400))
    for kilobytes in sizes:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", disk]
        if subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("mounting is not allowed here")
        try:
            work = disk / "work"
            work.mkdir()
            os.chdir(work)
            for name in ("photos", "model.keras"):
                (work / name).symlink_to(start / name)
            status = cli.main(first)
            assert status in (0, 2), kilobytes
            if status == 2:
                subprocess.run(["mount", "-o", "remount,size=100m", disk], check=True)
                resume = (work / "run.partial" / "SHA256SUMS").exists()
                assert cli.main(again if resume or command != "train" else first) == 0
            assert isinstance(result(work, command), list)
        finally:
            os.chdir(start)
            subprocess.run(["umount", disk], check=True)
