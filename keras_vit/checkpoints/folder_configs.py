"""The configuration files with which transformers and timm open a folder of weights."""

import warnings
from typing import Any

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.families import family_of
from keras_vit.checkpoints.metadata import stated_image_size
from keras_vit.checkpoints.preparation import (
    of_eval_transform,
    of_huggingface,
    of_timm,
    to_huggingface,
    to_timm,
)
from keras_vit.errors import check_choice
from keras_vit.models.normalisation import NORMALISATIONS
from keras_vit.version import __version__

# Marks a file as this package's, which may be replaced; the other side ignores it.
MARK = "keras_vit"
# Ours -> transformers'; timm has the names that we have.
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu", "silu": "silu"}
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

Files = dict[str, dict[str, Any]]


def huggingface_configs(model: Any) -> Files:
    """The content of `config.json` and `preprocessor_config.json` by name.

    Raises:
        CheckpointError: transformers' ViT does not compute what this model computes.
    """
    _check_model(model, "transformers' ViT", ("token", None))
    if not model.class_token or model.position_embedding != "learned" or model.num_registers:
        raise CheckpointError(
            "transformers' ViT has a class token, learned positions and no registers; this model "
            f"has class_token={model.class_token}, num_registers={model.num_registers}, "
            f"position_embedding={model.position_embedding!r}. Save it with layout='timm'."
        )
    if model.representation_size is not None and model.num_classes:
        raise CheckpointError(
            "ViTForImageClassification does not have a layer between the class token and the head; "
            f"this model has representation_size={model.representation_size}. Save it as .keras, "
            "or its features alone: from_checkpoint(file, num_classes=0)."
        )
    size, patch = _image_size(model), model.patch_size
    config = {
        "architectures": ["ViTForImageClassification" if model.num_classes else "ViTModel"],
        "model_type": "vit",
        "hidden_size": model.hidden_dim,
        "num_hidden_layers": model.depth,
        "num_attention_heads": model.num_heads,
        "intermediate_size": model.mlp_dim,
        "hidden_act": ACTIVATIONS[model.activation],
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": model.norm_epsilon,
        "image_size": size[0] if size[0] == size[1] else list(size),
        "patch_size": patch[0] if patch[0] == patch[1] else list(patch),
        "num_channels": model.channels,
        "qkv_bias": True,
        "id2label": {str(i): name for i, name in enumerate(_names(model))},
        "label2id": {name: i for i, name in enumerate(_names(model))},
        MARK: {"version": __version__, "layout": "huggingface"},
    }
    if model.representation_size is not None:
        config |= {"pooler_output_size": model.representation_size, "pooler_act": "tanh"}
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
    return {"config.json": config, "preprocessor_config.json": processor}


def timm_configs(model: Any) -> Files:
    """The content of `config.json` by name.

    Raises:
        CheckpointError: timm's `VisionTransformer` does not compute what this model computes.
    """
    _check_model(model, "timm's VisionTransformer", tuple(TIMM_POOLING))
    if model.position_embedding not in ("learned", "none") or model.representation_size is not None:
        raise CheckpointError(
            "timm's VisionTransformer learns its positions, if any, and does not have a layer "
            "between pooling and head; this model has "
            f"position_embedding={model.position_embedding!r}, "
            f"representation_size={model.representation_size}. Save it as .keras."
        )
    if model.norm_epsilon != TIMM_EPSILON:
        warnings.warn(
            f"timm's layer norms add {TIMM_EPSILON}, which a config.json cannot change, and this "
            f"model's add norm_epsilon={model.norm_epsilon}: logits differ slightly.",
            stacklevel=2,
        )
    size, (mean, std) = _image_size(model), _mean_and_std(model)
    kind = (model.hidden_dim, model.depth, model.patch_size[0])
    config: dict[str, Any] = {
        "architecture": TIMM_NAMES.get(kind, TIMM_ANY_SIZE),
        "num_classes": model.num_classes,
        "num_features": model.hidden_dim,
        "global_pool": TIMM_POOLING[model.pooling],
        "model_args": _timm_arguments(model, size),
        "pretrained_cfg": {
            **to_timm(of_eval_transform(model.eval_transform, size)),
            "input_size": [model.channels, *size],
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


def folder_transform(model: Any, layout: str) -> dict[str, Any]:
    """How transformers or timm prepares images for a model saved in a folder, bit for bit.

    `save_weights` writes what comes nearest to the model's `eval_transform`. Set to this, the model
    is evaluated on the pixels that the other package sees, on every backend.

    Args:
        model: A `VisionTransformer`.
        layout: `"huggingface"` or `"timm"`.

    Returns:
        An `eval_transform`.

    Raises:
        CheckpointError: The model takes images of any size, which a folder cannot.
        ValueError: The layout is another one.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=8, hidden_dim=16, depth=1, num_heads=2, input_shape=(32, 32, 3))
    >>> keras_vit.checkpoints.folder_transform(model, "timm")["mode"]
    'timm_center'
    """
    check_choice(layout, "layout", ("huggingface", "timm"))
    size = _image_size(model)
    preparation = of_eval_transform(model.eval_transform, size)
    if layout == "huggingface":
        written = of_huggingface(to_huggingface(preparation))
    else:
        written = of_timm({**to_timm(preparation), "input_size": [model.channels, *size]})
    assert written is not None  # whatever is written can be read
    return written.to_eval_transform(layout)


def _timm_arguments(model: Any, size: tuple[int, int]) -> dict[str, Any]:
    """What timm's constructor needs, whichever architecture is named beside it."""
    ratio = model.mlp_dim / model.hidden_dim
    if int(model.hidden_dim * ratio) != model.mlp_dim:  # timm rounds down
        ratio = (model.mlp_dim + 0.5) / model.hidden_dim
    return {
        "img_size": list(size),
        "patch_size": list(model.patch_size),
        "in_chans": model.channels,
        "embed_dim": model.hidden_dim,
        "depth": model.depth,
        "num_heads": model.num_heads,
        "mlp_ratio": ratio,
        "class_token": model.class_token,
        "reg_tokens": model.num_registers,
        "no_embed_class": bool(model.num_registers),
        "pos_embed": "learn" if model.position_embedding == "learned" else "none",
        "init_values": model.layer_scale,
        "global_pool": TIMM_POOLING[model.pooling],
        "fc_norm": False,
        "act_layer": model.activation,
    }


def _check_model(model: Any, theirs: str, poolings: tuple[str | None, ...]) -> None:
    if family_of(model) != "vit" or model.resnet is not None:
        raise CheckpointError(
            f"{theirs} is a plain ViT; {model.name} is a {type(model).__name__} that is not. Save "
            "it as .keras or with layout='google'."
        )
    if model.pooling not in poolings or (model.pooling is None and model.num_classes):
        raise CheckpointError(
            f"{theirs} does not classify with pooling={model.pooling!r}. It does with "
            f"{' or '.join(repr(pooling) for pooling in poolings if pooling)}, in which the model "
            "would have to be trained."
        )
    if model.activation not in ACTIVATIONS:
        raise CheckpointError(
            f"activation={model.activation!r} cannot be named in a config.json of {theirs}. "
            f"Accepted: {', '.join(ACTIVATIONS)}. Save the model as .keras."
        )
    if any([model.token_merging] if isinstance(model.token_merging, int) else model.token_merging):
        raise CheckpointError(
            f"{theirs} does not merge tokens; this model has token_merging={model.token_merging}. "
            "Save model.with_token_merging(0)."
        )
    if model.channels != 3:
        warnings.warn(
            f"The model is for images of {model.channels} channels. {theirs} opens such images "
            "only when they are given as arrays: its pipelines convert files to RGB.",
            stacklevel=3,
        )


def _image_size(model: Any) -> tuple[int, int]:
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


def _names(model: Any) -> list[str]:
    return list(model.class_names or [f"LABEL_{i}" for i in range(model.num_classes)])


def _mean_and_std(model: Any) -> tuple[list[float], list[float]]:
    """Of each channel of the pixels in 0..1 that the weights are for."""
    kind = model.include_preprocessing
    if kind is False:
        warnings.warn(
            "The model has include_preprocessing=False, so that it does not show how its pixels "
            "are normalised: this folder normalises them to [-1, 1].",
            stacklevel=3,
        )
        kind = True
    mean, std = NORMALISATIONS[kind]
    return list(mean) * (model.channels // len(mean)), list(std) * (model.channels // len(std))
