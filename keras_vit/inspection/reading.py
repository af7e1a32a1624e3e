"""One pass of a batch through a model, from which every attention can be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_vit.errors import check_positive
from keras_vit.layers import AttentionPooling, EncoderBlock
from keras_vit.layers.merging import token_sizes
from keras_vit.models.image_model import ImageModel


def encoder_blocks(model: Any) -> list[EncoderBlock]:
    """The blocks in the order of the data, or a ValueError for a model that has no attention."""
    blocks = [layer for layer in getattr(model, "layers", ()) if isinstance(layer, EncoderBlock)]
    if not isinstance(model, ImageModel) or not blocks:
        name = getattr(model, "name", model)
        raise ValueError(
            f"{name!r} is a {type(model).__name__} without encoder blocks, so there is no "
            "attention to look at. Give a VisionTransformer, such as keras_vit.ViTTi16()."
        )
    return blocks


class Reading:
    """The tokens before every block for one batch; attention is computed layer by layer on demand.

    Training and inference stay on the fused operator, which never forms the probabilities: here
    the second road, `MultiHeadSelfAttention.attention_probabilities`, computes them from the same
    weights. One layer at a time, since all layers of a large model are half a gigabyte an image.

    Where the model merges tokens (`token_merging`), every token of the input has its own row and
    column all the same: it asks as the merged token does, and is given an even share of what that
    is given.
    """

    def __init__(self, model: Any, features: dict[str, np.ndarray]) -> None:
        self.model = model
        self.blocks = encoder_blocks(model)
        self.features = features
        self.prefix: int = model.num_prefix_tokens

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        rows, columns = self.features["patches"].shape[1:3]
        return rows, columns

    def attention(self, layer: int) -> np.ndarray:
        """Probabilities of one layer, `(batch, heads, tokens, tokens)`, float32."""
        block = self.blocks[layer]
        before = "tokens" if layer == 0 else f"block_{layer - 1}"
        normed = block.norm_0(self.features[before])
        sources = self._sources(before)
        if sources is None:
            return as_numpy(block.attention.attention_probabilities(normed))
        sizes = token_sizes(sources, normed.shape[1])
        maps = as_numpy(block.attention.attention_probabilities(normed, sizes))
        maps = _shared_out(maps, sizes, sources)
        return np.take_along_axis(maps, sources[:, None, :, None], axis=2)

    def _sources(self, feature: str) -> np.ndarray | None:
        """Where each token of the input is in `feature`, int `(batch, tokens)`; None: in place."""
        if feature == "encoder_norm":
            feature = f"block_{len(self.blocks) - 1}"
        found = self.features.get(f"{feature}_token_index")
        return None if found is None else found.astype("int32")

    def pooling_attention(self) -> np.ndarray:
        """Probabilities of the attention pooling's probe, `(batch, heads, tokens)`, float32."""
        pooling = next((x for x in self.model.layers if isinstance(x, AttentionPooling)), None)
        if pooling is None:
            raise ValueError(
                f'{self.model.name!r} pools by {self.model.pooling!r}; only pooling="map" has a '
                "probe that attends. Its encoder's attention is attention_maps(model, images)."
            )
        tokens, heads = self.features["encoder_norm"], (pooling.num_heads, pooling.head_dim)
        query = as_numpy(pooling.query(keras.ops.convert_to_tensor(pooling.probe)))
        key, _ = np.split(as_numpy(pooling.key_value(tokens)), 2, axis=-1)
        logits = np.einsum(
            "hd,bkhd->bhk",
            query.reshape(heads) / np.sqrt(pooling.head_dim),
            key.reshape(*key.shape[:2], *heads),
        )
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        sources = self._sources("encoder_norm")
        if sources is not None:
            sizes = as_numpy(token_sizes(sources, tokens.shape[1]))
            weights = _shared_out(weights * sizes[:, None], sizes, sources)
        return weights / weights.sum(axis=-1, keepdims=True)

    def readout(self) -> np.ndarray:
        """Which tokens after the last block the model's answer is read from, `(batch, tokens)`.

        Each row sums to 1: the class token alone; the patches evenly under mean pooling, and where
        no token is pooled and there is no class token; the probe's mean over its heads under
        attention pooling.
        """
        if self.model.pooling == "map":
            return self.pooling_attention().mean(axis=1)
        batch, length, _ = self.features["tokens"].shape
        weights = np.zeros((batch, length), "float32")
        if self.model.class_token and self.model.pooling != "gap":
            weights[:, 0] = 1
        else:
            weights[:, self.prefix :] = 1 / (length - self.prefix)
        return weights


def read(model: Any, images: Any, batch_size: int = 32) -> Iterator[Reading]:
    """A `Reading` of every batch of `images`, which are as the model takes them.

    Raises:
        ValueError: The model has no encoder blocks, or the images are not such as it takes.
    """
    check_positive(batch_size=batch_size)
    depth = len(encoder_blocks(model))
    images = _checked(model, images)
    before = ["tokens", *(f"block_{i}" for i in range(depth - 1))]
    merged = [name for name in model.feature_names if name.endswith("_token_index")]
    features = model.feature_model(["patches", *before, *merged, "encoder_norm", "logits"])
    # Operation by operation: compiling takes longer than the few batches anyone looks at.
    features.run_eagerly = True
    for start in range(0, len(images), batch_size):
        found = features.predict_on_batch(images[start : start + batch_size])
        yield Reading(model, {name: as_numpy(value) for name, value in found.items()})


def patch_pixels(model: Any) -> tuple[int, int]:
    """Height and width of the pixels that a patch stands for; a hybrid's are of a feature map."""
    return getattr(model, "patch_pixels", None) or model.patch_size


def as_numpy(tensor: Any) -> np.ndarray:
    """A float32 array: NumPy has no bfloat16 of its own."""
    return np.asarray(keras.ops.convert_to_numpy(tensor)).astype("float32")


def _shared_out(weights: np.ndarray, sizes: Any, sources: np.ndarray) -> np.ndarray:
    """Weights of merged tokens, the last axis, in even shares for the tokens of the input."""
    shares = weights / as_numpy(sizes).reshape(len(weights), *[1] * (weights.ndim - 2), -1)
    places = sources.reshape(len(weights), *[1] * (weights.ndim - 2), -1)
    return np.take_along_axis(shares, places, axis=-1)


def _checked(model: Any, images: Any) -> np.ndarray:
    images = keras.ops.convert_to_numpy(images)
    expected = tuple(model.input_shape)
    fits = images.ndim == 4 and all(
        wanted in (None, given) for wanted, given in zip(expected, images.shape, strict=True)
    )
    if not fits or len(images) == 0:
        raise ValueError(
            f"Images of shape {images.shape} are not {expected}, which {model.name!r} takes, with "
            "at least one image. A single image needs a batch dimension: images[None]."
        )
    return images
