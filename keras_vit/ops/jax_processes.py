"""Several JAX processes: arrays that no process holds whole.

Each process has the devices of its machine, and `keras.distribution` those of all of them. An array
that is cut over machines can be computed with, by all processes together; only what is gathered can
be read or saved.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from keras_vit.ops.processes import exchange, jax_has_joined


@contextmanager
def whole_values(variables: Iterable[keras.Variable]) -> Iterator[None]:
    """Meanwhile variables of several processes have their whole values, on the host.

    All processes must enter it. In one process, and on torch, it does nothing.
    """
    elsewhere = [(variable, variable.value) for variable in variables] if jax_has_joined() else []
    try:
        for variable, value in elsewhere:
            variable._value = gathered(value)
        yield
    finally:
        for variable, value in elsewhere:
            variable._value = value


def gathered(values: Any) -> Any:
    """Arrays of several processes as whole ones on the host, in each process; others as they are.

    All processes must call it.
    """
    if not jax_has_joined():
        return values
    from jax.experimental import multihost_utils

    def gather(array: Any) -> Any:
        if array.is_fully_addressable:
            return array
        if array.is_fully_replicated:
            return np.asarray(array)
        return exchange(multihost_utils.process_allgather, array, True)

    return keras.tree.map_structure(gather, values)


def connect_jax_processes(
    address: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    device: int | None = None,
) -> None:
    """Joins the processes of one training; JAX finds out what is None, as on a TPU pod.

    Does nothing in a single process, and when they have joined already.

    Args:
        address: Host and port of process 0.
        processes: Their number.
        process: The number of this one.
        device: Which GPU of its machine it takes; None for all.
    """
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # the default since JAX 0.5
    if getattr(jax.distributed, "is_initialized", lambda: False)():
        return
    if device is not None:
        jax.config.update("jax_cuda_visible_devices", str(device))
    try:
        keras.distribution.initialize(address, processes, process)
    except ValueError:  # JAX finds no others
        if address is not None:
            raise
    except RuntimeError:  # JAX has computed before
        if address is not None or jax.default_backend() == "tpu":
            raise
