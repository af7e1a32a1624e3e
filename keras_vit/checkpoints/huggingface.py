"""Hugging Face's `ViTModel`, `ViTForImageClassification`, DeiT's twin of it, and DINOv2.

Names as transformers writes them; its version 5 uses shorter ones in memory, which are read too.
"""

from keras_vit.checkpoints.layout import (
    CONV,
    SAME,
    Layout,
    Row,
    SourceConventions,
    torch_norm,
    weight_and_bias,
)

# What ViTConfig and ViTImageProcessor do unless config.json beside the file differs.
CONVENTIONS = SourceConventions("gelu", 1e-12, True, "bicubic", {"mode": "stretch_bicubic"})

ROWS: tuple[Row, ...] = (
    ("embeddings.cls_token", ("class_token",), SAME),
    ("embeddings.register_tokens", ("register_tokens",), SAME),
    ("embeddings.position_embeddings", ("position_embedding",), SAME),
    *weight_and_bias("embeddings.patch_embeddings.projection", "patch_embedding", CONV),
    *torch_norm("layernorm", "encoder_norm"),
    *weight_and_bias("pooler.dense", "pre_logits"),
    *weight_and_bias("classifier", "head"),
)
ATTENTION: tuple[Row, ...] = (
    *weight_and_bias("attention.attention.query", "query"),
    *weight_and_bias("attention.attention.key", "key"),
    *weight_and_bias("attention.attention.value", "value"),
    *weight_and_bias("attention.output.dense", "output"),
)
SHORTER_NAMES = (
    (r"^(vit|deit|dinov2|dinov2_with_registers)\.", ""),
    (r"^layers\.", "encoder.layer."),
    (r"\.attention\.q_proj\.", ".attention.attention.query."),
    (r"\.attention\.k_proj\.", ".attention.attention.key."),
    (r"\.attention\.v_proj\.", ".attention.attention.value."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
)

HUGGINGFACE = Layout(
    name="huggingface",
    suffix=".safetensors",
    conventions=CONVENTIONS,
    signature=r"^encoder\.layer\.0\.layernorm_before\.weight$",
    rows=ROWS,
    block="encoder.layer.{}.",
    block_rows=(
        *torch_norm("layernorm_before", "norm_0"),
        *ATTENTION,
        *torch_norm("layernorm_after", "norm_1"),
        *weight_and_bias("intermediate.dense", "mlp/dense_0"),
        *weight_and_bias("output.dense", "mlp/dense_1"),
    ),
    prefix="vit.",
    unprefixed=("classifier.weight", "classifier.bias"),
    renames=(
        *SHORTER_NAMES,
        (r"\.mlp\.fc1\.", ".intermediate.dense."),
        (r"\.mlp\.fc2\.", ".output.dense."),
    ),
    ignored=(r"^embeddings\.mask_token$",),
    refused={
        r"distillation": "this DeiT was distilled and has a second token and head. Take the DeiT "
        "without distillation, such as facebook/deit-small-patch16-224.",
        r"^decoder\.": "this is a masked autoencoder with its decoder; take the encoder alone.",
    },
)

HUGGINGFACE_DINOV2 = Layout(
    name="huggingface_dinov2",
    suffix=".safetensors",
    conventions=SourceConventions("gelu", 1e-6, "imagenet", "bicubic", {"mode": "crop"}),
    signature=r"^encoder\.layer\.0\.layer_scale1\.lambda1$",
    rows=ROWS,
    block="encoder.layer.{}.",
    block_rows=(
        *torch_norm("norm1", "norm_0"),
        *ATTENTION,
        ("layer_scale1.lambda1", ("scale_0",), SAME),
        *torch_norm("norm2", "norm_1"),
        *weight_and_bias("mlp.fc1", "mlp/dense_0"),
        *weight_and_bias("mlp.fc2", "mlp/dense_1"),
        ("layer_scale2.lambda1", ("scale_1",), SAME),
    ),
    renames=(
        *SHORTER_NAMES,
        # SwiGLU of the giant: gate and value in one.
        (r"\.mlp\.weights_in\.", ".mlp.fc1."),
        (r"\.mlp\.weights_out\.", ".mlp.fc2."),
    ),
    ignored=(r"^embeddings\.mask_token$",),
)
