"""What the small files beside the weights say: `config.json` and `preprocessor_config.json`.

Hugging Face and timm keep there what no tensor tells. Both are optional, and neither is trusted
further than a handful of numbers and the names of classes.
"""

import json
import warnings
from pathlib import Path
from typing import Any

# Enough for the names of 21,843 classes.
LARGEST = 2**22
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
# Mean and deviation -> `include_preprocessing`.
NORMALISATIONS: dict[tuple[float, ...], bool | str] = {
    (0.5, 0.5, 0.5, 0.5, 0.5, 0.5): True,
    (0.485, 0.456, 0.406, 0.229, 0.224, 0.225): "imagenet",
}


def read_neighbours(path: Path, hidden_dim: int) -> tuple[dict[str, Any], tuple[str, ...] | None]:
    """Arguments of the model, and the names of its classes, from the files beside `path`."""
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
        arguments["include_preprocessing"] = _normalisation(path, mean, std)
    labels = config.get("id2label") or config.get("label_names")
    return arguments, _names(labels)


def _normalisation(path: Path, mean: Any, std: Any) -> bool | str:
    found = NORMALISATIONS.get((*mean, *std))
    if found is None:
        warnings.warn(
            f"{path} is for pixels of mean {mean} and deviation {std}, which no layer of this "
            "package brings about: the model has include_preprocessing=False, normalise yourself.",
            stacklevel=2,
        )
        return False
    return found


def _names(labels: Any) -> tuple[str, ...] | None:
    if isinstance(labels, dict):
        labels = [labels.get(str(i)) for i in range(len(labels))]
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        return None
    # What transformers writes where nobody named the classes.
    return None if labels[:1] in ([], ["LABEL_0"]) else tuple(labels)


def _json(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            return {}
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
