"""What `save_weights` notes in a file about the model, and what is believed of it on reading.

Layouts hold tensors only. A reader of ours finds the rest in the archive's comment (`.npz`) or the
metadata (`.safetensors`), where every other program passes it by.
"""

from dataclasses import replace
from typing import Any

from keras_vit.checkpoints.class_names import class_names, set_of_names
from keras_vit.checkpoints.layout import Checkpoint

# Arguments of the model that no tensor tells -> what they may be.
ARGUMENTS: dict[str, tuple[type, ...]] = {
    "activation": (str,),
    "norm_epsilon": (float,),
    "include_preprocessing": (bool, str),
    "num_heads": (int,),
    "pooling": (str, type(None)),
    "position_embedding": (str,),
}


def notes_of(model: Any) -> dict[str, Any]:
    """The notes on a model, for `with_notes` to read."""
    names, config = model.class_names, model.get_config()
    return {
        "arguments": {name: config[name] for name in ARGUMENTS if name in config},
        "image_size": _image_size(model),
        "grid": list(model.position_grid) if "position_grid" in config else None,
        # A set that the package has is told by name: the comment of a .npz is short.
        "class_names": set_of_names(names) or (None if names is None else list(names)),
        "evaluation": model.eval_transform,
    }


def with_notes(checkpoint: Checkpoint, notes: dict[str, Any]) -> Checkpoint:
    """The checkpoint with what its notes say; whatever is not of the right kind is left out."""
    given = notes.get("arguments")
    arguments = {
        name: given[name]
        for name, kinds in ARGUMENTS.items()
        if isinstance(given, dict) and name in given and isinstance(given[name], kinds)
    }
    size = _pair(notes.get("image_size"))
    if size:
        arguments["image_size"] = size
    if isinstance(notes.get("evaluation"), dict):
        arguments["evaluation"] = notes["evaluation"]
    names = notes.get("class_names")
    if isinstance(names, str):
        names = class_names(names)
    is_list = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return replace(
        checkpoint,
        arguments={**checkpoint.arguments, **arguments},
        grid=_pair(notes.get("grid")) or checkpoint.grid,
        class_names=tuple(names) if is_list else checkpoint.class_names,  # type: ignore[arg-type]
    )


def _image_size(model: Any) -> list[int] | None:
    axes = (0, 1) if model.data_format == "channels_last" else (1, 2)
    sides = [model.input_shape[1:][axis] for axis in axes]
    if None not in sides:
        return sides
    if "position_grid" not in model.get_config():
        return None
    # Images of any size: the one that the positions are for.
    return [g * p for g, p in zip(model.position_grid, model.patch_pixels, strict=True)]


def _pair(value: Any) -> tuple[int, int] | None:
    is_pair = isinstance(value, list) and len(value) == 2
    if is_pair and all(type(side) is int and 0 < side < 2**16 for side in value):
        return value[0], value[1]
    return None
