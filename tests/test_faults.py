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

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit._base.manifest import read_manifest, sha256
from keras_vit_cli import commands as cli
from tests.faults import fault

image = pytest.importorskip("PIL.Image")
pytest.importorskip("tensorflow")

PARTS = 8
TRAIN = ["--epochs", "3", "--batch-size", "8", "--image-size", "16", "--learning-rate", "0.001"]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs, notes, a model, and what each command has written before."""
    root, chance = tmp_path_factory.mktemp("start"), np.random.default_rng(0)
    for channel, name in enumerate(("green", "red")):
        (root / "photos" / name).mkdir(parents=True)
        for i in range(10):
            pixels = chance.integers(0, 60, (20, 24, 3)).astype("uint8")
            pixels[..., 1 - channel] += 150
            image.fromarray(pixels).save(root / "photos" / name / f"{i}.jpg")
    (root / "notes.txt").write_text("mine")
    keras.utils.set_random_seed(0)
    model = keras_vit.VisionTransformer(
        num_classes=2,
        input_shape=(16, 16, 3),
        patch_size=8,
        hidden_dim=16,
        depth=1,
        num_heads=2,
        mlp_dim=16,
    )
    model.get_layer("head").set_weights([np.ones((16, 2), "float32"), np.ones(2, "float32")])
    model.class_names = ("green", "red")
    model.save(root / "model.keras")
    return root


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "cache"))
    return tmp_path


COMMANDS: dict[str, tuple[list[str], list[str]]] = {
    # What is called first, and what is called again after it has failed.
    "train": (
        ["train", "--data", "photos", "--out", "run", *TRAIN],
        ["train", "--data", "photos", "--out", "run", *TRAIN, "--resume"],
    ),
    "export": (
        ["export", "model.keras", "--out", "saved/1", "--overwrite"],
        ["export", "model.keras", "--out", "saved/1", "--overwrite"],
    ),
    "convert": (
        ["convert", "model.keras", "vit.safetensors", "--layout", "timm"],
        ["convert", "model.keras", "vit.safetensors", "--layout", "timm", "--overwrite"],
    ),
    "convert-folder": (
        ["convert", "model.keras", "vit", "--layout", "huggingface"],
        ["convert", "model.keras", "vit", "--layout", "huggingface", "--overwrite"],
    ),
    "evaluate": (
        ["evaluate", "model.keras", "--data", "photos", "--probe", "--cache-dir", "features"],
        ["evaluate", "model.keras", "--data", "photos", "--probe", "--cache-dir", "features"],
    ),
    "inspect": (
        ["inspect", "model.keras", "photos/red/0.jpg", "--out", "page", "--overwrite"],
        ["inspect", "model.keras", "photos/red/0.jpg", "--out", "page", "--overwrite"],
    ),
}


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256(path) for path in files}


def result(folder: Path, command: str) -> list[np.ndarray] | set[str]:
    """What must be the same however the command got there."""
    if command == "train":
        manifest = read_manifest(folder / "run")
        assert manifest is not None
        assert manifest.complete
        assert not (folder / "run.partial").exists()
        for name, digest in manifest.sums.items():
            assert sha256(folder / "run" / name) == digest, name
        return keras.saving.load_model(folder / "run" / "model.keras").get_weights()
    if command == "export":
        import tensorflow as tf

        served = tf.saved_model.load(folder / "saved/1").signatures["serving_default"]
        photograph = tf.constant([(folder / "photos/red/0.jpg").read_bytes()])
        return [served(contents=photograph)["probabilities"].numpy()]
    if command == "convert":
        return keras_vit.from_checkpoint(folder / "vit.safetensors").get_weights()
    if command == "convert-folder":
        written = {file.name for file in (folder / "vit").iterdir()}
        files = {"README.md", "config.json", "preprocessor_config.json", "model.safetensors"}
        assert written == files
        return keras_vit.from_checkpoint(folder / "vit").get_weights()
    # Features are kept under names that depend on the photographs' folder.
    names = {name.split("/")[0] if "features" in name else name for name in contents(folder)}
    assert not [name for name in names if ".part" in name]
    return names


def same(one: list[np.ndarray] | set[str], other: list[np.ndarray] | set[str]) -> bool:
    if isinstance(one, set) or isinstance(other, set):
        return one == other
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def survives(command: str, start: Path, folder: Path, numbers: Callable[[int], list[int]]) -> int:
    """Lets the numbered writes of a command fail, one in each of as many tries."""
    first, again = COMMANDS[command]
    mine = contents(start)

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
        assert {name: digest for name, digest in contents(place).items() if name in mine} == mine
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


@pytest.mark.parametrize(
    "command", [pytest.param(c, marks=[pytest.mark.slow] * (c == "train")) for c in COMMANDS]
)
def test_some_faults(
    command: str, start: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if command in ("train", "export") and keras.backend.backend() != "tensorflow":
        pytest.skip("its SavedModel is written by TensorFlow; tested there, and in full by -m slow")
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
    first, again = COMMANDS[command]
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
