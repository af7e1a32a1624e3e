"""Embedding filters: what the first projection measures in a patch."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_vit.errors import check_positive
from keras_vit.inspection.reading import as_numpy
from keras_vit.layers import PatchEmbedding


def embedding_filters(model: Any, components: int = 28) -> np.ndarray:
    """The leading principal components of the filters of the patch embedding.

    Each of the `hidden_dim` filters is one sample, its pixels are the features.

    Args:
        model: A model that starts with a patch embedding.
        components: How many components, the one of largest variance first.

    Returns:
        float32 `(components, patch_h, patch_w, channels)`, of length 1 and orthogonal; the sign,
        which principal components leave open, makes the largest weight positive.

    Raises:
        ValueError: The model has no patch embedding, or fewer components.

    Source: ViT paper, figure 7 left.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=8, hidden_dim=32, depth=1, num_heads=4, input_shape=(32, 16, 3))
    >>> keras_vit.inspection.embedding_filters(model, components=6).shape
    (6, 8, 8, 3)
    """
    check_positive(components=components)
    kernel = embedding_kernel(model)
    available = available_components(model)
    if components > available:
        raise ValueError(
            f"components={components}, but {kernel.shape[-1]} filters of shape {kernel.shape[:-1]} "
            f"have {available} principal components. Give {available} or fewer."
        )
    samples = kernel.reshape(-1, kernel.shape[-1]).T.astype("float64")
    _, _, found = np.linalg.svd(samples - samples.mean(axis=0), full_matrices=False)
    found = found[:components]
    largest = np.abs(found).argmax(axis=1)
    found *= np.sign(found[np.arange(components), largest])[:, None]
    return found.reshape(components, *kernel.shape[:-1]).astype("float32")


def available_components(model: Any) -> int:
    """How many principal components the filters have; the mean takes one from the samples."""
    *pixels, filters = embedding_kernel(model).shape
    return min(int(np.prod(pixels)), filters - 1)


def embedding_kernel(model: Any) -> np.ndarray:
    """The filters, `(patch_h, patch_w, channels, hidden_dim)`."""
    layers = [x for x in getattr(model, "layers", ()) if isinstance(x, PatchEmbedding)]
    if not layers:
        raise ValueError(
            f"{getattr(model, 'name', model)!r} is a {type(model).__name__} without a patch "
            "embedding. Give a VisionTransformer, such as keras_vit.ViTTi16()."
        )
    return as_numpy(layers[0].kernel)
