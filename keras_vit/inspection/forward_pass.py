"""The attention of every layer, computed on demand from what a batch's layers were called with.

The fused operator of the forward pass never keeps it.
"""

import inspect
import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_vit._base.errors import check_positive
from keras_vit.inspection.recording import Call, Recorder, check_one_transformer, encoder_blocks
from keras_vit.layers import (
    AttentionPooling,
    ClassToken,
    ConvStemStage,
    EncoderBlock,
    MeanPooling,
    PatchEmbedding,
    QueryTokens,
    ResidualUnit,
    ResNetStem,
    TokenPooling,
)
from keras_vit.layers.merging import token_sizes
from keras_vit.layers.observation import observed_by
from keras_vit.ops import without_gradient

_STEMS = (ResNetStem, ResidualUnit, ConvStemStage)


def _stride_of(stem: Any) -> int:
    if isinstance(stem, ResNetStem):
        return 4  # a convolution and a pooling
    stride: int = stem.strides if isinstance(stem, ResidualUnit) else stem.stride
    return stride


class ForwardPass:
    """What the layers were called with for one batch; attention is computed layer by layer.

    Training and inference use a fused kernel that never materializes the probabilities;
    `MultiHeadSelfAttention.attention_probabilities` computes them explicitly from the same weights.
    One layer at a time, since all layers of a large model take half a gigabyte per image.

    Where the model merges tokens (`token_merging`), every input token still has its own row and
    column: its row is that of the merged token, and its column an even share of the merged token's.

    Args:
        model: The model.
        recorder: What its layers were called with.
        outputs: What it returned.
    """

    def __init__(self, model: keras.Model, recorder: Recorder, outputs: Any) -> None:
        self.model = model
        self.recorder = recorder
        self.outputs = outputs
        self.blocks = recorder.of(EncoderBlock)
        # Of the tokens before any merging, and without the queries of an EoMT head.
        asked = recorder.of(QueryTokens)
        first = asked[0].arguments["tokens"] if asked else sequence(self.blocks[0])
        self.length = int(first.shape[1])

    @property
    def patch_embedding(self) -> Call:
        """The call that cut the image into patches, or a ValueError for a model without."""
        calls = self.recorder.of(PatchEmbedding)
        if not calls:
            raise ValueError(
                f"{self.model.name!r} does not call a keras_vit.layers.PatchEmbedding, so that the "
                "grid of its patches is not known. attention_maps(model, images) has the attention "
                "between its tokens."
            )
        return calls[0]

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        _, rows, columns, _ = self.patch_embedding.output_shape
        return rows, columns

    @property
    def prefix(self) -> int:
        """Tokens in front of the patches: class token, distillation token and registers."""
        prefix = self.length - math.prod(self.grid)
        if prefix < 0:
            raise ValueError(
                f"{self.model.name!r} has {self.length} tokens for {self.grid[0]} x {self.grid[1]} "
                "patches, so they cannot be laid out on the grid. attention_maps(model, images) "
                "has the attention between its tokens."
            )
        return prefix

    @property
    def patch_pixels(self) -> tuple[int, int]:
        """Height and width of a patch in pixels of the image that the Transformer gets."""
        height, width = self.patch_embedding.layer.patch_size
        return height * self._stride, width * self._stride

    @property
    def _stride(self) -> int:
        """Pixels of the image per pixel of the map that patches are cut from."""
        stems = self.recorder.of(_STEMS)
        maps = self.patch_embedding.arguments["images"].shape
        if not stems or stems[-1].output_shape != tuple(maps):
            return 1
        return math.prod(_stride_of(stem.layer) for stem in stems)

    @property
    def largest_value(self) -> float:
        """The largest absolute value in the images that patches are cut from; of a hybrid, 0."""
        if self.recorder.of(_STEMS):
            return 0
        return float(np.abs(as_numpy(self.patch_embedding.arguments["images"])).max())

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the image that the Transformer gets, rounded up to its stems'."""
        shape = self.patch_embedding.arguments["images"].shape
        first = self.patch_embedding.layer.data_format == "channels_first"
        height, width = shape[2:] if first else shape[1:3]
        return height * self._stride, width * self._stride

    def covered(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the height and width in pixels that the patches cover of images of this size.

        Less than the image where the patch size does not divide it, more in a hybrid that rounds
        up. Where the Transformer gets images of another size, they are taken as resized as a whole.
        """
        covered = []
        for i in range(2):
            pixels = self.grid[i] * self.patch_pixels[i]
            is_same = 0 <= self.image_size[i] - size[i] < self._stride
            covered.append(pixels if is_same else round(pixels * size[i] / self.image_size[i]))
        return covered[0], covered[1]

    def attention(self, layer: int) -> np.ndarray:
        """Return probabilities of one layer, `(batch, heads, tokens, tokens)`, float32."""
        call = self.blocks[layer]
        normed = call.layer.norm_0(sequence(call))
        probabilities = call.layer.attention.attention_probabilities
        token_index = token_index_of(call)
        if token_index is None:
            shared = {name: call.arguments.get(name) for name in ("angles", "bias", "mask")}
            return self._without_queries(as_numpy(probabilities(normed, **shared)))
        sizes = token_sizes(token_index, normed.shape[1])
        maps = unmerge(as_numpy(probabilities(normed, sizes)), as_numpy(sizes), token_index)
        return np.take_along_axis(maps, token_index[:, None, :, None], axis=2)

    def _without_queries(self, maps: np.ndarray) -> np.ndarray:
        """Return attention between the tokens of the image; rows sum to 1 without queries, too.

        An EoMT head puts its queries in front of the tokens of the last blocks.
        """
        queries = maps.shape[-1] - self.length
        if queries <= 0:
            return maps
        maps = maps[:, :, queries:, queries:]
        return maps / maps.sum(axis=-1, keepdims=True)

    def pooling_attention(self) -> np.ndarray:
        """Return the pooling probe's attention probabilities `(batch, heads, tokens)`, float32."""
        calls = self.recorder.of(AttentionPooling)
        if not calls:
            raise ValueError(
                f'{self.model.name!r} does not pool by attention; only pooling="map" has a '
                "probe that attends. Its encoder's attention is attention_maps(model, images)."
            )
        pooling, tokens = calls[0].layer, calls[0].arguments["tokens"]
        heads = (pooling.num_heads, pooling.head_dim)
        query = as_numpy(pooling.query(keras.ops.convert_to_tensor(pooling.probe)))
        key, _ = np.split(as_numpy(pooling.key_value(tokens)), 2, axis=-1)
        logits = np.einsum(
            "hd,bkhd->bhk",
            query.reshape(heads) / np.sqrt(pooling.head_dim),
            key.reshape(*key.shape[:2], *heads),
        )
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        token_index = token_index_of(calls[0])
        if token_index is not None:
            sizes = as_numpy(token_sizes(token_index, tokens.shape[1]))
            weights = unmerge(weights * sizes[:, None], sizes, token_index)
        return weights / weights.sum(axis=-1, keepdims=True)

    def readout_weights(self) -> np.ndarray:
        """Return weights of the encoder's output tokens in the prediction, `(batch, tokens)`.

        Each row sums to 1: the class token alone; all patches evenly with mean pooling, or without
        pooling and class token; with attention pooling the probe's mean over its heads. Of several
        poolings each counts as much.
        """
        return np.mean([self._weights_of(call) for call in self._poolings()], axis=0)

    def _poolings(self) -> list[Call]:
        calls = self.recorder.of((TokenPooling, MeanPooling, AttentionPooling))
        if calls:
            return calls
        shapes = self._check_returns_tokens()
        if all(len(shape) == 4 and shape[1:-1] != self.grid for shape in shapes):
            return [Call(MeanPooling(self.prefix))]  # an answer to every pixel reads every patch
        # A token in front of the patches may be a register instead.
        return [Call(TokenPooling() if self.recorder.of(ClassToken) else MeanPooling(self.prefix))]

    @property
    def reader(self) -> str:
        """What the prediction is read from, as text."""
        names: dict[type, str] = {
            TokenPooling: "the class token",
            MeanPooling: "the mean of the patches",
            AttentionPooling: "the probe of the attention pooling",
        }
        return " and ".join(dict.fromkeys(names[type(x.layer)] for x in self._poolings()))

    def _weights_of(self, pooling: Call) -> np.ndarray:
        if isinstance(pooling.layer, AttentionPooling):
            return self.pooling_attention().mean(axis=1)
        weights = np.zeros((len(sequence(self.blocks[0])), self.length), "float32")
        if isinstance(pooling.layer, TokenPooling):
            weights[:, pooling.layer.index] = 1
        else:
            weights[:, self.prefix :] = 1 / (self.length - self.prefix)
        return weights

    def _check_returns_tokens(self) -> list[tuple[int, ...]]:
        """Return the shapes of the outputs; a ValueError where layers that are not ours pool."""
        shapes = [tuple(x.shape) for x in keras.tree.flatten(self.outputs)]
        if not any(len(shape) in (3, 4) for shape in shapes):
            raise ValueError(
                f"{self.model.name!r} pools its tokens by layers that are not of keras_vit, so "
                "that the tokens which it predicts from are not known. class_attribution(model, "
                "images) needs to know none; or pool by keras_vit.layers.TokenPooling or "
                "MeanPooling."
            )
        return shapes

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
        """Return each head's mean attention distance in pixels, `(batch, depth, heads)`."""
        rows, columns = np.indices(self.grid).reshape(2, -1)
        centers = np.stack([rows, columns], axis=-1) * np.asarray(self.patch_pixels)
        between = np.linalg.norm(centers[:, None] - centers[None], axis=-1).astype("float32")
        distances = []
        for layer in range(len(self.blocks)):
            weights = self.attention(layer)[:, :, self.prefix :, self.prefix :]
            # A query without any attention on patches underflows to 0 / 0.
            total = np.maximum(weights.sum(axis=-1), np.finfo("float32").tiny)
            distances.append(((weights * between).sum(axis=-1) / total).mean(axis=-1))
        return np.stack(distances, axis=1)


class RolloutRecorder(Recorder):
    """Keeps the attention probabilities, too, for a rollout within an exported graph."""

    def __init__(self) -> None:
        super().__init__()
        self.probabilities: list[Any] = []

    def attended(self, probabilities: Any) -> Any:
        self.probabilities.append(probabilities)
        return probabilities

    def rollout(self) -> Any:
        """`ForwardPass.rollout` by `keras.ops`, without computing anything twice.

        Returns:
            `(batch, grid_h, grid_w)`; None where blocks run several times, as for several views,
            or merge tokens, or the pooling is neither a token nor the mean.
        """
        blocks, patches = self.of(EncoderBlock), self.of(PatchEmbedding)
        poolings = self.of((TokenPooling, MeanPooling, AttentionPooling))
        once = len({id(call.layer) for call in blocks}) == len(self.probabilities)
        merges = any(call.token_index is not None for call in blocks)
        if not blocks or not once or merges or len(patches) != 1 or len(poolings) != 1:
            return None
        pooling, (_, rows, columns, _) = poolings[0].layer, patches[0].output_shape
        length = int(sequence(blocks[0]).shape[1])
        weights = np.zeros((1, 1, length), "float32")
        if isinstance(pooling, TokenPooling):
            weights[..., pooling.index] = 1
        elif isinstance(pooling, MeanPooling):
            weights[..., length - rows * columns :] = 1 / (rows * columns)
        else:
            return None
        row = keras.ops.convert_to_tensor(weights)
        for each in reversed(self.probabilities):
            attention = keras.ops.mean(keras.ops.cast(each, "float32"), axis=1)
            # The last block may compute its first queries alone, which then are all that is read.
            row = (row + keras.ops.matmul(row[..., : attention.shape[1]], attention)) / 2
        return keras.ops.reshape(row[:, 0, length - rows * columns :], (-1, rows, columns))


def run(model: keras.Model, images: Any, batch_size: int = 32) -> Iterator[ForwardPass]:
    """Yield a `ForwardPass` per batch of `images`; a ValueError for images that do not fit."""
    for batch in batches(model, images, batch_size):
        yield run_batch(model, batch)


def run_batch(model: keras.Model, batch: Any, recorder: Recorder | None = None) -> ForwardPass:
    """Return the `ForwardPass` of one batch, of which `recorder` may keep more."""
    recorder = recorder or Recorder()
    with observed_by(recorder):
        # Compiling takes longer than computing a few batches eagerly.
        outputs = without_gradient(infer, model, batch)
    check_one_transformer(model, recorder, batch)
    return ForwardPass(model, recorder, outputs)


def infer(model: keras.Model, batch: Any) -> Any:
    """Return what a model returns for a batch when it does not train."""
    if isinstance(getattr(model, "input", None), list) and not isinstance(batch, list | dict):
        batch = [batch]  # built as keras.Model(vit.inputs, ...)
    takes_training = "training" in inspect.signature(model.call).parameters
    return model(batch, training=False) if takes_training else model(batch)


def batches(model: keras.Model, images: Any, batch_size: int) -> Iterator[Any]:
    """Yield the images in batches; a ValueError if they do not fit, or the model lacks attention.

    `images` is an array, or as a model of several inputs takes them.
    """
    check_positive(batch_size=batch_size)
    encoder_blocks(model)
    if isinstance(images, dict) or len(getattr(model, "inputs", None) or ()) > 1:
        arrays = keras.tree.map_structure(keras.ops.convert_to_numpy, images)
    else:
        arrays = _fitting(model, keras.ops.convert_to_numpy(images))
    for start in range(0, len(keras.tree.flatten(arrays)[0]), batch_size):
        rows = slice(start, start + batch_size)
        batch = keras.tree.map_structure(lambda array, rows=rows: array[rows], arrays)
        if not model.built:
            infer(model, batch)  # Keras calls layers with symbols to build them
        yield batch


def _fitting(model: keras.Model, images: np.ndarray) -> np.ndarray:
    """Return the images, or a ValueError where the model takes others."""
    expected = getattr(model, "input_shape", None) if model.built else None
    expected = tuple(expected or (None,) * 4)
    fits = images.ndim == len(expected) and all(
        side in (None, actual) for side, actual in zip(expected, images.shape, strict=True)
    )
    if not fits or len(images) == 0:
        raise ValueError(
            f"Images of shape {images.shape} do not match {expected}, the input of {model.name!r}, "
            "with at least one image. A single image needs a batch dimension: images[None]."
        )
    return images


def sequence(block: Call) -> Any:
    """Return all tokens that a block was called with, of which it may encode only the first."""
    context = block.arguments.get("context")
    return block.arguments["tokens"] if context is None else context


def token_index_of(call: Call) -> np.ndarray | None:
    """Index in a layer's tokens of each input token, int `(batch, tokens)`; None: none merged."""
    return as_index(call.arguments.get("token_index"))


def as_index(tensor: Any) -> np.ndarray | None:
    """Return an int32 array, or None for None."""
    return None if tensor is None else np.asarray(keras.ops.convert_to_numpy(tensor), "int32")


def as_numpy(tensor: Any) -> np.ndarray:
    """Return a float32 array: NumPy does not have bfloat16."""
    return np.asarray(keras.ops.convert_to_numpy(tensor)).astype("float32")


def unmerge(weights: np.ndarray, sizes: np.ndarray, token_index: np.ndarray) -> np.ndarray:
    """Spreads weights of merged tokens, the last axis, evenly over the input tokens."""
    shape = (len(weights), *[1] * (weights.ndim - 2), -1)
    return np.take_along_axis(weights / sizes.reshape(shape), token_index.reshape(shape), axis=-1)
