"""Runs tests on several devices, and in two processes that torch or JAX connects here."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import REPOSITORY
from tests.distribution.helpers import PYTEST, assert_same_weights
from tests.distribution.resumable_in_processes import ON_JAX, train
from tests.xla_flags import QUICK_XLA

HERE = Path(__file__).parent

pytestmark = pytest.mark.backends("jax", "torch")  # those of TensorFlow do not train together


def start(folder: Path, *command: str, processes=2, devices=2, **variables: str) -> Any:
    """Processes with the environment of torchrun; on JAX, each with some simulated devices."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    devices_of_xla = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, **variables, "TEST_FOLDER": str(folder)}
    environment |= {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    environment |= {"WORLD_SIZE": str(processes), "GLOO_SOCKET_IFNAME": "lo"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    # Threads: with fewer of them than devices, XLA can wait for itself.
    environment |= {"XLA_FLAGS": f"{devices_of_xla} {QUICK_XLA}", "PJRT_NPROC": "32"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    run, started = [sys.executable, *command], []
    for rank in map(str, range(processes)):
        its = {**environment, "RANK": rank, "LOCAL_RANK": rank}
        with (folder / f"output-{rank}.txt").open("w") as output:
            process = subprocess.Popen(run, env=its, stdout=output, stderr=subprocess.STDOUT)
        started.append(process)
    return started


def ended(folder: Path, started: list[subprocess.Popen[bytes]]) -> list[tuple[int, str]]:
    """Exit code and output of each process."""
    try:
        codes = [process.wait(timeout=900) for process in started]
    finally:
        for process in started:
            process.kill()
    outputs = [(folder / f"output-{rank}.txt").read_text() for rank in range(len(started))]
    return list(zip(codes, outputs, strict=True))


def run_tests(folder: Path, file: str, *options: str, **counts: int) -> None:
    """Runs the tests of a file in each of some processes."""
    started = start(folder, *PYTEST, str(HERE / file), *options, **counts)
    for code, output in ended(folder, started):
        assert code == 0, output[-8000:]
        assert " passed" in output


def test_in_two_processes(tmp_path: Path) -> None:
    """A run whose last process dies continues, in two processes and in one, to the same weights."""
    dying = start(tmp_path, str(HERE / "resumable_in_processes.py"), DIES_AT="2")
    if ON_JAX:  # whose coordinator waits 100 seconds for a sign of life; srun does not
        assert dying[1].wait(timeout=600) == 9
        dying[0].kill()
    (code, output), (of_the_dead, _) = ended(tmp_path, dying)
    assert of_the_dead == 9, output[-6000:]
    if not ON_JAX:
        assert code == 1
        assert "Process 0 of 2 lost the connection to the others" in output
    shutil.copytree(tmp_path / "run", tmp_path / "continued alone")
    run_tests(tmp_path, "in_two_processes.py", "-x", "-m", "not slow" if ON_JAX else "not thorough")
    expected = train(tmp_path / "never stopped")
    in_two = [[*np.load(tmp_path / f"weights-{rank}.npz").values()] for rank in range(2)]
    for weights in (train(tmp_path / "continued alone"), *in_two):
        assert_same_weights(weights, expected, 1e-6)


@pytest.mark.backends("jax", "tensorflow")  # torch has a device per process
def test_on_many_devices(tmp_path: Path) -> None:
    file, devices = ("on_eight_devices.py", 8) if ON_JAX else ("on_logical_devices.py", 1)
    run_tests(tmp_path, file, "-m", "not thorough", processes=1, devices=devices)


@pytest.mark.slow
@pytest.mark.backends("jax")
def test_more_on_many_devices(tmp_path: Path) -> None:
    run_tests(tmp_path, "on_eight_devices.py", "-x", "-m", "thorough", processes=1, devices=8)
