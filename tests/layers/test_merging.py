"""Token merging equals the paper's description, written down here once more with loops."""

from functools import partial
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit import layers
from keras_vit.layers.merging import bipartite_soft_matching, merge_tokens, token_sizes
from tests.backend import at_once
from tests.layers.test_layers import BLOCK, numpy, values

pytestmark = pytest.mark.every_backend


def merged_by_the_paper(metric: Any, tokens: Any, sizes: Any, r: int, prefix: int) -> Any:
    """ToMe, section 3 ("Bipartite Soft Matching") for one image: tokens, sizes, where each went.

    1. Partition the tokens into two sets A and B, alternating. 2. Draw one edge from each of A to
    its most similar of B. 3. Keep the r most similar edges. 4. Merge tokens still connected.
    5. Concatenate the sets.
    """
    places = range(prefix, len(metric))
    a, b = [i for i in places if i % 2 == 0], [i for i in places if i % 2 == 1]
    unit = metric / np.linalg.norm(metric, axis=1, keepdims=True)
    edges = [max((unit[i] @ unit[j], i, j) for j in b) for i in a]
    groups = {j: [j] for j in [*range(prefix), *a, *b]}
    for _, i, j in sorted(edges, reverse=True)[: min(r, len(places) // 2)]:
        groups[j] += groups.pop(i)
    merged_sizes = np.array([sizes[members].sum() for members in groups.values()])
    merged = [sizes[members] @ tokens[members] for members in groups.values()]
    where = np.zeros(len(metric), int)
    for place, members in enumerate(groups.values()):
        where[members] = place
    return np.array(merged) / merged_sizes[:, None], merged_sizes, where


@pytest.mark.parametrize(("r", "prefix"), [(1, 0), (5, 0), (5, 1), (100, 1), (5, 3), (100, 3)])
def test_matching_is_the_papers(r: int, prefix: int) -> None:
    metric, tokens = values(3, 16 + prefix, 8), values(3, 16 + prefix, 6)[..., ::-1]
    sizes = np.random.default_rng(2).integers(1, 5, (3, 16 + prefix)).astype("float32")

    @at_once
    def merged(metric: Any, tokens: Any, sizes: Any) -> list[Any]:
        matching = bipartite_soft_matching(metric, r, prefix)
        found, places = merge_tokens(matching, tokens, sizes, None)
        return [found, places, matching.merge(sizes[:, :, None]), matching.unmerge(found)]

    given = [keras.ops.convert_to_tensor(x.copy()) for x in (metric, tokens, sizes)]
    found, places, new_sizes, laid_out = map(numpy, merged(*given))
    for i in range(3):
        wanted = merged_by_the_paper(metric[i], tokens[i], sizes[i], r, prefix)
        np.testing.assert_allclose(found[i], wanted[0], atol=1e-5)
        np.testing.assert_allclose(new_sizes[i, :, 0], wanted[1])
        np.testing.assert_array_equal(places[i], wanted[2])
        np.testing.assert_array_equal(laid_out[i], found[i, wanted[2]])


def test_merging_twice_keeps_account_of_every_token() -> None:
    def merged(r: int, tokens: Any, sizes: Any, token_index: Any) -> list[Any]:
        matching = bipartite_soft_matching(tokens, r, 1)
        tokens, token_index = merge_tokens(matching, tokens, sizes, token_index)
        return [tokens, token_sizes(token_index, tokens.shape[1]), token_index]

    tokens, sizes, token_index = keras.ops.array(values(2, 13, 8)), None, None
    where, originals = np.tile(np.arange(13), (2, 1)), numpy(tokens)
    for r in (4, 3):
        for i, each in enumerate(numpy(tokens)):
            step = merged_by_the_paper(each, each, np.bincount(where[i]), r, 1)[2]
            where[i] = step[where[i]]
        tokens, sizes, token_index = at_once(partial(merged, r))(tokens, sizes, token_index)
    np.testing.assert_array_equal(numpy(token_index), where)
    for i in range(2):
        np.testing.assert_array_equal(numpy(sizes)[i], np.bincount(where[i]))
        # However it came about, a token is the mean of what it stands for.
        means = [originals[i][where[i] == place].mean(axis=0) for place in range(6)]
        np.testing.assert_allclose(numpy(tokens)[i], means, atol=1e-5)
    laid_out = numpy(layers.UnmergeTokens()(tokens, token_index))
    np.testing.assert_array_equal(laid_out[1], numpy(tokens)[1, where[1]])


def test_nothing_to_merge_changes_nothing_and_wrong_schedules_are_refused() -> None:
    tokens = values(2, 2, 8)
    for matching in (bipartite_soft_matching(tokens, 0), bipartite_soft_matching(tokens, 8, 1)):
        assert isinstance(matching, layers.merging.Matching)
        assert matching.merge(tokens) is matching.unmerge(tokens) is tokens
    assert layers.merging.merging_schedule([4, 0, 2], 3) == (4, 0, 2)
    for wrong in (-1, 2.5, True, [1, 2], [1, 2, "3"]):
        with pytest.raises(ValueError, match="token_merging="):
            layers.merging.merging_schedule(wrong, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="relative_length=17"):
        layers.MergingEncoderBlock(BLOCK, merge=2, relative_length=17)


def test_half_precision_neither_overflows_nor_touches_what_stays() -> None:
    tokens = np.full((1, 5, 4), 60000, "float16")
    tokens[:, 3:] = -1.1  # far from the others: these two are no one's nearest
    sizes, matching = keras.ops.full((1, 5), 3.0), bipartite_soft_matching(tokens, 1, 1)
    merged, token_index = merge_tokens(matching, keras.ops.convert_to_tensor(tokens), sizes, None)
    assert keras.backend.standardize_dtype(merged.dtype) == "float16"
    places = numpy(token_index)[0]
    np.testing.assert_array_equal(numpy(merged)[0, places[[3, 4]]], tokens[0, 3:])
    np.testing.assert_array_equal(numpy(merged)[0, places[1]], tokens[0, 1])


def block_and(**changes: Any) -> tuple[layers.MergingEncoderBlock, layers.EncoderBlock]:
    """A merging block and a plain one of the same weights, of which none is trivial."""
    merging = layers.MergingEncoderBlock(BLOCK, **{"merge": 4, **changes})
    blocks = merging, layers.EncoderBlock(BLOCK)
    for block in blocks:
        block.build((None, 17, 32))
        block.set_weights([values(*w.shape) * 0.3 for w in block.weights])
    return blocks


def test_proportional_attention_reads_a_merged_token_as_its_members() -> None:
    """Equal tokens, merged and not: the other tokens must not notice (ToMe, equation 1)."""
    block, plain = block_and(merge=0)
    few = values(2, 9, 32)
    token_index = np.array([[0, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1, 4]] * 2, "int32")
    many = np.take_along_axis(few, token_index[:, :, None], axis=1)
    found, kept = block(few, token_index)
    np.testing.assert_allclose(numpy(found), numpy(plain(many))[:, :9], atol=2e-5)
    np.testing.assert_array_equal(numpy(kept), token_index)
    maps = numpy(block.attention.attention_probabilities(few, token_sizes(token_index, 9)))
    wanted = numpy(plain.attention.attention_probabilities(many))
    np.testing.assert_allclose(maps[..., 1], wanted[:, :, :9, [1, 9, 10]].sum(-1), atol=1e-5)


@pytest.mark.parametrize("pooling", [layers.MeanPooling(1), layers.AttentionPooling(4, 64)])
def test_pooling_counts_a_merged_token_as_its_members(pooling: keras.layers.Layer) -> None:
    few, token_index = values(2, 5, 32), np.array([[0, 1, 1, 2, 3, 4, 3, 3]] * 2, "int32")
    many = np.take_along_axis(few, token_index[:, :, None], axis=1)
    np.testing.assert_allclose(numpy(pooling(few, token_index)), numpy(pooling(many)), atol=1e-5)
