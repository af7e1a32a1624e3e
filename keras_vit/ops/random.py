"""Random masks for dropout, and the state of a backend's random generators."""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import keras
import numpy as np

from keras_vit.ops.step import random_rows_along


class DropoutStrategy(Enum):
    """How to draw dropout's masks at the least cost.

    KERNEL: torch's dropout, one kernel on GPUs. BITS: `random_int16`, on torch's CPUs, where
    operations are not fused. REMAINDERS: several decisions per random number, where a compiler
    fuses them.
    """

    KERNEL = "kernel"
    BITS = "bits"
    REMAINDERS = "remainders"


def dropout_strategy() -> DropoutStrategy:
    """Return the fastest strategy for this backend and device."""
    if keras.backend.backend() != "torch":
        return DropoutStrategy.REMAINDERS
    import torch

    return DropoutStrategy.KERNEL if torch.accelerator.is_available() else DropoutStrategy.BITS


def random_int16(shape: Sequence[int], seed: keras.random.SeedGenerator) -> Any:
    """Return all integers of 16 bits, equally likely; on torch, four cut from one of 64 bits."""
    import torch

    words = (*shape[:-1], -(-shape[-1] // 4))
    integers = keras.random.randint(words, -(2**63), 2**63 - 1, dtype="int64", seed=seed)
    return integers.view(torch.int16)[..., : shape[-1]]


def random_rows(draw: Callable[[Any], Any], rows: Any, axis: int = 0) -> Any:
    """Random numbers for the rows of a batch: on many devices, those that one would draw for them.

    Args:
        draw: From a number of rows to random numbers for them.
        rows: How many rows the caller has.
        axis: The axis of the rows.
    """
    with random_rows_along(axis):
        return draw(rows)


def random_state() -> dict[str, np.ndarray]:
    """Return the states of torch's generators by device, which its unseeded dropout uses."""
    if keras.backend.backend() != "torch":
        return {}
    import torch

    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    states = {"cpu": torch.get_rng_state()} | {str(i): state for i, state in enumerate(cuda)}
    return {device: state.numpy() for device, state in states.items()}


def set_random_state(states: dict[str, np.ndarray]) -> None:
    """Restores what `random_state` returned."""
    for device, state in states.items():
        import torch

        if device == "cpu":
            torch.set_rng_state(torch.from_numpy(state))
        else:
            torch.cuda.set_rng_state(torch.from_numpy(state), int(device))
