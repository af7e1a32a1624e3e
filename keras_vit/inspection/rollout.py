"""Attention rollout: from which patches the answer comes, through all layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_vit.inspection.reading import Reading, read


def attention_rollout(model: Any, images: Any, batch_size: int = 32) -> np.ndarray:
    """How much of the model's answer comes from each patch, by attention rollout.

    Heads are averaged, the identity is added for the shortcut, rows are normalised, and the
    layers multiplied; what is given is the row of the class token. Without a class token it is
    the mean over the patches' rows, as mean pooling reads them; under attention pooling the mean
    weighted by the probe's attention.

    Args:
        model: A Vision Transformer of this package.
        images: `(batch, height, width, channels)`, as the model takes them.
        batch_size: Images at once.

    Returns:
        float32 `(batch, grid_h, grid_w)`, at least 0; sums to 1 less what stays on class token
        and registers.

    Raises:
        ValueError: The model has no attention, or the images do not fit it.

    Source: "Quantifying Attention Flow in Transformers" (Abnar and Zuidema 2020), as in figure 6
    of the ViT paper (appendix D.8).

    Example:

    >>> import keras_vit, numpy as np
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=8, hidden_dim=16, depth=2, num_heads=4, input_shape=(32, 16, 3))
    >>> keras_vit.inspection.attention_rollout(model, np.zeros((1, 32, 16, 3))).shape
    (1, 4, 2)
    """
    return np.concatenate([rollout_of(reading) for reading in read(model, images, batch_size)])


def rollout_of(reading: Reading) -> np.ndarray:
    row = reading.readout()
    # From the last layer back, a row times a matrix: the matrices are never multiplied together.
    for layer in reversed(range(len(reading.blocks))):
        mixed = reading.attention(layer).mean(axis=1)
        mixed += np.eye(mixed.shape[-1], dtype="float32")
        mixed /= mixed.sum(axis=-1, keepdims=True)
        row = np.einsum("bq,bqk->bk", row, mixed)
    return row[:, reading.prefix :].reshape(-1, *reading.grid)
