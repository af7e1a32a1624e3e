"""A model with shapes and without values: what a size costs, known before memory is taken."""

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import keras

M = TypeVar("M", bound=keras.Model)


def without_values(build: Callable[[], M]) -> M:
    """Return the model that `build` returns, whose variables have shapes and paths but no values.

    For counting only: it cannot be called. Takes a tenth of a second for ViT-B/16, and no memory
    worth speaking of for any size.

    >>> from keras_vit.models import VisionTransformer
    >>> giant = without_values(lambda: VisionTransformer(hidden_dim=2**14, depth=2, num_heads=128))
    >>> giant.count_params() > 2**32
    True
    """

    def in_thread() -> M:
        with warnings.catch_warnings(), keras.StatelessScope(initialize_variables=False):
            warnings.simplefilter("ignore")  # of pixels without a patch: they come when it is built
            return build()

    # Keras keeps a list, of each thread, of variables without values, and fills all of them at the
    # end of the next scope: of this thread there is none. Nor do automatic names count on.
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(in_thread).result()
