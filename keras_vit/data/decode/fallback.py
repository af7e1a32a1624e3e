"""Catching the error of one image inside a TensorFlow graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras_vit.data._imports import tf


def map_or_else(
    function: Callable[..., Any], otherwise: Callable[..., Any], *arguments: tf.Tensor
) -> Any:
    """`function(*arguments)`, or `otherwise(*arguments)` where that fails as the graph runs.

    A graph cannot catch an error, but a data set can drop an element that fails: the arguments
    become a data set of one element, followed by what `otherwise` makes of it. Costs about 0.1 ms.

    What runs beside an operation that fails is cancelled. A branch, a loop or a function may report
    that before the error itself is known, and a data set does not drop a cancellation.

    Args:
        function: of tensors, to a tensor or a structure of them; what may fail inside a branch or
            another function of it, such as `tf.debugging.Assert`, does not run beside another one.
        otherwise: to the same structure and dtypes; only the sizes may differ.
        *arguments: tensors that both are called with.

    Example:
        >>> import tensorflow as tf
        >>> read = lambda text: tf.strings.to_number(text)
        >>> texts = (tf.constant("2"), tf.constant("x"))
        >>> [float(map_or_else(read, lambda _: tf.constant(-1.0), text)) for text in texts]
        [2.0, -1.0]
    """
    one = tf.data.Dataset.from_tensors(arguments)
    tried = one.map(function).ignore_errors()
    return tried.concatenate(one.map(otherwise)).take(1).get_single_element()
