"""Mean attention distance: how far the heads of each layer look."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_vit.inspection.reading import Reading, patch_pixels, read


def attention_distance(model: Any, images: Any, batch_size: int = 32) -> np.ndarray:
    """How far, in pixels, the heads look: small in a head that works like a convolution.

    The distance between the centres of the querying patch and every other, averaged with the
    attention as weights, then over queries and images. Class token and registers have no place:
    they neither ask nor are asked, and the weights left to the patches count as the whole.

    Args:
        model: A Vision Transformer of this package.
        images: As the model takes them; the paper takes 128.
        batch_size: Images at once.

    Returns:
        float32 `(depth, heads)`, in pixels.

    Raises:
        ValueError: The model has no attention, or the images do not fit it.

    Source: ViT paper, figure 7 right and figure 11 (appendix D.7).

    Example:

    >>> import keras_vit, numpy as np
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=8, hidden_dim=16, depth=2, num_heads=4, input_shape=(32, 16, 3))
    >>> keras_vit.inspection.attention_distance(model, np.zeros((1, 32, 16, 3))).shape
    (2, 4)
    """
    return mean_distance([distances_of(r) for r in read(model, images, batch_size)])


def mean_distance(batches: list[np.ndarray]) -> np.ndarray:
    """The mean over images of what `distances_of` gave for several batches."""
    return np.concatenate(batches).mean(axis=0)


def distances_of(reading: Reading) -> np.ndarray:
    """Mean distance of every image, layer and head of a batch, `(batch, depth, heads)`."""
    between = patch_distances(reading.grid, patch_pixels(reading.model))
    found = []
    for layer in range(len(reading.blocks)):
        weights = reading.attention(layer)[:, :, reading.prefix :, reading.prefix :]
        # A query that leaves nothing at all to the patches underflows to 0 / 0.
        total = np.maximum(weights.sum(axis=-1), np.finfo("float32").tiny)
        found.append(((weights * between).sum(axis=-1) / total).mean(axis=-1))
    return np.stack(found, axis=1)


def patch_distances(grid: tuple[int, int], pixels: tuple[int, int]) -> np.ndarray:
    """Pixels between the centres of each two patches, float32 `(patches, patches)`."""
    places = np.stack(np.meshgrid(*map(np.arange, grid), indexing="ij"), axis=-1).reshape(-1, 2)
    centres = places * np.asarray(pixels)
    offsets = centres[:, None] - centres[None]
    return np.sqrt((offsets**2).sum(axis=-1)).astype("float32")
