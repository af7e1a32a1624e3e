"""Joins torch's processes, gives them equal starts, and hands their steps to `step_of_process`."""

from collections.abc import Callable
from typing import Any

import keras

from keras_vit.ops.processes import current_processes, exchange, torch_group
from keras_vit.ops.torch_processes.process_parallel import ProcessParallel


def keras_shares_steps() -> bool:
    """Return whether Keras's own steps may average gradients and sum metrics over torch processes.

    From 3.16 on they do over all that are connected, also where no distribution is set. A model of
    this package follows `ProcessParallel`, which this room carries out, or computes alone.
    """
    distribution = keras.distribution.distribution()
    is_of_keras = distribution is not None and not isinstance(distribution, ProcessParallel)
    return torch_group() is None or is_of_keras


def connect_torch_processes(address: str, processes: int, process: int, device: int | None) -> None:
    """Joins the processes of one training: gloo for CPUs, NCCL for GPUs.

    Args:
        address: Host and port of process 0.
        processes: Their number.
        process: The number of this one.
        device: Which GPU of its machine it takes; None for the first.
    """
    import torch

    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(device or 0)
    torch.distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        init_method=f"tcp://{address}",
        world_size=processes,
        rank=process,
    )


def start_from_first_process(model: keras.Model) -> None:
    """Prepares `fit`, `evaluate` or `predict` in several processes; does nothing in one.

    Weights, the optimizer's state, seeds and torch's generator, which shuffles arrays, become those
    of process 0: processes may start from different seeds.

    Args:
        model: The model.

    Raises:
        ValueError: The model has losses or is compiled in a way that processes cannot share.
    """
    distribution = _processes()
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
    optimizer = getattr(model, "optimizer", None)
    for variable in [*model.variables, *(optimizer.variables if optimizer else ())]:
        value = variable.value.detach().contiguous()
        exchange(torch.distributed.broadcast, value, 0)
        variable.assign(value)
    generator = torch.get_rng_state()
    exchange(torch.distributed.broadcast, generator, 0)
    torch.set_rng_state(generator)


def _processes() -> ProcessParallel | None:
    distribution = current_processes()
    return distribution if isinstance(distribution, ProcessParallel) else None


def step_in_processes(
    model: keras.Model, step: Callable[[Any], Any], training: bool
) -> Callable[[Any], Any]:
    """Return a step on global batches, of which each process computes its rows if one is set.

    Args:
        model: The model.
        step: Its train, test or predict function, made by Keras.
        training: Whether it draws random numbers and computes gradients.
    """

    def distributed_step(data: Any) -> Any:
        distribution = _processes()
        if distribution is None:
            return step(data)
        from keras_vit.ops.torch_processes.step_of_process import run_step

        return run_step(model, distribution, step, data, training)

    return distributed_step
