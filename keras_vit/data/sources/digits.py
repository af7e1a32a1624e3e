"""scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, which need not be downloaded."""

from typing import Any

import numpy as np

from keras_vit.data._imports import require
from keras_vit.data.sources.array_splits import ArraySplit
from keras_vit.data.sources.splits import Splits

HALVES = "digits/half"


def is_digits(name: str, labels: Any = None) -> bool:
    """Return whether a source is these digits, and not a folder that begins like their name."""
    return labels is None and name in ("digits", HALVES)


def load_digits(
    source: str, val_fraction: float, seed: int, reader: str, whole: bool = False
) -> Splits:
    """ "digits": a stratified split. "digits/half": the halves of scikit-learn's own example."""
    datasets = require("sklearn.datasets", "pip install scikit-learn")
    selection = require("sklearn.model_selection", "pip install scikit-learn")
    pixels, labels = datasets.load_digits(return_X_y=True)
    images = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)  # stored as 0..16
    options = (
        {"test_size": 0.5, "shuffle": False}
        if source == HALVES
        else {"test_size": val_fraction, "stratify": labels, "random_state": seed}
    )
    everything = np.arange(len(labels))
    train, val = selection.train_test_split(everything, **options)
    is_drawn = source != HALVES
    places = {"all": everything} if whole and is_drawn else {"train": train, "val": val}
    names = tuple(str(digit) for digit in range(10))
    parts = {
        name: ArraySplit(name, names, images[index], labels[index], "digits", reader)
        for name, index in places.items()
    }
    return Splits(source, names, parts)
