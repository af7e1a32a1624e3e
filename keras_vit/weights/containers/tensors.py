"""The arrays that a file declares, before any of them is read."""

import json
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.weights.checkpoint_error import CheckpointError

TensorShape = tuple[int, ...]
Array = np.ndarray

# An honest file of weights is as large as its arrays; bfloat16 doubles when it becomes float32.
LARGEST_GROWTH = 2


@dataclass(frozen=True)
class Tensor:
    """One array of a file: its declared shape, and the way to read it.

    Attributes:
        name: Its name in the file, for messages and the report.
        shape: What `read` will return.
        dtype: As declared, such as `"float32"` or `"bfloat16"`.
        read: Returns the values as finite float32, or raises a `CheckpointError`.
    """

    name: str
    shape: TensorShape
    dtype: str
    read: Callable[[], Array]

    def then(self, change: Callable[[Array], Array], shape: TensorShape | None = None) -> "Tensor":
        """Return the tensor after `change`, which runs when it is read.

        `shape` is the shape of the result; None computes it at once, for a change of axes alone.
        """
        if shape is None:
            try:
                # Zero strides: the shape passes through `change` and nothing is allocated.
                shape = change(np.broadcast_to(np.float32(0), self.shape)).shape
            except (ValueError, IndexError) as error:
                raise CheckpointError(
                    f"Tensor {self.name!r} has shape {self.shape}, which does not fit its name: "
                    f"{error}"
                ) from error
        return Tensor(self.name, shape, self.dtype, lambda: change(self.read()))


class SharedRead:
    """The read of a tensor that holds several: done once for all its users, then forgotten."""

    def __init__(self, read: Callable[[], Array], users: int) -> None:
        self._read = read
        self._users = self._remaining = users
        self._values: Array | None = None

    def __call__(self) -> Array:
        values = self._read() if self._values is None else self._values
        self._remaining = (self._remaining or self._users) - 1
        self._values = values if self._remaining else None
        return values


def parts_of(tensor: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """Split a tensor along its last axis into equal parts with these names."""
    if len(names) == 1:
        return {names[0]: tensor}
    if not tensor.shape or tensor.shape[-1] % len(names):
        raise CheckpointError(
            f"Tensor {tensor.name!r} has shape {tensor.shape}, whose last axis is not "
            f"{len(names)} of one size: {', '.join(names)}."
        )
    width = tensor.shape[-1] // len(names)
    tensor = replace(tensor, read=SharedRead(tensor.read, len(names)))
    return {
        name: tensor.then(lambda x, i=i: x[..., i * width : (i + 1) * width])  # type: ignore[misc]
        for i, name in enumerate(names)
    }


@dataclass(frozen=True)
class Container:
    """An open file: its arrays by name, and what `save_weights` wrote about the model."""

    path: Path
    tensors: dict[str, Tensor]
    metadata: dict[str, Any] = field(default_factory=dict)


def checked_float32(name: str, values: Array) -> Array:
    """Float32 in the machine's byte order, or a `CheckpointError` for NaN and infinity."""
    if values.dtype.kind != "f" and values.dtype.name != "bfloat16":
        raise CheckpointError(
            f"Tensor {name!r} holds {values.dtype.name}; weights are floating-point numbers."
        )
    values = values.astype(np.float32, copy=False)
    if not is_finite(values):
        index = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        raise CheckpointError(
            f"Tensor {name!r} holds {values[index]} at {index}: the file is damaged, or was "
            "written by a training that had diverged."
        )
    return values


def is_finite(values: Array) -> bool:
    """Return whether an array holds neither NaN nor infinity."""
    # One sum is quick and no NaN or infinity escapes it; a sum may overflow, so then look closer.
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(values.sum()) or np.isfinite(values).all())


def join_columns(parts: list[Array]) -> Array:
    """`np.concatenate(parts, axis=-1)` in C order, without a copy of what needs none.

    torch's kernels come as transposed views, and copying these as NumPy does, row by row, misses
    the cache at every value: strips as wide as a cache line take a third of the time.
    """
    if len(parts) == 1 and parts[0].flags.c_contiguous:
        return parts[0]
    widths = [part.shape[-1] for part in parts]
    whole = np.empty((*parts[0].shape[:-1], sum(widths)), "float32")
    end = 0
    for part, width in zip(parts, widths, strict=True):
        begin, end = end, end + width
        strip = 16 if part.ndim == 2 and not part.flags.c_contiguous else max(width, 1)
        for i in range(0, width, strip):
            whole[..., begin + i : min(begin + i + strip, end)] = part[..., i : i + strip]
    return whole


def check_declared_size(
    path: Path, shapes: Iterable[TensorShape], bytes_per_value: int = 4
) -> None:
    """Refuses a file whose arrays would fill more than twice its own size."""
    declared = sum(math.prod(shape) * bytes_per_value for shape in shapes)
    # A kilobyte of slack: an empty file may hold a scalar.
    if declared > LARGEST_GROWTH * path.stat().st_size + 1024:
        raise CheckpointError(
            f"{path} declares arrays of {declared:,} bytes in a file of {path.stat().st_size:,}: "
            "it is damaged, or made to exhaust the memory. Nothing was read."
        )


def check_shape(name: str, shape: TensorShape) -> None:
    """Refuses a shape that no weight has."""
    if not all(type(side) is int and side >= 0 for side in shape) or len(shape) > 8:
        raise CheckpointError(f"Tensor {name!r} declares the impossible shape {shape!r}.")


def largest_header(size: int) -> int:
    """Return how many bytes of a file of `size` may be a directory or header.

    These are parsed into objects some ten times as large, before anything in them is checked.
    """
    return max(2**17, size // 16)


def pack_metadata(metadata: dict[str, Any], room: int, size: Callable[[str], int] = len) -> str:
    """Metadata as JSON of at most `room` bytes by `size`, without class names that do not fit."""
    text = json.dumps(metadata)
    if size(text) <= room:
        return text
    names = metadata.get("class_names")
    if names is None:
        return text
    warnings.warn(
        f"The names of the {len(names):,} classes do not fit into this file: with them, what it "
        f"says of the model has {size(text):,} bytes, and at most {room:,} are read. It is written "
        "without them: save .keras, or set model.class_names after loading.",
        stacklevel=5,
    )
    return json.dumps({**metadata, "class_names": None})


def unpack_metadata(text: str | bytes) -> dict[str, Any]:
    """Metadata from JSON; empty for what is not `pack_metadata`'s."""
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return metadata if isinstance(metadata, dict) else {}
