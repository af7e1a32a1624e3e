"""Token merging (ToMe): each block averages the most similar patches into one token."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_vit.layers.configured import ConfiguredLayer, Shape
from keras_vit.layers.encoder import BlockConfig, EncoderBlock
from keras_vit.layers.first_tokens import queries_and_context
from keras_vit.layers.rematerialization import rematerialize


class Matching(NamedTuple):
    """Which tokens become one, as two linear functions of sequences.

    Attributes:
        merge: From `(batch, length, width)` to `(batch, length - merged, width)`: the sums of the
            tokens that become one. Prefix tokens come first, then the unmerged patches of src in
            their order, then all patches of dst.
        unmerge: Back to `(batch, length, width)`: each position gets a copy of its token.
    """

    merge: Callable[[Any], Any]
    unmerge: Callable[[Any], Any]


def bipartite_soft_matching(metric: Any, merged: int, num_prefix_tokens: int = 0) -> Matching:
    """Finds the most similar pairs of patches, without iterating (ToMe, section 3 and appendix D).

    The patches alternate between two sets, src and dst. For each patch of src the nearest of dst by
    cosine similarity is found; the `merged` patches of src that are closest to theirs are merged
    into them. As in the authors' code the class token counts as the first of src. No gradient flows
    through the choice.

    Args:
        metric: Vectors that are compared, `(batch, length, width)`: the paper takes the keys of
            attention, averaged over the heads.
        merged: The number of tokens to remove, at least 0; at most half of the patches are.
        num_prefix_tokens: Tokens at the front that are never merged: class token and registers.

    >>> import numpy as np
    >>> merge, unmerge = bipartite_soft_matching(np.random.rand(2, 17, 8), 4, 1)
    >>> tuple(merge(np.ones((2, 17, 3))).shape), tuple(unmerge(np.ones((2, 13, 3))).shape)
    ((2, 13, 3), (2, 17, 3))

    Source: "Token Merging: Your ViT But Faster" (Bolya et al. 2022), `tome/merge.py`.
    """
    metric, prefix = ops.convert_to_tensor(metric), num_prefix_tokens
    patches = ops.shape(metric)[1] - prefix
    merged = most_merged(merged, patches)
    if isinstance(merged, int) and merged == 0:
        return Matching(lambda tokens: tokens, lambda tokens: tokens)
    # src: the even positions of the whole sequence, as in the authors' code; dst: the odd ones.
    src_slice = slice(prefix + prefix % 2, None, 2)
    dst_slice = slice(prefix + 1 - prefix % 2, None, 2)

    metric = ops.cast(ops.stop_gradient(metric), "float32")
    metric = ops.normalize(metric, axis=-1)
    similarity = ops.matmul(metric[:, src_slice], ops.transpose(metric[:, dst_slice], (0, 2, 1)))
    num_src, num_dst = ops.shape(similarity)[1:]
    closeness, position = ops.max(similarity, axis=-1), ops.arange(num_src, dtype="int32")
    # The first that is as close: Keras's argmax on TensorFlow casts bits, which no other engine
    # can import.
    last = num_dst - 1
    nearest_dst = ops.min(
        ops.where(similarity >= closeness[:, :, None], ops.arange(num_dst, dtype="int32"), last),
        axis=-1,
    )
    # Ranks by counting: one sort per block is left, and sorts are what takes long to compile.
    ranks_before = ops.where(
        position < position[:, None],
        closeness[:, None] >= closeness[:, :, None],
        closeness[:, None] > closeness[:, :, None],
    )
    is_unmerged = ops.sum(ops.cast(ranks_before, "int32"), axis=-1) >= merged
    order = ops.argsort(position + ops.where(is_unmerged, 0, num_src), axis=-1)
    order = ops.cast(order, "int32")
    unmerged_index, merged_index = order[:, : num_src - merged], order[:, num_src - merged :]
    # A small matrix product adds the merged tokens to their dst: faster than a scatter on CPUs,
    # and the same in every run on GPUs.
    dst_of_merged = take_tokens(nearest_dst, merged_index)
    assignment = ops.equal(
        ops.arange(num_dst, dtype="int32")[None, :, None], dst_of_merged[:, None, :]
    )

    def merge(tokens: Any) -> Any:
        tokens = ops.convert_to_tensor(tokens)
        src, dst = tokens[:, src_slice], tokens[:, dst_slice]
        dst = dst + ops.matmul(ops.cast(assignment, tokens.dtype), take_tokens(src, merged_index))
        # Engines of exported graphs do not take a slice of nothing.
        before = [tokens[:, :prefix]] if prefix else []
        return ops.concatenate([*before, take_tokens(src, unmerged_index), dst], axis=1)

    def unmerge(tokens: Any) -> Any:
        first_dst = prefix + num_src - merged
        src_index = ops.where(
            is_unmerged,
            prefix - 1 + ops.cumsum(ops.cast(is_unmerged, "int32"), axis=-1),
            first_dst + nearest_dst,
        )
        dst_index = (
            ops.zeros_like(nearest_dst[:, :1]) + first_dst + ops.arange(num_dst, dtype="int32")
        )
        index = ops.concatenate([src_index, dst_index], axis=1)
        # Even and odd positions alternate again.
        patch = ops.arange(patches, dtype="int32")
        interleaved = patch // 2 + ops.where((patch + prefix) % 2 == 0, 0, num_src)
        index = ops.take(index, interleaved, axis=1)
        if prefix:
            before = ops.zeros_like(index[:, :1]) + ops.arange(prefix, dtype="int32")
            index = ops.concatenate([before, index], axis=1)
        return take_tokens(tokens, index)

    return Matching(merge, unmerge)


def most_merged(merged: Any, patches: Any) -> Any:
    """`merged`, or half of the patches where that is less; a tensor where `patches` is one."""
    half = patches // 2
    return min(merged, half) if isinstance(half, int) else ops.minimum(merged, half)


def take_tokens(tokens: Any, indices: Any) -> Any:
    """Gathers tokens of each sequence: `(batch, length, ...)` by `(batch, n)` is `(batch, n, ...)`.

    Takes whole rows of one long sequence: a gather by value takes several times as long.
    """
    tokens = ops.convert_to_tensor(tokens)
    batch, length = ops.shape(tokens)[:2]
    rows = ops.reshape(tokens, (-1, *tokens.shape[2:]))
    return ops.take(rows, indices + length * ops.arange(batch, dtype="int32")[:, None], axis=0)


def token_sizes(token_index: Any, length: Any) -> Any:
    """Return how many tokens of the model's input each token represents, float32 `(batch, length)`.

    `token_index` is int32 `(batch, tokens)`: for each token of the input, the index of the token
    that it is part of now.
    """
    is_part = ops.equal(token_index[:, None, :], ops.arange(length, dtype="int32")[None, :, None])
    return ops.cast(ops.sum(is_part, axis=-1), "float32")


def _same_index(tokens: Any) -> Any:
    """Return the `token_index` of a sequence in which nothing is merged."""
    batch, length = ops.shape(tokens)[:2]
    return ops.broadcast_to(ops.arange(length, dtype="int32")[None], (batch, length))


def merge_tokens(matching: Matching, tokens: Any, sizes: Any, token_index: Any) -> tuple[Any, Any]:
    """Average the tokens that become one, weighted by size; return them and the new `token_index`.

    `sizes` and `token_index` are those of `token_sizes`, or None where nothing has been merged.
    """
    merge, unmerge = matching
    if sizes is None:
        sizes = ops.ones_like(tokens[:, :, 0], dtype="float32")
    # Weights of at most 1 before the sum: token times size overflows float16. An unmerged token
    # has a weight of exactly 1 and does not change.
    weights = sizes[:, :, None] / unmerge(merge(sizes[:, :, None]))
    tokens = merge(tokens * ops.cast(weights, tokens.dtype))
    index = unmerge(_same_index(tokens))
    return tokens, index if token_index is None else take_tokens(index, token_index)


def merging_schedule(token_merging: int | Sequence[int], depth: int) -> tuple[int, ...]:
    """Return how many tokens each block removes, from one integer for all or one per block."""
    numbers: tuple[Any, ...] = (token_merging,) * depth
    if isinstance(token_merging, Sequence):
        numbers = tuple(token_merging)
    if len(numbers) != depth or any(type(n) is not int or n < 0 for n in numbers):
        raise ValueError(
            f"token_merging={token_merging!r} is not a schedule for {depth} blocks. "
            f"Give one integer of at least 0, such as 8, or {depth} of them."
        )
    return numbers


@keras.saving.register_keras_serializable(package="keras_vit")
class MergingEncoderBlock(EncoderBlock):
    """An encoder block that merges similar patches between its attention and its MLP.

    Called with tokens `(batch, length, hidden_dim)` and with `token_index`, int32
    `(batch, tokens)`: for each token of the model's input, the index in this sequence of the token
    that it is part of, or None where nothing has been merged. Returns tokens
    `(batch, length - merge, hidden_dim)` and the new `token_index`. Attention is proportional: a
    token that represents three patches counts as three would (equation 1: the logarithm of the size
    is added to the logits). With `context`, as in `EncoderBlock`, nothing is merged.

    It has the weights of an `EncoderBlock`, and merges in training as in inference.

    Args:
        config: The arguments of the block, without positions in its attention.
        merge: The number of tokens to remove; at most half of the patches are.
        num_prefix_tokens: Tokens at the front that are never merged: class token and registers.

    Raises:
        ValueError: Attention has positions, but a merged token does not have a single one; or
            `merge` is negative.

    Source: "Token Merging: Your ViT But Faster" (Bolya et al. 2022), section 3.

    Example:

    >>> import keras
    >>> from keras_vit.layers import BlockConfig, MergingEncoderBlock
    >>> block = MergingEncoderBlock(BlockConfig(num_heads=4, mlp_dim=128), merge=5)
    >>> tokens, token_index = block(keras.random.normal((2, 17, 32)))
    >>> tuple(tokens.shape), tuple(token_index.shape)
    ((2, 12, 32), (2, 17))
    """

    def __init__(
        self, config: BlockConfig, merge: int = 0, num_prefix_tokens: int = 1, **kwargs: Any
    ) -> None:
        super().__init__(config, **kwargs)
        (self.merge,) = merging_schedule(merge, 1)
        self.num_prefix_tokens = num_prefix_tokens
        positions = {"relative_length": self.relative_length, "relative_grid": self.relative_grid}
        for name, value in {**positions, "rotary": config.rotary}.items():
            if value is not None:
                raise ValueError(
                    f"{name}={value!r} cannot be combined with merging: a merged token does not "
                    "have a single position. Use absolute position embeddings."
                )

    def build(  # type: ignore[override]
        self,
        tokens_shape: Shape,
        token_index_shape: Shape | None = None,
        context_shape: Shape | None = None,
    ) -> None:
        super().build(tokens_shape)

    def _encode(self, z: Any, token_index: Any = None, *, training: bool | None) -> tuple[Any, Any]:
        sizes = None if token_index is None else token_sizes(token_index, ops.shape(z)[1])
        z, keys = self._attend(z, None, sizes, training=training)
        if self.merge or token_index is None:
            matching = bipartite_soft_matching(
                ops.mean(keys, axis=2), self.merge, self.num_prefix_tokens
            )
            z, token_index = merge_tokens(matching, z, sizes, token_index)
        return self._mlp(z, training), token_index

    def _encode_queries(
        self, z: Any, context: Any, token_index: Any = None, *, training: bool | None
    ) -> tuple[Any, Any]:
        """Nothing is merged: the queries read from the sequence as it is."""
        if token_index is None:
            token_index = _same_index(context)
        sizes = token_sizes(token_index, ops.shape(context)[1])
        z, _ = self._attend(z, context, sizes, training=training)
        return self._mlp(z, training), token_index

    def call(  # type: ignore[override]  # returns the index as well
        self,
        tokens: Any,
        token_index: Any = None,
        context: Any = None,
        training: bool | None = None,
    ) -> tuple[Any, Any]:
        if context is None:
            tokens, context = queries_and_context(self, tokens)
        encode: Any = partial(self._encode, training=training)
        inputs: tuple[Any, ...] = (tokens,)
        if context is not None:
            encode, inputs = partial(self._encode_queries, training=training), (tokens, context)
        constants = () if token_index is None else (token_index,)
        if self.config.remat and training:
            return rematerialize(self, encode, *inputs, constants=constants)
        return encode(*inputs, *constants)

    def compute_output_shape(  # type: ignore[override]
        self,
        tokens_shape: Shape,
        token_index_shape: Shape | None = None,
        context_shape: Shape | None = None,
    ) -> tuple[Shape, Shape]:
        batch, length, hidden_dim = tokens_shape
        if context_shape is not None:
            return tokens_shape, token_index_shape or context_shape[:2]
        remaining = length
        if length is not None:
            remaining = length - most_merged(self.merge, length - self.num_prefix_tokens)
        return (batch, remaining, hidden_dim), token_index_shape or (batch, length)

    def compute_output_spec(  # type: ignore[override]
        self, tokens: Any, token_index: Any = None, context: Any = None, training: Any = None
    ) -> tuple[Any, Any]:
        others = (None if x is None else x.shape for x in (token_index, context))
        tokens_shape, index_shape = self.compute_output_shape(tokens.shape, *others)
        return (
            keras.KerasTensor(tokens_shape, self.compute_dtype),
            keras.KerasTensor(index_shape, "int32"),
        )


@keras.saving.register_keras_serializable(package="keras_vit")
class UnmergeTokens(ConfiguredLayer):
    """Restores the full sequence: every token of the model's input gets the one it is part of.

    Called with tokens `(batch, length, hidden_dim)` and the `token_index` of the last
    `MergingEncoderBlock`, int32 `(batch, tokens)`; returns `(batch, tokens, hidden_dim)`.

    Example:

    >>> import keras, keras_vit
    >>> tokens, index = keras.ops.ones((1, 2, 4)), keras.ops.convert_to_tensor([[0, 1, 1]])
    >>> tuple(keras_vit.layers.UnmergeTokens()(tokens, index).shape)
    (1, 3, 4)
    """

    def build(self, tokens_shape: Shape, token_index_shape: Shape) -> None:
        """Does nothing: there are no weights to create."""

    def call(self, tokens: Any, token_index: Any) -> Any:
        return take_tokens(tokens, token_index)

    def compute_output_shape(self, tokens_shape: Shape, token_index_shape: Shape) -> Shape:
        return *token_index_shape[:2], tokens_shape[2]
