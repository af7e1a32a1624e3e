"""What the embeddings have learned: similarity of positions, and filters of the patches."""

import keras
import numpy as np

from keras_vit._base.errors import check_positive
from keras_vit.inspection.forward_pass import as_numpy
from keras_vit.inspection.recording import only_layer
from keras_vit.layers import PatchEmbedding, PositionEmbedding


def position_similarity(model: keras.Model) -> np.ndarray:
    """Cosine similarity of the position embeddings of every two patches.

    Args:
        model: A model, or a model around one, with `position_embedding` `"learned"`,
            `"learned_2d"` or `"sincos2d"`.

    Returns:
        float32 `(grid_h, grid_w, grid_h, grid_w)` in [-1, 1]; `[i, j]` is the map of the patch in
        row `i` and column `j`. The grid is the one for which positions are learned.

    Raises:
        ValueError: The model does not have position embeddings, or relative ones, which do not
            belong to single patches.

    Source: ViT paper, figure 7 center and figure 10.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.ViTTi16(input_shape=(64, 32, 3))
    >>> keras_vit.inspection.position_similarity(model).shape
    (4, 2, 4, 2)
    """
    layer = only_layer(model, PositionEmbedding)
    if layer is None:
        kind = getattr(model, "position_embedding", None)
        raise ValueError(
            f"{getattr(model, 'name', model)!r} with position_embedding={kind!r} does not have "
            "position embeddings of patches to compare. Give a model with one of: "
            f"{', '.join(map(repr, PositionEmbedding.KINDS))}."
        )
    vectors = as_numpy(layer.positions(*layer.grid))[0, layer.num_prefix_tokens :]
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    # A position of zeros does not have a direction: similarity 0, rather than NaN.
    unit = vectors / np.maximum(lengths, np.finfo("float32").tiny)
    return np.clip(unit @ unit.T, -1, 1).reshape(*layer.grid, *layer.grid)


def embedding_filters(model: keras.Model, components: int | None = 28) -> np.ndarray:
    """Return the leading principal components of the filters of the patch embedding.

    Each of the `hidden_dim` filters is one sample, its pixels are the features.

    Args:
        model: A model with a patch embedding, at any depth.
        components: Number of components, in order of decreasing variance; None for the paper's
            28, or all where there are fewer.

    Returns:
        float32 `(components, patch_h, patch_w, channels)`, orthonormal; the sign, which is
        arbitrary in principal components, makes the largest weight positive.

    Raises:
        ValueError: The model does not have a patch embedding, or has fewer components.

    Source: ViT paper, figure 7 left.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.ViTTi16(input_shape=(64, 32, 3))
    >>> keras_vit.inspection.embedding_filters(model, components=6).shape
    (6, 16, 16, 3)
    """
    layer = only_layer(model, PatchEmbedding)
    if layer is None:
        raise ValueError(
            f"{getattr(model, 'name', model)!r} is a {type(model).__name__} without a patch "
            "embedding. Give a VisionTransformer, such as keras_vit.ViTTi16()."
        )
    kernel = as_numpy(layer.kernel)
    *patch, num_filters = kernel.shape
    # The samples are centered, which takes one degree of freedom.
    available = min(int(np.prod(patch)), num_filters - 1)
    components = min(28, available) if components is None else components
    check_positive(components=components)
    if components > available:
        raise ValueError(
            f"components={components}, but {num_filters} filters of shape {tuple(patch)} "
            f"have {available} principal components. Give {available} or fewer."
        )
    samples = kernel.reshape(-1, num_filters).T.astype("float64")
    _, _, directions = np.linalg.svd(samples - samples.mean(axis=0), full_matrices=False)
    directions = directions[:components]
    largest = np.abs(directions).argmax(axis=1)[:, None]
    directions *= np.sign(np.take_along_axis(directions, largest, axis=1))
    return directions.reshape(components, *patch).astype("float32")
