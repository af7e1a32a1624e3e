"""What was trained on what, as a reader elsewhere needs it: the model, its weights, data, paths."""

import shlex
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit import data
from keras_vit._base.errors import counted
from keras_vit.data.sources.splits import IndexedSplit
from keras_vit.models.config import ModelConfig
from keras_vit.models.families import FAMILIES, named_model
from keras_vit.models.image_model import ImageModel
from keras_vit.models.variants import size_arguments
from keras_vit.tasks import Task
from keras_vit.weights.released import RELEASED

_SIZES = (
    *("patch_size", "resnet", "conv_stem", "hidden_dim", "depth", "num_heads", "mlp_dim"),
    *("tokens_mlp_dim", "channels_mlp_dim", "depths", "width"),
)
# Shown elsewhere, or not of the architecture; the grid of positions follows from the image size.
_OTHERS = {field.name for field in fields(ModelConfig)} | {"position_grid"}
_PREFIXES = ("records:", "tfds:")


def describe_model(model: ImageModel) -> str:
    """Return the name of a model's sizes, or its class, and its arguments that are not the default.

    >>> import keras_vit
    >>> describe_model(keras_vit.create("ViT-Ti/16", input_shape=(32, 32, 3), pooling="map"))
    'ViT-Ti/16 (pooling map; class_token no)'
    """
    kind = model.config_class
    names = {field.name: None for field in fields(kind) if field.name not in _OTHERS}
    arguments = [*filter(names.__contains__, _SIZES), *(n for n in names if n not in _SIZES)]
    title, base = _named_like(model) or (type(model).__name__, kind())
    shown = {
        name: value
        for name in arguments
        if (value := getattr(model, name)) != getattr(base, name)
        # Of a model without a name, all sizes.
        or (title == type(model).__name__ and name in _SIZES and value is not None)
    }
    inside = "; ".join(f"{name} {as_text(value)}" for name, value in shown.items())
    return f"{title} ({inside})" if inside else title


def _named_like(model: ImageModel) -> tuple[str, ModelConfig] | None:
    """Return the name whose sizes these are, and the configuration that it stands for."""
    kind = model.config_class
    for family in FAMILIES.values():
        for name in family.names if family.model.config_class is kind else ():
            named = kind(**size_arguments(name))
            sizes = [size for size in _SIZES if hasattr(named, size)]
            if all(getattr(named, size) == getattr(model, size) for size in sizes):
                return name, named
    return None


def as_text(value: Any) -> str:
    """Return a value of an option as a reader writes it, without Python's punctuation.

    >>> [as_text(value) for value in (0.002, True, (4, 4), ((32, 1), (64, 2)))]
    ['0.002', 'yes', '4', '32 x 1, 64 x 2']
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if not isinstance(value, tuple | list):
        return str(value)
    if len(value) == 2 and value[0] == value[1]:
        return as_text(value[0])
    nested = any(isinstance(part, tuple | list) for part in value)
    parts = [" x ".join(map(as_text, p)) if nested else as_text(p) for p in value]
    return ", ".join(parts)


def describe_weights(model: str | None, weights: str | None) -> str:
    """Describe the weights training started from, with license and address if released."""
    if weights is None:
        return "random"
    name = weights
    if ":" not in weights and model is not None:
        name = f"{named_model(model).variant}:{weights}"
    for row in RELEASED:
        if row.name.lower() == name.lower():
            return f"{row.name}, {row.license}, {row.url}"
    return f"{short_path(weights)} (its license is not known here)"


def describe_targets(split: data.Split) -> str:
    """Return how many images a split has, with its classes and their sizes, or number ranges.

    Labels that are in records are not read for it.
    """
    images, task = counted(len(split), "image"), split.task
    if not isinstance(split, IndexedSplit) or not len(split):
        return images
    targets = split.labels()
    counts = task.counts(task.to_targets(targets))
    if counts is None:
        values = np.asarray(task.to_targets(targets)).reshape(len(targets), -1)[:, :3]
        units = getattr(task, "units", ())
        ranges = zip(task.shown_names, units, values.min(0), values.max(0), strict=False)
        parts = [f"{n} from {low:.4g} to {high:.4g} {u}".rstrip() for n, u, low, high in ranges]
        return f"{images}: {', '.join(parts)}"
    present = counts[counts > 0].astype(int)
    all_of_them = "" if len(present) == task.size else f"{len(present):,} of "
    names = counted(task.size, *task.nouns)
    low, high = (present.min(), present.max()) if len(present) else (0, 0)
    each = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{images}: {all_of_them}{names}, {each} images each"


def describe_task(task: Task) -> str:
    """Return the task and what it is of: the first names, and how many there are.

    >>> from keras_vit.tasks import Classification
    >>> describe_task(Classification(("cat", "dog")))
    'classification into 2 classes: cat, dog'
    """
    joint = {"classification": "into", "multilabel": "with any of", "ordinal": "into"}
    counts = counted(task.size, *task.nouns)
    names = ", ".join(task.shown_names[:20])
    more = f" and {task.size - 20:,} more" if task.size > 20 else ""
    of = joint.get(task.kind, "of")
    return f"{task.kind} {of} {counts}: {names}{more}"


def short_path(text: str, beside: str = "") -> str:
    """Return a path without the folders of this computer: from the working folder on, or its end.

    Args:
        text: A path, a pattern, or `records:` and one; relative ones, and other texts, stay.
        beside: What is in the folder of this path, such as the data's, is shown from there on.

    >>> short_path("/home/ada/photos/labels.csv", beside="/home/ada/photos")
    'photos/labels.csv'
    """
    prefix = next((p for p in _PREFIXES if text.startswith(p)), "")
    path = Path(text.removeprefix(prefix))
    if not path.is_absolute():
        return text
    known = [Path.cwd()]
    if beside:
        known.append(Path(beside.removeprefix("records:")).absolute().parent)
    for folder in known:
        if folder.parts[1:] and path.is_relative_to(folder):  # all is relative to the root
            return prefix + path.relative_to(folder).as_posix()
    return prefix + path.name


def short_command(command: str, beside: str = "") -> str:
    """Return a command of a shell with `short_path` of each of its words."""
    words = []
    for word in shlex.split(command):
        option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        words.append(f"{option}{equals}{short_path(value, beside)}")
    return shlex.join(words)


def set_options(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, str]:
    """Return the options that differ from their defaults, as text."""

    def plain(value: Any) -> Any:  # lists are what JSON makes of tuples
        return tuple(map(plain, value)) if isinstance(value, list | tuple) else value

    return {
        name: as_text(value)
        for name, value in options.items()
        if name in defaults and plain(value) != plain(defaults[name])
    }
