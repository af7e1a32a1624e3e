"""What must agree for a checkpoint to belong to a run, and the error that says what does not."""

import json
import re
from collections.abc import Iterator
from typing import Any

import keras

from keras_vit.training.state_file import StateFile


class OtherRunError(ValueError):
    """The checkpoints in a folder belong to another model, optimizer, recipe or backend.

    Example:

    >>> from keras_vit.training.run_identity import OtherRunError
    >>> issubclass(OtherRunError, ValueError)
    True
    """


def identity(model: keras.Model, epochs: int, steps_per_epoch: int, recipe: Any) -> dict[str, Any]:
    """What must agree for a checkpoint to belong to a run, as plain JSON.

    Example:

    >>> import keras
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> identity(model, 2, 10, {"seed": 0})["loss"]
    'mse'
    """

    def config(thing: Any) -> Any:
        try:
            return [type(thing).__name__, thing.get_config()]
        except (AttributeError, NotImplementedError):  # a name, a function, a subclassed model
            return getattr(thing, "__name__", thing if isinstance(thing, str) else None)

    parts = {"model": model, "optimizer": model.optimizer, "loss": model.loss}
    text = _json({name: config(part) for name, part in parts.items()})
    return {
        "checkpoint_version": 1,
        "backend": keras.backend.backend(),
        "epochs": epochs,
        "steps_per_epoch": steps_per_epoch,
        "recipe": json.loads(_json(recipe)),
        # Keras numbers names through the process: dense_1 here may be dense_7 there.
        **json.loads(_without_counters(text)),
    }


def _json(value: Any) -> str:
    return json.dumps(value, default=lambda thing: re.sub(" at 0x.*", "", repr(thing)))


def _without_counters(text: str) -> str:
    return re.sub(r"_\d+(?=_|\b)", "", text)


def check_identity(found: StateFile, now: dict[str, Any]) -> None:
    differences = list(_differences(found.notes.get("identity"), now))
    if differences:
        raise OtherRunError(
            f"{found.path} is of another run: {'; '.join(differences[:3])}. "
            "Give the same as then, or another folder, or delete its checkpoints."
        )


def _differences(then: Any, now: Any, name: str = "") -> Iterator[str]:
    if isinstance(then, dict) and isinstance(now, dict):
        for key in [*then, *(key for key in now if key not in then)]:
            yield from _differences(then.get(key), now.get(key), f"{name}.{key}".lstrip("."))
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for i, pair in enumerate(zip(then, now, strict=True)):
            yield from _differences(*pair, f"{name}[{i}]")
    elif then != now:
        yield f"{name} was {then!r:.80}, is {now!r:.80}"


def check_variables(found: StateFile, variables: dict[str, Any]) -> None:
    def described(name: str, shape: Any, dtype: str) -> str:
        kind, _, path = name.split("/", 2)
        # An optimizer's scope depends on who made its variables: `build`, or the first step.
        path = _without_counters(path.split("/")[-1] if kind == "optimizer" else path)
        return f"{path} {tuple(shape)} {dtype}"

    then = {
        place_of(name): described(name, place.shape, place.dtype.name)
        for name, place in found.places.items()
        if name.split("/")[0] in ("trainable", "fixed", "optimizer", "metric")
    }
    now = {
        place_of(name): described(name, v.shape, keras.backend.standardize_dtype(v.dtype))
        for name, v in variables.items()
    }
    differences = list(_differences(then, now))
    if differences:
        raise OtherRunError(
            f"{found.path} holds the variables of another model or optimizer: "
            f"{'; '.join(differences[:3])}. Give the same as then, or another folder."
        )


def place_of(name: str) -> str:
    """`kind/number` of `kind/number/path`: the path counts through the process, as in `adam_1`."""
    return "/".join(name.split("/")[:2])
