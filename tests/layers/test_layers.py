"""What layers compute is their definition, written down here once more in NumPy and loops."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import layers
from keras_vit.layers._dense import Dense
from keras_vit.layers._dropout import Dropout
from keras_vit.layers.activations import gelu, gelu_tanh
from keras_vit.layers.merging import bipartite_soft_matching, merge_tokens, token_sizes
from keras_vit.ops import DropoutStrategy, kernels
from tests.backend import at_once, gradients, numpy, refused

TOKENS, IMAGES = (2, 17, 32), (2, 32, 24, 3)
HEADS, BLOCK = layers.AttentionConfig(num_heads=4), layers.BlockConfig(num_heads=4, mlp_dim=64)
TWO_HEADS = layers.AttentionConfig(num_heads=2)
pytestmark = pytest.mark.every_backend
# How masks for attention probabilities are drawn: torch has two ways.
STRATEGIES = ["bits", "kernel"] if keras.backend.backend() == "torch" else ["remainders"]


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape).astype("float32")


@pytest.mark.parametrize("patch", [(8, 8), (16, 8), (5, 7)])
def test_patches_are_slices_of_the_image(patch: tuple[int, int]) -> None:
    height, width = patch
    for channels in (1, 3, 5):
        images = values(2, 35, 26, channels)
        found = numpy(layers.Patches(patch)(images))
        first = numpy(layers.Patches(patch, "channels_first")(images.transpose(0, 3, 1, 2)))
        np.testing.assert_array_equal(first, found)
        for row, column in np.ndindex(35 // height, 26 // width):
            cut = images[:, row * height :, column * width :][:, :height, :width]
            np.testing.assert_array_equal(found[:, row, column], cut.reshape(2, -1))


def test_patch_embedding_is_a_matrix_product_over_patches() -> None:
    images = values(2, 32, 24, 3)
    for data_format, axes in (("channels_last", (0, 1, 2, 3)), ("channels_first", (0, 3, 1, 2))):
        embed = layers.PatchEmbedding(16, 8, data_format)
        found, flat = numpy(embed(images.transpose(axes))), numpy(layers.Patches(8)(images))
        wanted = flat @ numpy(embed.kernel).reshape(-1, 16) + numpy(embed.bias)
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    # Padded as TensorFlow does, in the Mixer's stem: what cannot be shared goes to the end.
    images, embed = values(2, 34, 25, 3), layers.PatchEmbedding(8, (5, 7), padding="same")
    plain, found = layers.PatchEmbedding(8, (5, 7)), numpy(embed(images))
    padded = np.pad(images, ((0, 0), (0, 1), (1, 2), (0, 0)))
    plain.build(padded.shape)
    plain.set_weights(embed.get_weights())
    np.testing.assert_allclose(numpy(plain(padded)), found, atol=1e-6)


PADDING = (np.arange(17) < np.array([9, 17])[:, None])[:, None, None]
BY_QUERY = np.random.default_rng(3).random((2, 4, 17, 17)) < 0.3
BY_QUERY |= np.eye(17, dtype=bool)
BIAS = np.random.default_rng(4).normal(size=(1, 4, 17, 17)).astype("float32")


@pytest.mark.parametrize(
    "given", [{}, {"bias": BIAS}, {"mask": BY_QUERY}, {"bias": BIAS, "mask": PADDING}]
)
def test_attention_is_its_definition(given: dict[str, np.ndarray]) -> None:
    """Equations 5 to 8 of the paper, in NumPy and float64; and the derivative along a direction."""

    def definition(kernel: Any, bias: Any, out: Any, out_bias: Any) -> tuple[Any, Any]:
        q, k, v = np.split(tokens @ kernel + bias, 3, axis=-1)
        split = [x.reshape(2, 17, 4, 8).transpose(0, 2, 1, 3) for x in (q, k, v)]
        logits = split[0] @ split[1].transpose(0, 1, 3, 2) / np.sqrt(8) + given.get("bias", 0)
        weights = np.exp(logits - logits.max(-1, keepdims=True)) * given.get("mask", True)
        weights /= weights.sum(-1, keepdims=True)
        return weights, (weights @ split[2]).transpose(0, 2, 1, 3).reshape(TOKENS) @ out + out_bias

    tokens, layer = values(*TOKENS), layers.MultiHeadSelfAttention(HEADS)
    inputs, constants = keras.Input(TOKENS[1:]), keras.tree.map_structure(ops.array, given)
    model = keras.Model(inputs, layer(inputs, **constants))
    weights = [numpy(w).astype("float64") for w in layer.weights]
    maps, wanted = definition(*weights)
    np.testing.assert_allclose(numpy(model(tokens)), wanted, atol=1e-5)
    found = numpy(layer.attention_probabilities(tokens, **constants))
    np.testing.assert_allclose(found, maps, atol=1e-5)
    along = [np.random.default_rng(5).normal(size=w.shape) for w in weights]
    ahead, back = (
        definition(*(w + step * d for w, d in zip(weights, along, strict=True)))[1]
        for step in (1e-5, -1e-5)
    )
    derivatives = gradients(model, tokens, True, wanted.astype("float32")).values()
    found = sum(np.vdot(g, d) for g, d in zip(derivatives, along, strict=True))
    assert found == pytest.approx(np.vdot(wanted, ahead - back) / 2e-5, rel=1e-4)


def test_a_query_without_any_key_is_finite() -> None:
    """In float16 as well, whose numbers end at 65504; and a mask of Keras's is refused."""
    for dtype in ("float32", "mixed_float16"):
        block = layers.EncoderBlock(BLOCK, dtype=dtype)
        found = block(values(*TOKENS), mask=np.zeros((1, 1, 17, 1), bool))
        assert np.isfinite(numpy(found)).all()
    words = ["(2, 17)", "mask[:, None, None, :]"]
    refused(words, block, values(*TOKENS), mask=np.ones((2, 17), bool))


def test_relative_bias_is_its_definition() -> None:
    """Logit (q, k) gains query q times the embedding of the offset k - q."""
    queries, layer = values(2, 6, 3, 8), layers.RelativePositionBias(6)
    found, table = numpy(layer(queries)), numpy(layer.embedding)
    for q, k in np.ndindex(6, 6):
        wanted = queries[:, q] @ table[k - q + 5] / np.sqrt(8)
        np.testing.assert_allclose(found[:, :, q, k], wanted, atol=1e-6)


def test_gelu_is_its_definition() -> None:
    x = np.concatenate([np.linspace(-6, 6, 2001), [-1e4, 1e4]])
    exact = x * [(1 + math.erf(v / math.sqrt(2))) / 2 for v in x]
    near = x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    x = ops.convert_to_tensor(x.astype("float32"))
    # 1 + erf is as good as float32 is near 1: off by eps times |x|.
    np.testing.assert_allclose(numpy(gelu(x)), exact, rtol=1e-6, atol=1e-6)
    without_gradients = keras.Sequential([keras.Input((1,)), keras.layers.Activation(gelu_tanh)])
    inferred = without_gradients.predict(x[:, None], verbose=0)[:, 0]
    for found in (numpy(gelu_tanh(x)), inferred):
        np.testing.assert_allclose(found, near, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("function", [gelu, gelu_tanh])
def test_gelu_of_many_hidden_features_in_inference(function: Any) -> None:
    """Which torch writes over the dense layer's outputs, part by part, and over nothing else."""
    tokens, layer = values(2, 70, 16), layers.MLP(2048, function.__name__)
    given = ops.convert_to_tensor(tokens)
    model = keras.Sequential([keras.Input((70, 16)), layer])
    first, second = (keras.layers.Dense(width) for width in (2048, 16))
    for dense, ours in ((first, layer.dense_0), (second, layer.dense_1)):
        dense.build((None, ours.kernel.shape[0]))
        dense.set_weights(ours.get_weights())
    expected = numpy(second(function(first(given))))
    np.testing.assert_allclose(model.predict(tokens, verbose=0), expected, atol=1e-5)
    np.testing.assert_array_equal(numpy(given), tokens)


@pytest.mark.parametrize("length", [9, 300])
@pytest.mark.parametrize("biased", [False, True])
def test_attention_in_bfloat16_has_the_derivative_of_float32(biased: bool, length: int) -> None:
    """With few tokens and with many, which torch's operator takes in other precisions."""
    relative = {"relative_length": length} if biased else {}
    tokens, models = values(2, length, 16), []
    for dtype in ("float32", "mixed_bfloat16"):
        attend = layers.MultiHeadSelfAttention(TWO_HEADS, **relative, dtype=dtype)
        exactly = keras.layers.Activation("linear", dtype="float32")
        models.append(keras.Sequential([keras.Input(tokens.shape[1:]), attend, exactly]))
    models[1].set_weights(models[0].get_weights())
    found = [gradients(model, tokens, True, tokens).values() for model in models]
    exact, rounded = (np.concatenate([x.ravel() for x in each]) for each in found)
    error = np.linalg.norm(rounded - exact) / np.linalg.norm(exact)
    # Some steps that round as one product: to 2**-9, or 2**-8 where TensorFlow lacks AVX-512.
    a, b = (keras.ops.cast(values(*shape), "bfloat16") for shape in ((64, 300), (300, 64)))
    product, a, b = (numpy(keras.ops.cast(x, "float32")) for x in (keras.ops.matmul(a, b), a, b))
    assert error < 9.2 * np.linalg.norm(product - a @ b) / np.linalg.norm(a @ b)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_attention_dropout_preserves_the_mean(strategy: str, monkeypatch: Any) -> None:
    for name in ("attention.dropout_strategy", "_dropout.dropout_strategy"):
        monkeypatch.setattr(f"keras_vit.layers.{name}", lambda: DropoutStrategy(strategy))
    tokens = values(1, 9, 16).repeat(300, axis=0)
    layer = layers.MultiHeadSelfAttention(replace(TWO_HEADS, attention_dropout=0.3))
    exact, mean = numpy(layer(tokens))[0], numpy(layer(tokens, training=True)).mean(axis=0)
    assert np.abs(mean - exact).max() < 0.15 * np.abs(exact).max()


@pytest.mark.parametrize("rescale", [True, False])  # without, it is big_vision's
def test_stochastic_depth_drops_whole_examples_and_keeps_the_mean(rescale: bool) -> None:
    branch, layer = np.ones((4000, 3, 2), "float32"), layers.StochasticDepth(0.25, rescale=rescale)
    flat = numpy(layer(branch, training=True)).reshape(4000, -1).round(6)
    kept = np.float32(4 / 3 if rescale else 1)
    assert (flat == flat[:, :1]).all()
    assert set(np.unique(flat)) == {np.float32(0), kept.round(6)}
    assert flat.mean() == pytest.approx(0.75 * kept, abs=0.03)
    np.testing.assert_array_equal(numpy(layer(branch)), branch)


@pytest.mark.backends("jax")
def test_a_block_as_on_a_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    if keras.backend.backend() != "jax":
        pytest.skip("TPUs are JAX's")
    import jax

    tokens, block = values(2, 9, 32), layers.EncoderBlock(BLOCK)
    block.build(tokens.shape)

    def loss(weights: Any, tokens: Any) -> Any:
        outputs, _ = block.stateless_call(weights, [], tokens, training=True)
        return (outputs**2).mean(), outputs

    def outputs_and_gradients() -> list[Any]:
        weights = [variable.value for variable in block.trainable_variables]
        step = jax.jit(jax.value_and_grad(lambda *both: loss(*both), argnums=(0, 1), has_aux=True))
        (_, outputs), derivatives = step(weights, tokens)
        return [outputs, *jax.tree.leaves(derivatives)]

    expected = outputs_and_gradients()
    monkeypatch.setattr(kernels, "jax_platform", lambda: "tpu")
    monkeypatch.setattr(kernels, "jax_is_accelerated", lambda: True)
    for array, like in zip(outputs_and_gradients(), expected, strict=True):
        np.testing.assert_allclose(array, like, rtol=0, atol=2e-6 * float(np.abs(like).max()))


def kept(rate: float, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    dropped = numpy(Dropout(rate, seed=seed)(ops.ones(shape), training=True))
    np.testing.assert_allclose(np.unique(dropped), [0, 1 / (1 - rate)], rtol=1e-6)
    return dropped > 0


@pytest.mark.parametrize("rate", [0.03, 0.1, 0.5, 0.9])
def test_dropout_is_as_often_as_the_rate_says_each_for_itself(rate: float) -> None:
    rows, length = 40_000, 16  # of two numbers a row
    found = kept(rate, (rows, length))
    six_sigma = 6 * np.sqrt(rate * (1 - rate) / rows)
    np.testing.assert_allclose(found.mean(0), 1 - rate, atol=six_sigma)
    assert np.abs(np.corrcoef(found.T) - np.eye(length)).max() < 6 / np.sqrt(rows)
    # How many of a row: binomial, so that its variance is the sum of theirs.
    assert abs(found.sum(1).var() / (length * rate * (1 - rate)) - 1) < 0.06


def test_dropout_draws_anew_at_every_call_and_by_its_seed() -> None:
    layer = Dropout(0.5, seed=3)
    first, second = (numpy(layer(ops.ones((4, 50)), training=True)) for _ in "ab")
    assert (first != second).any()
    np.testing.assert_array_equal(first > 0, kept(0.5, (4, 50), seed=3))
    inputs = np.arange(12.0, dtype="float32").reshape(3, 4)
    for rate, training, share in ((0.0, True, 1), (1.0, True, 0), (0.5, False, 1)):
        found = numpy(Dropout(rate)(inputs, training=training))
        np.testing.assert_array_equal(found, inputs * share)


def numbered(batch: int, length: int, width: int) -> np.ndarray:
    return np.tile(np.arange(length, dtype="float32")[None, :, None], (batch, 1, width))


@pytest.mark.parametrize("prefix", [0, 2])
def test_the_stated_number_of_patches_is_kept_in_order(prefix: int) -> None:
    sizes = [(0.5, 16, 8), (0.5, 15, 7), (0.25, 16, 12), (0.9, 10, 1), (0.99, 16, 1), (0.0, 16, 16)]
    for rate, patches, left in sizes:
        tokens = numbered(4, prefix + patches, 3)
        found = numpy(layers.PatchDropout(rate, prefix, seed=1)(tokens, training=True))
        assert found.shape == (4, prefix + left, 3)
        np.testing.assert_array_equal(found[:, :prefix], tokens[:, :prefix])
        assert (np.diff(found[..., 0], axis=1) > 0).all()
        assert set(found.ravel()) <= set(tokens.ravel())


def test_patches_are_all_kept_in_inference_and_drawn_fairly_and_by_seed_in_training() -> None:
    tokens, layer = values(2, 17, 8), layers.PatchDropout(0.5, 1, seed=7)
    for arguments in ({}, {"training": False}):
        np.testing.assert_array_equal(numpy(layer(tokens, **arguments)), tokens)
    refused(r"rate=1\.0", layers.PatchDropout, 1.0)
    found = numpy(layers.PatchDropout(0.5, 0, seed=0)(numbered(2000, 8, 1), training=True))
    shares = np.bincount(found.astype(int).ravel(), minlength=8) / 2000
    np.testing.assert_allclose(shares, 0.5, atol=0.05)  # every patch as often as another
    first, other = (numpy(layer(numbered(2, 64, 1), training=True)) for _ in range(2))
    again = numpy(layers.PatchDropout(0.5, 1, seed=7)(numbered(2, 64, 1), training=True))
    np.testing.assert_array_equal(again, first)
    assert not (first[0] == first[1]).all()
    assert not (first == other).all()


@pytest.mark.parametrize("shape", [(3, 8), (2, 5, 8), (2, 3, 4, 8)])
def test_the_dense_layer_is_that_of_keras(shape: tuple[int, ...]) -> None:
    inputs = values(*shape)
    for use_bias in (False, True):
        ours = Dense(6, activation="tanh", use_bias=use_bias)
        theirs = keras.layers.Dense(6, activation="tanh", use_bias=use_bias)
        theirs(inputs), ours(inputs)
        theirs.set_weights(ours.get_weights())
        for training in (False, True):
            found = numpy(ours(inputs, training=training))
            np.testing.assert_allclose(found, numpy(theirs(inputs)), atol=1e-6)


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
        refused("token_merging=", layers.merging.merging_schedule, wrong, 3)
    refused("relative_length=17", layers.MergingEncoderBlock, BLOCK, merge=2, relative_length=17)


def test_half_precision_neither_overflows_nor_touches_what_stays() -> None:
    tokens = np.full((1, 5, 4), 60000, "float16")
    tokens[:, 3:] = -1.1  # far from the others: these two are no one's nearest
    sizes, matching = keras.ops.full((1, 5), 3.0), bipartite_soft_matching(tokens, 1, 1)
    merged, token_index = merge_tokens(matching, keras.ops.convert_to_tensor(tokens), sizes, None)
    assert keras.backend.standardize_dtype(merged.dtype) == "float16"
    places = numpy(token_index)[0]
    np.testing.assert_array_equal(numpy(merged)[0, places[[3, 4]]], tokens[0, 3:])
    np.testing.assert_array_equal(numpy(merged)[0, places[1]], tokens[0, 1])
