"""The configuration files with which transformers and timm open a folder of weights."""

import warnings
from typing import Any

import keras
import numpy as np

from keras_vit._base.errors import check_choice
from keras_vit._base.version import __version__
from keras_vit.data.eval_transform import EvalTransform
from keras_vit.models.normalization import normalized_channels, statistics_in_parts
from keras_vit.models.vit import VisionTransformer
from keras_vit.weights.canonical_names import QKV, stated
from keras_vit.weights.checkpoint_error import CheckpointError
from keras_vit.weights.containers.metadata import stated_image_size
from keras_vit.weights.preparation import (
    of_eval_transform,
    of_huggingface,
    of_timm,
    to_huggingface,
    to_timm,
)
from keras_vit.weights.tables.conventions import stored_family
from keras_vit.weights.tables.huggingface_models import (
    HIDDEN_ACT,
    HUGGINGFACE_MODELS,
    check_options,
    check_sizes,
)
from keras_vit.weights.tables.layouts import RELATIVE, layout_for

# Marks a file as this package's, which may be replaced; the other side ignores it.
MARK = "keras_vit"
TIMM_EPSILON = 1e-6
TIMM_POOLING = {"token": "token", "gap": "avg", "map": "map", None: ""}
# (hidden_dim, depth, patch) -> timm's name; of any other model `model_args` has all sizes.
TIMM_NAMES = {
    (192, 12, 16): "vit_tiny_patch16_224",
    (384, 12, 32): "vit_small_patch32_224",
    (384, 12, 16): "vit_small_patch16_224",
    (768, 12, 32): "vit_base_patch32_224",
    (768, 12, 16): "vit_base_patch16_224",
    (768, 12, 8): "vit_base_patch8_224",
    (1024, 24, 32): "vit_large_patch32_224",
    (1024, 24, 16): "vit_large_patch16_224",
    (1280, 32, 14): "vit_huge_patch14_224",
    (1408, 40, 14): "vit_giant_patch14_224",
    (1664, 48, 14): "vit_gigantic_patch14_224",
}
TIMM_ANY_SIZE = "vit_base_patch16_224"
# Of the layouts whose models are another class in timm, an entry point of that class.
TIMM_ARCHITECTURES = {
    "timm_beit": "beit_base_patch16_224",
    "timm_dinov3": "vit_small_patch16_dinov3",
    "timm_eva02": "eva02_tiny_patch14_224",
    "timm_eva02_norm": "eva02_base_patch14_224",
}

Files = dict[str, dict[str, Any]]


def huggingface_configs(model: VisionTransformer) -> Files:
    """Return the content of `config.json` and `preprocessor_config.json` by name.

    Raises:
        CheckpointError: No model of transformers computes what this model computes.
    """
    _check_model(model, "transformers")
    layout = layout_for("huggingface", model, "vit").name
    check_options(model, layout)
    if layout in QKV and not model.key_bias and not _is_zero(model, "query_value_bias"):
        raise CheckpointError(
            "transformers' model for such weights has biases of queries, keys and values, or none; "
            "this one has them without those of keys, key_bias=False. Save it as .keras."
        )
    size, patch = _image_size(model), model.patch_size
    common = {
        "hidden_size": model.hidden_dim,
        "num_hidden_layers": model.depth,
        "num_attention_heads": model.num_heads,
        "intermediate_size": model.mlp_dim,
        "hidden_act": HIDDEN_ACT.get(model.activation, "silu"),  # of the gate
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": model.norm_epsilon,
        "image_size": size[0] if size[0] == size[1] else list(size),
        "patch_size": patch[0] if patch[0] == patch[1] else list(patch),
        "num_channels": _channels(model),
        "id2label": {str(i): name for i, name in enumerate(_names(model))},
        "label2id": {name: i for i, name in enumerate(_names(model))},
        **stated(model, layout),
        MARK: {"version": __version__, "layout": "huggingface"},
    }
    check_sizes(common, layout)
    config = HUGGINGFACE_MODELS[layout](model, common)
    if model.task is not None and model.task.problem_type and model.num_classes:
        config["problem_type"] = model.task.problem_type
    mean, std = _mean_and_std(model)
    processor = {
        **to_huggingface(of_eval_transform(model.eval_transform, size)),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": std,
        MARK: {"version": __version__},
    }
    if layout in ("huggingface_depth_anything", "huggingface_dpt"):  # it makes depth of answers
        processor["image_processor_type"] = "DPTImageProcessor"
    return {"config.json": config, "preprocessor_config.json": processor}


def timm_configs(model: VisionTransformer) -> Files:
    """Return the content of `config.json` by name.

    Raises:
        CheckpointError: timm's `VisionTransformer` does not compute what this model computes.
    """
    _check_model(model, "timm")
    _check_timm(model)
    size, (mean, std) = _image_size(model), _mean_and_std(model)
    config: dict[str, Any] = {
        "architecture": _timm_architecture(model),
        "num_classes": model.num_classes,
        "num_features": model.hidden_dim,
        "global_pool": TIMM_POOLING[model.pooling],
        "model_args": _timm_arguments(model, size),
        "pretrained_cfg": {
            **to_timm(of_eval_transform(model.eval_transform, size)),
            "input_size": [_channels(model), *size],
            "fixed_input_size": True,
            "mean": mean,
            "std": std,
            "num_classes": model.num_classes,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        },
        MARK: {"version": __version__, "layout": "timm"},
    }
    if model.num_classes:
        config["label_names"] = _names(model)
    return {"config.json": config}


def folder_transform(model: VisionTransformer, layout: str) -> EvalTransform:
    """Return how transformers or timm prepares images for a model saved in a folder, bit for bit.

    `save_weights` writes what comes nearest to the model's `eval_transform`. Set to this, the model
    is evaluated on the pixels that the other package sees, on every backend.

    Args:
        model: A `VisionTransformer`.
        layout: `"huggingface"` or `"timm"`.

    Returns:
        What to assign to `model.eval_transform`.

    Raises:
        CheckpointError: The model takes images of any size, which a folder cannot.
        ValueError: The layout is another one.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=8, hidden_dim=16, depth=1, num_heads=2, input_shape=(32, 32, 3))
    >>> keras_vit.weights.folder_transform(model, "timm").mode
    'timm_center'
    """
    check_choice(layout, "layout", ("huggingface", "timm"))
    size = _image_size(model)
    preparation = of_eval_transform(model.eval_transform, size)
    if layout == "huggingface":
        written = of_huggingface(to_huggingface(preparation))
    else:
        written = of_timm({**to_timm(preparation), "input_size": [_channels(model), *size]})
    assert written is not None  # whatever is written can be read
    return written.to_eval_transform(layout)


def lacks_class_position(model: VisionTransformer) -> bool:
    """Return whether the class token's learned position is zero, as of files that lack one."""
    if model.position_embedding != "learned" or not model.class_token or model.distilled:
        return False
    positions = model.get_layer("position_embedding").embedding
    return not np.any(keras.ops.convert_to_numpy(positions[:, 0]))


def _check_timm(model: VisionTransformer) -> None:
    if (
        model.position_embedding not in ("learned", "none", *RELATIVE)
        or model.representation_size is not None
        or model.pooling not in TIMM_POOLING
        or (model.activation == "swiglu" and model.rotary is None)
    ):
        raise CheckpointError(
            "timm does not have a model with position_embedding="
            f"{model.position_embedding!r}, representation_size={model.representation_size}, "
            f"pooling={model.pooling!r} and activation={model.activation!r}. Save it as .keras."
        )
    if model.distilled and model.pre_norm:
        raise CheckpointError(
            "timm's distilled models do not have a norm in front of the blocks, pre_norm=True. "
            "Save it as .keras."
        )
    layout = layout_for("timm", model, "vit").name
    # Of a plain ViT it is an argument.
    behind = model.norm_after_pooling if layout == "timm" else layout != "timm_dinov3"
    if model.num_classes and model.pooling == "gap" and model.norm_after_pooling != behind:
        raise CheckpointError(
            f"timm's model for such weights has its last norm {'behind' if behind else 'before'} "
            f"the mean; this one has norm_after_pooling={model.norm_after_pooling}. Save it as "
            ".keras."
        )
    if layout in TIMM_ARCHITECTURES and model.activation not in ("gelu", "gelu_tanh", "swiglu"):
        raise CheckpointError(
            "timm's model for such weights has activation='gelu', and this one has "
            f"{model.activation!r}. Save it as .keras."
        )
    if layout in TIMM_ARCHITECTURES and model.activation == "gelu_tanh":
        warnings.warn(
            "timm's model for such weights has activation='gelu', which a config.json cannot "
            "change, and this one has 'gelu_tanh': logits differ slightly.",
            stacklevel=3,
        )
    epsilon = 1e-5 if model.pre_norm or model.rotary == "dinov3" else TIMM_EPSILON
    if model.norm_epsilon != epsilon:
        warnings.warn(
            f"timm's layer norms add {epsilon}, which a config.json cannot change, and this "
            f"model's add norm_epsilon={model.norm_epsilon}: logits differ slightly.",
            stacklevel=3,
        )


def _timm_architecture(model: VisionTransformer) -> str:
    layout = layout_for("timm", model, "vit").name
    if layout in TIMM_ARCHITECTURES:
        return TIMM_ARCHITECTURES[layout]
    if model.distilled:
        return "deit_tiny_distilled_patch16_224"
    if model.pre_norm:
        quick = "quickgelu_" if model.activation == "quick_gelu" else ""
        return f"vit_base_patch16_clip_{quick}224"
    kind = (model.hidden_dim, model.depth, model.patch_size[0])
    return TIMM_NAMES.get(kind, TIMM_ANY_SIZE)


def _timm_arguments(model: VisionTransformer, size: tuple[int, int]) -> dict[str, Any]:
    """Return the arguments that timm's constructor needs for any named architecture."""
    ratio = model.mlp_dim / model.hidden_dim
    if int(model.hidden_dim * ratio) != model.mlp_dim:  # timm rounds down
        ratio = (model.mlp_dim + 0.5) / model.hidden_dim
    common = {
        "img_size": list(size),
        "patch_size": list(model.patch_size),
        "in_chans": _channels(model),
        "embed_dim": model.hidden_dim,
        "depth": model.depth,
        "num_heads": model.num_heads,
        "mlp_ratio": ratio,
        "global_pool": TIMM_POOLING[model.pooling],
    }
    layout = layout_for("timm", model, "vit").name
    if layout == "timm_beit":
        return common | {
            # Not None, for which timm would take its own default.
            "init_values": model.layer_scale or 0.0,
            "use_abs_pos_emb": False,
            "use_rel_pos_bias": model.position_embedding == "relative_2d",
            "use_shared_rel_pos_bias": model.position_embedding == "relative_2d_shared",
        }
    if layout == "timm_dinov3":
        gated = model.activation == "swiglu"
        return common | {
            **stated(model, layout),
            "qkv_bias": not _is_zero(model, "query_value_bias"),
            **({"swiglu_mlp": True, "swiglu_align_to": 1} if gated else {}),
        }
    if layout in TIMM_ARCHITECTURES:
        return common
    return common | {
        **stated(model, layout),
        "qkv_bias": model.key_bias,  # without those of keys, only zeros can be written
        "no_embed_class": bool(model.num_registers) or lacks_class_position(model),
        "pos_embed": "learn" if model.position_embedding == "learned" else "none",
    }


def _is_zero(model: VisionTransformer, name: str) -> bool:
    """Return whether the attention's weight of this name is zero in all blocks."""
    values = (w for w in model.weights if w.path.endswith(f"attention/{name}"))
    return not any(np.any(keras.ops.convert_to_numpy(x)) for x in values)


def _check_model(model: VisionTransformer, package: str) -> None:
    if stored_family(model) != "vit" or model.resnet is not None:
        raise CheckpointError(
            f"{package}'s ViT is a plain one; {model.name} is a {type(model).__name__} that is "
            "not. Save it as .keras or with layout='google'."
        )
    if model.pooling is None and model.num_classes:
        raise CheckpointError(
            f"{package} does not classify with pooling=None. It does with pooling='token', for "
            "example, in which the model would have to be trained."
        )
    if model.activation not in (*HIDDEN_ACT, "swiglu"):
        raise CheckpointError(
            f"activation={model.activation!r} cannot be named in a config.json of {package}. "
            f"Accepted: {', '.join((*HIDDEN_ACT, 'swiglu'))}. Save the model as .keras."
        )
    if any([model.token_merging] if isinstance(model.token_merging, int) else model.token_merging):
        raise CheckpointError(
            f"{package} does not merge tokens; this model has token_merging="
            f"{model.token_merging}. Save model.with_token_merging(0)."
        )
    if _channels(model) != 3:
        warnings.warn(
            f"The model is for images of {model.channels} channels. {package} opens such images "
            "only when they are given as arrays: its pipelines convert files to RGB.",
            stacklevel=3,
        )


def _image_size(model: VisionTransformer) -> tuple[int, int]:
    size = stated_image_size(model)
    if size is None:
        raise CheckpointError(
            "The model takes images of any size and does not have positions, so that this folder's "
            "image size is unknown. Give one: model.with_input_shape((224, 224, 3))."
        )
    grid = tuple(side // patch for side, patch in zip(size, model.patch_size, strict=True))
    if model.position_embedding == "learned" and tuple(model.position_grid) != grid:
        raise CheckpointError(
            f"The positions are for {model.position_grid} patches and images of {size} pixels have "
            f"{grid}. Resample them first: model.with_input_shape(({size[0]}, {size[1]}, 3))."
        )
    return size[0], size[1]


def _names(model: VisionTransformer) -> list[str]:
    if model.task is None or not model.task.names:
        return [f"LABEL_{i}" for i in range(model.num_classes)]
    return list(model.task.output_names)


def _mean_and_std(model: VisionTransformer) -> tuple[list[float], list[float]]:
    """Return the channel means and standard deviations for pixels in 0..1."""
    if not model.include_preprocessing:
        warnings.warn(
            "The model has include_preprocessing=False and does not normalize pixels itself: this "
            f"folder normalizes them by its normalization={model.normalization!r}.",
            stacklevel=3,
        )
    mean, std = statistics_in_parts(model.normalization)
    channels = _channels(model)
    return list(mean) * (channels // len(mean)), list(std) * (channels // len(std))


def _channels(model: VisionTransformer) -> int:
    """Return the weights' number of channels: 3 for gray images under ImageNet's statistics."""
    return normalized_channels(model, model.channels)
