"""Data parallel training in several torch processes, by `torch.distributed`.

Every process reads the same global batches. Within a step, the model computes the rows of its
process and gathers the outputs of all of them; loss and metrics are computed from all outputs, in
every process:

    images of the batch ──► rows of this process ──► model ──► outputs ──► gather ──► loss, metrics
                                                       │                     │
        sum over the processes ◄── gradient ◄──────────┴──── rows of this process

So the sum of the gradients is the gradient of the global batch's loss, whatever the loss, and it is
ready before clipping, accumulation and SAM see it. The step itself is in `torch_step.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import keras
import numpy as np

# The step that runs now, if it runs in several processes.
current_step: ContextVar[Any] = ContextVar("current_step", default=None)


class ProcessParallel(keras.distribution.DataParallel):
    """Data parallel over the processes that torchrun started, with one device each.

    For Keras without a distribution of its own on torch (3.15). Models of this package follow it in
    `fit`, `evaluate`, `predict` and their variants for a single batch.

    Attributes:
        rank: The number of this process.
        processes: The number of all processes.
    """

    def __init__(self) -> None:
        import torch

        self.rank, self.processes = process_rank(), process_count()
        device = "gpu" if torch.cuda.is_available() else "cpu"
        names = np.array([f"{device}:{rank}" for rank in range(self.processes)])
        mesh = keras.distribution.DeviceMesh(names.shape, ["batch"], names)
        super().__init__(device_mesh=mesh, auto_shard_dataset=False)
        self.is_batch_checked = False  # whether this call's first batch was compared


def keras_distributes_torch() -> bool:
    """Whether this version of Keras has a distribution of its own for torch."""
    from keras.src.backend import distribution_lib

    return keras.backend.backend() == "torch" and distribution_lib is not None


def initialize_processes() -> None:
    """Joins the processes that torchrun started: gloo for CPUs, NCCL for GPUs.

    Does nothing without torchrun's environment, and when they have joined already.
    """
    if _process_group() is not None or "WORLD_SIZE" not in os.environ:
        return
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl")
    else:
        torch.distributed.init_process_group("gloo")


def process_count() -> int:
    """The number of processes of `torch.distributed`; 1 without it."""
    group = _process_group()
    return 1 if group is None else group.get_world_size()


def process_rank() -> int:
    """The number of this process, 0 for the first one."""
    group = _process_group()
    return 0 if group is None else group.get_rank()


def is_first_process() -> bool:
    """Whether this is process 0, or the only one: it alone writes files.

    Example:

    >>> import keras_vit
    >>> keras_vit.distribution.is_first_process()
    True
    """
    return process_rank() == 0


def _process_group() -> Any:
    """`torch.distributed`, if it was initialized; else None."""
    if keras.backend.backend() != "torch":
        return None
    import torch

    group = torch.distributed
    return group if group.is_available() and group.is_initialized() else None


def current_processes() -> ProcessParallel | None:
    """The distribution that is set, if it is one over several processes."""
    distribution = keras.distribution.distribution()
    several = isinstance(distribution, ProcessParallel) and distribution.processes > 1
    return distribution if several else None


def exchange(operation: Callable[..., Any], *arguments: Any) -> None:
    """Calls an operation of `torch.distributed`, which all processes must call.

    Raises:
        RuntimeError: Another process has ended, or calls something else.
    """
    try:
        operation(*arguments)
    except RuntimeError as error:
        raise RuntimeError(
            f"Process {process_rank()} of {process_count()} lost the connection to the others: one "
            "of them has ended, and its own output shows why, or it calls other methods than this "
            "one. Start all of them again; a ResumableRun continues from its last checkpoint."
        ) from error


def same_in_all_processes(value: int) -> bool:
    """Whether all processes of the distribution that is set pass the same integer; each waits."""
    distribution = current_processes()
    if distribution is None:
        return True
    import torch

    values = [torch.zeros(1, dtype=torch.int64) for _ in range(distribution.processes)]
    exchange(torch.distributed.all_gather, values, torch.tensor([value]))
    return len({int(each) for each in values}) == 1


def wait_for_processes() -> None:
    """Returns when all processes of the distribution that is set have called it."""
    same_in_all_processes(0)


def join_processes(model: keras.Model, options: dict[str, Any]) -> None:
    """Prepares `fit`, `evaluate` or `predict` in several processes; does nothing in one.

    Weights, the optimizer's state, seeds and torch's generator, which shuffles arrays, become those
    of process 0: processes may start from different seeds.

    Args:
        model: The model.
        options: Arguments of the method by name. Process 0 alone shows the progress bar.

    Raises:
        ValueError: The model has losses or is compiled in a way that processes cannot share.
    """
    distribution = current_processes()
    if distribution is None:
        return
    import torch

    if model.losses:
        raise ValueError(
            f"{model.name} has {len(model.losses)} losses of layers or regularizers, which every "
            "process would add again. Use the weight_decay of an optimizer in their place."
        )
    if model.compiled and model.jit_compile:
        raise ValueError(
            "jit_compile=True does not work in several processes. Compile with jit_compile=False."
        )
    distribution.is_batch_checked = False
    if distribution.rank and options.get("verbose", "auto") == "auto":
        options["verbose"] = 0
    optimizer = getattr(model, "optimizer", None)
    for variable in [*model.variables, *(optimizer.variables if optimizer else ())]:
        value = variable.value.detach().contiguous()
        exchange(torch.distributed.broadcast, value, 0)
        variable.assign(value)
    generator = torch.get_rng_state()
    exchange(torch.distributed.broadcast, generator, 0)
    torch.set_rng_state(generator)


def step_in_processes(
    model: keras.Model, step: Callable[[Any], Any], training: bool
) -> Callable[[Any], Any]:
    """A step on global batches, of which each process computes its rows if one is set.

    Args:
        model: The model.
        step: Its train, test or predict function, made by Keras.
        training: Whether it draws random numbers and computes gradients.
    """

    def distributed_step(data: Any) -> Any:
        distribution = current_processes()
        if distribution is None:
            return step(data)
        from keras_vit.backend.torch_step import run_step

        return run_step(model, distribution, step, data, training)

    return distributed_step


def recomputed_in_step(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that draws for the rows of its process also when a backward pass calls it again.

    A backward pass is not in the step that it belongs to: torch leaves function modes before it.
    """
    step = current_step.get()
    if step is None:
        return function

    def call(*arguments: Any) -> Any:
        with nullcontext() if step.is_inside else step:
            return function(*arguments)

    return call


@contextmanager
def random_rows_along(axis: int) -> Iterator[None]:
    """Random numbers that are drawn meanwhile have a row per row of the batch along that axis."""
    step = current_step.get()
    if step is not None:
        step.batch_axis = axis
    try:
        yield
    finally:
        if step is not None:
            step.batch_axis = 0


def on_all_processes(function: Callable[[Any], Any], images: Any) -> Any:
    """Calls a function of a batch, in a step each process for its rows; outputs are those of all.

    Args:
        function: From a batch to outputs with a row for each of its rows, which depends on no
            other row.
        images: The batch.
    """
    step = current_step.get()
    return function(images) if step is None or step.is_inside else step.call(function, images)
