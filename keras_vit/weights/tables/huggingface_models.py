"""Which model of transformers a ViT is, and the arguments of its `config.json`, a row for each."""

from collections.abc import Callable
from typing import Any

from keras_vit.models.config import ViTConfig
from keras_vit.models.vit import VisionTransformer
from keras_vit.weights.canonical_names import OPTIONS, SCALES
from keras_vit.weights.checkpoint_error import CheckpointError
from keras_vit.weights.tables.huggingface_dpt import depth_anything_config, dpt_config
from keras_vit.weights.tables.huggingface_eomt import eomt_config, eomt_head

Config = dict[str, Any]
ANY = ("any",)
# By layout, options that its model has beside those that its configuration states as they are.
HELD: dict[str, dict[str, tuple[Any, ...]]] = {
    "huggingface_distilled": {"distilled": (True,)},
    "huggingface_clip": {"pre_norm": (True,)},
    "huggingface_dinov3": {"rotary": ("dinov3",), "position_embedding": ("none",)},
    "huggingface_eomt_dinov3": {"rotary": ("dinov3",), "position_embedding": ("none",)},
    "huggingface_beit": {
        **{"key_bias": (False,), "layer_scale": ANY},
        "position_embedding": ("learned", "none", "relative_2d", "relative_2d_shared"),
    },
}
# Our `activation` -> transformers' `hidden_act`; timm has the names that we have.
HIDDEN_ACT = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
}
GATED = tuple(SCALES)  # the models of DINOv2's family
# Sizes that a model of transformers divides as one number.
ONE_NUMBER = {
    **dict.fromkeys(("huggingface_clip", "huggingface_siglip"), ("image_size", "patch_size")),
    **dict.fromkeys(("huggingface_beit", "huggingface_depth_anything"), ("patch_size",)),
}
TOWER = ("id2label", "label2id", "hidden_dropout_prob", "attention_probs_dropout_prob")


def _vit(model: VisionTransformer, config: Config) -> Config:
    if model.representation_size is not None and model.num_classes:
        raise CheckpointError(
            "ViTForImageClassification does not have a layer between the class token and the head; "
            f"this model has representation_size={model.representation_size}. Save it as .keras, "
            "or its features alone: keras_vit.load(file, num_classes=0)."
        )
    _check_pooling(model, "ViTForImageClassification", "token")
    config = config | {
        "architectures": ["ViTForImageClassification" if model.num_classes else "ViTModel"],
        "model_type": "vit",
    }
    if model.representation_size is not None:
        config |= {"pooler_output_size": model.representation_size, "pooler_act": "tanh"}
    return config


def _distilled(model: VisionTransformer, config: Config) -> Config:
    name = "DeiTForImageClassificationWithTeacher" if model.num_classes else "DeiTModel"
    return config | {"architectures": [name], "model_type": "deit", "qkv_bias": model.key_bias}


def _clip(model: VisionTransformer, config: Config) -> Config:
    _check_pooling(model, "CLIPVisionModel", "token")
    name = "CLIPVisionModelWithProjection" if model.num_classes else "CLIPVisionModel"
    return {key: value for key, value in config.items() if key not in TOWER} | {
        "architectures": [name],
        "model_type": "clip_vision_model",
        "projection_dim": model.num_classes,
    }


def _siglip(model: VisionTransformer, config: Config) -> Config:
    tower = {key: value for key, value in config.items() if key not in TOWER}
    tower |= {"model_type": "siglip_vision_model", "vision_use_head": model.pooling == "map"}
    if model.num_classes == 0:
        return {**tower, "architectures": ["SiglipVisionModel"]}
    _check_pooling(model, "SiglipForImageClassification", "gap")
    names = {key: config[key] for key in ("id2label", "label2id")}
    return {
        "architectures": ["SiglipForImageClassification"],
        "model_type": "siglip",
        "vision_config": tower,
        **names,
        **{key: value for key, value in config.items() if key not in tower},
    }


def _dinov2(model: VisionTransformer, config: Config) -> Config:
    name = "Dinov2WithRegisters" if model.num_registers else "Dinov2"
    _check_pooling(model, f"{name}ForImageClassification", "token_gap")
    return _dinov2_encoder(model, config) | {
        "architectures": [f"{name}{'ForImageClassification' if model.num_classes else 'Model'}"],
    }


def _depth_anything(model: VisionTransformer, config: Config) -> Config:
    encoder = _dinov2_encoder(model, config)
    return depth_anything_config(model, {k: v for k, v in encoder.items() if k not in TOWER[:2]})


def _eomt(model: VisionTransformer, config: Config) -> Config:
    activation = eomt_head(model).activation
    hidden_act = HIDDEN_ACT.get(activation)
    if hidden_act is None:
        raise CheckpointError(
            f"activation={activation!r} of the EoMT head cannot be named in a "
            f"config.json. Accepted: {', '.join(HIDDEN_ACT)}. Save the model as .keras."
        )
    if model.rotary is None:
        config = _dinov2_encoder(model, config)
    else:
        rotary = {"rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}}
        config = config | rotary | {"use_gated_mlp": model.activation == "swiglu"}
    return eomt_config(model, config | {"hidden_act": hidden_act})


def _dinov2_encoder(model: VisionTransformer, config: Config) -> Config:
    is_gated = model.activation == "swiglu"
    ratios = range(1, 33)
    ratio = next((r for r in ratios if _dinov2_width(model, r, is_gated) == model.mlp_dim), None)
    if ratio is None:
        raise CheckpointError(
            f"transformers' DINOv2 has MLPs of 4 x {model.hidden_dim}, or another multiple (two "
            f"thirds of it with a gate), not mlp_dim={model.mlp_dim}. Save the model as .keras."
        )
    del config["intermediate_size"]
    return config | {
        "model_type": "dinov2_with_registers" if model.num_registers else "dinov2",
        "hidden_act": "gelu" if is_gated else config["hidden_act"],
        "mlp_ratio": ratio,
        "use_swiglu_ffn": is_gated,
    }


def _dinov2_width(model: VisionTransformer, ratio: int, is_gated: bool) -> int:
    """Compute the MLP width as transformers does: a gated one is a multiple of 8, rounded up."""
    width = model.hidden_dim * ratio
    return (int(width * 2 / 3) + 7) // 8 * 8 if is_gated else width


def _dinov3(model: VisionTransformer, config: Config) -> Config:
    _check_pooling(model, "DINOv3ViTModel", None)
    return config | {
        "architectures": ["DINOv3ViTModel"],
        "model_type": "dinov3_vit",
        "use_gated_mlp": model.activation == "swiglu",
        "rope_theta": 100.0,
    }


def _beit(model: VisionTransformer, config: Config) -> Config:
    _check_pooling(model, "BeitForImageClassification", "token", "gap")
    if model.num_classes and (model.pooling == "gap") != model.norm_after_pooling:
        raise CheckpointError(
            f"transformers' BEiT has its last norm behind the mean; this model has pooling="
            f"{model.pooling!r} and norm_after_pooling={model.norm_after_pooling}. Save it as "
            ".keras."
        )
    return config | {
        "architectures": ["BeitForImageClassification" if model.num_classes else "BeitModel"],
        "model_type": "beit",
        "layer_scale_init_value": model.layer_scale or 0.0,
        "use_absolute_position_embeddings": model.position_embedding == "learned",
        "use_relative_position_bias": model.position_embedding == "relative_2d",
        "use_shared_relative_position_bias": model.position_embedding == "relative_2d_shared",
    }


def check_options(model: VisionTransformer, layout: str) -> None:
    """Raises a CheckpointError for options that the model of a layout does not have."""
    plain, held = ViTConfig(), HELD.get(layout, {})
    for option in OPTIONS:
        name = option.name
        is_any = not option.is_plain or layout in option.keys
        values = held.get(name, ANY if is_any else (getattr(plain, name),))
        if values is not ANY and getattr(model, name) not in values:
            raise CheckpointError(
                f"transformers' model for such weights does not have {name}="
                f"{getattr(model, name)!r}, but {' or '.join(map(repr, values))}. Save it with "
                "layout='timm' or as .keras."
            )
    if model.activation == "swiglu" and layout not in GATED:
        raise CheckpointError(
            "transformers' model for such weights does not have gated MLPs, activation='swiglu', "
            "which DINOv2's does, with layer_scale. Save it as .keras."
        )


def check_sizes(config: Config, layout: str) -> None:
    """Raises a CheckpointError for sides that differ where the model of a layout has squares."""
    for name in ONE_NUMBER.get(layout, ()):
        if isinstance(config[name], list):
            raise CheckpointError(
                f"transformers' model for such weights is of squares, and this one has {name}="
                f"{config[name]}. Save it as .keras, or one for square images and patches: "
                "model.with_input_shape((224, 224, 3)) resamples the positions."
            )


def _check_pooling(model: VisionTransformer, theirs: str, *poolings: str | None) -> None:
    if model.num_classes and model.pooling not in poolings:
        accepted = " or ".join(repr(pooling) for pooling in poolings if pooling)
        raise CheckpointError(
            f"transformers' {theirs} does not classify with pooling={model.pooling!r}. Save the "
            "features alone, keras_vit.load(file, num_classes=0)"
            + (f"; or train the model with pooling={accepted}." if accepted else ".")
        )


# By layout: from the model and what all have in common to the content of `config.json`.
HUGGINGFACE_MODELS: dict[str, Callable[[Any, Config], Config]] = {
    "huggingface": _vit,
    "huggingface_distilled": _distilled,
    "huggingface_clip": _clip,
    "huggingface_siglip": _siglip,
    "huggingface_dinov2": _dinov2,
    "huggingface_dinov2_registers": _dinov2,
    "huggingface_dinov3": _dinov3,
    "huggingface_beit": _beit,
    "huggingface_depth_anything": _depth_anything,
    "huggingface_dpt": dpt_config,
    "huggingface_eomt": _eomt,
    "huggingface_eomt_dinov3": _eomt,
}
