"""The attention of every layer, computed on demand from a batch's stored intermediates.

The fused operator of the forward pass never keeps it.
"""

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
    """The encoder blocks in order, or a ValueError for a model without attention."""
    blocks = [layer for layer in getattr(model, "layers", ()) if isinstance(layer, EncoderBlock)]
    if not isinstance(model, ImageModel) or not blocks:
        name = getattr(model, "name", model)
        raise ValueError(
            f"{name!r} is a {type(model).__name__} without encoder blocks, so there is no "
            "attention to inspect. Give a VisionTransformer, such as keras_vit.ViTTi16()."
        )
    return blocks


class ForwardPass:
    """The tokens before every block for one batch; attention is computed layer by layer on demand.

    Training and inference use a fused kernel that never materialises the probabilities;
    `MultiHeadSelfAttention.attention_probabilities` computes them explicitly from the same weights.
    One layer at a time, since all layers of a large model take half a gigabyte per image.

    Where the model merges tokens (`token_merging`), every input token still has its own row and
    column: its row is that of the merged token, and its column an even share of the merged token's.

    Args:
        model: The model.
        features: Its intermediates as float32 arrays, by name.
    """

    def __init__(self, model: Any, features: dict[str, np.ndarray]) -> None:
        self.model = model
        self.blocks = encoder_blocks(model)
        self.features = features
        self.prefix: int = model.num_prefix_tokens

    @property
    def grid(self) -> tuple[int, ...]:
        """Rows and columns of patches."""
        return self.features["patches"].shape[1:3]

    def attention(self, layer: int) -> np.ndarray:
        """Probabilities of one layer, `(batch, heads, tokens, tokens)`, float32."""
        block = self.blocks[layer]
        before = "tokens" if layer == 0 else f"block_{layer - 1}"
        normed = block.norm_0(self.features[before])
        token_index = self._token_index(before)
        if token_index is None:
            shared = self._positions_in_attention(before)
            return as_numpy(block.attention.attention_probabilities(normed, **shared))
        sizes = token_sizes(token_index, normed.shape[1])
        maps = as_numpy(block.attention.attention_probabilities(normed, sizes))
        maps = _unmerge(maps, sizes, token_index)
        return np.take_along_axis(maps, token_index[:, None, :, None], axis=2)

    def _positions_in_attention(self, feature: str) -> dict[str, Any]:
        """What all blocks share, as `keras_vit.models.embedding.positions_in_attention`."""
        layers = {layer.name: layer for layer in self.model.layers}
        shared = {}
        if "rotary_positions" in layers:
            shared["angles"] = layers["rotary_positions"](self.features["patches"])
        if "relative_position_bias" in layers:
            shared["bias"] = layers["relative_position_bias"](self.features[feature])
        return shared

    def _token_index(self, feature: str) -> np.ndarray | None:
        """Index in `feature` of each input token, int `(batch, tokens)`; None: nothing merged."""
        if feature == "encoder_norm":
            feature = f"block_{len(self.blocks) - 1}"
        index = self.features.get(f"{feature}_token_index")
        return None if index is None else index.astype("int32")

    def pooling_attention(self) -> np.ndarray:
        """Probabilities of the attention pooling's probe, `(batch, heads, tokens)`, float32."""
        pooling = next((x for x in self.model.layers if isinstance(x, AttentionPooling)), None)
        if pooling is None:
            raise ValueError(
                f'{self.model.name!r} has pooling={self.model.pooling!r}; only pooling="map" has a '
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
        token_index = self._token_index("encoder_norm")
        if token_index is not None:
            sizes = as_numpy(token_sizes(token_index, tokens.shape[1]))
            weights = _unmerge(weights * sizes[:, None], sizes, token_index)
        return weights / weights.sum(axis=-1, keepdims=True)

    def readout_weights(self) -> np.ndarray:
        """Weights of the encoder's output tokens in the prediction, `(batch, tokens)`.

        Each row sums to 1: the class token alone; all patches evenly with mean pooling, or without
        pooling and class token; with attention pooling the probe's mean over its heads.
        """
        if self.model.pooling == "map":
            return self.pooling_attention().mean(axis=1)
        batch, length, _ = self.features["tokens"].shape
        weights = np.zeros((batch, length), "float32")
        if self.model.pooling == "token_gap":
            weights[:, 0] = 0.5
            weights[:, self.prefix :] = 0.5 / (length - self.prefix)
        elif self.model.class_token and self.model.pooling != "gap":
            weights[:, 0] = 1
        else:
            weights[:, self.prefix :] = 1 / (length - self.prefix)
        return weights

    def readout_attention(self) -> np.ndarray:
        """Maps of all heads, weighted by the readout, `(batch, depth, heads, grid_h, grid_w)`."""
        weights = self.readout_weights()
        rows = [
            np.einsum("bq,bhqk->bhk", weights, self.attention(layer))[..., self.prefix :]
            for layer in range(len(self.blocks))
        ]
        stacked = np.stack(rows, axis=1)
        return stacked.reshape(*stacked.shape[:3], *self.grid)

    def rollout(self) -> np.ndarray:
        """Attention rollout, `(batch, grid_h, grid_w)`."""
        row = self.readout_weights()
        # From the last layer back, a row times a matrix: cheaper than products of matrices.
        for layer in reversed(range(len(self.blocks))):
            mixed = self.attention(layer).mean(axis=1)
            mixed += np.eye(mixed.shape[-1], dtype="float32")
            mixed /= mixed.sum(axis=-1, keepdims=True)
            row = np.einsum("bq,bqk->bk", row, mixed)
        return row[:, self.prefix :].reshape(-1, *self.grid)

    def distances(self) -> np.ndarray:
        """Mean attention distance in pixels of every image and head, `(batch, depth, heads)`."""
        rows, columns = np.indices(self.grid).reshape(2, -1)
        centres = np.stack([rows, columns], axis=-1) * np.asarray(patch_pixels(self.model))
        between = np.linalg.norm(centres[:, None] - centres[None], axis=-1).astype("float32")
        distances = []
        for layer in range(len(self.blocks)):
            weights = self.attention(layer)[:, :, self.prefix :, self.prefix :]
            # A query without any attention on patches underflows to 0 / 0.
            total = np.maximum(weights.sum(axis=-1), np.finfo("float32").tiny)
            distances.append(((weights * between).sum(axis=-1) / total).mean(axis=-1))
        return np.stack(distances, axis=1)


def run(model: Any, images: Any, batch_size: int = 32) -> Iterator[ForwardPass]:
    """A `ForwardPass` for each batch of `images`, or a ValueError for images that do not fit."""
    check_positive(batch_size=batch_size)
    depth = len(encoder_blocks(model))
    images = keras.ops.convert_to_numpy(images)
    expected = tuple(model.input_shape)
    fits = images.ndim == 4 and all(
        side in (None, actual) for side, actual in zip(expected, images.shape, strict=True)
    )
    if not fits or len(images) == 0:
        raise ValueError(
            f"Images of shape {images.shape} do not match {expected}, the input of {model.name!r}, "
            "with at least one image. A single image needs a batch dimension: images[None]."
        )
    before = ["tokens", *(f"block_{i}" for i in range(depth - 1))]
    merged = [name for name in model.feature_names if name.endswith("_token_index")]
    features = model.feature_model(["patches", *before, *merged, "encoder_norm", "logits"])
    # Compiling takes longer than computing a few batches eagerly.
    features.run_eagerly = True
    for start in range(0, len(images), batch_size):
        outputs = features.predict_on_batch(images[start : start + batch_size])
        yield ForwardPass(model, {name: as_numpy(value) for name, value in outputs.items()})


def patch_pixels(model: Any) -> tuple[int, int]:
    """Height and width of a patch in pixels of the image, also for a hybrid."""
    return getattr(model, "patch_pixels", None) or model.patch_size


def as_numpy(tensor: Any) -> np.ndarray:
    """A float32 array: NumPy does not have bfloat16."""
    return np.asarray(keras.ops.convert_to_numpy(tensor)).astype("float32")


def _unmerge(weights: np.ndarray, sizes: Any, token_index: np.ndarray) -> np.ndarray:
    """Spreads weights of merged tokens, the last axis, evenly over the input tokens."""
    shape = (len(weights), *[1] * (weights.ndim - 2), -1)
    shares = weights / as_numpy(sizes).reshape(shape)
    return np.take_along_axis(shares, token_index.reshape(shape), axis=-1)
