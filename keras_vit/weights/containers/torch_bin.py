"""PyTorch's `.pth`, `.pt` and `.bin`: only through `torch.load(weights_only=True)`."""

import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from keras_vit._base.version import install_command
from keras_vit.weights.checkpoint_error import CheckpointError
from keras_vit.weights.containers.npz import check_zip
from keras_vit.weights.containers.tensors import (
    Array,
    Container,
    Tensor,
    check_declared_size,
    checked_float32,
)

# Where training scripts put the weights among the rest of their state.
NESTED = ("model", "state_dict", "model_state_dict", "teacher")


@contextmanager
def open_torch(path: Path) -> Iterator[Container]:
    """Yield the tensors of a PyTorch file; needs torch, and runs no code from the file."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"Reading {path.name} needs PyTorch: {install_command('torch')}. "
            "Or give the same weights as .safetensors or .npz, which need nothing."
        ) from error
    is_zip = zipfile.is_zipfile(path)
    if is_zip:
        check_zip(path)
    try:
        # Mapped, tensors that are not read stay out of memory; files from before 2020 cannot be.
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception as error:  # the unpickler fails in a hundred ways, all with one meaning
        raise CheckpointError(_why(path, error)) from error
    for key in NESTED:
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} holds a {type(state).__name__}, not a table of tensors.")
    tensors = {
        str(name): _tensor(str(name), value)
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
    }
    check_declared_size(path, (tensor.shape for tensor in tensors.values()))
    yield Container(path, tensors)


def _why(path: Path, error: Exception) -> str:
    """torch's own message would advise to unpickle the file, which runs what it carries."""
    if match := re.search(r"global:? (?:GLOBAL )?(\S+)", str(error)):
        return (
            f"{path} holds Python objects ({match[1]}) beside its tensors, and reading "
            "them could run code: it is never done. Where you trust the file, write its state_dict "
            "alone, best as .safetensors."
        )
    return (
        f"{path} is not a whole PyTorch file of weights alone: it was cut off or damaged, or holds "
        "Python objects, which are never read. Download it again, or write the state_dict alone."
    )


def _tensor(name: str, value: Any) -> Tensor:
    def read() -> Array:
        if not value.is_floating_point():
            raise CheckpointError(f"Tensor {name!r} holds {value.dtype}; weights are floats.")
        return checked_float32(name, value.detach().float().contiguous().numpy())

    return Tensor(name, tuple(value.shape), str(value.dtype).removeprefix("torch."), read)
