"""Several processes of one training: who they are, and what they agree on.

`torch_processes/` and `jax_processes.py` hold what each backend needs besides.
"""

import zlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_vit.ops.current_distribution import current_distribution


def torch_group() -> Any:
    """`torch.distributed`, if it was initialized; else None."""
    if keras.backend.backend() != "torch":
        return None
    import torch

    group = torch.distributed
    return group if group.is_available() and group.is_initialized() else None


def jax_has_joined() -> bool:
    """Return whether this is one of several processes that JAX connected."""
    if keras.backend.backend() != "jax":
        return False
    import jax

    # Asking for their number would start JAX's devices, after which no process can join. (JAX
    # before 0.5 has nothing else to ask.)
    return getattr(jax.distributed, "is_initialized", lambda: True)() and jax.process_count() > 1


def process_count() -> int:
    """Return the number of processes that have joined; 1 without them."""
    if group := torch_group():
        return int(group.get_world_size())
    if jax_has_joined():
        import jax

        return jax.process_count()
    return 1


def process_rank() -> int:
    """Return the number of this process, 0 for the first one."""
    if group := torch_group():
        return int(group.get_rank())
    if jax_has_joined():
        import jax

        return jax.process_index()
    return 0


def is_first_process() -> bool:
    """Return whether this is process 0, or the only one: it alone writes files.

    Example:

    >>> import keras_vit
    >>> keras_vit.distribution.is_first_process()
    True
    """
    return process_rank() == 0


def current_processes() -> Any:
    """Return the distribution that is set, if it is one over several processes; else None."""
    if process_count() == 1:
        return None
    distribution = current_distribution() or keras.distribution.distribution()
    is_ours = hasattr(distribution, "processes") or jax_has_joined()
    return distribution if is_ours else None


def exchange(operation: Callable[..., Any], *arguments: Any) -> Any:
    """Calls an operation that all processes must call.

    Raises:
        RuntimeError: Another process has ended, or calls something else.
    """
    try:
        return operation(*arguments)
    except RuntimeError as error:
        raise RuntimeError(
            f"Process {process_rank()} of {process_count()} lost the connection to the others: one "
            "of them has ended, and its own output shows why, or it calls other methods than this "
            "one. Start all of them again; a ResumableRun continues from its last checkpoint."
        ) from error


def from_all_processes(value: int) -> list[int]:
    """Return the integers that the processes of the distribution pass, by process; each waits."""
    if current_processes() is None:
        return [value]
    if jax_has_joined():
        from jax.experimental import multihost_utils

        gathered = exchange(multihost_utils.process_allgather, np.array([value], "uint32"))
        return [int(each) for each in gathered.ravel()]
    import torch

    values = [torch.zeros(1, dtype=torch.int64) for _ in range(process_count())]
    exchange(torch.distributed.all_gather, values, torch.tensor([int(value)]))
    return [int(each) for each in values]


def same_in_all_processes(value: int) -> bool:
    """Return whether all processes of the distribution pass the same integer; each one waits."""
    return len(set(from_all_processes(value))) == 1


def wait_for_processes() -> None:
    """Returns when all processes of the distribution that is set have called it."""
    from_all_processes(0)


def rows_of_process(rows: int) -> np.ndarray | None:
    """Return which rows of a batch this process computes, in several processes; None for all.

    Args:
        rows: How many the batch has. All processes have all of them where the devices do not divide
            their number.
    """
    if (distribution := current_processes()) is None:
        return None
    if not jax_has_joined():
        if rows % distribution.processes:
            return None
        return np.split(np.arange(rows), distribution.processes)[distribution.rank]
    mesh = distribution.device_mesh
    if rows % mesh.shape[mesh.axis_names.index(distribution.batch_dim_name)]:
        return None
    sharding = distribution.get_data_layout((rows,)).backend_layout
    slices = sharding.addressable_devices_indices_map((rows,)).values()
    mine = np.unique(np.concatenate([np.arange(rows)[part] for part in slices]))
    return None if len(mine) == rows else mine


def rows_in(batch: Any) -> int:
    """Return the number of rows of a batch, also where its images are those of one process."""
    return max(len(leaf) for leaf in keras.tree.flatten(batch) if leaf is not None)


def check_same_batch(batch: Any) -> None:
    """Checks that a batch is the same in all processes, as far as it has all rows in each.

    Raises:
        ValueError: Its first or last row is not.
    """
    if current_processes() is None:
        return
    checksum, rows = 0, rows_in(batch)
    for leaf in keras.tree.flatten(batch):
        if leaf is not None and len(leaf) == rows:
            ends = keras.ops.convert_to_numpy(leaf[:: max(1, rows - 1)])
            checksum = zlib.crc32(f"{ends.dtype} {leaf.shape}".encode() + ends.tobytes(), checksum)
    if not same_in_all_processes(checksum):
        raise ValueError(
            f"Process {process_rank()} of {process_count()} does not have the same batch as the "
            "others. Give fit, evaluate and predict the same global batches in every process, each "
            "of which computes its rows; what shuffles them needs a seed."
        )
