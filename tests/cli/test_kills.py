"""`keras-vit train` as a real process, killed again and again: it ends with the same weights."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit._base.manifest import read_manifest, sha256
from tests.conftest import REPOSITORY

image = pytest.importorskip("PIL.Image")

# By what `train` gets besides.
KILLS = {(): 50, ("--teacher", "teacher.keras"): 5, ("--reader", "grain"): 20}
# Checkpoints are written all the time, so that kills meet them, too.
CODE = """
import importlib, sys, keras_vit_cli.start
fit = importlib.import_module("keras_vit.training.fit")  # `keras_vit.fit` is the function
run = fit.ResumableRun
fit.ResumableRun = lambda folder, _, **options: run(folder, 0.0, every_steps=2, **options)
sys.exit(keras_vit_cli.start.main())
"""
OPTIONS = ["--epochs", "12", "--batch-size", "8", "--image-size", "16", "--learning-rate", "0.001"]


def photographs(folder: Path) -> None:
    chance = np.random.default_rng(0)
    for channel, name in enumerate(("green", "red")):
        (folder / name).mkdir(parents=True)
        for i in range(20):
            pixels = chance.integers(0, 60, (20, 24, 3)).astype("uint8")
            pixels[..., 1 - channel] += 150
            image.fromarray(pixels).save(folder / name / f"{i}.jpg")


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path]),
        "KERAS_BACKEND": keras.backend.backend(),
    }
    return subprocess.Popen(
        [sys.executable, "-c", CODE, "train", "--data", "photos", "--out", "run", *OPTIONS, *more],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def mode(folder: Path) -> list[str]:
    """What a user types next."""
    if (folder / "run").exists() or any((folder / "run.partial/checkpoints").glob("step-*")):
        return ["--resume"]
    return []


def finished_weights(folder: Path) -> list[np.ndarray]:
    manifest = read_manifest(folder / "run")
    assert manifest is not None
    assert manifest.complete
    for name, digest in manifest.sums.items():
        assert sha256(folder / "run" / name) == digest, name
    names = {path.name for path in (folder / "run").iterdir()} - {".lock"}
    assert "checkpoints" not in names
    has_tensorflow = find_spec("tensorflow") is not None
    assert (folder / "run/saved_models/run/1/saved_model.pb").is_file() == has_tensorflow
    leftovers = [path for path in folder.rglob(".*") if path.name != ".lock"]
    assert not leftovers, leftovers
    return keras.saving.load_model(folder / "run/model.keras", compile=False).get_weights()


def prepare(folder: Path, teacher: Path) -> None:
    photographs(folder / "photos")
    shutil.copy(teacher, folder / teacher.name)


@pytest.mark.slow
@pytest.mark.every_backend
@pytest.mark.parametrize("more", KILLS, ids=["alone", "with a teacher", "read by Grain"])
def test_kills(more: tuple[str, ...], tmp_path: Path) -> None:
    """At random moments of start, training, report and export; each chain ends the same."""
    chance, whole, teacher = random.Random(), tmp_path / "whole", tmp_path / "teacher.keras"
    sizes = {"patch_size": 4, "hidden_dim": 8, "depth": 1, "num_heads": 2, "mlp_dim": 8}
    vit = keras_vit.VisionTransformer(num_classes=2, input_shape=(16, 16, 3), **sizes)
    vit.class_names = ["green", "red"]
    vit.save(teacher)
    prepare(whole, teacher)
    began = time.monotonic()
    process = start(whole, *more)
    printed, _ = process.communicate()
    seconds = time.monotonic() - began
    assert process.returncode == 0, printed
    wanted = finished_weights(whole)
    kills, chains, moments = 0, 0, []
    while kills < KILLS[more]:
        folder = tmp_path / f"chain{chains}"
        prepare(folder, teacher)
        (folder / "run.txt").write_text("mine")
        photos = {path: sha256(path) for path in sorted((folder / "photos").rglob("*.jpg"))}
        while True:
            process = start(folder, *more, *mode(folder))
            # Late enough to be in the work, and at times so late that it ends by itself.
            wait = chance.uniform(0, 1.15 * seconds) if kills < KILLS[more] else 600
            try:
                printed, _ = process.communicate(timeout=wait)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                kills += 1
                moments.append(round(wait, 1))
                assert {path: sha256(path) for path in photos} == photos
                continue
            assert process.returncode == 0, (moments, printed)
            break
        for one, other in zip(finished_weights(folder), wanted, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=str(moments))
        assert (folder / "run.txt").read_text() == "mine"
        chains += 1
        print(f"{kills} kills, {chains} runs with the same weights", flush=True)
    print(f"{kills} kills in {chains} runs of {seconds:.0f} s, after {moments} s")
