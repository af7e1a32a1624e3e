"""Attention maps: who looks at whom, of any layer and head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.inspection.reading import Reading, encoder_blocks, read


def attention_maps(
    model: Any, images: Any, layers: Sequence[int] | None = None, batch_size: int = 32
) -> np.ndarray:
    """The softmax weights of every head (ViT paper, equation 6).

    Args:
        model: A Vision Transformer of this package.
        images: `(batch, height, width, channels)`, as the model takes them.
        layers: Which layers, from 0, negative ones from the end; None for all.
        batch_size: Images at once.

    Returns:
        float32 `(batch, depth, heads, tokens, tokens)`: in `[b, l, h, q]` what token `q` reads
        from each token, which sums to 1 (under bfloat16 within its three digits). Class token
        and registers come first, then the patches row by row.

    Raises:
        ValueError: The model has no attention, it has no such layer, or the images do not fit it.

    Example:

    >>> import keras_vit, numpy as np
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=8, hidden_dim=16, depth=2, num_heads=4, input_shape=(32, 16, 3))
    >>> keras_vit.inspection.attention_maps(model, np.zeros((1, 32, 16, 3))).shape
    (1, 2, 4, 9, 9)
    """
    depth = len(encoder_blocks(model))
    chosen = range(depth) if layers is None else [_layer(index, depth) for index in layers]
    return np.concatenate(
        [
            np.stack([reading.attention(layer) for layer in chosen], axis=1)
            for reading in read(model, images, batch_size)
        ]
    )


def pooling_attention(model: Any, images: Any, batch_size: int = 32) -> np.ndarray:
    """What the probe of attention pooling (`pooling="map"`) reads from each token.

    Args:
        model: A Vision Transformer with attention pooling.
        images: As the model takes them.
        batch_size: Images at once.

    Returns:
        float32 `(batch, heads, tokens)`; each row sums to 1.

    Raises:
        ValueError: The model pools in another way, or the images do not fit it.

    Source: "Scaling Vision Transformers" (Zhai et al. 2022), big_vision `MAPHead`.

    Example:

    >>> import keras_vit, numpy as np
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=8, hidden_dim=16, depth=1, num_heads=4, input_shape=(32, 16, 3),
    ...     pooling="map")
    >>> keras_vit.inspection.pooling_attention(model, np.zeros((1, 32, 16, 3))).shape
    (1, 4, 8)
    """
    return np.concatenate([r.pooling_attention() for r in read(model, images, batch_size)])


def readout_attention(model: Any, images: Any, batch_size: int = 32) -> np.ndarray:
    """Each head's map over the patches, seen from where the model's answer is read.

    That is the class token's row of every map; without a class token the mean of the patches'
    rows, under attention pooling weighted by the probe's attention.

    Args:
        model: A Vision Transformer of this package.
        images: As the model takes them.
        batch_size: Images at once.

    Returns:
        float32 `(batch, depth, heads, grid_h, grid_w)`; sums to 1 less what falls on class token
        and registers.

    Raises:
        ValueError: As `attention_maps`.

    Example:

    >>> import keras_vit, numpy as np
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=8, hidden_dim=16, depth=2, num_heads=4, input_shape=(32, 16, 3))
    >>> keras_vit.inspection.readout_attention(model, np.zeros((1, 32, 16, 3))).shape
    (1, 2, 4, 4, 2)
    """
    return np.concatenate([readout_attention_of(r) for r in read(model, images, batch_size)])


def readout_attention_of(reading: Reading) -> np.ndarray:
    weights = reading.readout()
    rows = [
        np.einsum("bq,bhqk->bhk", weights, reading.attention(layer))[..., reading.prefix :]
        for layer in range(len(reading.blocks))
    ]
    stacked = np.stack(rows, axis=1)
    return stacked.reshape(*stacked.shape[:3], *reading.grid)


def _layer(index: int, depth: int) -> int:
    if not -depth <= index < depth:
        raise ValueError(
            f"layers={index!r} is not a layer of a model of depth {depth}. "
            f"Give 0 to {depth - 1}, or -{depth} to -1 from the end."
        )
    return index % depth
