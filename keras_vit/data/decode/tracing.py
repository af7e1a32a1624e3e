"""Functions of an encoded image that TensorFlow traces once, in whichever graph they are called.

To trace the decoder takes a second, and a run makes a dozen graphs with it: of the check of its
files, and of each pipeline for images and for the images of a batch that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache, wraps
from typing import Any

from keras_vit.data._imports import tf


def traced_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function(contents, *static)` as one call in a graph; traced for each `static` by itself."""

    @cache
    def traced(*static: Hashable) -> Any:
        signature = [tf.TensorSpec((), tf.string)]
        return tf.function(
            lambda contents: function(contents, *static),
            input_signature=signature,
            autograph=False,
        )

    @wraps(function)
    def call(contents: tf.Tensor, *static: Hashable) -> Any:
        return traced(*static)(contents)

    return call
