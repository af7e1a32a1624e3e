"""Hugging Face's ViT, DeiT, MAE, BEiT, DINOv2, DINOv3, and the vision towers of CLIP and SigLIP.

Names as transformers writes them; its version 5 uses shorter ones in memory, which are read too.
"""

from dataclasses import replace

from keras_vit.data.eval_transform import EvalTransform
from keras_vit.weights.tables.layout import (
    BATCH,
    CONV,
    LINEAR,
    NO_BIASES,
    NO_BIASES_AT_ALL,
    SAME,
    TOKEN,
    Layout,
    Row,
    SourceConventions,
    Tensors,
    dinov3_arguments,
    torch_norm,
    weight_and_bias,
)

# What ViTConfig and ViTImageProcessor do unless config.json beside the file differs.
CONVENTIONS = SourceConventions(
    "gelu", 1e-12, "inception", "bicubic", EvalTransform("stretch_bicubic")
)

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
    (r"^(vit|deit|beit|dinov2|dinov2_with_registers)\.", ""),
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
    ignored=(r"^embeddings\.mask_token$", r"^decoder\."),  # a masked autoencoder's decoder
    zeros=NO_BIASES_AT_ALL,
)
# Facebook's distilled DeiT; without its second head a token would be read that is not trained.
HUGGINGFACE_DISTILLED = replace(
    HUGGINGFACE,
    name="huggingface_distilled",
    signature=r"distillation_token$",
    conventions=replace(
        CONVENTIONS,
        normalization="imagenet",
        eval_transform=EvalTransform("crop", 0.875),
    ),
    rows=(
        *(row for row in ROWS if not row[0].startswith("classifier")),
        ("embeddings.distillation_token", ("distillation_token",), SAME),
        *weight_and_bias("cls_classifier", "head"),
        *weight_and_bias("distillation_classifier", "head_distillation"),
    ),
    prefix="deit.",
    unprefixed=tuple(
        f"{head}_classifier.{part}"
        for head in ("cls", "distillation")
        for part in ("weight", "bias")
    ),
    refused={
        r"^classifier\.": "this DeiT was distilled, and its head reads one token of two. Take the "
        "file with two heads, such as facebook/deit-base-distilled-patch16-224, of "
        "DeiTForImageClassificationWithTeacher.",
    },
)
RELATIVE = "relative_position_bias.relative_position_bias_table"
HUGGINGFACE_BEIT = replace(
    HUGGINGFACE,
    name="huggingface_beit",
    signature=r"^encoder\..*(\.lambda_1|\.relative_position_bias_table)$",
    rows=(
        *ROWS,
        *torch_norm("pooler.layernorm", "pooling_norm"),
        (f"encoder.{RELATIVE}", ("relative_table",), SAME),
    ),
    block_rows=(
        *HUGGINGFACE.block_rows,
        ("lambda_1", ("scale_0",), SAME),
        ("lambda_2", ("scale_1",), SAME),
        (f"attention.attention.{RELATIVE}", ("relative_table",), SAME),
    ),
    prefix="beit.",
    ignored=(r"^embeddings\.mask_token$", r"relative_position_index$", r"^lm_head\."),
    zeros=(),
)

HUGGINGFACE_DINOV2 = Layout(
    name="huggingface_dinov2",
    suffix=".safetensors",
    conventions=SourceConventions("gelu", 1e-6, "imagenet", "bicubic", EvalTransform("crop")),
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
    gated=((r"\.mlp\.fc1\.", ".mlp.weights_in."), (r"\.mlp\.fc2\.", ".mlp.weights_out.")),
    ignored=(r"^embeddings\.mask_token$",),
    zeros=NO_BIASES_AT_ALL,
)
# With registers, positions are resampled with antialiasing.
HUGGINGFACE_DINOV2_REGISTERS = replace(
    HUGGINGFACE_DINOV2,
    name="huggingface_dinov2_registers",
    signature=r"^embeddings\.register_tokens$",
    conventions=replace(HUGGINGFACE_DINOV2.conventions, resampling="bicubic_antialias"),
)


def without_empty_registers(tensors: Tensors) -> tuple[Tensors, Tensors]:
    """transformers writes them where there are none."""
    empty = {name: x for name, x in tensors.items() if "register" in name and 0 in x.shape}
    return {name: x for name, x in tensors.items() if name not in empty}, empty


HUGGINGFACE_DINOV3 = Layout(
    name="huggingface_dinov3",
    suffix=".safetensors",
    conventions=SourceConventions(
        "gelu", 1e-5, "imagenet", "bicubic", EvalTransform("crop", crop_fraction=1.0)
    ),
    signature=r"^layer\.0\.layer_scale1\.lambda1$",
    rows=(
        ("embeddings.cls_token", ("class_token",), SAME),
        ("embeddings.register_tokens", ("register_tokens",), SAME),
        *weight_and_bias("embeddings.patch_embeddings", "patch_embedding", CONV),
        *torch_norm("norm", "encoder_norm"),
        *weight_and_bias("classifier", "head"),
    ),
    block="layer.{}.",
    block_rows=(
        *torch_norm("norm1", "norm_0"),
        *weight_and_bias("attention.q_proj", "query"),
        *weight_and_bias("attention.k_proj", "key"),
        *weight_and_bias("attention.v_proj", "value"),
        *weight_and_bias("attention.o_proj", "output"),
        ("layer_scale1.lambda1", ("scale_0",), SAME),
        *torch_norm("norm2", "norm_1"),
        *weight_and_bias("mlp.gate_proj", "mlp/gate"),
        *weight_and_bias("mlp.up_proj", "mlp/value"),
        *weight_and_bias("mlp.up_proj", "mlp/dense_0"),
        *weight_and_bias("mlp.down_proj", "mlp/dense_1"),
        ("layer_scale2.lambda1", ("scale_1",), SAME),
    ),
    renames=((r"^(dinov3_vit|model)\.", ""), (r"^model\.", "")),
    ignored=(r"^embeddings\.mask_token$",),
    arguments=lambda tensors: dinov3_arguments(
        tensors["embeddings.patch_embeddings.weight"].shape[0]
    ),
    prepare=without_empty_registers,
    zeros=(*NO_BIASES, *(rf"block_\d+/{name}/bias" for name in ("output", "mlp/dense_[01]"))),
)

TOWER_ROWS: tuple[Row, ...] = (
    ("embeddings.position_embedding.weight", ("position_embedding",), BATCH),
    *weight_and_bias("embeddings.patch_embedding", "patch_embedding", CONV),
    *torch_norm("post_layernorm", "encoder_norm"),
)
TOWER_BLOCK_ROWS: tuple[Row, ...] = (
    *torch_norm("layer_norm1", "norm_0"),
    *weight_and_bias("self_attn.q_proj", "query"),
    *weight_and_bias("self_attn.k_proj", "key"),
    *weight_and_bias("self_attn.v_proj", "value"),
    *weight_and_bias("self_attn.out_proj", "output"),
    *torch_norm("layer_norm2", "norm_1"),
    *weight_and_bias("mlp.fc1", "mlp/dense_0"),
    *weight_and_bias("mlp.fc2", "mlp/dense_1"),
)
# Files of both towers hold the one for texts, too, and what joins them.
OF_TEXTS = (r"^text_(model|projection)\b", r"^logit_(scale|bias)$", r"position_ids$")
HUGGINGFACE_CLIP = Layout(
    name="huggingface_clip",
    suffix=".safetensors",
    conventions=SourceConventions(
        "quick_gelu", 1e-5, "clip", "bicubic", EvalTransform("crop", crop_fraction=1.0)
    ),
    signature=r"^pre_layrnorm\.weight$",
    rows=(
        ("embeddings.class_embedding", ("class_token",), TOKEN),
        *TOWER_ROWS,
        *torch_norm("pre_layrnorm", "pre_norm"),
        weight_and_bias("visual_projection", "head")[0],
    ),
    block="encoder.layers.{}.",
    block_rows=TOWER_BLOCK_ROWS,
    prefix="vision_model.",
    unprefixed=("visual_projection.weight",),
    renames=((r"^(clip\.)?vision_model\.", ""),),
    ignored=OF_TEXTS,
    zeros=("head/bias",),
    drops_zeros=True,  # the projection to the space of texts does not have one
)


def _without_unused_pooling(tensors: Tensors) -> tuple[Tensors, Tensors]:
    """SiglipForImageClassification classifies the patches' mean, though its file holds this."""
    unused = {n: x for n, x in tensors.items() if n.startswith("head.")}
    unused = unused if "classifier.weight" in tensors else {}
    return {name: x for name, x in tensors.items() if name not in unused}, unused


HUGGINGFACE_SIGLIP = Layout(
    name="huggingface_siglip",
    suffix=".safetensors",
    conventions=SourceConventions(
        "gelu_tanh", 1e-6, "inception", "bicubic", EvalTransform("stretch_bicubic")
    ),
    signature=r"^encoder\.layers\.0\.layer_norm1\.weight$",
    absent="layrnorm|class_embedding",
    rows=(
        *TOWER_ROWS,
        ("head.probe", ("pooling/probe",), SAME),
        (
            "head.attention.in_proj_weight",
            ("pooling/query/kernel", "pooling/key/kernel", "pooling/value/kernel"),
            LINEAR,
        ),
        (
            "head.attention.in_proj_bias",
            ("pooling/query/bias", "pooling/key/bias", "pooling/value/bias"),
            SAME,
        ),
        *weight_and_bias("head.attention.out_proj", "pooling/output"),
        *torch_norm("head.layernorm", "pooling/norm"),
        *weight_and_bias("head.mlp.fc1", "pooling/mlp/dense_0"),
        *weight_and_bias("head.mlp.fc2", "pooling/mlp/dense_1"),
        *weight_and_bias("classifier", "head"),
    ),
    block="encoder.layers.{}.",
    block_rows=TOWER_BLOCK_ROWS,
    prefix="vision_model.",
    unprefixed=("classifier.weight", "classifier.bias"),
    renames=((r"^(siglip\.)?vision_model\.", ""),),
    ignored=OF_TEXTS,
    prepare=_without_unused_pooling,
)
