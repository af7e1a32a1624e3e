"""Runs `in_two_workers.py` in two processes, which TensorFlow connects on this machine."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from tests.distribution.helpers import PYTEST


def free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tf.distribute is TensorFlow's")
def test_in_two_workers(tmp_path: Path) -> None:
    file = Path(__file__).with_name("in_two_workers.py")
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    command = [sys.executable, *PYTEST, "-x", str(file)]
    processes = []
    for rank in range(2):
        task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        environment = {
            **os.environ,
            "TF_CONFIG": json.dumps(task),
            "TEST_FOLDER": str(tmp_path),
            "CUDA_VISIBLE_DEVICES": "",
        }
        environment.pop("PYTEST_XDIST_WORKER", None)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        processes.append(subprocess.Popen(command, env=environment, **pipes))
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output[-6000:]
        assert " passed" in output
