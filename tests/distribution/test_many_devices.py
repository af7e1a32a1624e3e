"""Runs a backend's tests on many devices in a process of its own: it counts its devices once."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from tests.distribution.helpers import PYTEST
from tests.xla_flags import QUICK_XLA

EIGHT = f"--xla_force_host_platform_device_count=8 {QUICK_XLA}"
# By backend: the tests, and the environment that they need.
SUITES: dict[str, tuple[str, dict[str, str]]] = {
    "jax": (
        "on_eight_devices.py",
        # Threads: with fewer of them than devices, XLA can wait for itself.
        {"XLA_FLAGS": EIGHT, "JAX_PLATFORMS": "cpu", "PJRT_NPROC": "32"},
    ),
    "tensorflow": ("on_logical_devices.py", {"CUDA_VISIBLE_DEVICES": ""}),
}


def run_tests(marks: str) -> None:
    file, variables = SUITES[keras.backend.backend()]
    environment = {**os.environ, **variables}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, *PYTEST, "-m", marks, str(Path(__file__).with_name(file))]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    assert " passed" in run.stdout


@pytest.mark.backends("jax", "tensorflow")  # torch has a device per process
def test_on_many_devices() -> None:
    run_tests("not thorough")


@pytest.mark.thorough
@pytest.mark.backends("jax")
def test_more_on_many_devices() -> None:
    run_tests("thorough")
