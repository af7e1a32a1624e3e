"""`keras-vit train` as a real process, killed again and again: it ends with the same weights."""

import os
import random
import signal
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests import processes
from tests.cli.helpers import TRAIN, color_photos, outcome_of, save_tiny, sums

pytestmark = pytest.mark.slow  # tests/training/test_resume.py kills on every backend
COMPILED = pytest.mark.backends("tensorflow", "jax")
EVERYWHERE = pytest.mark.every_backend
CACHED = "--epochs 4 --coverage 0.8 --cache 16 --reader"
EOMT = "--labels masks --recipe from_scratch_tiny --head eomt --epochs 12"
# Checkpoints are written all the time, so that kills meet them, too.
CODE = """
import dataclasses, os, sys, keras_vit, keras_vit_cli.start
from keras_vit.training.recipes import RECIPES
recipe = RECIPES["from_scratch_tiny"]
small = {**recipe.model, "hidden_dim": 16, "mlp_dim": 16, "depth": 1, "num_heads": 2}
RECIPES["from_scratch_tiny"] = dataclasses.replace(recipe, model=small)
from keras_vit.training import fitting
run = fitting.ResumableRun
fitting.ResumableRun = lambda folder, _, **options: run(folder, 0.0, every_steps=2, **options)
if os.environ.get("NO_EXPORT"):
    keras_vit.export = lambda *_, **__: None
sys.exit(keras_vit_cli.start.main())
"""


def start(folder: Path, words: str, **environment: str) -> processes.WarmProcess:
    words, printed = f"{TRAIN} {words}", folder.with_name(f"{folder.name}.printed")
    environment["KERAS_HOME"] = str(folder.with_name(f"{folder.name}.home"))
    return processes.start(CODE, *words.split(), printed=printed, cwd=folder, **environment)


def mode(folder: Path) -> str:
    checkpoints = (folder / "run.partial/checkpoints").glob("step-*")
    return "--resume" if (folder / "run").exists() or any(checkpoints) else ""


def finished(folder: Path, exported: bool) -> list[np.ndarray]:
    outcome = outcome_of(folder / "run")
    assert not (folder / "run/checkpoints").exists()
    if exported:
        has_tensorflow = find_spec("tensorflow") is not None
        assert (folder / "run/saved_models/run/1/saved_model.pb").is_file() == has_tensorflow
    assert [path for path in folder.rglob(".*") if path.name != ".lock"] == []
    return outcome


def prepare(folder: Path) -> Path:
    color_photos(folder / "photos", 20)
    for photo in (folder / "photos").rglob("*.jpg"):
        mask = folder / "masks" / photo.parent.name / f"{photo.stem}.png"
        mask.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.tri(20, 24, int(photo.stem), dtype="uint8")).save(mask)
    save_tiny(folder / "teacher.keras")
    (folder / "run.txt").write_text("mine")
    return folder


@pytest.mark.parametrize(("words", "number"), [
    pytest.param("--epochs 12", 50, marks=COMPILED),
    ("--epochs 12 --teacher teacher.keras", 5),
    pytest.param("--epochs 12 --reader grain", 20, marks=pytest.mark.backends("torch")),
    pytest.param(EOMT, 10, marks=EVERYWHERE),
    pytest.param(f"{CACHED} tensorflow", 30, marks=EVERYWHERE),
    pytest.param(f"{CACHED} grain", 30, marks=EVERYWHERE),
])  # fmt: skip
def test_kills(words: str, number: int, tmp_path: Path) -> None:
    """At random moments of training, report and export."""
    exports = not words.startswith(CACHED)
    options = {} if exports else {"NO_EXPORT": "1"}
    whole, began = prepare(tmp_path / "whole"), time.monotonic()
    process = start(whole, words, **options)
    assert process.wait() == 0, process.output()
    seconds = time.monotonic() - began
    wanted = finished(whole, exports)
    chance, kills, chains = random.Random(), [], 0
    while len(kills) < number:
        folder = prepare(tmp_path / f"chain{chains}")
        photos = sums(folder / "photos")
        while True:
            process = start(folder, f"{words} {mode(folder)}", **options)
            # Late enough to be in the work, and at times so late that it ends by itself.
            until = time.monotonic() + chance.uniform(0, 1.15 * seconds)
            while process.poll() is None and len(kills) < number:
                if time.monotonic() > until:
                    with suppress(ProcessLookupError):  # and what writes its SavedModel
                        os.killpg(process.pid, signal.SIGKILL)
                    process.kill()
                    kills.append(round(until - began, 1))
                    break
                time.sleep(0.01)
            if process.wait() == 0:
                break
            assert process.poll() == -signal.SIGKILL, (kills, process.output())
            assert sums(folder / "photos") == photos
        for one, other in zip(finished(folder, exports), wanted, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=str(kills))
        assert (folder / "run.txt").read_text() == "mine"
        chains += 1
