"""Files of small models, models of other packages, and the comparison of two models."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit.weights import CheckpointError, save_weights
from keras_vit.weights.variables import canonical_values
from tests import backend
from tests.bank import small

# As in `tests.bank.SIZES`, in the words of transformers.
THEIR_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
THEIR_SIZES |= {"intermediate_size": 48, "image_size": 32, "patch_size": 8}
refused = partial(backend.refused, error=CheckpointError)


def suffix(layout: str) -> str:
    return ".npz" if layout in ("google", "big_vision") else ".safetensors"


def saved(folder: Path, layout: str = "google", **changes: Any) -> Path:
    file = folder / f"model{suffix(layout)}"
    file.unlink(missing_ok=True)
    save_weights(small(**changes), file, layout=layout)
    return file


def stripped(file: Path) -> Path:
    from safetensors.numpy import load_file, save_file

    save_file(load_file(file), file)
    return file


def assert_same_weights(model: keras.Model, expected: keras.Model) -> None:
    assert model is not expected, "the bank gave one model twice: take a `fresh` one"
    np.testing.assert_equal(canonical_values(model), canonical_values(expected))


def their_vit(**changes: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(**{**THEIR_SIZES, **changes})
    return transformers.ViTForImageClassification(config).eval()


def of_torch(model: Any, images: np.ndarray, *names: str, **call: Any) -> np.ndarray:
    """The first named output, or logits, of another package's model for channels-last images."""
    import torch

    with torch.no_grad():
        found = model(torch.as_tensor(images.transpose(0, 3, 1, 2).copy()), **call)
    if torch.is_tensor(found):
        return found.numpy()
    values = (getattr(found, name, None) for name in names or ("logits",))
    return next(value for value in values if value is not None).numpy()


def flips(whole: bytes, places: Any, random: np.random.Generator) -> Iterator[bytes]:
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << random.integers(8)
        yield bytes(flipped)


@contextmanager
def little_memory(file: Path, times: int = 2, slack: int = 1_000_000) -> Iterator[None]:
    """Checks that a block allocates little beside the size of a file, and Python's own objects."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] <= times * file.stat().st_size + slack
    finally:
        tracemalloc.stop()
