"""What must agree for a checkpoint to belong to a run, and the error that lists the differences."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

from keras_vit.training.state_file import StateFile


class RunMismatchError(ValueError):
    """The checkpoints in a folder belong to another model, optimizer, recipe or backend."""


def identity(model: keras.Model, epochs: int, steps_per_epoch: int, recipe: Any) -> dict[str, Any]:
    """Return what must agree for a checkpoint to belong to a run, as plain JSON."""

    def config(part: Any) -> Any:
        try:
            values = part.get_config()
            for name in ("targets_seen", "seen_images"):  # of the training to be continued
                values.pop(name, None)
            return [type(part).__name__, values]
        except (AttributeError, NotImplementedError):  # a name, a function, a subclassed model
            return getattr(part, "__name__", part if isinstance(part, str) else None)

    parts = {"model": model, "optimizer": model.optimizer, "loss": model.loss}
    configs = to_json({name: config(part) for name, part in parts.items()})
    return {
        "checkpoint_version": 2,
        "backend": keras.backend.backend(),
        "epochs": epochs,
        "steps_per_epoch": steps_per_epoch,
        "recipe": json.loads(to_json(recipe)),
        **json.loads(_without_counters(configs)),
    }


def check_identity(path: Path, stored: Any, current: dict[str, Any]) -> None:
    """Raises a RunMismatchError where what was stored at a path is of another run."""
    if mismatches := "; ".join(list(differences(stored, current))[:3]):
        also = "images or labels have changed since, " if "images_sha256" in mismatches else ""
        raise RunMismatchError(
            f"{path} belongs to another run: {also}{mismatches}. "
            "Give the same values, or another folder, or delete its checkpoints."
        )


def check_variables(checkpoint: StateFile, variables: dict[str, Any]) -> None:
    """Raises a RunMismatchError where shapes or dtypes are not those of the model's variables."""

    def describe(name: str, shape: Any, dtype: str) -> str:
        kind, _, path = name.split("/", 2)
        # An optimizer's scope depends on what made its variables: `build`, or the first step.
        path = _without_counters(path.split("/")[-1] if kind == "optimizer" else path)
        return f"{path} {tuple(shape)} {dtype}"

    stored = {
        variable_key(name): describe(name, shape, dtype)
        for name, (dtype, shape) in checkpoint.arrays.items()
        if not name.startswith("state/")
    }
    current = {
        variable_key(name): describe(name, v.shape, keras.backend.standardize_dtype(v.dtype))
        for name, v in variables.items()
    }
    mismatches = list(differences(stored, current))
    if mismatches:
        raise RunMismatchError(
            f"{checkpoint.path} holds the variables of another model or optimizer: "
            f"{'; '.join(mismatches[:3])}. Give the same model, or another folder."
        )


def variable_key(name: str) -> str:
    """`kind/number` of `kind/number/path`, whose path has counters, such as `adam_1`."""
    return "/".join(name.split("/")[:2])


def to_json(value: Any) -> str:
    """Return a value as JSON, of other objects the text that `repr` makes, without addresses."""
    return json.dumps(value, default=lambda other: re.sub(" at 0x.*", "", repr(other)))


def _without_counters(text: str) -> str:
    """Remove counters from names, which Keras counts per process: dense_1 may become dense_7."""
    return re.sub(r"_\d+(?=_|\b)", "", text)


def differences(stored: Any, current: Any, name: str = "") -> Iterator[str]:
    """Yield the values in which two trees of plain JSON differ, one sentence each.

    Example:

    >>> list(differences({"seed": 0, "epochs": 5}, {"seed": 1, "epochs": 5}))
    ['seed was 0, is 1']
    """
    if isinstance(stored, dict) and isinstance(current, dict):
        for key in dict.fromkeys([*stored, *current]):
            yield from differences(stored.get(key), current.get(key), f"{name}.{key}".lstrip("."))
    elif isinstance(stored, list) and isinstance(current, list) and len(stored) == len(current):
        for i, pair in enumerate(zip(stored, current, strict=True)):
            yield from differences(*pair, f"{name}[{i}]")
    elif stored != current:
        yield f"{name} was {stored!r:.80}, is {current!r:.80}"
