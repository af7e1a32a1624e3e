"""Attention maps of any layer and head, attention rollout and mean attention distance."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.inspection.forward_pass import run
from keras_vit.inspection.recording import encoder_blocks


def attention_maps(
    model: keras.Model, images: Any, layers: Sequence[int] | None = None, batch_size: int = 32
) -> np.ndarray:
    """Return the softmax weights of every head (ViT paper, equation 6).

    Args:
        model: A model with one Vision Transformer of this package in it, at any depth: itself, one
            built on its layers, a `Sequential` with it. The Transformer gets what the model feeds
            it.
        images: `(batch, height, width, channels)`, as the model accepts them.
        layers: Which layers, from 0, negative ones from the end; None for all.
        batch_size: Images per batch.

    Returns:
        float32 `(batch, depth, heads, tokens, tokens)`, of which `[b, l, h, q]` are the
        weights with which token `q` attends to all tokens, and sum to 1 (under bfloat16 within its
        three digits). Class token and registers come first, then the patches row by row.

    Raises:
        ValueError: The model does not have attention or one of the layers, or it has several
            Transformers, or the images do not fit it.

    Example:

    >>> import keras_vit, numpy as np
    >>> model = keras_vit.ViTTi16(input_shape=(64, 32, 3))
    >>> keras_vit.inspection.attention_maps(model, np.zeros((1, 64, 32, 3))).shape
    (1, 12, 3, 9, 9)
    """
    depth = len(encoder_blocks(model))
    for layer in layers or ():
        if not -depth <= layer < depth:
            raise ValueError(
                f"layers={layer!r} is not a layer of a model of depth {depth}. "
                f"Give 0 to {depth - 1}, or -{depth} to -1 from the end."
            )
    indices = range(depth) if layers is None else [layer % depth for layer in layers]
    return np.concatenate(
        [
            np.stack([forward.attention(layer) for layer in indices], axis=1)
            for forward in run(model, images, batch_size)
        ]
    )


def pooling_attention(model: keras.Model, images: Any, batch_size: int = 32) -> np.ndarray:
    """Return the attention of the probe of attention pooling (`pooling="map"`).

    Takes the arguments of `attention_maps`, but for `layers`, and a model with attention pooling.

    Returns:
        float32 `(batch, heads, tokens)`; each row sums to 1.

    Raises:
        ValueError: The model has another pooling, or the images do not fit it.

    Source: "Scaling Vision Transformers" (Zhai et al. 2022), big_vision `MAPHead`.

    Example:

    >>> import keras_vit, numpy as np
    >>> model = keras_vit.ViTTi16(input_shape=(64, 32, 3), pooling="map")
    >>> keras_vit.inspection.pooling_attention(model, np.zeros((1, 64, 32, 3))).shape
    (1, 3, 8)
    """
    return np.concatenate([x.pooling_attention() for x in run(model, images, batch_size)])


def readout_attention(model: keras.Model, images: Any, batch_size: int = 32) -> np.ndarray:
    """Return each head's attention over the patches, as seen from what the prediction is read from.

    That is the class token's row of every map; without a class token the mean of the patches'
    rows, with attention pooling weighted by the probe's attention. The arguments and the errors
    are those of `attention_maps`, but for `layers`.

    Returns:
        float32 `(batch, depth, heads, grid_h, grid_w)`; sums to 1 less the attention to class
        token and registers.

    Example:

    >>> import keras_vit, numpy as np
    >>> model = keras_vit.ViTTi16(input_shape=(64, 32, 3))
    >>> keras_vit.inspection.readout_attention(model, np.zeros((1, 64, 32, 3))).shape
    (1, 12, 3, 4, 2)
    """
    return np.concatenate([x.readout_attention() for x in run(model, images, batch_size)])


def attention_rollout(model: keras.Model, images: Any, batch_size: int = 32) -> np.ndarray:
    """Return how much each patch contributes to the prediction through all layers (rollout).

    Heads are averaged, the identity is added for the residual connection, rows are normalized, and
    the layers multiplied; the result is the row of the class token. Without a class token it is
    the mean over the patches' rows, with attention pooling weighted by the probe's attention. The
    arguments and the errors are those of `attention_maps`, but for `layers`.

    Returns:
        float32 `(batch, grid_h, grid_w)`, at least 0; sums to 1 less the contribution of class
        token and registers.

    Source: "Quantifying Attention Flow in Transformers" (Abnar and Zuidema 2020), as in figure 6
    of the ViT paper (appendix D.8).

    Example:

    >>> import keras_vit, numpy as np
    >>> model = keras_vit.ViTTi16(input_shape=(64, 32, 3))
    >>> keras_vit.inspection.attention_rollout(model, np.zeros((1, 64, 32, 3))).shape
    (1, 4, 2)
    """
    return np.concatenate([x.rollout() for x in run(model, images, batch_size)])


def attention_distance(model: keras.Model, images: Any, batch_size: int = 32) -> np.ndarray:
    """Return mean attention distance in pixels: small in a head that acts like a convolution.

    The distance between the centers of the querying patch and all others, averaged with the
    attention as weights, then over queries and images. Class token and registers do not have
    a position: they are excluded, and the weights of the patches are normalized again. The
    arguments and the errors are those of `attention_maps`, but for `layers`; the paper takes 128
    images.

    Returns:
        float32 `(depth, heads)`, in pixels.

    Source: ViT paper, figure 7 right and figure 11 (appendix D.7).

    Example:

    >>> import keras_vit, numpy as np
    >>> model = keras_vit.ViTTi16(input_shape=(64, 32, 3))
    >>> keras_vit.inspection.attention_distance(model, np.zeros((1, 64, 32, 3))).shape
    (12, 3)
    """
    return np.concatenate([x.distances() for x in run(model, images, batch_size)]).mean(axis=0)
