"""How the variables of a model are cut, as a table."""

import math
import re
from collections.abc import Iterable

import keras

from keras_vit._base.errors import check_choice, check_positive, counted
from keras_vit.distribution.axes import KINDS, Axes, cut_axes, held_parameters


def layout_table(model: keras.Model, kind: str, devices: int) -> str:
    """Return how a kind of distribution cuts a model's variables: a line for each, and the sum.

    Equal variables of several blocks share a line. Needs no devices, and no values: a model can be
    built in `keras.StatelessScope(initialize_variables=False)`, whatever its size.

    Args:
        model: The model.
        kind: `"data_parallel"`, `"fsdp"` or `"tensor_parallel"`.
        devices: Over how many devices weights are cut: with `"tensor_parallel"`, those of a group.

    Raises:
        ValueError: The kind is unknown, or the devices do not divide what it cuts.

    Example:

    >>> import keras, keras_vit
    >>> with keras.StatelessScope(initialize_variables=False):
    ...     model = keras_vit.create("ViT-B/16")
    >>> print(keras_vit.distribution.layout_table(model, "fsdp", 8).splitlines()[-1])
    86,567,656 parameters, 12.6 % of them on each of 8 devices
    """
    check_choice(kind, "kind", KINDS)
    check_positive(devices=devices)
    variables = [(v.path, tuple(v.shape)) for v in model.trainable_variables]
    rows: dict[tuple[str, str], int] = {}
    for path, shape in variables:
        axes = cut_axes(kind, path, shape, devices)
        key = re.sub(r"(block_|unit_)\d+", r"\1*", path), _cut(shape, axes)
        rows[key] = rows.get(key, 0) + 1
    width = max(len(path) for path, _ in rows)
    lines = [f"{path:{width}}  {count:3} x  {cut}" for (path, cut), count in rows.items()]
    total = sum(math.prod(shape) for _, shape in variables)
    held = held_parameters(variables, kind, devices)
    each = counted(devices, "device")
    share = f"{total:,} parameters, {held / total:.1%} of them on each of {each}"
    return "\n".join([*lines, share.replace("%", " %")])


def _cut(shape: Iterable[int], axes: Axes) -> str:
    """Return the shape with the axis that is cut marked, such as `768 x [3072]`."""
    return " x ".join(f"[{n}]" if axis else str(n) for n, axis in zip(shape, axes, strict=True))
