"""The canonical name of every tensor: the variable that holds it, the option that it shows."""

import re


# A layer's canonical name is its path in the model, unless another is given.
def _dense(layer: str, *names: str) -> dict[str, tuple[str, ...]]:
    names = names or (layer.replace(".", "/"),)
    return {f"{layer}.{part}": tuple(f"{n}/{part}" for n in names) for part in ("kernel", "bias")}


def _mlp(layer: str) -> dict[str, tuple[str, ...]]:
    return {**_dense(f"{layer}.dense_0"), **_dense(f"{layer}.dense_1")}


def _norm(layer: str, name: str = "") -> dict[str, tuple[str, ...]]:
    name = name or layer.replace(".", "/")
    return {f"{layer}.gamma": (f"{name}/scale",), f"{layer}.beta": (f"{name}/bias",)}


# Attribute of a model's layer -> the canonical tensors that are concatenated in it.
TOP = {
    **_dense("patch_embedding"),
    "class_token.embedding": ("class_token",),
    "distillation_token.embedding": ("distillation_token",),
    "register_tokens.embedding": ("register_tokens",),
    "position_embedding.embedding": ("position_embedding",),
    "position_embedding.rows": ("position_embedding/rows",),
    "position_embedding.columns": ("position_embedding/columns",),
    "relative_position_bias.table": ("relative_table",),
    **_norm("pre_norm"),
    **_norm("encoder_norm"),
    **_norm("pooling_norm"),
    "pooling.probe": ("pooling/probe",),
    **_dense("pooling.query"),
    **_dense("pooling.key_value", "pooling/key", "pooling/value"),
    **_dense("pooling.output_projection", "pooling/output"),
    **_norm("pooling.norm"),
    **_mlp("pooling.mlp"),
    **_dense("pre_logits"),
    **_dense("head"),
    **_dense("head_distillation"),
    "stem.conv.kernel": ("stem/conv/kernel",),
    **_norm("stem.norm_layer", "stem/norm"),
    **_norm("norm"),
}
STAGE = {"convolution.kernel": ("kernel",), **_norm("norm")}
UNIT = {
    **{f"conv_{i}.kernel": (f"conv_{i}/kernel",) for i in (1, 2, 3)},
    **_norm("norm_1"),
    **_norm("norm_2"),
    **_norm("norm_3"),
    "projection.kernel": ("projection/kernel",),
    **_norm("projection_norm"),
}
BLOCK = {
    **_norm("norm_0"),
    **_dense("attention.query_key_value", "query", "key", "value"),
    "attention.query_value_bias": ("query/bias", "value/bias"),
    "attention.relative_positions.embedding": ("relative_positions",),
    "attention.relative_positions.table": ("relative_table",),
    **_dense("attention.output_projection", "output"),
    "scale_0.gamma": ("scale_0",),
    **_norm("norm_1"),
    **_mlp("mlp"),
    **_norm("mlp.norm"),
    "scale_1.gamma": ("scale_1",),
    **_mlp("token_mixing"),
    **_mlp("channel_mixing"),
}
# Options of a `VisionTransformer` that a tensor shows by being there.
SHOWN_OPTIONS = {
    "distilled": "distillation_token",
    "pre_norm": "pre_norm/scale",
    "norm_after_pooling": "pooling_norm/scale",
    "key_bias": "block_0/key/bias",
    "mlp_norm": "block_0/mlp/norm/scale",
}
# Name of a layer that repeats -> what comes before its canonical names, and its table.
REPEATED = (
    (re.compile(r"conv_stem_(\d+)"), "conv_stem/{}/", STAGE),
    (re.compile(r"block_(\d+)"), "block_{}/", BLOCK),
    (re.compile(r"stage_(\d+)_unit_(\d+)"), "stage_{}/unit_{}/", UNIT),
)
