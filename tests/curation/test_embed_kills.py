"""`embed` as a real process, killed again and again: the index has the same bytes."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image

from tests.conftest import REPOSITORY

KILLS = 20
# Batches take a while, so that kills meet them.
CODE = """
import sys, time, keras, keras_vit
from keras_vit.curation import embed
keras.utils.set_random_seed(3)
model = keras_vit.VisionTransformer(
    patch_size=4, hidden_dim=16, depth=1, num_heads=2, input_shape=(8, 8, 3))
print("ready", flush=True)
embed(model, "photos", sys.argv[1], batch_size=4, report=lambda _: time.sleep(float(sys.argv[2])))
"""


def start(folder: Path, out: str, pause: float) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "KERAS_BACKEND": keras.backend.backend(),
    }
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, out, str(pause)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    chance, pixels = random.Random(0), np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for i in range(1600):
        photo = Image.fromarray(pixels.integers(0, 256, (9, 9, 3), np.uint8))
        photo.save(tmp_path / f"photos/{i}.png")
    assert start(tmp_path, "whole", 0).wait() == 0
    log, lengths = tmp_path / ".index.partial/log.jsonl", []
    for _ in range(KILLS):
        process = start(tmp_path, "index", 0.05)
        time.sleep(chance.uniform(0, 2))
        assert process.poll() is None, "it ended before it was killed: let it take longer"
        process.send_signal(signal.SIGKILL)
        process.wait()
        lengths.append(log.stat().st_size if log.exists() else 0)
    assert not (tmp_path / "index").exists()
    assert lengths == sorted(lengths)  # each goes on where the one before was
    assert lengths[-1] > 0
    assert start(tmp_path, "index", 0).wait() == 0
    for file in (tmp_path / "whole").iterdir():
        assert (tmp_path / "index" / file.name).read_bytes() == file.read_bytes(), file.name
    assert not (tmp_path / ".index.partial").exists()
