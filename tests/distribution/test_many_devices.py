"""Runs a backend's tests on many devices in a process of its own: it counts its devices once."""

from pathlib import Path

import keras
import pytest

from tests.distribution.test_two_processes import run_tests


@pytest.mark.backends("jax", "tensorflow")  # torch has a device per process
def test_on_many_devices(tmp_path: Path) -> None:
    on_jax = keras.backend.backend() == "jax"
    file, devices = ("on_eight_devices.py", 8) if on_jax else ("on_logical_devices.py", 1)
    run_tests(tmp_path, file, "-m", "not thorough", processes=1, devices=devices)


@pytest.mark.thorough
@pytest.mark.backends("jax")
def test_more_on_many_devices(tmp_path: Path) -> None:
    run_tests(tmp_path, "on_eight_devices.py", "-m", "thorough", processes=1, devices=8)
