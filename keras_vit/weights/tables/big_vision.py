"""The `.npz` files of google-research/big_vision, whose class token does not have a position.

Read in all its variants: below `params/`, `params/img/` (SigLIP's image tower) or `opt/target/`,
blocks scanned (one array with a leading depth axis for all blocks), bfloat16, and the attention
pooling inlined at the top.
"""

import re
from dataclasses import replace
from math import isqrt
from typing import Any

from keras_vit.data.eval_transform import EvalTransform
from keras_vit.weights.containers.tensors import SharedRead
from keras_vit.weights.tables.flax_rows import attention, mlp, norm, under_prefix
from keras_vit.weights.tables.google import BLOCK, COMMON_ROWS, block_rows, heads, renumbered
from keras_vit.weights.tables.layout import SAME, Layout, Row, SourceConventions, Tensors

# Linen: every kind of module counts on its own.
NUMBERS = {"LayerNorm": (0, 1), "MultiHeadDotProductAttention": (0,), "MlpBlock": (0,)}
CONVENTIONS = SourceConventions("gelu_tanh", 1e-6, "inception", "zoom", EvalTransform("big_vision"))

ROWS: tuple[Row, ...] = (
    *COMMON_ROWS,
    ("pos_embedding", ("position_embedding",), SAME),
    ("MAPHead_0/probe", ("pooling/probe",), SAME),
    *attention("MAPHead_0/MultiHeadDotProductAttention_0", "pooling/"),
    *norm("MAPHead_0/LayerNorm_0", "pooling/norm"),
    *mlp("MAPHead_0/MlpBlock_0", "pooling/"),
)


def _prepare(tensors: Tensors) -> tuple[Tensors, Tensors]:
    tensors, ignored = under_prefix(tensors)
    return renumbered(_unscanned(tensors), NUMBERS), ignored


def _unscanned(tensors: Tensors) -> Tensors:
    """Blocks one by one, where the file stacks them along a leading axis."""
    unscanned: Tensors = {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"Transformer/encoderblock/(.+)", name)
        if not match or not tensor.shape or 0 in tensor.shape:
            unscanned[name] = tensor
            continue
        whole = replace(tensor, read=SharedRead(tensor.read, tensor.shape[0]))
        for i in range(tensor.shape[0]):  # views of it
            unscanned[BLOCK.format(i) + match[1]] = whole.then(lambda x, i=i: x[i])  # type: ignore[misc]
    return unscanned


def _arguments(tensors: Tensors) -> dict[str, Any]:
    # A ViT of big_vision without learned positions has fixed ones.
    fixed = {} if "pos_embedding" in tensors else {"position_embedding": "sincos2d"}
    return {**heads(tensors), **fixed}


def _has_class_position(tensors: Tensors) -> bool | None:
    """False, unless the file is an old one: then it has one position more than a square."""
    if "pos_embedding" not in tensors or "cls" not in tensors:
        return False
    count = tensors["pos_embedding"].shape[1]
    return isqrt(count) ** 2 != count and isqrt(count - 1) ** 2 == count - 1


BIG_VISION = Layout(
    name="big_vision",
    suffix=".npz",
    conventions=CONVENTIONS,
    signature=r"^([a-z/]+/)?Transformer/encoderblock(_0)?/MultiHeadDotProductAttention_0/query",
    rows=ROWS,
    block=BLOCK,
    block_rows=block_rows(NUMBERS),
    renames=(
        (r"(^|/)Transformer/(posembed_input/)?pos_embedding$", r"\1pos_embedding"),
        # The attention pooling of the first files lies at the top, not in a module.
        (
            r"^((?:params/|img/|opt/target/)*)(probe$|(?:MultiHead|LayerNorm_|MlpBlock_))",
            r"\1MAPHead_0/\2",
        ),
    ),
    prepare=_prepare,
    arguments=_arguments,
    has_class_position=_has_class_position,
    positions_first=True,
)

# FlexiViT has big_vision's names, but another rule for positions: files do not show which it is.
FLEXIVIT = replace(
    BIG_VISION,
    name="flexivit",
    signature=r"(?!)",
    conventions=replace(CONVENTIONS, resampling="linear_antialias"),
)
