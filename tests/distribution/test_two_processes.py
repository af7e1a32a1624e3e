"""Runs scripts in two processes, which torch or JAX connects on this machine."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.distribution.resumable_in_processes import train

REPOSITORY = Path(__file__).parents[2]
HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(
    keras.backend.backend() == "tensorflow", reason="TensorFlow has one process"
)


def in_two_processes(folder: Path, *command: str, **environment: str) -> list[tuple[int, str]]:
    """Exit code and output of each process, with the environment of torchrun."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        **environment,
        "PYTHONPATH": str(REPOSITORY),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0",
        "TEST_FOLDER": str(folder),
    }
    environment.pop("PYTEST_XDIST_WORKER", None)
    outputs = [folder / f"output-{rank}.txt" for rank in range(2)]
    processes = []
    for rank, output in enumerate(outputs):
        ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        with output.open("w") as file:
            processes.append(
                subprocess.Popen(
                    [sys.executable, *command],
                    env={**environment, **ranks},
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        codes = [process.wait(timeout=900) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(code, path.read_text()) for code, path in zip(codes, outputs, strict=True)]


def test_in_two_processes(tmp_path: Path) -> None:
    options = [
        "-v",
        "-x",
        "--durations=0",
        "--tb=short",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
    ]
    command = ["-m", "pytest", *options, "-o", "addopts=", str(HERE / "in_two_processes.py")]
    for code, output in in_two_processes(tmp_path, *command):
        assert code == 0, output[-6000:]
        assert " passed" in output


def test_a_process_that_dies_ends_the_others(tmp_path: Path) -> None:
    """And the run, continued in two or in one, ends with the weights of one that never stopped."""
    script = str(HERE / "resumable_in_processes.py")
    (code, output), (died, _) = in_two_processes(tmp_path, script, DIES_AT="2")
    assert (code, died) == (1, 9), output[-6000:]
    assert "Process 0 of 2 lost the connection to the others" in output
    shutil.copytree(tmp_path / "run", tmp_path / "continued alone")
    for code, output in in_two_processes(tmp_path, script):
        assert code == 0, output[-6000:]
    continued = [train(tmp_path / "continued alone")]
    for rank in range(2):
        with np.load(tmp_path / f"weights-{rank}.npz") as weights:
            continued.append(list(weights.values()))
    expected = train(tmp_path / "never stopped")
    for weights in continued:
        for one, other in zip(weights, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
