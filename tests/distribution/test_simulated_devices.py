"""Runs `on_eight_devices.py` in a process with eight simulated devices: JAX counts them once."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="keras.distribution is JAX's")
def test_on_eight_devices() -> None:
    file = Path(__file__).with_name("on_eight_devices.py")
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0",
        "JAX_PLATFORMS": "cpu",
    }
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--durations=8",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
    ]
    run = subprocess.run(
        [*command, "-o", "addopts=", str(file)], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
