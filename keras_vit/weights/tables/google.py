"""The `.npz` files of google-research/vision_transformer: ViTs and hybrids, also by older names.

Parameters are numbered as before flax's Linen: one counter a module, so that a block holds
`LayerNorm_0`, `MultiHeadDotProductAttention_1`, `LayerNorm_2` and `MlpBlock_3`. Files that number
each kind separately (Linen) are read as well.
"""

import re
from typing import Any

from keras_vit.data.eval_transform import EvalTransform
from keras_vit.weights.tables.flax_rows import attention, dense, mlp, norm, under_prefix
from keras_vit.weights.tables.layout import SAME, Layout, Row, SourceConventions, Tensors
from keras_vit.weights.tables.resnet_names import SCALE_4D, stem_rows, unit_rows

# vit_jax evaluates on a plain resize, see reference: input_pipeline.py.
RELEASED_CODE = SourceConventions("gelu_tanh", 1e-6, "inception", "zoom", EvalTransform("stretch"))

BLOCK = "Transformer/encoderblock_{}/"
# Numbers of each kind of module in a block, in the order of the data.
NUMBERS = {"LayerNorm": (0, 2), "MultiHeadDotProductAttention": (1,), "MlpBlock": (3,)}


def block_rows(numbers: dict[str, tuple[int, ...]]) -> tuple[Row, ...]:
    """Return the rows of a block whose modules have these numbers."""
    (norm_0, norm_1), (attend,), (feed,) = numbers.values()
    return (
        *norm(f"LayerNorm_{norm_0}", "norm_0"),
        *attention(f"MultiHeadDotProductAttention_{attend}", ""),
        *norm(f"LayerNorm_{norm_1}", "norm_1"),
        *mlp(f"MlpBlock_{feed}", ""),
    )


COMMON_ROWS: tuple[Row, ...] = (
    ("cls", ("class_token",), SAME),
    *dense("embedding", "patch_embedding"),
    *norm("Transformer/encoder_norm", "encoder_norm"),
    *dense("pre_logits", "pre_logits"),
    *dense("head", "head"),
)


def renumbered(tensors: Tensors, numbers: dict[str, tuple[int, ...]]) -> Tensors:
    """Blocks with their modules numbered by `numbers`, whatever the file's counting is."""
    pattern = re.compile(r"^(Transformer/encoderblock(?:_\d+)?/)([A-Za-z]+)_(\d{1,4})/")
    numbers_in_file: dict[tuple[str, str], set[int]] = {}
    for match in filter(None, map(pattern.match, tensors)):
        numbers_in_file.setdefault((match[1], match[2]), set()).add(int(match[3]))

    def renumber(match: re.Match[str]) -> str:
        counted, expected = sorted(numbers_in_file[match[1], match[2]]), numbers.get(match[2], ())
        if len(counted) != len(expected):  # another model's, which is refused later
            return match[0]
        return f"{match[1]}{match[2]}_{expected[counted.index(int(match[3]))]}/"

    return {pattern.sub(renumber, name): tensor for name, tensor in tensors.items()}


def heads(tensors: Tensors) -> dict[str, Any]:
    """Return the number of heads, which flax's shapes show."""
    for name, tensor in tensors.items():
        if name.startswith("Transformer/encoderblock") and name.endswith("/query/bias"):
            return {"num_heads": tensor.shape[0]} if len(tensor.shape) == 2 else {}
    return {}


def _prepare(tensors: Tensors) -> tuple[Tensors, Tensors]:
    tensors, ignored = under_prefix(tensors)
    return renumbered(tensors, NUMBERS), ignored


GOOGLE = Layout(
    name="google",
    suffix=".npz",
    conventions=RELEASED_CODE,
    signature=r"(^|/)Transformer/posembed_input/pos_embedding$",
    rows=(
        *COMMON_ROWS,
        ("Transformer/posembed_input/pos_embedding", ("position_embedding",), SAME),
        *stem_rows(SCALE_4D),
    ),
    unit="block{}/unit{}/",  # of a hybrid
    unit_rows=unit_rows(SCALE_4D, with_norm=True),
    block=BLOCK,
    block_rows=block_rows(NUMBERS),
    prepare=_prepare,
    arguments=heads,
    # The released code joins the class token first and adds positions then.
    has_class_position=lambda tensors: "cls" in tensors,
)
