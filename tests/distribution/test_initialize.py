"""What `initialize` finds of launchers, and what it says where processes did not join."""

import pytest

from keras_vit import distribution
from keras_vit.distribution.launch import Launch, find_launch
from tests.backend import refused
from tests.bank import pixels
from tests.distribution.helpers import vit

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "2000"}
SLURM = {"SLURM_JOB_ID": "5000", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}
SLURM |= {"SLURM_STEP_NODELIST": "node[003-004],other", "SLURM_STEP_NUM_TASKS": "2"}
SLURM |= {"SLURM_STEP_TASKS_PER_NODE": "1(x2)"}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*TORCHRUN, *SLURM):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.every_backend
def test_one_process_needs_nothing() -> None:
    distribution.initialize()
    distribution.initialize("127.0.0.1:1234", 1, 0)
    assert distribution.is_first_process()


def test_launchers() -> None:
    assert find_launch({}) is None
    assert find_launch({}, "10.0.0.1:99,10.0.0.2:99", 2, 1) == Launch("10.0.0.1:99", 2, 1)
    of_keras = {"JOB_ADDRESSES": "10.0.0.1:99", "NUM_PROCESSES": "2", "PROCESS_ID": "1"}
    in_variables = {f"KERAS_DISTRIBUTION_{name}": value for name, value in of_keras.items()}
    assert find_launch({**TORCHRUN, **in_variables}) == Launch("10.0.0.1:99", 2, 1)
    assert find_launch(TORCHRUN) == Launch("10.0.0.1:2000", 4, 3)
    two_here = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert find_launch({**TORCHRUN, **two_here}) == Launch("10.0.0.1:2000", 4, 3, device=1)
    assert find_launch(SLURM) == Launch("node003:62344", 2, 1)
    two_here = {"SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_LOCALID": "1"}
    assert find_launch({**SLURM, **two_here}) == Launch("node003:62344", 2, 1, device=1)
    firsts = {"a": "a", "a,b[1-2]": "a", "gpu-[07,09-12]": "gpu-07", "a[1-3,5],b": "a1"}
    for nodes, first in firsts.items():
        launch = find_launch({**SLURM, "SLURM_STEP_NODELIST": nodes})
        assert launch == Launch(f"{first}:62344", 2, 1)


def test_refused_arguments() -> None:
    refused("process_id=None: give all three", distribution.initialize, "10.0.0.1:99", 2, None)
    refused("is not an address.*'10.0.0.1:1234'", distribution.initialize, "10.0.0.1", 2, 0)
    refused("Process 2 of 2 is not possible", distribution.initialize, "10.0.0.1:99", 2, 2)
    refused("Process -1 of 2 is not possible", distribution.initialize, "10.0.0.1:99", 2, -1)


@pytest.mark.backends("tensorflow")  # which has one process
def test_several_processes_on_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    refused("4 processes.*KERAS_BACKEND=jax", distribution.initialize, error=RuntimeError)


@pytest.mark.backends("torch")
def test_one_process_on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    refused("torchrun --nproc-per-node", distribution.data_parallel, devices=2)
    with distribution.data_parallel(devices=1).scope():
        assert vit().predict(pixels(3, 16, 16, 3), verbose=0).shape == (3, 5)
    for kind in ("fsdp", "tensor_parallel"):
        reason = rf"{kind!r} works on JAX, and Keras runs on torch.*data_parallel\(\) works"
        refused(reason, getattr(distribution, kind), error=RuntimeError)
    for name, value in {"WORLD_SIZE": "2", "RANK": "1"}.items():  # of which one did not join
        monkeypatch.setenv(name, value)
    reason = r"2 processes were started: call keras_vit\.distribution\.initialize"
    refused(reason, distribution.data_parallel, error=RuntimeError)
