"""Along which axis a variable is cut: by its shape (FSDP), or by its path (tensor parallel).

FSDP             every large weight, along the largest axis that the devices divide
tensor parallel  the two products of attention and of each MLP, by columns and by rows:

    tokens ──► columns ──► heads, or neurons, of this device ──► rows ──► sum over devices
"""

import math
import re
from collections.abc import Iterable, Sequence

from keras_vit.ops import MODEL

KINDS = ("data_parallel", "fsdp", "tensor_parallel")

# The axis of a mesh of devices that cuts batches; MODEL is the one that cuts products.
BATCH = "batch"

Axes = tuple[str | None, ...]

# Smaller variables, such as biases and norms, would save little memory: each device has them all.
MIN_SIZE = 2**14

_COLUMNS = r"(.*/)?(query_key_value|query|key_value|dense_0)"
_ROWS = r"(.*/)?(attention/output|dense_1)"
# Megatron-LM (Shoeybi et al. 2019, section 3): one sum over the devices behind each second product.
TENSOR_PARALLEL: dict[str, Axes] = {
    f"{_COLUMNS}/kernel": (None, MODEL),
    f"{_COLUMNS}/bias": (MODEL,),
    f"{_ROWS}/kernel": (MODEL, None),
}


def fsdp_axes(shape: Sequence[int], devices: int) -> Axes:
    """Return axes that cut the largest axis divisible by the devices; none for small variables.

    >>> fsdp_axes((768, 3072), 8), fsdp_axes((3072,), 8)
    ((None, 'batch'), (None,))
    """
    axes: list[str | None] = [None] * len(shape)
    divisible = [axis for axis, size in enumerate(shape) if size % devices == 0]
    if divisible and math.prod(shape) >= MIN_SIZE:
        axes[max(divisible, key=lambda axis: shape[axis])] = BATCH
    return tuple(axes)


def tensor_parallel_axes(path: str, shape: Sequence[int], devices: int) -> Axes:
    """Return the axis that `TENSOR_PARALLEL` has for the path of a variable.

    Raises:
        ValueError: The devices do not divide it.

    >>> tensor_parallel_axes("block_0/mlp/dense_1/kernel", (3072, 768), 4)
    ('model', None)
    """
    for pattern, axes in TENSOR_PARALLEL.items():
        if len(axes) != len(shape) or not re.fullmatch(pattern, path):
            continue
        size = shape[axes.index(MODEL)]
        if size % devices:
            raise ValueError(
                f"{path} of shape {tuple(shape)} cannot be cut into {devices} parts: choose a "
                f"number of model_devices that divides {size}."
            )
        return axes
    return (None,) * len(shape)


def held_parameters(shapes: Iterable[tuple[str, Sequence[int]]], kind: str, devices: int) -> int:
    """Parameters that each device holds, of variables given by path and shape.

    >>> held_parameters([("dense/kernel", (256, 512)), ("dense/bias", (512,))], "fsdp", 8)
    16896
    """
    return sum(
        math.prod(shape) // (devices if any(cut_axes(kind, path, shape, devices)) else 1)
        for path, shape in shapes
    )


def cut_axes(kind: str, path: str, shape: Sequence[int], devices: int) -> Axes:
    """Return, for each axis of a variable, the axis of the mesh that cuts it, or None."""
    if kind == "fsdp":
        return fsdp_axes(shape, devices)
    if kind == "tensor_parallel":
        return tensor_parallel_axes(path, shape, devices)
    return (None,) * len(shape)
