"""Position similarity: what the position embeddings have learned of the plane."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_vit.inspection.reading import as_numpy
from keras_vit.layers import PositionEmbedding


def position_similarity(model: Any) -> np.ndarray:
    """Cosine similarity of the position embedding of every patch with every other.

    Args:
        model: A model with `position_embedding` `"learned"`, `"learned_2d"` or `"sincos2d"`.

    Returns:
        float32 `(grid_h, grid_w, grid_h, grid_w)` in [-1, 1]; `[i, j]` is the picture of the
        patch in row `i` and column `j`. The grid is the one that positions are learned for.

    Raises:
        ValueError: The model has no position embeddings, or relative ones, which are no vectors
            of patches.

    Source: ViT paper, figure 7 centre and figure 10.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=8, hidden_dim=16, depth=1, num_heads=4, input_shape=(32, 16, 3))
    >>> keras_vit.inspection.position_similarity(model).shape
    (4, 2, 4, 2)
    """
    layers = [x for x in getattr(model, "layers", ()) if isinstance(x, PositionEmbedding)]
    if not layers:
        kind = getattr(model, "position_embedding", None)
        raise ValueError(
            f"{getattr(model, 'name', model)!r} with position_embedding={kind!r} has no position "
            "embedding of a patch to compare. Give a model with one of: "
            f"{', '.join(map(repr, PositionEmbedding.KINDS))}."
        )
    layer = layers[0]
    vectors = as_numpy(layer.positions(*layer.grid))[0, layer.num_prefix_tokens :]
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    # A position of zeros points nowhere: similar to nothing, rather than not a number.
    unit = vectors / np.maximum(lengths, np.finfo("float32").tiny)
    return np.clip(unit @ unit.T, -1, 1).reshape(*layer.grid, *layer.grid)
