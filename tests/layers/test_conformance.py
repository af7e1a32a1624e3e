"""Keras's own test of a layer, for every public layer; of any size: tests/models/test_common.py."""

import dataclasses
from typing import Any

import keras
import numpy as np
import pytest
from keras.src.testing import TestCase

from keras_vit import layers
from tests.backend import reloaded, rows
from tests.layers.cases import CASES, IMAGES, TOKENS, arrays
from tests.layers.test_layers import HEADS, numpy, values
from tests.training.common import refused

WITHOUT_BATCH = ("grid_position_bias", "rotary_positions")  # alike for all images


# Others are made of these, or reshape, gather and add alone, which backends do alike.
EVERYWHERE = (
    *("mlp", "dense", "dropout", "encoder_block", "mixer_block", "relative_position_bias"),
    *("patch_dropout", "stochastic_depth", "patch_embedding", "conv_stem_stage", "resnet_stem"),
    *("residual_unit", "standardized_conv", "pixel_upsample", "feature_fusion"),
)


@pytest.mark.parametrize("name", rows(CASES, EVERYWHERE))
def test_keras_conformance(name: str) -> None:
    cls, arguments, inputs = CASES[name]
    given = {f"{argument}_shape": array for argument, array in arrays(inputs).items()}
    shape: Any = {argument: array.shape for argument, array in given.items()}
    dtype: Any = {argument: array.dtype.name for argument, array in given.items()}
    if len(given) == 1:  # Keras's harness takes the shape of one argument without a name
        (shape,), (dtype,) = shape.values(), dtype.values()
    masking = (
        keras.layers.Dense
        | keras.layers.Dropout
        | layers.MultiHeadSelfAttention
        | layers.EncoderBlock
    )
    options = {"supports_masking": issubclass(cls, masking)}
    # Keras trains on one argument alone; the others train below.
    options["run_training_check"] = len(inputs) == 1 and name not in WITHOUT_BATCH
    TestCase().run_layer_test(cls, arguments, shape, dtype, **options)


@pytest.mark.parametrize("name", CASES)
def test_keras_set_to_channels_first(name: str) -> None:
    """What takes images or returns a grid follows Keras's configuration; all else is as it was."""
    cls, arguments, given = CASES[name]
    inputs = arrays(given)
    arguments = {key: value for key, value in arguments.items() if key != "remat"}
    if isinstance(arguments.get("config"), layers.BlockConfig):
        arguments["config"] = dataclasses.replace(arguments["config"], remat=False)
    layer = cls(**arguments)
    expected = keras.tree.flatten(layer(**inputs))
    keras.config.set_image_data_format("channels_first")
    same = cls(**{key: value for key, value in arguments.items() if key != "data_format"})
    same(**inputs)
    assert getattr(same, "data_format", None) == getattr(layer, "data_format", None)
    same.set_weights(layer.get_weights())
    for one, other in zip(keras.tree.flatten(same(**inputs)), expected, strict=True):
        np.testing.assert_array_equal(numpy(one), numpy(other))


# Sizes that strides do not divide, and arguments that `CASES` does not have.
ALONE: list[tuple[keras.layers.Layer, tuple[int, ...], tuple[int, ...]]] = [
    (layers.PatchEmbedding(32, (5, 7), padding="same"), IMAGES, (2, 7, 4, 32)),
    (layers.PositionEmbedding((4, 4), "sincos2d"), TOKENS, TOKENS),
    (layers.MultiHeadSelfAttention(HEADS, relative_grid=(4, 4)), TOKENS, TOKENS),
    (layers.ConvStemStage(6, 2), (2, 29, 21, 3), (2, 15, 11, 6)),
    (layers.ResNetStem(32, version=1), (2, 30, 21, 3), (2, 8, 6, 32)),
    (layers.ResNetStem(32), (2, 30, 21, 3), (2, 8, 6, 32)),
    (layers.ResidualUnit(32, 2, version=1), (2, 7, 6, 128), (2, 4, 3, 128)),
    (layers.ResidualUnit(32), (2, 7, 6, 64), (2, 7, 6, 128)),
    (layers.MeanPooling(1), TOKENS, (2, 32)),
    (layers.AttentionPooling(4, 64), TOKENS, (2, 32)),
]
ERRORS = [  # beside those of whole models, in tests/models/test_vit.py
    (lambda: layers.Patches(16), (32, 32, 3), ["(32, 32, 3)", "batch", "images[None]"]),
    (lambda: layers.Patches(0), None, ["patch_size=0"]),
    (lambda: layers.Patches(4, "last"), None, ["'last'", "channels_last"]),
    (lambda: layers.TokensToGrid(1, "first"), None, ["'first'", "channels_first"]),
    (lambda: layers.PositionEmbedding((3, 3)), TOKENS, ["17 tokens", "3 x 3", "10"]),
    (lambda: layers.PositionEmbedding((4, 4), "rope"), None, ["'rope'", "'learned'"]),
]


@pytest.mark.parametrize(("layer", "shape", "wanted"), ALONE)
def test_a_layer_alone_has_the_shape_that_it_promises(layer: Any, shape: Any, wanted: Any) -> None:
    assert tuple(layer(values(*shape)).shape) == wanted
    assert tuple(layer.compute_output_shape(shape)) == wanted
    assert layer(keras.Input(shape[1:])).shape[1:] == wanted[1:]


@pytest.mark.parametrize(("make", "shape", "words"), ERRORS)
def test_errors_say_what_was_given(make: Any, shape: Any, words: list[str]) -> None:
    with refused(*words):
        layer = make()
        layer(values(*shape))


def test_layers_in_anyones_model_and_a_mixer_of_some_length(tmp_path: Any) -> None:
    cls, arguments, _ = CASES["mixer_block"]
    with pytest.raises(ValueError, match="not have a fixed length"):
        cls(**arguments)(keras.Input((None, 32)))
    assert tuple(cls(**arguments)(np.ones(TOKENS, "float32")).shape) == TOKENS
    block = layers.EncoderBlock(layers.BlockConfig(num_heads=4, mlp_dim=64, dropout=0.1))
    embed = [layers.PatchEmbedding(32, 8), keras.layers.Reshape((-1, 32)), layers.ClassToken()]
    parts = [*embed, layers.PositionEmbedding((4, 4)), block, layers.TokenPooling()]
    model, images = keras.Sequential([keras.Input((32, 32, 3)), *parts]), values(2, 32, 32, 3)
    found = numpy(reloaded(model, tmp_path)(images))
    np.testing.assert_allclose(found, numpy(model(images)), atol=1e-6)


@pytest.mark.backends("torch")  # has an operator of its own there
def test_attention_in_float64_is_not_rounded_in_training() -> None:
    import torch

    layer = layers.MultiHeadSelfAttention(HEADS, dtype="float64")
    tokens = torch.rand(2, 17, 32, dtype=torch.float64)
    with torch.no_grad():
        expected = layer(tokens).numpy()
    np.testing.assert_allclose(layer(tokens).detach().numpy(), expected, rtol=0, atol=1e-14)
