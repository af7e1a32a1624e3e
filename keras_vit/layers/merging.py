"""Token merging: similar patches become one token, so that later blocks have less to do (ToMe)."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_vit.layers.encoder import EncoderBlock, first_of
from keras_vit.layers.patches import Shape
from keras_vit.layers.rematerialization import rematerialize


class Matching(NamedTuple):
    """Which tokens become one, as two linear functions of sequences.

    Attributes:
        merge: From `(batch, length, width)` to `(batch, length - merged, width)`: the sums of what
            becomes one token. Prefix tokens come first, then the patches of the first set that
            stay, in their order, then all of the second set.
        unmerge: Back to `(batch, length, width)`: each place gets a copy of the token it is in.
    """

    merge: Callable[[Any], Any]
    unmerge: Callable[[Any], Any]


def bipartite_soft_matching(metric: Any, merged: int, num_prefix_tokens: int = 0) -> Matching:
    """Finds the most similar pairs of patches, without iterating (ToMe, section 3 and appendix D).

    The patches are split in turn into two sets. Each of the first set finds the one of the second
    that is nearest by cosine; the `merged` nearest of the first set are merged into theirs. As in
    the authors' code the class token counts as the first of the first set. No gradient flows
    through the choice.

    Args:
        metric: What similarity is measured by, `(batch, length, width)`: the paper takes the keys
            of attention, averaged over the heads.
        merged: How many tokens go: 0 or more. More than half of the patches cannot: what is asked
            beyond that is left.
        num_prefix_tokens: Tokens in front that are kept as they are: class token and registers.

    Example:

    >>> import numpy as np
    >>> from keras_vit.layers.merging import bipartite_soft_matching
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
    # A source stands at an even place of the whole sequence, as in the authors' code.
    sources = slice(prefix + prefix % 2, None, 2)
    targets = slice(prefix + 1 - prefix % 2, None, 2)

    metric = ops.cast(ops.stop_gradient(metric), "float32")
    metric = ops.normalize(metric, axis=-1)
    similarity = ops.matmul(metric[:, sources], ops.transpose(metric[:, targets], (0, 2, 1)))
    nearest = ops.cast(ops.argmax(similarity, axis=-1), "int32")
    num_sources, num_targets = ops.shape(similarity)[1:]
    closeness, place = ops.max(similarity, axis=-1), ops.arange(num_sources)
    # Ranks by counting: one sort a block is left, and sorts are what takes long to compile.
    first = ops.where(
        place < place[:, None],
        closeness[:, None] >= closeness[:, :, None],
        closeness[:, None] > closeness[:, :, None],
    )
    stays = ops.sum(ops.cast(first, "int32"), axis=-1) >= merged
    order = ops.cast(ops.argsort(place + ops.where(stays, 0, num_sources), axis=-1), "int32")
    staying, moving = order[:, : num_sources - merged], order[:, num_sources - merged :]
    # A small matrix product adds the moving to their targets: faster than a scatter on CPUs, and
    # the same in every run on GPUs.
    target_of_moving = take_tokens(nearest, moving)
    chosen = ops.equal(ops.arange(num_targets)[None, :, None], target_of_moving[:, None, :])

    def merge(tokens: Any) -> Any:
        tokens = ops.convert_to_tensor(tokens)
        from_, to = tokens[:, sources], tokens[:, targets]
        to = to + ops.matmul(ops.cast(chosen, tokens.dtype), take_tokens(from_, moving))
        return ops.concatenate([tokens[:, :prefix], take_tokens(from_, staying), to], axis=1)

    def unmerge(tokens: Any) -> Any:
        first_target = prefix + num_sources - merged
        places_of_sources = ops.where(
            stays,
            prefix - 1 + ops.cumsum(ops.cast(stays, "int32"), axis=-1),
            first_target + nearest,
        )
        places_of_targets = ops.zeros_like(nearest[:, :1]) + first_target + ops.arange(num_targets)
        places = ops.concatenate([places_of_sources, places_of_targets], axis=1)
        # In turn again, as they were.
        patch = ops.arange(patches)
        in_turn = patch // 2 + ops.where((patch + prefix) % 2 == 0, 0, num_sources)
        places = ops.take(places, in_turn, axis=1)
        kept = ops.zeros_like(places[:, :1]) + ops.arange(prefix)
        return take_tokens(tokens, ops.concatenate([kept, places], axis=1))

    return Matching(merge, unmerge)


def most_merged(merged: Any, patches: Any) -> Any:
    """`merged`, or half of the patches where that is less; a tensor where `patches` is one."""
    half = patches // 2
    return min(merged, half) if isinstance(half, int) else ops.minimum(merged, half)


def take_tokens(tokens: Any, indices: Any) -> Any:
    """Other tokens for each sequence: `(batch, length, ...)` by `(batch, n)` is `(batch, n, ...)`.

    Whole rows of one long sequence: picked value by value, a gather takes several times as long.
    """
    tokens = ops.convert_to_tensor(tokens)
    batch, length = ops.shape(tokens)[:2]
    rows = ops.reshape(tokens, (-1, *tokens.shape[2:]))
    return ops.take(rows, indices + length * ops.arange(batch)[:, None], axis=0)


def token_sizes(sources: Any, length: Any) -> Any:
    """How many tokens of the model's input each token stands for, float32 `(batch, length)`.

    `sources` is int32 `(batch, tokens)`: the place at which each token of the input is now.
    """
    found = ops.equal(sources[:, None, :], ops.arange(length)[None, :, None])
    return ops.cast(ops.sum(found, axis=-1), "float32")


def merge_tokens(matching: Matching, tokens: Any, sizes: Any, sources: Any) -> tuple[Any, Any]:
    """The mean of what becomes one token, weighted by what it stood for, and the new `sources`.

    `sizes` and `sources` are those of `token_sizes`, or None where nothing is merged so far.
    """
    merge, unmerge = matching
    if sizes is None:
        sizes = ops.ones_like(tokens[:, :, 0], dtype="float32")
    # Shares of at most 1 before the sum: token times size overflows float16. What stays alone has
    # a share of exactly 1 and does not change.
    shares = sizes[:, :, None] / unmerge(merge(sizes[:, :, None]))
    tokens = merge(tokens * ops.cast(shares, tokens.dtype))
    length = ops.shape(tokens)[1]
    batch = ops.shape(tokens)[0]
    places = unmerge(ops.broadcast_to(ops.arange(length)[None], (batch, length)))
    return tokens, places if sources is None else take_tokens(places, sources)


def merging_schedule(token_merging: int | Sequence[int], depth: int) -> tuple[int, ...]:
    """How many tokens each block merges away.

    Args:
        token_merging: The same number for all blocks, or one number for each.
        depth: How many blocks there are.

    Raises:
        ValueError: A number is negative or not whole, or there is not one for each block.

    Example:

    >>> from keras_vit.layers.merging import merging_schedule
    >>> merging_schedule(8, 3)
    (8, 8, 8)
    """
    numbers: tuple[Any, ...] = (token_merging,) * depth
    if isinstance(token_merging, Sequence):
        numbers = tuple(token_merging)
    if len(numbers) != depth or any(type(n) is not int or n < 0 for n in numbers):
        raise ValueError(
            f"token_merging={token_merging!r} does not say how many tokens each of {depth} blocks "
            f"merges. Give one integer of at least 0, such as 8, or {depth} of them."
        )
    return numbers


@keras.saving.register_keras_serializable(package="keras_vit")
class MergingEncoderBlock(EncoderBlock):
    """An encoder block that merges similar patches between its attention and its MLP.

    Called with tokens `(batch, length, hidden_dim)` and with `sources`, int32 `(batch, tokens)`:
    for each token of the model's input the place in this sequence where it is now, or None where
    nothing was merged before. Returns tokens `(batch, length - merge, hidden_dim)` and the new
    `sources`. Attention is proportional: a token that stands for three patches is attended to as
    three would be (equation 1: the logarithm of the size is added to the logits).

    It has the weights of an `EncoderBlock`, and merges in training as in inference.

    Args:
        *block: The arguments of `EncoderBlock`, all but `relative_length`.
        merge: How many tokens to merge away; at most half of the patches are.
        num_prefix_tokens: Tokens in front that are never merged: class token and registers.
        **kwargs: More arguments of `EncoderBlock` and of every layer.

    Raises:
        ValueError: `relative_length` is given: merged patches stand at no single place; or
            `merge` is negative.

    Source: "Token Merging: Your ViT But Faster" (Bolya et al. 2022), section 3.

    Example:

    >>> import keras, keras_vit
    >>> block = keras_vit.layers.MergingEncoderBlock(num_heads=4, mlp_dim=128, merge=5)
    >>> tokens, sources = block(keras.random.normal((2, 17, 32)))
    >>> tuple(tokens.shape), tuple(sources.shape)
    ((2, 12, 32), (2, 17))
    """

    def __init__(
        self, *block: Any, merge: int = 0, num_prefix_tokens: int = 1, **kwargs: Any
    ) -> None:
        super().__init__(*block, **kwargs)
        (self.merge,) = merging_schedule(merge, 1)
        self.num_prefix_tokens = num_prefix_tokens
        if self.attention.relative_length is not None:
            raise ValueError(
                f"relative_length={self.attention.relative_length} does not go with merging: a "
                "merged token stands at no single place. Use absolute position embeddings."
            )

    def build(self, tokens_shape: Shape, sources_shape: Shape | None = None) -> None:
        super().build(tokens_shape)

    def _encode_merged(
        self, z: Any, sources: Any, training: bool | None, first: int | None
    ) -> tuple[Any, Any]:
        sizes = None if sources is None else token_sizes(sources, ops.shape(z)[1])
        attended, keys = self.attention.attend(self.norm_0(z), sizes, training=training)
        # Equations 2 and 3 of the ViT paper.
        z = z + self.cast(self.drop_0(self.scale_0(attended), training=training))
        if self.merge or sources is None:
            metric = ops.mean(keys, axis=2)
            matching = bipartite_soft_matching(metric, self.merge, self.num_prefix_tokens)
            z, sources = merge_tokens(matching, z, sizes, sources)
        z = z if first is None else z[:, :first]
        mixed = self.scale_1(self.mlp(self.norm_1(z), training=training))
        return z + self.cast(self.drop_1(mixed, training=training)), sources

    def call(  # type: ignore[override]  # it gives the sources as well
        self,
        tokens: Any,
        sources: Any = None,
        training: bool | None = None,
        first: int | None = None,
    ) -> tuple[Any, Any]:
        def encode(tokens: Any, sources: Any = None) -> tuple[Any, Any]:
            return self._encode_merged(tokens, sources, training, first)

        given = (tokens,) if sources is None else (tokens, sources)
        return rematerialize(self, encode, *given) if self.remat and training else encode(*given)

    def compute_output_shape(  # type: ignore[override]
        self, tokens_shape: Shape, sources_shape: Shape | None = None
    ) -> tuple[Shape, Shape]:
        batch, length, hidden_dim = tokens_shape
        left = length
        if length is not None:
            left = length - most_merged(self.merge, length - self.num_prefix_tokens)
        return (batch, left, hidden_dim), sources_shape or (batch, length)

    def compute_output_spec(  # type: ignore[override]
        self,
        tokens: Any,
        sources: Any = None,
        training: bool | None = None,
        first: int | None = None,
    ) -> tuple[Any, Any]:
        given = None if sources is None else sources.shape
        tokens_shape, sources_shape = self.compute_output_shape(tokens.shape, given)
        return (
            keras.KerasTensor(first_of(tokens_shape, first), self.compute_dtype),
            keras.KerasTensor(sources_shape, "int32"),
        )

    def get_config(self) -> dict[str, Any]:
        config = {
            **super().get_config(),
            "merge": self.merge,
            "num_prefix_tokens": self.num_prefix_tokens,
        }
        del config["relative_length"]
        return config


@keras.saving.register_keras_serializable(package="keras_vit")
class UnmergeTokens(keras.layers.Layer):
    """Lays merged tokens out again: every token of the model's input gets the one it is in.

    Called with tokens `(batch, length, hidden_dim)` and the `sources` of the last
    `MergingEncoderBlock`, int32 `(batch, tokens)`; returns `(batch, tokens, hidden_dim)`.

    Example:

    >>> import keras, keras_vit
    >>> tokens, sources = keras.ops.ones((1, 2, 4)), keras.ops.convert_to_tensor([[0, 1, 1]])
    >>> tuple(keras_vit.layers.UnmergeTokens()(tokens, sources).shape)
    (1, 3, 4)
    """

    def build(self, tokens_shape: Shape, sources_shape: Shape) -> None:
        """Creates nothing: there are no weights."""

    def call(self, tokens: Any, sources: Any) -> Any:
        return take_tokens(tokens, sources)

    def compute_output_shape(self, tokens_shape: Shape, sources_shape: Shape) -> Shape:
        return *sources_shape[:2], tokens_shape[2]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config()}  # its own: Keras derives none where dtype is an object
