"""`config.json` and `preprocessor_config.json`, which stand beside the weights.

Hugging Face and timm write there what no tensor shows. Both files are optional, and only a few
numbers and the class names are taken from them.
"""

import json
import re
import warnings
from pathlib import Path
from typing import Any

from keras_vit.models.normalization import NORMALIZATIONS
from keras_vit.tasks import Multilabel, Regression
from keras_vit.trainer.saved_file import LONGEST_CONFIG
from keras_vit.weights.checkpoint_error import CheckpointError
from keras_vit.weights.containers.tensors import TensorShape
from keras_vit.weights.preparation import of_huggingface, of_timm
from keras_vit.weights.tables.huggingface_dpt import encoder_config, read_dpt

# The activations of timm's entry points that are not GELU.
OF_NAME = {
    "quickgelu": "quick_gelu",
    "(base_patch32|so400m_patch16|giantopt_patch16)_siglip_": "gelu_tanh",
    "large_patch16_siglip_(gap_)?512": "gelu_tanh",
}
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
}
DPT_TYPES = ("depth_anything", "dpt")
PROBLEM_TYPES = {str(task.problem_type): task for task in (Multilabel, Regression)}
POOLING = {"token": "token", "avg": "gap", "map": "map"}

Arguments = dict[str, Any]


def read_sidecar_configs(
    path: Path, kernel: TensorShape, is_normalization_known: bool = False
) -> tuple[Arguments, tuple[str, ...] | None]:
    """Return arguments of the model, and its class names, from the files beside `path`.

    Args:
        kernel: Shape of the patch kernel, `(height, width, channels, hidden_dim)`. Files of a model
            with another `hidden_dim` are ignored.
        is_normalization_known: Whether the file of the weights states it, exactly.

    Returns:
        Arguments of the model, with `"evaluation"`, its `eval_transform`, `"image_size"`, that of
        the preparation, and `"grid"`, that of the positions; and the class names.
    """
    # A kernel that is not one is for `architecture` to refuse.
    patch, hidden_dim = (
        (kernel[:2], kernel[-1]) if len(kernel) == 4 and all(kernel) else ((1, 1), 0)
    )
    config = _json(path.with_name("config.json"))
    stated_of_dpt = read_dpt(config) if config.get("model_type") in DPT_TYPES else {}
    whole = config  # names and kind of task stand outside of the encoder's part
    if isinstance(config.get("vision_config"), dict):  # of CLIP and SigLIP with both towers
        config = {"hidden_size": 768, **config["vision_config"]}  # which transformers leaves out
    config = encoder_config(config)
    processor = _json(path.with_name("preprocessor_config.json"))
    if config.get("hidden_size") == hidden_dim:  # transformers, and of this very model
        arguments = _huggingface_arguments(config) | stated_of_dpt
        preparation = of_huggingface(processor) if processor else None
        normalization = _huggingface_normalization(processor)
        package, names = "huggingface", whole.get("id2label")
        task = PROBLEM_TYPES.get(str(whole.get("problem_type")))
        if task is not None and isinstance(names, dict) and names:
            arguments["task"] = task(size=len(names))
        trained = _pair(config.get("image_size"))
    elif (timm := _timm_config(config)) is not None:
        arguments = _timm_arguments(config)
        preparation, processor = of_timm(timm), timm
        normalization = timm.get("mean"), timm.get("std")
        package, names = "timm", config.get("label_names") or timm.get("label_names")
        trained = _timm_size(config, timm)
    else:
        return {}, None
    if not is_normalization_known:
        arguments |= _normalization(path, *normalization)
    if preparation is not None:
        arguments["evaluation"] = preparation.to_eval_transform(package)
    elif processor:
        _warn_of_preparation(path, package)
    image_size = preparation.size if preparation is not None else trained
    if image_size and all(s % p == 0 for s, p in zip(image_size, patch, strict=True)):
        arguments["image_size"] = image_size
    if trained:
        arguments["grid"] = (trained[0] // patch[0], trained[1] // patch[1])
    return arguments, _names(names)


def _huggingface_arguments(config: Arguments) -> Arguments:
    arguments: Arguments = {}
    rotary = config.get("rope_parameters")  # of transformers 5
    rotary = rotary if isinstance(rotary, dict) else config
    if (theta := rotary.get("rope_theta", 100)) != 100:
        raise CheckpointError(
            f"config.json has rope_theta={theta!r}: the model rotates its tokens otherwise than "
            "DINOv3, for which this package has rotary positions of rope_theta=100."
        )
    if isinstance(heads := config.get("num_attention_heads"), int):
        arguments["num_heads"] = heads
    if isinstance(epsilon := config.get("layer_norm_eps"), float) and 0 < epsilon < 1:
        arguments["norm_epsilon"] = epsilon
    return arguments | _activation(config.get("hidden_act"))


def _timm_config(config: Arguments) -> Arguments | None:
    """timm's `pretrained_cfg`; before timm 0.9 it was the whole file."""
    pretrained_cfg = config.get("pretrained_cfg", config if "architecture" in config else None)
    return pretrained_cfg if isinstance(pretrained_cfg, dict) else None


def _timm_arguments(config: Arguments) -> Arguments:
    model_args = config.get("model_args")
    model_args = model_args if isinstance(model_args, dict) else {}
    arguments: Arguments = {}
    # What an entry point of timm computes otherwise is not written: its name shows it.
    name = str(config.get("architecture"))
    if other := re.search(r"_(rope|rpn|pe_core|pe_lang|pe_spatial)_", name):
        raise CheckpointError(
            f"config.json is of timm's {name[:99]!r}, which computes otherwise than the models of "
            f"this package whose names of tensors it has ({other[1]}): open it with timm."
        )
    if (reference := model_args.get("ref_feat_shape", [16, 16])) != [16, 16]:
        raise CheckpointError(
            f"config.json has ref_feat_shape={reference!r}: the model rotates its tokens otherwise "
            "than EVA-02, for which this package has rotary positions of a grid of 16 x 16."
        )
    if isinstance(heads := model_args.get("num_heads"), int):
        arguments["num_heads"] = heads
    pooling = model_args.get("global_pool", config.get("global_pool"))
    if isinstance(pooling, str) and pooling in POOLING:
        arguments["pooling"] = POOLING[pooling]
    is_known = pooling in (*POOLING, "", None)
    counts_all = model_args.get("pool_include_prefix") is True and pooling != "token"
    if (counts_all or not is_known) and config.get("num_classes"):
        also = " over class token and registers too" if counts_all else ""
        raise CheckpointError(
            f"config.json has global_pool={str(pooling)[:99]!r}{also}, which this package "
            "does not compute: open it with timm, or train it there with 'avg' or 'token'."
        )
    of_name = next((act for mark, act in OF_NAME.items() if re.search(mark, name)), None)
    return arguments | _activation(model_args.get("act_layer", of_name))


def _timm_size(config: Arguments, pretrained_cfg: Arguments) -> tuple[int, int] | None:
    """Return the size of the images whose positions are in the file."""
    model_args = config.get("model_args")
    if isinstance(model_args, dict) and (size := _pair(model_args.get("img_size"))):
        return size
    input_size = pretrained_cfg.get("input_size")
    return _pair(input_size[1:]) if isinstance(input_size, list) else None


def _activation(name: Any) -> Arguments:
    known = isinstance(name, str) and name in ACTIVATIONS
    if name is not None and not known:
        warnings.warn(
            f"config.json has the activation {name!r}, which is not known: set it yourself, "
            "keras_vit.load(file, activation=...).",
            stacklevel=2,
        )
    return {"activation": ACTIVATIONS[name]} if known else {}


def _huggingface_normalization(processor: Arguments) -> tuple[Any, Any]:
    if processor.get("do_normalize") is False:
        return [0.0] * 3, [1.0] * 3
    return processor.get("image_mean"), processor.get("image_std")


def _normalization(path: Path, mean: Any, std: Any) -> Arguments:
    if not mean or not std:
        return {}
    matching = [
        name
        for name, (ours, ours_std) in NORMALIZATIONS.items()
        if (_of_channels(ours, mean), _of_channels(ours_std, std)) == (mean, std)
    ]
    if not matching:
        warnings.warn(
            f"{path} is for pixels of mean {mean} and standard deviation {std}, which no layer "
            "of this package computes: the model has include_preprocessing=False. Normalize "
            "the images yourself.",
            stacklevel=3,
        )
        return {"include_preprocessing": False}
    return {"include_preprocessing": True, "normalization": matching[0]}


def _of_channels(values: tuple[float, ...], like: Any) -> list[float]:
    channels = len(like) if isinstance(like, list) else 0
    return list(values) * (channels if len(values) == 1 else 1)


def _warn_of_preparation(path: Path, package: str) -> None:
    name = {"huggingface": "preprocessor_config.json", "timm": "config.json"}[package]
    warnings.warn(
        f"{name} beside {path} prepares images in a way that this package does not have: the model "
        "keeps the preparation that is usual for such weights. Accepted: a resize by Lanczos, "
        "bicubic or bilinear interpolation, with or without a central crop. Set "
        "model.eval_transform yourself.",
        stacklevel=3,
    )


def _names(labels: Any) -> tuple[str, ...] | None:
    if isinstance(labels, dict):
        labels = [labels.get(str(i)) for i in range(len(labels))]
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        return None
    # What transformers writes for classes without names.
    return None if labels[:1] in ([], ["LABEL_0"]) else tuple(labels)


def _pair(size: Any) -> tuple[int, int] | None:
    size = [size, size] if isinstance(size, int) else size
    is_pair = isinstance(size, list) and len(size) == 2 and all(type(s) is int for s in size)
    return (size[0], size[1]) if is_pair and 0 < min(size) <= max(size) < 2**13 else None


def _json(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file():
            return {}
        if (size := path.stat().st_size) > LONGEST_CONFIG:
            raise CheckpointError(
                f"{path} has {size:,} bytes; at most {LONGEST_CONFIG:,} are accepted. Shorten the "
                "names of its classes, or move it away to read the weights without it."
            )
        content = json.loads(path.read_text("utf-8"))
    except CheckpointError:
        raise
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
