"""`config.json` and `preprocessor_config.json`, which stand beside the weights.

Hugging Face and timm write there what no tensor shows. Both files are optional, and only a few
numbers and the class names are taken from them.
"""

import json
import warnings
from pathlib import Path
from typing import Any

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.models.normalisation import NORMALISATIONS

# Enough for the names of 21,843 classes.
LARGEST = 2**22
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}


def read_sidecar_configs(
    path: Path, hidden_dim: int
) -> tuple[dict[str, Any], tuple[str, ...] | None]:
    """Arguments of the model, and its class names, from the files beside `path`."""
    config = _json(path.with_name("config.json"))
    arguments: dict[str, Any] = {}
    if config.get("hidden_size") == hidden_dim:  # transformers, and of this very model
        if isinstance(heads := config.get("num_attention_heads"), int):
            arguments["num_heads"] = heads
        if config.get("hidden_act") in ACTIVATIONS:
            arguments["activation"] = ACTIVATIONS[config["hidden_act"]]
        if isinstance(epsilon := config.get("layer_norm_eps"), float) and 0 < epsilon < 1:
            arguments["norm_epsilon"] = epsilon
        processor = _json(path.with_name("preprocessor_config.json"))
        mean, std = processor.get("image_mean"), processor.get("image_std")
    elif isinstance(pretrained := config.get("pretrained_cfg"), dict):  # timm
        mean, std = pretrained.get("mean"), pretrained.get("std")
    else:
        return {}, None
    if mean and std:
        normalisations = {name: _mean_and_std(name) for name in NORMALISATIONS}
        matching = [name for name, values in normalisations.items() if values == (mean, std)]
        if not matching:
            warnings.warn(
                f"{path} is for pixels of mean {mean} and standard deviation {std}, which no layer "
                "of this package computes: the model has include_preprocessing=False. Normalise "
                "the images yourself.",
                stacklevel=2,
            )
        arguments["include_preprocessing"] = matching[0] if matching else False
    return arguments, _names(config.get("id2label") or config.get("label_names"))


def transformers_configs(model: Any) -> dict[str, dict[str, Any]]:
    """The content of both files, with which transformers loads the folder they stand in."""
    if model.pooling not in ("token", None) or model.position_embedding != "learned":
        raise CheckpointError(
            f"transformers' ViT pools by the class token and learns its positions; this model has "
            f"pooling={model.pooling!r}, position_embedding={model.position_embedding!r}."
        )
    height, width = (g * p for g, p in zip(model.position_grid, model.patch_size, strict=True))
    patch_height, patch_width = model.patch_size
    names = model.class_names or [f"LABEL_{i}" for i in range(model.num_classes)]
    config = {
        "architectures": ["ViTForImageClassification" if model.num_classes else "ViTModel"],
        "model_type": "vit",
        "hidden_size": model.hidden_dim,
        "num_hidden_layers": model.depth,
        "num_attention_heads": model.num_heads,
        "intermediate_size": model.mlp_dim,
        "hidden_act": {"gelu_tanh": "gelu_pytorch_tanh"}.get(model.activation, model.activation),
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": model.norm_epsilon,
        "image_size": height if height == width else [height, width],
        "patch_size": patch_height if patch_height == patch_width else [patch_height, patch_width],
        "num_channels": int(model.get_layer("patch_embedding").kernel.shape[2]),
        "qkv_bias": True,
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
    if model.representation_size is not None:
        config |= {"pooler_output_size": model.representation_size, "pooler_act": "tanh"}
    mean, std = _mean_and_std(model.include_preprocessing or True)
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": 2,  # bilinear
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": std,
    }
    return {"config.json": config, "preprocessor_config.json": processor}


def _mean_and_std(include_preprocessing: bool | str) -> tuple[list[float], list[float]]:
    """Of the red, green and blue pixels in 0..1 that a model is for."""
    mean, std = NORMALISATIONS[include_preprocessing]
    return list(mean) * (3 // len(mean)), list(std) * (3 // len(std))


def _names(labels: Any) -> tuple[str, ...] | None:
    if isinstance(labels, dict):
        labels = [labels.get(str(i)) for i in range(len(labels))]
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        return None
    # What transformers writes for classes without names.
    return None if labels[:1] in ([], ["LABEL_0"]) else tuple(labels)


def _json(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            return {}
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
