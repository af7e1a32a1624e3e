"""One call from a model to a figure of what it looks at.

Each returns a `matplotlib.figure.Figure`: `figure.savefig("rollout.png")`, or the last line of a
notebook's cell.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_vit.inspection.attention import readout_attention
from keras_vit.inspection.distance import attention_distance
from keras_vit.inspection.drawing import (
    draw_attention,
    draw_attention_distance,
    draw_embedding_filters,
    draw_position_similarity,
    draw_rollout,
)
from keras_vit.inspection.filters import available_components, embedding_filters
from keras_vit.inspection.positions import position_similarity
from keras_vit.inspection.reading import as_numpy, patch_pixels
from keras_vit.inspection.rollout import attention_rollout


def plot_attention(model: Any, image: Any) -> Any:
    """Where every head of every layer looks in one image, from the class token.

    Args:
        model: A Vision Transformer of this package.
        image: One image `(height, width, channels)`, as the model takes them.

    Returns:
        A matplotlib Figure: a row a head, a column a layer, each map scaled to its own maximum.

    Raises:
        ValueError: As `readout_attention`.
        ImportError: matplotlib is not installed.

    Example:

    >>> import keras_vit, numpy as np
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=8, hidden_dim=16, depth=2, num_heads=4, input_shape=(32, 16, 3))
    >>> len(keras_vit.inspection.plot_attention(model, np.zeros((32, 16, 3))).axes)
    8
    """
    return draw_attention(readout_attention(model, np.asarray(image)[None])[0])


def plot_rollout(model: Any, images: Any) -> Any:
    """Images beside themselves, dark where attention rollout is small (ViT paper, figure 6).

    Args:
        model: A Vision Transformer of this package.
        images: `(batch, height, width, channels)` of 1 or 3 channels, as the model takes them.

    Returns:
        A matplotlib Figure.

    Raises:
        ValueError: As `attention_rollout`.
        ImportError: matplotlib is not installed.

    Example:

    >>> import keras_vit, numpy as np
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=8, hidden_dim=16, depth=2, num_heads=4, input_shape=(32, 16, 3))
    >>> len(keras_vit.inspection.plot_rollout(model, np.zeros((2, 32, 16, 3))).axes)
    4
    """
    rollout = attention_rollout(model, images)
    return draw_rollout(pictures(model, images), rollout, covered(model, rollout.shape[1:]))


def plot_attention_distance(model: Any, images: Any) -> Any:
    """How far each head looks, over the depth of its layer (ViT paper, figure 11).

    Args:
        model: A Vision Transformer of this package.
        images: As the model takes them; the paper takes 128.

    Returns:
        A matplotlib Figure.

    Raises:
        ValueError: As `attention_distance`.
        ImportError: matplotlib is not installed.
    """
    width = np.shape(images)[1 if model.data_format == "channels_last" else 2 :][1]
    return draw_attention_distance(attention_distance(model, images), width)


def plot_position_similarity(model: Any) -> Any:
    """Which position embeddings resemble each other (ViT paper, figure 7 centre).

    Args:
        model: A model with learned or fixed position embeddings.

    Returns:
        A matplotlib Figure; of a large grid it shows seven rows and columns.

    Raises:
        ValueError: As `position_similarity`.
        ImportError: matplotlib is not installed.
    """
    return draw_position_similarity(position_similarity(model))


def plot_embedding_filters(model: Any, components: int | None = None) -> Any:
    """The principal components of the patch embedding's filters (ViT paper, figure 7 left).

    Args:
        model: A model that starts with a patch embedding of 1 or 3 channels.
        components: How many; None for the paper's 28, or all where there are fewer.

    Returns:
        A matplotlib Figure.

    Raises:
        ValueError: As `embedding_filters`, or the channels are no colours.
        ImportError: matplotlib is not installed.
    """
    if components is None:
        components = min(28, available_components(model))
    return draw_embedding_filters(embedding_filters(model, components))


def pictures(model: Any, images: Any) -> np.ndarray:
    """Images as a model takes them, as pictures `(batch, height, width, channels)` in 0..1."""
    shown = as_numpy(images)
    if model.data_format == "channels_first":
        shown = np.moveaxis(shown, 1, -1)
    # Without preprocessing inside, a model takes [-1, 1], the released code's range.
    return (shown / 255 if model.include_preprocessing else (shown + 1) / 2).clip(0, 1)


def covered(model: Any, grid: tuple[int, ...]) -> tuple[int, int]:
    """Height and width in pixels that the patches cover.

    Less than the image where the patch does not divide it, more in a hybrid that rounds up.
    """
    patch_h, patch_w = patch_pixels(model)
    return grid[0] * patch_h, grid[1] * patch_w
