"""Random masks for dropout, and the state of a backend's own generators."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np


def masks_come_from() -> str:
    """Where dropout's masks cost least.

    "kernel": torch's own dropout, one kernel on its GPUs. "bits": `random_int16`, on its CPUs,
    where nothing fuses passes. "remainders": where a compiler does, and random numbers cost.
    """
    if keras.backend.backend() != "torch":
        return "remainders"
    import torch

    return "kernel" if torch.accelerator.is_available() else "bits"


def random_int16(shape: Sequence[int], seed: keras.random.SeedGenerator) -> Any:
    """All integers of 16 bits, equally likely; on torch, four cut from one of 64 bits."""
    import torch

    words = (*shape[:-1], -(-shape[-1] // 4))
    drawn = keras.random.randint(words, -(2**63), 2**63 - 1, dtype="int64", seed=seed)
    return drawn.view(torch.int16)[..., : shape[-1]]


def random_state() -> dict[str, np.ndarray]:
    """The backend's own generators by device: torch's dropout without a seed draws from them."""
    if keras.backend.backend() != "torch":
        return {}
    import torch

    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    states = {"cpu": torch.get_rng_state()} | {str(i): state for i, state in enumerate(cuda)}
    return {device: state.numpy() for device, state in states.items()}


def set_random_state(states: dict[str, np.ndarray]) -> None:
    """Sets what `random_state` returned."""
    for device, state in states.items():
        import torch

        if device == "cpu":
            torch.set_rng_state(torch.from_numpy(state))
        else:
            torch.cuda.set_rng_state(torch.from_numpy(state), int(device))
