"""Runs scripts in two processes, which torch or JAX connects on this machine."""

import os
import random
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.distribution.helpers import PYTEST
from tests.distribution.resumable_in_processes import train
from tests.xla_flags import QUICK_XLA

REPOSITORY = Path(__file__).parents[2]
HERE = Path(__file__).parent
ON_JAX = keras.backend.backend() == "jax"
RESUMABLE = str(HERE / "resumable_in_processes.py")
KILLS = 30

pytestmark = pytest.mark.skipif(
    keras.backend.backend() == "tensorflow", reason="those of TensorFlow do not train together"
)


def start(
    folder: Path, *command: str, processes: int = 2, devices: int = 2, **environment: str
) -> list[subprocess.Popen[bytes]]:
    """Processes with the environment of torchrun; on JAX, each with some simulated devices."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        **environment,
        "PYTHONPATH": str(REPOSITORY),
        "WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} {QUICK_XLA}",
        "PJRT_NPROC": "32",
        "TEST_FOLDER": str(folder),
    }
    environment.pop("PYTEST_XDIST_WORKER", None)
    started = []
    for rank in range(processes):
        with (folder / f"output-{rank}.txt").open("w") as output:
            started.append(
                subprocess.Popen(
                    [sys.executable, *command],
                    env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )
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


def finish(folder: Path, *command: str, **options: int) -> None:
    for code, output in ended(folder, start(folder, *command, **options)):
        assert code == 0, output[-6000:]


def assert_same_weights(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    for value, expected in zip(one, other, strict=True):
        scale = max(np.abs(expected).max(), 0.1)
        np.testing.assert_allclose(value, expected, rtol=0, atol=1e-6 * scale)


def saved_weights(folder: Path, rank: int) -> list[np.ndarray]:
    with np.load(folder / f"weights-{rank}.npz") as weights:
        return list(weights.values())


def run_tests(folder: Path, *options: str, processes: int = 2) -> None:
    """Runs `in_two_processes.py` in each of some processes."""
    command = [*PYTEST, "-x", str(HERE / "in_two_processes.py"), *options]
    for code, output in ended(folder, start(folder, *command, processes=processes)):
        assert code == 0, output[-6000:]
        assert " passed" in output


def test_in_two_processes(tmp_path: Path) -> None:
    run_tests(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(ON_JAX, reason="has eight devices in two processes")
def test_1003_examples_in_eight_processes(tmp_path: Path) -> None:
    run_tests(tmp_path, "-k", "1003", processes=8)


def test_a_process_that_dies_ends_the_others(tmp_path: Path) -> None:
    """And the run, continued in two or in one, ends with the weights of one that never stopped."""
    dying = start(tmp_path, RESUMABLE, DIES_AT="2")
    if ON_JAX:  # whose coordinator waits 100 seconds for a sign of life; srun does not
        assert dying[1].wait(timeout=600) == 9
        dying[0].kill()
    (code, output), (died, _) = ended(tmp_path, dying)
    assert died == 9, output[-6000:]
    if not ON_JAX:
        assert code == 1
        assert "Process 0 of 2 lost the connection to the others" in output
    shutil.copytree(tmp_path / "run", tmp_path / "continued alone")
    finish(tmp_path, RESUMABLE)
    expected = train(tmp_path / "never stopped")
    assert_same_weights(train(tmp_path / "continued alone"), expected)
    for rank in range(2):
        assert_same_weights(saved_weights(tmp_path, rank), expected)


@pytest.mark.slow
@pytest.mark.skipif(not ON_JAX, reason="torch's processes see it at once")
def test_a_process_that_dies_without_a_launcher(tmp_path: Path) -> None:
    (code, output), (died, _) = ended(tmp_path, start(tmp_path, RESUMABLE, DIES_AT="2"))
    assert died == 9
    assert code != 0
    assert "another task died" in output or "lost the connection" in output


@pytest.mark.slow
def test_thirty_kills(tmp_path: Path) -> None:
    """One of two processes, at random moments; continued on other devices, and killed again."""
    chance = random.Random()
    expected = train(tmp_path / "never stopped")
    whole = tmp_path / "whole"
    whole.mkdir()
    began = time.monotonic()
    codes = [code for code, _ in ended(whole, start(whole, RESUMABLE, PAUSE="0.3"))]
    assert codes == [0, 0]
    seconds = time.monotonic() - began
    kills = chains = 0
    ends: list[int] = []
    while kills < KILLS:
        folder = tmp_path / f"chain{chains}"
        folder.mkdir()
        while True:
            processes = start(folder, RESUMABLE, devices=chance.choice([1, 2]), PAUSE="0.3")
            time.sleep(chance.uniform(0.2, 1) * seconds)
            killed = chance.choice(processes)
            kills += killed.poll() is None
            for process in (killed, *processes):  # as a launcher ends the others
                process.kill()
            ended(folder, processes)
            is_over = (folder / "weights-0.npz").exists()
            if is_over or kills >= KILLS or chance.random() < 0.3:
                break
        # One process of 1, 2 or 4 devices, or two of 1 or 2.
        count = chance.choice([1, 2])
        devices = chance.choice([1, 2, 4] if count == 1 else [1, 2]) if ON_JAX else 1
        finish(folder, RESUMABLE, processes=count, devices=devices)
        for rank in range(count):
            assert_same_weights(saved_weights(folder, rank), expected)
        ends.append(count * devices)
        chains += 1
        print(f"{kills} kills, {chains} runs with the same weights, on {ends} devices", flush=True)
