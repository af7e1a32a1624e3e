"""Rows of the layers that flax's modules share, whatever model they stand in."""

from keras_vit.checkpoints.layout import (
    FROM_HEADS,
    HEADS_BIAS,
    SAME,
    TO_HEADS,
    Row,
    Tensors,
)

# Where the weights lie among a training's state, the most specific first.
PREFIXES = ("opt/target/", "params/img/", "img/params/", "params/", "img/")


def dense(foreign: str, canonical: str) -> tuple[Row, Row]:
    """The two rows of a flax dense layer."""
    return (
        (f"{foreign}/kernel", (f"{canonical}/kernel",), SAME),
        (f"{foreign}/bias", (f"{canonical}/bias",), SAME),
    )


def norm(foreign: str, canonical: str) -> tuple[Row, Row]:
    """The two rows of a flax layer norm."""
    return (
        (f"{foreign}/scale", (f"{canonical}/scale",), SAME),
        (f"{foreign}/bias", (f"{canonical}/bias",), SAME),
    )


def attention(foreign: str, canonical: str) -> tuple[Row, ...]:
    """The rows of flax's attention, which keeps its heads on an axis of their own."""
    rows: list[Row] = []
    for part in ("query", "key", "value"):
        rows += [
            (f"{foreign}/{part}/kernel", (f"{canonical}{part}/kernel",), TO_HEADS),
            (f"{foreign}/{part}/bias", (f"{canonical}{part}/bias",), HEADS_BIAS),
        ]
    return (
        *rows,
        (f"{foreign}/out/kernel", (f"{canonical}output/kernel",), FROM_HEADS),
        (f"{foreign}/out/bias", (f"{canonical}output/bias",), SAME),
    )


def mlp(foreign: str, canonical: str) -> tuple[Row, ...]:
    """The rows of an MLP."""
    return (
        *dense(f"{foreign}/Dense_0", f"{canonical}mlp/dense_0"),
        *dense(f"{foreign}/Dense_1", f"{canonical}mlp/dense_1"),
    )


def under_prefix(tensors: Tensors, root: str = "embedding/kernel") -> tuple[Tensors, Tensors]:
    """The tensors of the image model without their prefix, and all others; `root` is one of it."""
    for prefix in PREFIXES:
        if f"{prefix}{root}" in tensors:
            inside = {k: v for k, v in tensors.items() if k.startswith(prefix)}
            outside = {k: v for k, v in tensors.items() if k not in inside}
            return {k.removeprefix(prefix): v for k, v in inside.items()}, outside
    training = {k: v for k, v in tensors.items() if k.startswith(("opt/", "states/", "extra/"))}
    return {k: v for k, v in tensors.items() if k not in training}, training
