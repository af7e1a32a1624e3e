"""Every layer stands alone in anyone's model, and serializes."""

import math
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import layers
from keras_vit.layers._dense import Dense
from keras_vit.layers._dropout import Dropout
from keras_vit.layers.activations import gelu, gelu_tanh
from keras_vit.layers.attention import attention
from keras_vit.ops import DropoutStrategy
from tests.backend import gradients

TOKENS, IMAGES = (2, 17, 32), (2, 32, 24, 3)
BLOCK = layers.BlockConfig(num_heads=4, mlp_dim=64)
CASES: dict[str, tuple[keras.layers.Layer, tuple[int, ...], tuple[int, ...]]] = {
    "patches": (layers.Patches(8), IMAGES, (2, 4, 3, 192)),
    "patch_embedding": (layers.PatchEmbedding(32, (16, 8)), IMAGES, (2, 2, 3, 32)),
    "class_token": (layers.ClassToken(), TOKENS, (2, 18, 32)),
    "register_tokens": (layers.RegisterTokens(4), TOKENS, (2, 21, 32)),
    "position_embedding": (layers.PositionEmbedding((4, 4)), TOKENS, TOKENS),
    "positions_2d": (layers.PositionEmbedding((4, 4), "learned_2d"), TOKENS, TOKENS),
    "sincos": (layers.PositionEmbedding((4, 4), "sincos2d"), TOKENS, TOKENS),
    "attention": (layers.MultiHeadSelfAttention(4), TOKENS, TOKENS),
    "relative": (layers.MultiHeadSelfAttention(4, relative_length=17), TOKENS, TOKENS),
    "relative_2d": (layers.MultiHeadSelfAttention(4, relative_grid=(4, 4)), TOKENS, TOKENS),
    "no_key_bias": (layers.MultiHeadSelfAttention(4, key_bias=False), TOKENS, TOKENS),
    "mlp": (layers.MLP(64), TOKENS, TOKENS),
    "normed_mlp": (layers.MLP(64, "swiglu", norm_epsilon=1e-6), TOKENS, TOKENS),
    "swiglu": (layers.MLP(64, "swiglu"), TOKENS, TOKENS),
    "encoder_block": (layers.EncoderBlock(BLOCK), TOKENS, TOKENS),
    "layer_scale": (layers.LayerScale(0.1), TOKENS, TOKENS),
    "mixer_block": (layers.MixerBlock(8, 64), TOKENS, TOKENS),
    "padded_patches": (layers.PatchEmbedding(32, (5, 7), padding="same"), IMAGES, (2, 7, 4, 32)),
    "standardized_conv": (layers.StandardizedConv2D(8, 3, 2), IMAGES, (2, 16, 12, 8)),
    "conv_stem_stage": (layers.ConvStemStage(6, 2), (2, 29, 21, 3), (2, 15, 11, 6)),
    "stem_1": (layers.ResNetStem(32, version=1), (2, 30, 21, 3), (2, 8, 6, 32)),
    "stem_2": (layers.ResNetStem(32), (2, 30, 21, 3), (2, 8, 6, 32)),
    "unit_1": (layers.ResidualUnit(32, 2, version=1), (2, 7, 6, 128), (2, 4, 3, 128)),
    "unit_2": (layers.ResidualUnit(32), (2, 7, 6, 64), (2, 7, 6, 128)),
    "patch_dropout": (layers.PatchDropout(0.5, 1), TOKENS, TOKENS),
    "dense": (Dense(24, activation="relu"), TOKENS, (*TOKENS[:-1], 24)),
    "dropout": (Dropout(0.5), TOKENS, TOKENS),
    "stochastic_depth": (layers.StochasticDepth(0.5), TOKENS, TOKENS),
    "token_pooling": (layers.TokenPooling(), TOKENS, (2, 32)),
    "mean_pooling": (layers.MeanPooling(1), TOKENS, (2, 32)),
    "attention_pooling": (layers.AttentionPooling(4, 64), TOKENS, (2, 32)),
}


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape).astype("float32")


numpy = ops.convert_to_numpy


# Copies and precisions of every layer: test_conformance.py and test_serialization.py.
@pytest.mark.parametrize("name", CASES)
def test_a_layer_alone_has_the_shape_that_it_promises(name: str) -> None:
    layer, shape, wanted = CASES[name]
    layer = type(layer).from_config(layer.get_config())
    inputs = values(*shape)
    assert tuple(layer(inputs).shape) == wanted
    assert tuple(layer.compute_output_shape(shape)) == wanted
    assert layer(keras.Input(shape[1:])).shape[1:] == wanted[1:]
    half = type(layer).from_config({**layer.get_config(), "dtype": "mixed_bfloat16"})
    assert keras.backend.standardize_dtype(half(inputs).dtype) == "bfloat16"


@pytest.mark.every_backend
@pytest.mark.parametrize("patch", [(8, 8), (16, 8), (5, 7)])
def test_patches_are_slices_of_the_image(patch: tuple[int, int]) -> None:
    height, width = patch
    for channels in (1, 3, 5):
        images = values(2, 35, 26, channels)
        found = numpy(layers.Patches(patch)(images))
        first = numpy(layers.Patches(patch, "channels_first")(images.transpose(0, 3, 1, 2)))
        np.testing.assert_array_equal(first, found)
        for row in range(35 // height):
            for column in range(26 // width):
                cut = images[:, row * height :, column * width :][:, :height, :width]
                np.testing.assert_array_equal(found[:, row, column], cut.reshape(2, -1))


@pytest.mark.every_backend
@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_patch_embedding_is_a_matrix_product_over_patches(data_format: str) -> None:
    images = values(2, 32, 24, 3)
    given = images if data_format == "channels_last" else images.transpose(0, 3, 1, 2)
    embed = layers.PatchEmbedding(16, 8, data_format)
    found, flat = numpy(embed(given)), numpy(layers.Patches(8)(images))
    kernel, bias = (numpy(w) for w in (embed.kernel, embed.bias))
    np.testing.assert_allclose(found, flat @ kernel.reshape(-1, 16) + bias, atol=1e-5)


@pytest.mark.every_backend
def test_attention_is_its_definition() -> None:
    """Equations 5 to 8 of the paper, in NumPy and float64."""
    tokens, heads = values(*TOKENS), 4
    layer = layers.MultiHeadSelfAttention(heads)
    found = numpy(layer(tokens))
    kernel, bias, out, out_bias = (numpy(w).astype("float64") for w in layer.weights)
    q, k, v = np.split(tokens @ kernel + bias, 3, axis=-1)
    split = [x.reshape(2, 17, heads, 8).transpose(0, 2, 1, 3) for x in (q, k, v)]
    logits = split[0] @ split[1].transpose(0, 1, 3, 2) / np.sqrt(8)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    joined = (weights @ split[2]).transpose(0, 2, 1, 3).reshape(TOKENS)
    np.testing.assert_allclose(found, joined @ out + out_bias, atol=1e-5)
    np.testing.assert_allclose(numpy(layer.attention_probabilities(tokens)), weights, atol=1e-5)


@pytest.mark.every_backend
def test_relative_bias_is_its_definition() -> None:
    """Logit (q, k) gains query q times the embedding of the offset k - q."""
    queries, layer = values(2, 6, 3, 8), layers.RelativePositionBias(6)
    found, table = numpy(layer(queries)), numpy(layer.embedding)
    for q in range(6):
        for k in range(6):
            wanted = queries[:, q] @ table[k - q + 5] / np.sqrt(8)
            np.testing.assert_allclose(found[:, :, q, k], wanted, atol=1e-6)


@pytest.mark.every_backend
def test_gelu_is_its_definition() -> None:
    x = np.concatenate([np.linspace(-6, 6, 2001), [-1e4, 1e4]])
    exact = x * [(1 + math.erf(v / math.sqrt(2))) / 2 for v in x]
    near = x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    x = ops.convert_to_tensor(x.astype("float32"))
    # 1 + erf is as good as float32 is near 1: off by eps times |x|.
    np.testing.assert_allclose(numpy(gelu(x)), exact, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(numpy(gelu_tanh(x)), near, rtol=1e-6, atol=1e-6)


@pytest.mark.every_backend
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("biased", [False, True])
def test_attention_is_that_of_keras(biased: bool, dtype: str) -> None:
    """In float32: what is computed in bfloat16 is as near to it as its rounding allows."""
    query, key, value = (ops.cast(x, dtype) for x in values(3, 2, 9, 3, 8))
    bias = ops.cast(values(2, 1, 1, 9), dtype) if biased else None
    found = attention(query, key, value, bias)
    assert keras.backend.standardize_dtype(found.dtype) == dtype
    given = [x if x is None else ops.cast(x, "float32") for x in (query, key, value, bias)]
    wanted = ops.dot_product_attention(*given[:3], bias=given[3])
    tolerance = {"float32": 1e-6, "bfloat16": 2**-7}[dtype]
    found = numpy(ops.cast(found, "float32"))
    np.testing.assert_allclose(found, numpy(wanted), atol=tolerance)


@pytest.mark.every_backend
@pytest.mark.parametrize("length", [9, 300])
@pytest.mark.parametrize("biased", [False, True])
def test_attention_in_bfloat16_has_the_derivative_of_float32(biased: bool, length: int) -> None:
    """With few tokens and with many, which torch's operator takes in other precisions."""
    relative = {"relative_length": length} if biased else {}
    tokens, models = values(2, length, 16), []
    for dtype in ("float32", "mixed_bfloat16"):
        attend = layers.MultiHeadSelfAttention(2, **relative, dtype=dtype)
        exactly = keras.layers.Activation("linear", dtype="float32")
        inputs = keras.Input(tokens.shape[1:])
        models.append(keras.Sequential([inputs, attend, exactly], name="model"))
    models[1].set_weights(models[0].get_weights())
    exact, rounded = (
        np.concatenate([x.ravel() for x in gradients(model, tokens, True, tokens).values()])
        for model in models
    )
    error = np.linalg.norm(rounded - exact) / np.linalg.norm(exact)
    assert error < 2**-6  # bfloat16 rounds to 2**-9, at each of a few steps


# How masks for attention probabilities are drawn: torch has two ways.
STRATEGIES = ["bits", "kernel"] if keras.backend.backend() == "torch" else ["remainders"]


@pytest.mark.backends("torch")  # has an operator of its own there
def test_attention_in_float64_is_not_rounded_in_training() -> None:
    import torch

    layer = layers.MultiHeadSelfAttention(4, dtype="float64")
    tokens = torch.rand(2, 17, 32, dtype=torch.float64)
    with torch.no_grad():
        expected = layer(tokens).numpy()
    np.testing.assert_allclose(layer(tokens).detach().numpy(), expected, rtol=0, atol=1e-14)


@pytest.mark.every_backend
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_attention_dropout_preserves_the_mean(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The explicit probabilities of training agree with the fused kernel on average."""
    for module in ("attention", "_dropout"):
        name = f"keras_vit.layers.{module}.dropout_strategy"
        monkeypatch.setattr(name, lambda: DropoutStrategy(strategy))
    tokens = values(1, 9, 16).repeat(300, axis=0)
    layer = layers.MultiHeadSelfAttention(2, attention_dropout=0.3)
    exact = numpy(layer(tokens))[0]
    mean = numpy(layer(tokens, training=True)).mean(axis=0)
    assert np.abs(mean - exact).max() < 0.15 * np.abs(exact).max()


@pytest.mark.every_backend
@pytest.mark.parametrize("rescale", [True, False])  # without, it is big_vision's
def test_stochastic_depth_drops_whole_examples_and_keeps_the_mean(rescale: bool) -> None:
    branch, layer = np.ones((4000, 3, 2), "float32"), layers.StochasticDepth(0.25, rescale=rescale)
    flat = numpy(layer(branch, training=True)).reshape(4000, -1).round(6)
    kept = np.float32(4 / 3 if rescale else 1)
    assert (flat == flat[:, :1]).all()
    assert set(np.unique(flat)) == {np.float32(0), kept.round(6)}
    assert flat.mean() == pytest.approx(0.75 * kept, abs=0.03)
    np.testing.assert_array_equal(numpy(layer(branch)), branch)


@pytest.mark.every_backend
@pytest.mark.parametrize("epsilons", [(0.0, 1e-5), (1e-10, 0.0)])
def test_standardized_kernels_have_mean_0_and_deviation_1(epsilons: tuple[float, float]) -> None:
    images = values(2, 9, 8, 4)
    layer = layers.StandardizedConv2D(6, 3, 2, "same", *epsilons)
    found = numpy(layer(images))
    kernel = numpy(layer.kernel).astype("float64") + 3  # the mean must not matter
    kernel -= kernel.mean(axis=(0, 1, 2))
    kernel /= np.sqrt(kernel.var(axis=(0, 1, 2)) + epsilons[0]) + epsilons[1]
    padded = np.pad(images, ((0, 0), (1, 1), (0, 1), (0, 0)))  # what is odd goes to the end
    for row in range(5):
        for column in range(4):
            cut = padded[:, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
            wanted = np.einsum("bhwc,hwcf->bf", cut, kernel)
            np.testing.assert_allclose(found[:, row, column], wanted, atol=2e-5)


@pytest.mark.every_backend
def test_padded_patches_see_zeros_around_the_image() -> None:
    """The Mixer's stem pads as TensorFlow does: what cannot be shared goes to the end."""
    images = values(2, 34, 25, 3)
    embed = layers.PatchEmbedding(8, (5, 7), padding="same")
    plain, found = layers.PatchEmbedding(8, (5, 7)), numpy(embed(images))
    padded = np.pad(images, ((0, 0), (0, 1), (1, 2), (0, 0)))
    plain.build(padded.shape)
    plain.set_weights(embed.get_weights())
    np.testing.assert_allclose(numpy(plain(padded)), found, atol=1e-6)


@pytest.mark.every_backend
def test_sincos_positions_are_big_visions() -> None:
    """`posemb_sincos_2d` of big_vision, written out."""
    layer = layers.PositionEmbedding((3, 5), "sincos2d", 0)
    layer.build((None, 15, 16))
    found = numpy(layer.positions(3, 5))
    y, x = (axis.flatten() for axis in np.mgrid[:3, :5])
    omega = 1 / 10_000 ** (np.arange(4) / 3)
    parts = [np.sin(x[:, None] * omega), np.cos(x[:, None] * omega)]
    parts += [np.sin(y[:, None] * omega), np.cos(y[:, None] * omega)]
    np.testing.assert_allclose(found[0], np.concatenate(parts, axis=1), atol=1e-6)


@pytest.mark.every_backend
def test_resampling_is_scipys_zoom() -> None:
    ndimage = pytest.importorskip("scipy.ndimage")
    grid = values(4, 4, 6)
    for new in ((7, 5), (2, 3), (4, 4), (1, 1), (9, 2)):
        wanted = ndimage.zoom(grid, (new[0] / 4, new[1] / 4, 1), order=1)
        found = numpy(layers.positions.resample_grid(grid, *new))
        np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "shape", "words"),
    [
        (lambda: layers.Patches(16), (2, 8, 32, 3), ["8 x 32", "16 x 16", "smaller patch_size"]),
        (lambda: layers.Patches(16), (32, 32, 3), ["(32, 32, 3)", "batch", "images[None]"]),
        (lambda: layers.Patches(0), None, ["patch_size=0"]),
        (lambda: layers.Patches(4, "last"), None, ["'last'", "channels_last"]),
        (lambda: layers.TokensToGrid(1, "first"), None, ["'first'", "channels_first"]),
        (lambda: layers.MultiHeadSelfAttention(5), TOKENS, ["num_heads=5", "hidden_dim=32"]),
        (lambda: layers.PositionEmbedding((3, 3)), TOKENS, ["17 tokens", "3 x 3", "10"]),
        (lambda: layers.PositionEmbedding((4, 4), "rope"), None, ["'rope'", "'learned'"]),
        (lambda: layers.MLP(64, dropout=1), None, ["dropout=1"]),
        (lambda: layers.BlockConfig(num_heads=4, mlp_dim=0), None, ["mlp_dim=0"]),
    ],
)
def test_errors_say_what_was_given(make: Any, shape: Any, words: list[str]) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT012 - either step may refuse
        layer = make()
        layer(values(*shape))
    for word in words:
        assert word in str(error.value)


def test_layers_in_anyones_model(tmp_path: Any) -> None:
    inputs = keras.Input((32, 32, 3))
    x = layers.PatchEmbedding(32, 8)(inputs)
    x = keras.layers.Reshape((-1, 32))(x)
    x = layers.ClassToken()(x)
    x = layers.PositionEmbedding((4, 4))(x)
    x = layers.EncoderBlock(layers.BlockConfig(num_heads=4, mlp_dim=64, dropout=0.1))(x)
    model = keras.Model(inputs, layers.TokenPooling()(x))
    model.save(tmp_path / "own.keras")
    loaded = keras.saving.load_model(tmp_path / "own.keras")
    images = values(2, 32, 32, 3)
    np.testing.assert_allclose(numpy(loaded(images)), numpy(model(images)), atol=1e-6)
