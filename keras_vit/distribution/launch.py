"""Several processes of one training: finds what started them, and joins them."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

import keras

from keras_vit.ops import connect_jax_processes, connect_torch_processes, process_count


@dataclass(frozen=True)
class Launch:
    """What a process has to know of the others.

    Attributes:
        address: Host and port of process 0.
        processes: The number of processes.
        process: The number of this one, from 0.
        device: Which GPU of its machine it takes; None for all.
    """

    address: str
    processes: int
    process: int
    device: int | None = None

    def __post_init__(self) -> None:
        if self.processes < 1 or not 0 <= self.process < self.processes:
            raise ValueError(
                f"Process {self.process} of {self.processes} is not possible: processes are "
                "counted from 0, and there is at least one."
            )
        if not re.fullmatch(r".+:\d+", self.address):
            raise ValueError(
                f"{self.address!r} is not an address: give host and port of process 0, such as "
                "'10.0.0.1:1234'."
            )


def initialize(
    job_addresses: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> None:
    """Joins the processes of one training; in a process of its own, does nothing.

    Call it first, in every process; then `keras.distribution.set_distribution(data_parallel())`, or
    another kind. Without arguments it takes, in this order: the variables
    `KERAS_DISTRIBUTION_JOB_ADDRESSES`, `KERAS_DISTRIBUTION_NUM_PROCESSES` and
    `KERAS_DISTRIBUTION_PROCESS_ID`; those of torchrun; those of a SLURM step (`srun`); on JAX
    whatever JAX knows, such as a TPU pod. Processes that are connected already, as those of Ray
    Train with GPUs, stay so.

    On JAX, start a process per machine, which takes all of its devices; where torchrun starts
    several on a machine, each takes one GPU. On torch, a process takes one GPU. CPUs exchange data
    by gloo, on both.

    Args:
        job_addresses: Host and port of process 0, such as `"10.0.0.1:1234"`; of others behind it,
            after commas, nothing is needed.
        num_processes: How many processes there are.
        process_id: The number of this one, from 0.

    Raises:
        RuntimeError: Several processes were started, and Keras runs on TensorFlow.
        ValueError: Some arguments are missing, or impossible.

    Example:

    >>> import keras_vit
    >>> keras_vit.distribution.initialize()  # under torchrun --nproc-per-node 8 script.py: of eight
    """
    launch = find_launch(os.environ, job_addresses, num_processes, process_id)
    backend = keras.backend.backend()
    if launch is None:
        if backend == "jax":
            connect_jax_processes()
        return
    several = launch.processes > 1
    where = launch.address, launch.processes, launch.process, launch.device
    if backend == "jax" and several:
        connect_jax_processes(*where)
    elif backend == "torch" and process_count() == 1:
        connect_torch_processes(*where)
    elif backend == "tensorflow" and several:
        raise RuntimeError(
            f"{launch.processes} processes were started, and Keras runs on TensorFlow, on which "
            "they would not train together. Set KERAS_BACKEND=jax or KERAS_BACKEND=torch, or start "
            "one process."
        )


def find_launch(
    environment: Mapping[str, str],
    job_addresses: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> Launch | None:
    """Return how this process was started, from arguments or the environment; None if alone.

    Raises:
        ValueError: Some arguments are missing, or impossible.
    """
    keras_names = ("JOB_ADDRESSES", "NUM_PROCESSES", "PROCESS_ID")
    values = [
        environment.get(f"KERAS_DISTRIBUTION_{name}") if value is None else value
        for name, value in zip(keras_names, (job_addresses, num_processes, process_id), strict=True)
    ]
    if any(value is not None for value in values):
        if None in values:
            raise ValueError(
                f"job_addresses={values[0]!r}, num_processes={values[1]!r} and process_id="
                f"{values[2]!r}: give all three, or none where a launcher sets them."
            )
        address, count, number = map(str, values)
        return Launch(address.split(",")[0], int(count), int(number))
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return _of_torchrun(environment)
    if "SLURM_STEP_NODELIST" in environment and "SLURM_PROCID" in environment:
        return _of_slurm(environment)
    return None


def _of_torchrun(environment: Mapping[str, str]) -> Launch:
    port = int(environment.get("MASTER_PORT", 29500))
    if keras.backend.backend() == "jax" and "TORCHELASTIC_RUN_ID" in environment:
        port += 1  # torchrun itself listens on its own
    local = int(environment.get("LOCAL_RANK", 0))
    return Launch(
        f"{environment.get('MASTER_ADDR', '127.0.0.1')}:{port}",
        int(environment["WORLD_SIZE"]),
        int(environment["RANK"]),
        _device(local, int(environment.get("LOCAL_WORLD_SIZE", 1))),
    )


def _of_slurm(environment: Mapping[str, str]) -> Launch:
    """Return the launch of a Slurm step; of `node[003-007,009],other`, the first node leads."""
    nodes = environment["SLURM_STEP_NODELIST"]
    first = re.match(r"([^,\[]+)(?:\[(\d+))?", nodes)
    if first is None:
        raise ValueError(f"SLURM_STEP_NODELIST={nodes!r} does not name a node.")
    port = 61440 + int(environment.get("SLURM_JOB_ID", 0)) % 4096  # of the ephemeral ports
    per_node = re.match(r"\d+", environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    return Launch(
        f"{first[1]}{first[2] or ''}:{port}",
        int(environment.get("SLURM_STEP_NUM_TASKS", environment.get("SLURM_NTASKS", 1))),
        int(environment["SLURM_PROCID"]),
        _device(int(environment.get("SLURM_LOCALID", 0)), int(per_node[0]) if per_node else 1),
    )


def _device(local: int, local_processes: int) -> int | None:
    """Return the GPU of a process; all of its machine for a single one on JAX."""
    return local if local_processes > 1 else None
