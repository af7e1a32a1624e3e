"""The rows of flax's layers, which its models share."""

from keras_vit.weights.tables.layout import (
    FROM_HEADS,
    HEADS_BIAS,
    SAME,
    TO_HEADS,
    Codec,
    Row,
    Tensors,
)

# Where the weights lie among a training's state, the most specific first.
PREFIXES = ("opt/target/", "params/img/", "img/params/", "params/", "img/")


def dense(layer: str, canonical: str, kernel: Codec = SAME, bias: Codec = SAME) -> tuple[Row, Row]:
    """Return the two rows of a flax dense layer."""
    return (
        (f"{layer}/kernel", (f"{canonical}/kernel",), kernel),
        (f"{layer}/bias", (f"{canonical}/bias",), bias),
    )


def norm(layer: str, canonical: str, codec: Codec = SAME) -> tuple[Row, Row]:
    """Return the two rows of a flax norm."""
    return (
        (f"{layer}/scale", (f"{canonical}/scale",), codec),
        (f"{layer}/bias", (f"{canonical}/bias",), codec),
    )


def attention(layer: str, canonical: str) -> tuple[Row, ...]:
    """Return the rows of flax's attention, whose arrays have an axis for the heads."""
    return (
        *dense(f"{layer}/query", f"{canonical}query", TO_HEADS, HEADS_BIAS),
        *dense(f"{layer}/key", f"{canonical}key", TO_HEADS, HEADS_BIAS),
        *dense(f"{layer}/value", f"{canonical}value", TO_HEADS, HEADS_BIAS),
        *dense(f"{layer}/out", f"{canonical}output", FROM_HEADS),
    )


def mlp(layer: str, canonical: str) -> tuple[Row, ...]:
    """Return the rows of an MLP."""
    return (
        *dense(f"{layer}/Dense_0", f"{canonical}mlp/dense_0"),
        *dense(f"{layer}/Dense_1", f"{canonical}mlp/dense_1"),
    )


def under_prefix(tensors: Tensors, root: str = "embedding/kernel") -> tuple[Tensors, Tensors]:
    """Return the image model's tensors without prefix, and all others; `root` is one of its own."""
    for prefix in PREFIXES:
        if f"{prefix}{root}" in tensors:
            inside = {k: v for k, v in tensors.items() if k.startswith(prefix)}
            outside = {k: v for k, v in tensors.items() if k not in inside}
            return {k.removeprefix(prefix): v for k, v in inside.items()}, outside
    training = {k: v for k, v in tensors.items() if k.startswith(("opt/", "states/", "extra/"))}
    return {k: v for k, v in tensors.items() if k not in training}, training
