"""The canonical name of every tensor, and the options of a ViT as files show or state them."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple


# A layer's canonical name is its path in the model, unless another is given.
def _dense(layer: str, *names: str) -> dict[str, tuple[str, ...]]:
    names = names or (layer.replace(".", "/"),)
    return {f"{layer}.{part}": tuple(f"{n}/{part}" for n in names) for part in ("kernel", "bias")}


def _mlp(layer: str) -> dict[str, tuple[str, ...]]:
    return {**_dense(f"{layer}.dense_0"), **_dense(f"{layer}.dense_1")}


def _norm(layer: str, name: str = "") -> dict[str, tuple[str, ...]]:
    name = name or layer.replace(".", "/")
    return {f"{layer}.gamma": (f"{name}/scale",), f"{layer}.beta": (f"{name}/bias",)}


def _batch_norm(layer: str) -> dict[str, tuple[str, ...]]:
    name = layer.replace(".", "/")
    return {
        **_norm(layer),
        f"{layer}.moving_mean": (f"{name}/mean",),
        f"{layer}.moving_variance": (f"{name}/variance",),
    }


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
    **_batch_norm("head_norm"),
    **_dense("eomt_classes", "head"),
    "eomt_queries.embedding": ("eomt/queries",),
    **{
        k: v
        for i in range(3)
        for k, v in _dense(f"eomt_masks.dense_{i}", f"eomt/masks/dense_{i}").items()
    },
    **_dense("head_conv_0"),
    **_dense("head_conv_1"),
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


REASSEMBLE = {
    **_dense("token_projection"),
    **_dense("projection"),
    **_dense("resize"),
    **_dense("convolution"),
}
FUSION = {
    **_dense("projection"),
    **{
        part: name
        for unit in ("skip_unit", "unit")
        for i in (0, 1)
        for part, name in (
            *_dense(f"{unit}.conv_{i}").items(),
            *_batch_norm(f"{unit}.norm_{i}").items(),
        )
    },
}


UPSCALE = {**_dense("upsample"), "convolution.kernel": ("convolution/kernel",), **_norm("norm")}


class Option(NamedTuple):
    """An option that a model takes from the file of its weights.

    Attributes:
        shown_by: The tensor that is in a file only where the option is on; empty for none.
        types: Of the value that `save_weights` writes beside the tensors, which do not show it.
        keys: Layout -> the key of the value in the configuration of timm's or transformers' model.
        is_plain: Whether transformers' models have the default alone, but for those of `keys` and
            of `huggingface_models.HELD`.
    """

    name: str
    shown_by: str = ""
    types: tuple[type, ...] = ()
    keys: Mapping[str, str] = {}
    is_plain: bool = True


DINOV2, REGISTERS = "huggingface_dinov2", "huggingface_dinov2_registers"
DINOV3, BEIT = "huggingface_dinov3", "huggingface_beit"
DEPTH, DPT = "huggingface_depth_anything", "huggingface_dpt"
EOMT, EOMT_DINOV3 = "huggingface_eomt", "huggingface_eomt_dinov3"
QKV = dict.fromkeys(("huggingface", DINOV2, REGISTERS, DEPTH, DPT), "qkv_bias")
SCALES = dict.fromkeys((DINOV2, REGISTERS, DINOV3, DEPTH, EOMT, EOMT_DINOV3), "layerscale_value")
TIMM_SCALES = dict.fromkeys(("timm", "timm_dinov3"), "init_values")
TIMM_REGISTERS = {"timm": "reg_tokens", "timm_dinov3": "num_reg_tokens"}
WITH_REGISTERS = (REGISTERS, DINOV3, EOMT, EOMT_DINOV3)
NO_TYPE = type(None)
OPTIONS = (
    Option("activation", types=(str,), keys={"timm": "act_layer"}, is_plain=False),
    Option("norm_epsilon", types=(float,), is_plain=False),
    Option("include_preprocessing", types=(bool,), is_plain=False),
    Option("normalization", types=(str, list, tuple), is_plain=False),
    Option("num_heads", types=(int,), is_plain=False),
    Option("pooling", types=(str, NO_TYPE), is_plain=False),
    Option("classifier_activation", types=(str, NO_TYPE), is_plain=False),
    Option("position_embedding", types=(str,)),
    Option("rotary", types=(str, NO_TYPE)),
    Option("class_token", keys={"timm": "class_token"}, is_plain=False),
    Option(
        "num_registers",
        keys={**TIMM_REGISTERS, **dict.fromkeys(WITH_REGISTERS, "num_register_tokens")},
    ),
    Option("layer_scale", keys={**TIMM_SCALES, **SCALES}),
    Option("distilled", "distillation_token"),
    Option("pre_norm", "pre_norm/scale"),
    Option(
        "norm_after_pooling",
        "pooling_norm/scale",
        keys={"timm": "fc_norm", BEIT: "use_mean_pooling"},
    ),
    Option(
        "key_bias",
        "block_0/key/bias",
        keys={**QKV, **dict.fromkeys((DINOV3, EOMT_DINOV3), "key_bias")},
    ),
    Option("mlp_norm", "block_0/mlp/norm/scale"),
)


def stated(model: Any, layout: str) -> dict[str, Any]:
    """Return the options that the configuration of a layout's model states as they are, by key."""
    return {o.keys[layout]: getattr(model, o.name) for o in OPTIONS if layout in o.keys}


# Name of a layer that repeats -> what comes before its canonical names, and its table.
REPEATED = (
    (re.compile(r"conv_stem_(\d+)"), "conv_stem/{}/", STAGE),
    (re.compile(r"block_(\d+)"), "block_{}/", BLOCK),
    (re.compile(r"dpt_reassemble_(\d+)"), "dpt/reassemble_{}/", REASSEMBLE),
    (re.compile(r"dpt_fusion_(\d+)"), "dpt/fusion_{}/", FUSION),
    (re.compile(r"eomt_upscale_(\d+)"), "eomt/upscale_{}/", UPSCALE),
    (re.compile(r"stage_(\d+)_unit_(\d+)"), "stage_{}/unit_{}/", UNIT),
)
