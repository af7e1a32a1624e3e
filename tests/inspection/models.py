"""Small models of every kind whose insides differ, and images for them."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.inspection import attention_maps
from keras_vit.models import ImageModel
from keras_vit_cli.inspect.inspect_files import inspect_files as of_options
from keras_vit_cli.options.inspect import InspectOptions
from tests import bank

# Patches and grid are not square: a transposed axis cannot hide.
SHAPE = (32, 12, 3)
SIZES: dict[str, Any] = {"patch_size": (8, 4), "hidden_dim": 16, "num_heads": 2, "mlp_dim": 32}
KINDS: dict[str, dict[str, Any]] = {
    "token": {},
    "gap": {"pooling": "gap", "position_embedding": "sincos2d"},
    "map": {"pooling": "map", "position_embedding": "learned_2d"},
    "registers": {"position_embedding": "relative", "num_registers": 3},
    "gap_registers": {"pooling": "gap", "num_registers": 1, "position_embedding": "none"},
    "all_tokens": {"pooling": None, "class_token": False, "num_classes": 0},
    "channels_first": {"data_format": "channels_first", "input_shape": (3, 32, 12)},
    "any_size": {"input_shape": (None, None, 3), "position_grid": (3, 2)},
}


def untrained(**changes: Any) -> ImageModel:
    return bank.fresh(filled=False, **{**SIZES, "input_shape": SHAPE, **changes})


def randomized(model: Any) -> Any:
    bank.fill(model, seed=1, scale=0.3)
    return model


@cache
def model_of(kind: str) -> ImageModel:
    return randomized(untrained(**KINDS[kind]))


@cache
def maps_of(kind: str) -> np.ndarray:
    """The attention of the model on `images_for(kind)`, `(3, depth, heads, tokens, tokens)`."""
    return attention_maps(model_of(kind), images_for(kind))


def images_for(kind: str) -> np.ndarray:
    images = bank.pixels(3, *SHAPE, seed=2)
    return np.moveaxis(images, -1, 1) if kind == "channels_first" else images


def inspect_files(
    model: Any, files: Sequence[Path], out: Path, title: str | None = None, **options: Any
) -> dict[Path, str]:
    options |= {"model": Path("m"), "files": tuple(files), "out": out}
    return of_options(model, InspectOptions(**options), title)
