"""Runs `on_logical_devices.py` in a process of its own: TensorFlow divides the CPU once."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tf.distribute is TensorFlow's")
def test_on_logical_devices() -> None:
    file = Path(__file__).with_name("on_logical_devices.py")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    run = subprocess.run(
        [*command, "-o", "addopts=", str(file)], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
