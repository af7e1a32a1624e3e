"""What `save_weights` writes into a file about the model, and what is believed of it on reading.

Layouts hold tensors only. The rest stands in the archive's comment (`.npz`) or the header's
metadata (`.safetensors`), which every other program ignores.
"""

from contextlib import suppress
from dataclasses import replace
from typing import Any

from keras_vit import tasks
from keras_vit.data.eval_transform import EvalTransform
from keras_vit.data.seen_images import SeenImages
from keras_vit.models.image_model import ImageModel
from keras_vit.weights.canonical_names import OPTIONS
from keras_vit.weights.class_names import class_names, set_of_names
from keras_vit.weights.tables.layout import Checkpoint

# Arguments of the model that no tensor shows -> their types.
ARGUMENTS = {option.name: option.types for option in OPTIONS if option.types}


def model_metadata(model: ImageModel) -> dict[str, Any]:
    """Return what to write about a model, for `with_metadata` to read."""
    names, config = model.class_names, model.get_config()
    task = None if config.get("task_from") == "head" else config["task"]  # as any reader would
    return {
        "arguments": {name: config[name] for name in ARGUMENTS if name in config},
        "image_size": stated_image_size(model),
        "grid": list(model.position_grid) if "position_grid" in config else None,
        # ImageNet's classes go by the name of the set: the comment of a .npz is short.
        "class_names": set_of_names(names) or (None if names is None else list(names)),
        "task": task and {key: value for key, value in task.items() if key != "names"},
        "evaluation": model.eval_transform.to_dict(),
        # 16 KiB, as the comment of a .npz is short.
        "seen_images": model.seen_images and model.seen_images.to_dict(most=2000),
    }


def with_metadata(checkpoint: Checkpoint, metadata: dict[str, Any]) -> Checkpoint:
    """Return the checkpoint with its metadata, leaving out values of the wrong type."""
    written = metadata.get("arguments")
    arguments = {
        name: written[name]
        for name, types in ARGUMENTS.items()
        if isinstance(written, dict) and name in written and isinstance(written[name], types)
    }
    size = _pair(metadata.get("image_size"))
    if size:
        arguments["image_size"] = size
    if isinstance(metadata.get("evaluation"), dict):
        with suppress(TypeError, ValueError):  # of another version, or damaged: the default stays
            arguments["evaluation"] = EvalTransform.of(metadata["evaluation"])
    arguments["seen_images"] = SeenImages.from_dict(metadata.get("seen_images"))
    names = metadata.get("class_names")
    if isinstance(names, str):
        names = class_names(names)
    is_list = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    if isinstance(metadata.get("task"), dict):
        with suppress(TypeError, ValueError):
            arguments["task"] = tasks.get(metadata["task"])
    return replace(
        checkpoint,
        arguments={**checkpoint.arguments, **arguments},
        grid=_pair(metadata.get("grid")) or checkpoint.grid,
        class_names=tuple(names) if is_list else checkpoint.class_names,  # type: ignore[arg-type]
    )


def stated_image_size(model: ImageModel) -> list[int] | None:
    """Return (height, width) of the images, or the size that the positions are for if any fits."""
    height, width = model.image_size
    if height is not None and width is not None:
        return [height, width]
    if "position_grid" not in model.get_config():
        return None
    # Images of any size: the one that the positions are for.
    return [g * p for g, p in zip(model.position_grid, model.patch_pixels, strict=True)]


def _pair(value: Any) -> tuple[int, int] | None:
    is_pair = isinstance(value, list) and len(value) == 2
    if is_pair and all(type(side) is int and 0 < side < 2**16 for side in value):
        return value[0], value[1]
    return None
