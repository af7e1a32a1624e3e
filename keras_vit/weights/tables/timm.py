"""timm's state dicts, `.safetensors` or `.pth`, and those of DINO, DeiT and DINOv2 themselves.

The authors of DINO, DeiT and DINOv2 wrote their models after timm's, with a few other names.
"""

from dataclasses import replace
from typing import Any

from keras_vit.data.eval_transform import EvalTransform
from keras_vit.weights.tables.layout import (
    CONV,
    NO_BIASES,
    NO_BIASES_AT_ALL,
    SAME,
    Layout,
    Row,
    SourceConventions,
    Tensors,
    dinov3_arguments,
    torch_norm,
    weight_and_bias,
)

# Google's weights, converted: pixels in [-1, 1], images squeezed to the square.
CONVENTIONS = SourceConventions(
    "gelu", 1e-6, "inception", "bicubic_antialias", EvalTransform("stretch_bicubic")
)
# Facebook's: ImageNet's mean and standard deviation, the center cropped.
IMAGENET_CONVENTIONS = SourceConventions(
    "gelu", 1e-6, "imagenet", "bicubic_antialias", EvalTransform("crop", crop_fraction=0.9)
)

ROWS: tuple[Row, ...] = (
    ("cls_token", ("class_token",), SAME),
    ("dist_token", ("distillation_token",), SAME),
    ("reg_token", ("register_tokens",), SAME),
    ("pos_embed", ("position_embedding",), SAME),
    *weight_and_bias("patch_embed.proj", "patch_embedding", CONV),
    *torch_norm("norm_pre", "pre_norm"),
    *torch_norm("norm", "encoder_norm"),
    *torch_norm("fc_norm", "pooling_norm"),
    ("attn_pool.latent", ("pooling/probe",), SAME),
    *weight_and_bias("attn_pool.q", "pooling/query"),
    *weight_and_bias("attn_pool.kv", ("pooling/key", "pooling/value")),
    *weight_and_bias("attn_pool.proj", "pooling/output"),
    *torch_norm("attn_pool.norm", "pooling/norm"),
    *weight_and_bias("attn_pool.mlp.fc1", "pooling/mlp/dense_0"),
    *weight_and_bias("attn_pool.mlp.fc2", "pooling/mlp/dense_1"),
    *weight_and_bias("pre_logits.fc", "pre_logits"),
    *weight_and_bias("head", "head"),
    *weight_and_bias("head_dist", "head_distillation"),
)
BLOCK_ROWS: tuple[Row, ...] = (
    *torch_norm("norm1", "norm_0"),
    *weight_and_bias("attn.qkv", ("query", "key", "value")),
    *weight_and_bias("attn.proj", "output"),
    ("ls1.gamma", ("scale_0",), SAME),
    *torch_norm("norm2", "norm_1"),
    *weight_and_bias("mlp.fc1", "mlp/dense_0"),
    *weight_and_bias("mlp.fc2", "mlp/dense_1"),
    ("ls2.gamma", ("scale_1",), SAME),
)
REFUSED = {
    r"attn\.[qk]_norm\.": "it normalizes queries and keys, which this model does not.",
    r"attn\.norm\.": "it normalizes inside the attention, which this model does not.",
}

TIMM = Layout(
    name="timm",
    suffix=".safetensors",
    conventions=CONVENTIONS,
    signature=r"^blocks\.0\.attn\.qkv\.weight$",
    rows=ROWS,
    block="blocks.{}.",
    block_rows=BLOCK_ROWS,
    renames=(
        (r"^module\.", ""),
        (r"^register_tokens$", "reg_token"),
        (r"\.mlp\.w12\.", ".mlp.fc1."),
        (r"\.mlp\.w3\.", ".mlp.fc2."),
        (r"\.gamma_([12])$", r".ls\1.gamma"),
    ),
    ignored=(r"^mask_token$",),
    refused=REFUSED,
    zeros=NO_BIASES_AT_ALL,
)
# Of Facebook's, LayerScale shows DeiT III and DINOv2; DeiT and DINO need layout="timm_imagenet".
TIMM_IMAGENET = replace(
    TIMM,
    name="timm_imagenet",
    signature=r"^blocks\.0\.ls1\.gamma$",
    conventions=IMAGENET_CONVENTIONS,
)
# Facebook's files of DINOv2 have the token of its masked-patch task, which timm's do not.
DINOV2 = replace(
    TIMM,
    name="dinov2",
    suffix=".pth",
    signature=r"^mask_token$",
    conventions=SourceConventions(
        "gelu", 1e-6, "imagenet", "bicubic_offset", EvalTransform("crop")
    ),
)

# The distilled DeiT, whose second token and head nobody else has.
TIMM_DISTILLED = replace(
    TIMM, name="timm_distilled", signature=r"^dist_token$", conventions=IMAGENET_CONVENTIONS
)
TIMM_CLIP = replace(
    TIMM,
    name="timm_clip",
    signature=r"^norm_pre\.weight$",
    conventions=SourceConventions(
        "gelu", 1e-5, "clip", "bicubic_antialias", EvalTransform("crop", crop_fraction=1.0)
    ),
)

# BEiT, EVA-02 and DINOv3 have classes of their own in timm, with other names in the blocks.
OTHER_BLOCK_ROWS: tuple[Row, ...] = (
    *torch_norm("norm1", "norm_0"),
    *weight_and_bias("attn.qkv", ("query", "key", "value")),
    ("attn.q_bias", ("query/bias",), SAME),
    ("attn.v_bias", ("value/bias",), SAME),
    ("attn.relative_position_bias_table", ("relative_table",), SAME),
    *weight_and_bias("attn.proj", "output"),
    ("gamma_1", ("scale_0",), SAME),
    *torch_norm("norm2", "norm_1"),
    *weight_and_bias("mlp.fc1", "mlp/dense_0"),
    *weight_and_bias("mlp.fc2", "mlp/dense_1"),
    ("gamma_2", ("scale_1",), SAME),
)
TIMM_BEIT = replace(
    TIMM,
    name="timm_beit",
    signature=r"^(blocks\.\d+\.attn|rel_pos_bias)\.relative_position_bias_table$",
    conventions=SourceConventions(
        "gelu", 1e-6, "inception", "bicubic_antialias", EvalTransform("crop", crop_fraction=0.9)
    ),
    rows=(*ROWS, ("rel_pos_bias.relative_position_bias_table", ("relative_table",), SAME)),
    block_rows=OTHER_BLOCK_ROWS,
    renames=((r"^module\.", ""),),
    ignored=(r"^mask_token$", r"relative_position_index$"),
    zeros=(),
)


def _dinov3_arguments(tensors: Tensors) -> dict[str, Any]:
    width = tensors["patch_embed.proj.weight"].shape[0]
    return {**dinov3_arguments(width), "pooling": "gap"}  # by default in timm


GATED_ROWS = (
    *weight_and_bias("mlp.fc1_g", "mlp/gate"),
    *weight_and_bias("mlp.fc1_x", "mlp/value"),
)
TIMM_DINOV3 = replace(
    TIMM_BEIT,
    name="timm_dinov3",
    signature=r"^blocks\.0\.gamma_1$",
    absent=r"^pos_embed$|relative_position",
    conventions=SourceConventions(
        "gelu", 1e-5, "imagenet", "bicubic_antialias", EvalTransform("crop", crop_fraction=1.0)
    ),
    block_rows=(*GATED_ROWS, *OTHER_BLOCK_ROWS),
    arguments=_dinov3_arguments,
    # timm leaves out biases of queries and values that are zero, as all released ones are.
    zeros=NO_BIASES,
    drops_zeros=True,
    ignored=(r"^mask_token$", r"rope\.periods$"),
)
EVA02_CONVENTIONS = SourceConventions(
    "swiglu", 1e-6, "clip", "bicubic_antialias", EvalTransform("crop", crop_fraction=1.0)
)
# The tiny and small ones; and the base and large, with a norm in the MLP.
TIMM_EVA02 = replace(
    TIMM_BEIT,
    name="timm_eva02",
    signature=r"^blocks\.0\.attn\.q_bias$",
    absent=r"relative_position|gamma_1",
    conventions=EVA02_CONVENTIONS,
    arguments=lambda tensors: {"rotary": "eva02"},
)
TIMM_EVA02_NORM = replace(
    TIMM_EVA02,
    name="timm_eva02_norm",
    signature=r"^blocks\.0\.mlp\.fc1_g\.weight$",
    absent="gamma_1",
    block_rows=(
        *torch_norm("norm1", "norm_0"),
        *weight_and_bias("attn.q_proj", "query"),
        *weight_and_bias("attn.k_proj", "key"),
        *weight_and_bias("attn.v_proj", "value"),
        *weight_and_bias("attn.proj", "output"),
        *torch_norm("norm2", "norm_1"),
        *GATED_ROWS,
        *torch_norm("mlp.norm", "mlp/norm"),
        *weight_and_bias("mlp.fc2", "mlp/dense_1"),
    ),
)
