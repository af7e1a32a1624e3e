"""What comes out of a pipeline: as arrays, as gray levels, and behind a stop."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from keras_vit.data import pipeline


def levels(batches: Iterable[Any]) -> list[int]:
    return [round(float(level)) for images, _ in batches for level in images[:, 0, 0, 0]]


def passes(batches: Any, count: int = 1) -> list[np.ndarray]:
    """The images of `count` passes over a data set, labels appended as one more value."""
    return [
        np.concatenate([np.c_[x.reshape(len(x), -1), y] for x, y in batches.as_numpy_iterator()])
        for _ in range(count)
    ]


def check_stopped_run(split: Any, batch: int, steps: int, starts: Any, **options: Any) -> None:
    """Training that goes on behind a step has the batches of one that was not stopped."""

    def stream(start: int) -> np.ndarray:
        batches = pipeline(split, 8, batch, True, repeat=True, start_step=start, **options)
        assert batches.cardinality() == -1  # it never ends
        return passes(batches.take(steps - start))[0]

    whole = stream(0)
    for start in starts:
        keras.utils.set_random_seed(start)  # the global seed does not matter
        np.testing.assert_array_equal(stream(start), whole[batch * start :])
