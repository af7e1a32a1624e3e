"""What is exported in these tests: small models, and their files by format."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import data
from keras_vit.exporting import FORMATS, Contract, ExportedModel, load_exported
from keras_vit.exporting.exported import read_contract
from keras_vit.models.answers import NOVELTY
from keras_vit.tasks import Classification, Segmentation, Task
from tests.bank import outputs, pixels
from tests.models.test_common import KINDS, build
from tests.models.test_task import TASKS, vit

# Formats of which a compiler takes tens of seconds for the smallest model.
LONG = ("executorch", "coreml")
BY_HAND = (*LONG, "openvino")  # where a test does not say otherwise
PATHS = {name: f"model{row.suffix or ''}" for name, row in FORMATS.items()}
IMAGES = pixels(8, 32, 32, 3)
NAMES = ("ant", "bee", "\udcff", "a\nb", "elk")
DIGITS = Classification(tuple("0123456789"))
# Those of the common checks, and what they combine otherwise.
EVERY_KIND: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (kind, {}) for kind in KINDS if kind != "all_tokens"},
    "sincos2d": ("token", {"position_embedding": "sincos2d"}),
    "no_positions": ("token", {"position_embedding": "none"}),
    "learned_2d": ("token", {"position_embedding": "learned_2d"}),
    "merging": ("token", {"token_merging": 4}),
    "merging_gap": ("gap", {"token_merging": 4}),
    "merging_map": ("map", {"token_merging": 4}),
    "bit_v1": ("bit", {"version": 1}),
    "not_square": ("token", {"input_shape": (32, 48, 3), "position_embedding": "sincos2d"}),
    "padded": ("mixer", {"input_shape": (36, 32, 3)}),
    "two_channels": ("token", {"input_shape": (32, 32, 2)}),
    "gray": ("token", {"input_shape": (32, 32, 1)}),
    "float16": ("token", {"dtype": "mixed_float16"}),
    "softmax": ("token", {"classifier_activation": "softmax"}),
}
MODELS: dict[str, Callable[[], Any]] = {
    **{kind: partial(build, base, **own) for kind, (base, own) in EVERY_KIND.items()},
    **{kind: partial(vit, task=task) for kind, task in TASKS.items()},
    "dpt": lambda: build("token", task=Segmentation(size=5), map_head={"width": 6}),
    "eomt": lambda: build("token", task=Segmentation(size=5), map_head="eomt"),
    "large": lambda: build("token", hidden_dim=256, mlp_dim=1024),
    "any size": lambda: build("token", depth=1, input_shape=(None, None, 3), position_grid=(4, 4)),
}


class Artifacts:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, Any] = {}

    def model(self, name: str, make: Callable[[], Any] | None = None) -> Any:
        if name not in self._made:
            self._made[name] = (make or MODELS[name])()
        return self._made[name]

    def path(self, name: str, format: str = "tf_saved_model", **options: Any) -> Path:
        key = f"{name} {format} {sorted(options.items())}"
        if key not in self._made:
            file = self._folder / str(len(self._made)) / PATHS[format]
            self._made[key] = keras_vit.export(self.model(name), file, format, **options)
        return self._made[key]

    def file(self, name: str, format: str = "tf_saved_model", **options: Any) -> ExportedModel:
        return opened(self.path(name, format, **options))


def opened(path: Path) -> ExportedModel:
    """A file in its engine; one whose engine is not on this system, by what checks it there."""
    about = read_contract(path)
    if FORMATS[about.format].runs_here:
        return load_exported(path)
    names = [about.outputs[0], *([NOVELTY] if about.novelty else [])]
    return ExportedModel(
        path, about, FORMATS[about.format].implementation().runner(path, names, "float32")
    )


def exported(to: Path, model: Any, format: str = "tf_saved_model", **more: Any) -> ExportedModel:
    return opened(keras_vit.export(model, to / PATHS[format], format, **more))


def formats(*quick: str, of: Iterable[str] = FORMATS, rest: Any = None) -> Any:
    """A test's formats, each on the backend that writes it; all but the quick ones are thorough."""
    return pytest.mark.parametrize("format", [case(f, quick=f in quick, rest=rest) for f in of])


def pairs(formats: Any, kinds: Any, *quick: tuple[str, str], stood_for: Any = ()) -> Any:
    """A test's kinds in every format: quick, thorough in turns, or slow, as those stood for."""
    turns, thorough, slow = min(len(FORMATS), len(kinds)), pytest.mark.thorough, pytest.mark.slow
    others = [thorough if k not in stood_for else slow for k in kinds]
    rows = [
        case(f, k, quick=(f, k) in quick, rest=others[i] if i % turns == j % turns else slow)
        for i, k in enumerate(kinds)
        for j, f in enumerate(formats)
        if not (f in LONG and k.startswith("merging"))  # refused: these cannot sort
        if (f, k) != ("executorch", "gray")  # refused: test_formats.py
    ]
    return pytest.mark.parametrize(("format", "kind"), rows)


def case(format: str, *others: Any, quick: bool, rest: Any = None, long: Any = None) -> Any:
    rest = long or pytest.mark.slow if format in BY_HAND else rest or pytest.mark.thorough
    marks = [pytest.mark.backends(FORMATS[format].backend), *([] if quick else [rest])]
    return pytest.param(format, *others, marks=marks)


def contract(task: Task = DIGITS, **changes: Any) -> Contract:
    sizes = {"image_size": (8, 8), "channels": 1, "top_k": 5, "max_pixels": 64}
    return Contract(**{"format": "onnx", "task": task, **sizes, **changes})


def softmax(logits: Any) -> np.ndarray:
    return keras.ops.convert_to_numpy(keras.ops.softmax(logits))


def probabilities(model: Any, images: np.ndarray) -> np.ndarray:
    return softmax(outputs(model, images))


def evaluation_images(files: Sequence[Path], size: tuple[int, int]) -> np.ndarray:
    """What the evaluation's pipeline makes of files: `predict` has another decoder without it."""
    import tensorflow as tf

    contents = (tf.constant(file.read_bytes()) for file in files)
    return np.stack([data.evaluation_image(data.decode_image(c), size).numpy() for c in contents])
