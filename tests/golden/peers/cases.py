"""The recorded cases: which class of which package, its sizes, the images it is run on."""

from __future__ import annotations

from typing import Any

Spec = dict[str, Any]
OF_CASES = ("call", "prefix", "zeros")  # every other option is an argument of the model


def case(package: str, model: str, size: str, arguments: Spec) -> Spec:
    """A model that is run on images of the size that one of its arguments gives."""
    of_case = {name: arguments.pop(name) for name in OF_CASES if name in arguments}
    height, width = sides if isinstance(sides := arguments[size], list | tuple) else (sides, sides)
    spec = {"package": package, "class": model, "arguments": arguments}
    return {**spec, "images": [2, height, width, 3], **of_case}


def hugging_face(model: str, sizes: Spec | None = None, **options: Any) -> Spec:
    plain: Spec = {"num_hidden_layers": 3, "hidden_size": 24, "num_attention_heads": 3}
    plain |= {"image_size": 16, "patch_size": 4, "call": {}}
    return case("transformers", model, "image_size", {**plain, **(sizes or {}), **options})


def timm(model: str, sizes: Spec | None = None, **options: Any) -> Spec:
    plain: Spec = {"depth": 3, "embed_dim": 24, "num_heads": 3, "num_classes": 5}
    plain |= {"img_size": 16, "patch_size": 4}
    return case("timm", model, "img_size", {**plain, **(sizes or {}), **options})


# Sizes that share no factor with the plain ones: five heads, an MLP of 1.3 times the width.
ODD: Spec = {"hidden_size": 40, "num_attention_heads": 5, "image_size": 24, "patch_size": 8}
ODD_MLP: Spec = {**ODD, "intermediate_size": 52}
WIDE: Spec = {**ODD_MLP, "image_size": [40, 24]}
TIMM_ODD: Spec = {"embed_dim": 40, "num_heads": 5, "img_size": (40, 24), "patch_size": 8}
TIMM_ODD = {**TIMM_ODD, "mlp_ratio": 1.3}
MLP: Spec = {"intermediate_size": 96}
FIVE: Spec = {"num_labels": 5, "intermediate_size": 96}
GATED: Spec = {"use_gated_mlp": True, "hidden_act": "silu"}
BIASES: Spec = {"query_bias": False, "key_bias": True, "value_bias": False}
BIASES |= {"proj_bias": False, "mlp_bias": False}
DECODER: Spec = {"decoder_hidden_size": 16, "decoder_intermediate_size": 32}
DECODER |= {"decoder_num_attention_heads": 2, "decoder_num_hidden_layers": 1}
RELATIVE: Spec = {"use_relative_position_bias": True}
ABSOLUTE: Spec = {"use_absolute_position_embeddings": True, "use_mask_token": True}
SHARED: Spec = {"use_shared_relative_position_bias": True, "use_mean_pooling": False}
TIMM_SHARED: Spec = {"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True}
TIMM_SHARED |= {"use_abs_pos_emb": True}
NOISE: Spec = {"noise": "arange"}
BICUBIC = "F.interpolate, bicubic, align_corners=False, antialias=False, to the grid of the images"


def resampled(like: str, how: str, call: Spec | None = None, **arguments: Any) -> Spec:
    """The model of another case, of images of 16×16, run on images of 20×12."""
    spec = (PLAIN | OTHER)[like]
    spec = {**spec, "arguments": spec["arguments"] | arguments, "images": [2, 20, 12, 3]}
    if call:
        spec["call"] = spec["call"] | call
    return {**spec, "like": like, "resampled": {"from": [16, 16], "how": how}}


def depth_anything(encoder: Spec | None = None, **options: Any) -> Spec:
    """Depth Anything, whose image size is that of the encoder inside."""
    inside: Spec = {"model_type": "dinov2", "hidden_size": 24, "num_attention_heads": 3}
    inside |= {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4], "image_size": 16}
    inside |= {"patch_size": 4, "reshape_hidden_states": False, **(encoder or {})}
    neck: Spec = {"neck_hidden_sizes": [3, 6, 12, 24], "fusion_hidden_size": 8}
    neck |= {"reassemble_hidden_size": inside["hidden_size"], "head_hidden_size": 6}
    spec = {"package": "transformers", "class": "DepthAnythingForDepthEstimation", "call": {}}
    size, patch = inside["image_size"], {"patch_size": inside["patch_size"]}
    arguments = {"backbone_config": inside, **neck, **patch, **options}
    return {**spec, "arguments": arguments, "images": [2, size, size, 3]}


# Of which training without masks ends; 1, as a new model has, masks the queries.
UNMASKED: Spec = {"zeros": ["attn_mask_probs"]}
EOMT: Spec = {"num_queries": 5, "num_blocks": 2, "num_upscale_blocks": 1, "num_labels": 4}
EOMT |= {"num_register_tokens": 2}
EOMT_ODD: Spec = ODD | EOMT | {"num_blocks": 3, "num_upscale_blocks": 2}
DPT: Spec = {"num_hidden_layers": 4, "image_size": 32, "patch_size": 16, "fusion_hidden_size": 8}
DPT |= {"intermediate_size": 48, "backbone_out_indices": [0, 1, 2, 3]}
DPT |= {"neck_hidden_sizes": [3, 6, 12, 24]}
DPT_CLASSES: Spec = {"use_batch_norm_in_fusion_residual": True, "num_labels": 5}
DPT_CLASSES |= {"readout_type": "ignore"}
PLAIN: dict[str, Spec] = {
    "hf_depth_anything": depth_anything(),
    "hf_clip": hugging_face("CLIPVisionModelWithProjection", MLP, projection_dim=16),
    "hf_siglip": hugging_face("SiglipVisionModel", MLP),
    "hf_dinov2": hugging_face("Dinov2Model"),
    "hf_dinov2_swiglu": hugging_face("Dinov2Model", use_swiglu_ffn=True),
    "hf_dinov2_registers": hugging_face("Dinov2WithRegistersModel", num_register_tokens=4),
    "hf_eomt": hugging_face("EomtForUniversalSegmentation", EOMT | UNMASKED),
    "hf_eomt_dinov3": hugging_face("EomtDinov3ForUniversalSegmentation", EOMT | MLP | UNMASKED),
    "hf_dinov3": hugging_face("DINOv3ViTModel", MLP, num_register_tokens=4),
    "hf_deit_teacher": hugging_face("DeiTForImageClassificationWithTeacher", FIVE),
    "hf_vit_mae": hugging_face("ViTMAEModel", MLP, mask_ratio=0.0, call=NOISE),
    "hf_beit": hugging_face("BeitForImageClassification", FIVE, **RELATIVE),
    "hf_vit": hugging_face("ViTForImageClassification", FIVE),
    "timm_clip": timm("vit_base_patch16_clip_quickgelu_224"),
    "timm_siglip": timm("vit_base_patch16_siglip_224"),
    "timm_dinov2": timm("vit_small_patch14_dinov2"),
    "timm_dinov2_reg4": timm("vit_small_patch14_reg4_dinov2"),
    "timm_dinov3": timm("vit_small_patch16_dinov3"),
    "timm_deit_distilled": timm("deit_tiny_distilled_patch16_224"),
    "timm_deit3": timm("deit3_small_patch16_224"),
    "timm_mae": timm("vit_base_patch16_224.mae", global_pool="avg"),
    "timm_beit": timm("beit_base_patch16_224"),
    "timm_eva02_tiny": timm("eva02_tiny_patch14_224"),
    "timm_eva02_base": timm("eva02_base_patch14_224"),
    "timm_vit_reg": timm("vit_tiny_patch16_224", reg_tokens=4),
}
# Heads of their own, odd sizes, and other settings of the family.
OTHER: dict[str, Spec] = {
    "hf_depth_anything_metric": depth_anything(
        {"hidden_size": 40, "num_attention_heads": 5, "num_hidden_layers": 6}
        | {"out_indices": [2, 3, 5, 6], "apply_layernorm": False},
        depth_estimation_type="metric",
        max_depth=20,
    ),
    "hf_dpt": hugging_face("DPTForDepthEstimation", DPT),
    "hf_dpt_classes": hugging_face("DPTForSemanticSegmentation", DPT | DPT_CLASSES),
    "hf_eomt_masked": hugging_face("EomtForUniversalSegmentation", EOMT_ODD, use_swiglu_ffn=True),
    "hf_eomt_dinov3_masked": hugging_face(
        "EomtDinov3ForUniversalSegmentation", EOMT_ODD | GATED, intermediate_size=52
    ),
    "hf_dinov2_classifier": hugging_face("Dinov2ForImageClassification", num_labels=5),
    "hf_deit": hugging_face("DeiTForImageClassification", FIVE),
    "hf_clip_odd": hugging_face(
        "CLIPVisionModelWithProjection", ODD_MLP, projection_dim=7, hidden_act="gelu"
    ),
    "hf_siglip_odd": hugging_face(
        "SiglipVisionModel", ODD_MLP | {"image_size": 32, "patch_size": 7}, prefix="vision_model."
    ),
    "hf_siglip_headless": hugging_face("SiglipVisionModel", MLP, vision_use_head=False),
    "hf_dinov2_odd": hugging_face("Dinov2Model", ODD, mlp_ratio=3, qkv_bias=False),
    "hf_dinov2_swiglu_odd": hugging_face(
        "Dinov2Model", ODD | {"hidden_size": 28, "num_attention_heads": 7}, use_swiglu_ffn=True
    ),
    "hf_dinov2_registers_odd": hugging_face(
        "Dinov2WithRegistersModel", ODD, mlp_ratio=3, num_register_tokens=3, use_swiglu_ffn=True
    ),
    "hf_dinov2_registers_classifier": hugging_face(
        "Dinov2WithRegistersForImageClassification", num_register_tokens=2, num_labels=5
    ),
    "hf_dinov3_odd": hugging_face(
        "DINOv3ViTModel", WIDE | GATED, num_register_tokens=3, rope_theta=50.0
    ),
    "hf_dinov3_biases": hugging_face("DINOv3ViTModel", MLP | BIASES, num_attention_heads=2),
    "hf_deit_odd": hugging_face("DeiTForImageClassification", WIDE, num_labels=5, qkv_bias=False),
    "hf_vit_mae_odd": hugging_face("ViTMAEModel", ODD_MLP, mask_ratio=0.0, call=NOISE),
    "hf_vit_mae_pretraining": hugging_face(
        "ViTMAEForPreTraining", MLP | DECODER, mask_ratio=0.0, call=NOISE
    ),
    "hf_beit_odd": hugging_face("BeitForImageClassification", ODD_MLP, num_labels=5, **RELATIVE),
    "hf_beit_shared": hugging_face(
        "BeitForImageClassification", FIVE | SHARED, layer_scale_init_value=0.0
    ),
    "hf_beit_absolute": hugging_face("BeitForImageClassification", FIVE | ABSOLUTE),
    "hf_beit_wide": hugging_face("BeitForImageClassification", WIDE, num_labels=5, **RELATIVE),
    "hf_vit_odd": hugging_face("ViTModel", WIDE, qkv_bias=False, pooler_output_size=11),
    "timm_clip_odd": timm("vit_base_patch16_clip_224", TIMM_ODD),
    "timm_siglip_odd": timm(
        "vit_base_patch16_siglip_224",
        {**TIMM_ODD, "img_size": 32, "patch_size": 7, "act_layer": "gelu_tanh"},
    ),
    "timm_siglip_headless": timm("vit_base_patch16_siglip_224", num_classes=0),
    "timm_dinov2_odd": timm("vit_small_patch14_dinov2", TIMM_ODD),
    "timm_dinov2_swiglu": timm("vit_giant_patch14_dinov2", mlp_ratio=2.66667 * 2, num_classes=0),
    "timm_dinov2_reg4_odd": timm("vit_small_patch14_reg4_dinov2", TIMM_ODD, reg_tokens=3),
    "timm_dinov3_odd": timm("vit_small_plus_patch16_dinov3", TIMM_ODD, global_pool="token"),
    "timm_dinov3_qkvb": timm("vit_small_patch16_dinov3_qkvb", num_heads=2, num_classes=0),
    "timm_deit_distilled_odd": timm("deit_tiny_distilled_patch16_224", TIMM_ODD),
    "timm_deit3_odd": timm("deit3_small_patch16_224", TIMM_ODD),
    "timm_mae_odd": timm("vit_base_patch16_224.mae", TIMM_ODD, global_pool="avg", qkv_bias=False),
    "timm_mae_token": timm("vit_base_patch16_224.mae", num_classes=0),
    "timm_beit_odd": timm("beit_base_patch16_224", TIMM_ODD),
    "timm_beitv2": timm("beitv2_base_patch16_224"),
    "timm_beit_shared": timm(
        "beit_base_patch16_224", TIMM_SHARED, init_values=0.0, global_pool="token"
    ),
    "timm_eva02_tiny_odd": timm("eva02_tiny_patch14_224", TIMM_ODD, ref_feat_shape=(4, 4)),
    "timm_eva02_base_odd": timm(
        "eva02_base_patch14_224", TIMM_ODD, ref_feat_shape=(4, 4), scale_attn_inner=True
    ),
    "timm_vit_reg_odd": timm("vit_tiny_patch16_224", TIMM_ODD, reg_tokens=2, no_embed_class=True),
}
ANTIALIAS = (
    "resample_abs_pos_embed: F.interpolate, bicubic, align_corners=None, antialias=True, to the "
    "grid of the images"
)

ROTARY = "nothing to resample: rotary positions of the grid of the images"
RESAMPLED: dict[str, Spec] = {
    **{
        f"{name}_resampled": resampled(name, BICUBIC, {"interpolate_pos_encoding": True})
        for name in ("hf_clip", "hf_siglip", "hf_deit", "hf_deit_teacher", "hf_vit_mae", "hf_vit")
    },
    **{
        f"{name}_resampled": resampled(name, BICUBIC)
        for name in ("hf_depth_anything", "hf_dinov2", "hf_dinov2_classifier", "hf_beit_absolute")
    },
    "hf_dpt_resampled": {
        **resampled("hf_dpt", BICUBIC.replace("bicubic", "bilinear")),
        "images": [2, 96, 96, 3],
    },
    "hf_eomt_resampled": resampled("hf_eomt", BICUBIC),
    "hf_eomt_dinov3_resampled": resampled("hf_eomt_dinov3", ROTARY),
    "hf_dinov2_registers_resampled": resampled(
        "hf_dinov2_registers", BICUBIC.replace("antialias=False", "antialias=True")
    ),
    "hf_dinov3_resampled": resampled("hf_dinov3", ROTARY),
    "hf_beit_resampled": resampled(
        "hf_beit", "F.interpolate of the table, bilinear, align_corners=False, antialias=False"
    ),
    **{
        f"timm_{name}_resampled": resampled(f"timm_{name}", f"checkpoint_filter_fn: {ANTIALIAS}")
        for name in (
            *("clip", "siglip", "dinov2", "dinov2_reg4", "deit_distilled", "deit3", "mae"),
            *("eva02_tiny", "eva02_base"),
        )
    },
    "timm_beit_resampled": resampled(
        "timm_beit",
        "checkpoint_filter_fn: resize_rel_pos_bias_table, linear between points in geometric "
        "progression",
    ),
    "timm_dinov3_resampled": resampled("timm_dinov3", ROTARY, dynamic_img_size=True),
    "timm_vit_reg_resampled": resampled(
        "timm_vit_reg", f"dynamic_img_size: {ANTIALIAS}", dynamic_img_size=True
    ),
}

CASES: dict[str, Spec] = {
    **{name: {**spec, "seed": 1, "plain": True} for name, spec in PLAIN.items()},
    **{f"{name}_seed": {**spec, "seed": 2, "like": name} for name, spec in PLAIN.items()},
    **{name: {**spec, "seed": 3} for name, spec in OTHER.items()},
    **{name: {**spec, "seed": 4} for name, spec in RESAMPLED.items()},
}
