"""timm's state dicts, `.safetensors` or `.pth`, and those of DINO, DeiT and DINOv2 themselves.

The authors of DINO, DeiT and DINOv2 wrote their models after timm's, with a few other names.
"""

from dataclasses import replace

from keras_vit.checkpoints.layout import (
    CONV,
    SAME,
    Layout,
    Row,
    SourceConventions,
    torch_norm,
    weight_and_bias,
)

# Google's weights, converted: pixels in [-1, 1], images squeezed to the square.
CONVENTIONS = SourceConventions(
    "gelu", 1e-6, True, "bicubic_antialias", {"mode": "stretch_bicubic"}
)
# Facebook's: ImageNet's mean and standard deviation, the centre cropped.
IMAGENET_CONVENTIONS = SourceConventions(
    "gelu", 1e-6, "imagenet", "bicubic_antialias", {"mode": "crop", "crop_fraction": 0.9}
)

ROWS: tuple[Row, ...] = (
    ("cls_token", ("class_token",), SAME),
    ("reg_token", ("register_tokens",), SAME),
    ("pos_embed", ("position_embedding",), SAME),
    *weight_and_bias("patch_embed.proj", "patch_embedding", CONV),
    *torch_norm("norm", "encoder_norm"),
    ("attn_pool.latent", ("pooling/probe",), SAME),
    *weight_and_bias("attn_pool.q", "pooling/query"),
    *weight_and_bias("attn_pool.kv", ("pooling/key", "pooling/value")),
    *weight_and_bias("attn_pool.proj", "pooling/output"),
    *torch_norm("attn_pool.norm", "pooling/norm"),
    *weight_and_bias("attn_pool.mlp.fc1", "pooling/mlp/dense_0"),
    *weight_and_bias("attn_pool.mlp.fc2", "pooling/mlp/dense_1"),
    *weight_and_bias("pre_logits.fc", "pre_logits"),
    *weight_and_bias("head", "head"),
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
    r"^(dist_token|head_dist)": "this DeiT was distilled and has a second token and head. Take "
    "the DeiT without distillation, such as deit_small_patch16_224.fb_in1k.",
    r"^fc_norm\.": "its norm stands behind the pooling, where this model does not have one.",
    r"^norm_pre\.": "it normalises in front of the first block (CLIP), which this model does not.",
    r"attn\.[qk]_norm\.": "it normalises queries and keys, which this model does not.",
    r"rel_pos|relative_position|attn\.[qv]_bias": "BEiT's relative positions are not in this model",
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
    conventions=SourceConventions("gelu", 1e-6, "imagenet", "bicubic_offset", {"mode": "crop"}),
)
