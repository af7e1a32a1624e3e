"""Runs `in_two_processes.py` in two processes, which torch connects on this machine."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import keras
import pytest

pytestmark = pytest.mark.skipif(keras.backend.backend() != "torch", reason="for torch's processes")


def start(command: Sequence[str], folder: Path) -> list[subprocess.Popen]:
    """Starts a command twice, with the environment of `torchrun --nproc-per-node 2`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "",
        "TEST_FOLDER": str(folder),
    }
    environment.pop("PYTEST_XDIST_WORKER", None)
    processes = []
    for rank in range(2):
        with (folder / f"output-{rank}.txt").open("w") as output:
            processes.append(
                subprocess.Popen(
                    [sys.executable, *command],
                    env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )
    return processes


def test_in_two_processes(tmp_path: Path) -> None:
    file = Path(__file__).with_name("in_two_processes.py")
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=", "-x"]
    processes = start(["-m", "pytest", *options, str(file)], tmp_path)
    codes = [process.wait(timeout=300) for process in processes]
    outputs = [(tmp_path / f"output-{rank}.txt").read_text() for rank in range(2)]
    assert codes == [0, 0], outputs[0][-6000:] + outputs[1][-6000:]
    assert all(" passed" in output for output in outputs)
