"""Keras's own test of a layer, for every public layer; of any size: tests/models/test_common.py."""

import re
from typing import Any

import keras
import numpy as np
import pytest
from keras.src.testing import TestCase

from keras_vit import layers
from keras_vit.layers._dense import Dense
from tests import bank
from tests.backend import numpy, refused, rows
from tests.layers.cases import CASES, IMAGES, TOKENS, arrays
from tests.layers.test_layers import HEADS, values

WITHOUT_BATCH = ("grid_position_bias", "rotary_positions")  # alike for all images


# Others are made of these, or reshape, gather and add alone, which backends do alike.
EVERYWHERE = ("mlp", "dense", "dropout", "encoder_block", "mixer_block", "relative_position_bias")
EVERYWHERE += ("patch_dropout", "stochastic_depth", "patch_embedding", "conv_stem_stage")
EVERYWHERE += ("resnet_stem", "residual_unit", "standardized_conv", "pixel_upsample")
EVERYWHERE += ("feature_fusion",)


@pytest.mark.parametrize("name", rows(CASES, EVERYWHERE))
def test_keras_conformance(name: str) -> None:
    cls, arguments, inputs = CASES[name]
    given = {f"{argument}_shape": array for argument, array in arrays(inputs).items()}
    shape: Any = {argument: array.shape for argument, array in given.items()}
    dtype: Any = {argument: array.dtype.name for argument, array in given.items()}
    if len(given) == 1:  # Keras's harness takes the shape of one argument without a name
        (shape,), (dtype,) = shape.values(), dtype.values()
    masking: Any = keras.layers.Dense | keras.layers.Dropout | layers.EncoderBlock
    masking |= layers.MultiHeadSelfAttention
    options = {"supports_masking": issubclass(cls, masking)}
    # Keras trains on one argument alone; the others train below.
    options["run_training_check"] = len(inputs) == 1 and name not in WITHOUT_BATCH
    TestCase().run_layer_test(cls, arguments, shape, dtype, **options)


@pytest.mark.parametrize("name", CASES)
def test_keras_set_to_channels_first(name: str) -> None:
    """What takes images or returns a grid follows Keras's configuration; all else is as it was."""
    cls, arguments, given = CASES[name]
    inputs, layer = arrays(given), cls(**arguments)
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
    (layers.ConvStemStage(6, 2), (2, 29, 21, 3), (2, 15, 11, 6)),
    (layers.ResNetStem(32, version=1), (2, 30, 21, 3), (2, 8, 6, 32)),
    (layers.ResNetStem(32), (2, 30, 21, 3), (2, 8, 6, 32)),
    (layers.ResidualUnit(32, 2, version=1), (2, 7, 6, 128), (2, 4, 3, 128)),
    (layers.ResidualUnit(32), (2, 7, 6, 64), (2, 7, 6, 128)),
]
ERRORS = [  # beside those of whole models, in tests/models/test_vit.py
    (lambda: layers.Patches(16), (32, 32, 3), ["(32, 32, 3)", "batch", "images[None]"]),
    (lambda: layers.Patches(0), None, ["patch_size=0"]),
    (lambda: layers.Patches(4, "last"), None, ["'last'", "channels_last"]),
    (lambda: layers.TokensToGrid(1, "first"), None, ["'first'", "channels_first"]),
    (lambda: layers.PositionEmbedding((3, 3)), TOKENS, ["17 tokens", "3 x 3", "10"]),
    (lambda: layers.PositionEmbedding((4, 4), "rope"), None, ["'rope'", "'learned'"]),
    (lambda: layers.MixerBlock(8, 24)(keras.Input((None, 32))), None, ["not have a fixed length"]),
]


@pytest.mark.parametrize(("layer", "shape", "wanted"), ALONE)
def test_a_layer_alone_has_the_shape_that_it_promises(layer: Any, shape: Any, wanted: Any) -> None:
    assert tuple(layer(values(*shape)).shape) == wanted
    assert tuple(layer.compute_output_shape(shape)) == wanted
    assert layer(keras.Input(shape[1:])).shape[1:] == wanted[1:]


@pytest.mark.parametrize(("make", "shape", "words"), ERRORS)
def test_errors_say_what_was_given(make: Any, shape: Any, words: list[str]) -> None:
    refused(words, lambda: make()(values(*shape)))


@pytest.mark.backends("torch")  # has an operator of its own there
def test_attention_in_float64_is_not_rounded_in_training() -> None:
    import torch

    layer = layers.MultiHeadSelfAttention(HEADS, dtype="float64")
    tokens = torch.rand(2, 17, 32, dtype=torch.float64)
    with torch.no_grad():
        expected = layer(tokens).numpy()
    np.testing.assert_allclose(layer(tokens).detach().numpy(), expected, rtol=0, atol=1e-14)


LAYERS: dict[str, Any] = {
    "dense": lambda: Dense(6),
    "encoder_block": lambda: layers.EncoderBlock(layers.BlockConfig(num_heads=4, mlp_dim=24)),
    "mixer_block": lambda: layers.MixerBlock(8, 24),
    "attention_pooling": lambda: layers.AttentionPooling(4, 24),
}


@pytest.mark.backends("jax")
@pytest.mark.parametrize("name", LAYERS)
def test_jax_exports_a_dynamic_batch(name: str) -> None:
    import jax
    from jax import export

    layer, tokens = LAYERS[name](), values(5, 9, 16)
    expected = np.asarray(layer(tokens))
    (batch,) = export.symbolic_shape("batch")
    spec = jax.ShapeDtypeStruct((batch, 9, 16), "float32")
    exported = export.export(jax.jit(lambda x: layer(x, training=False)))(spec)
    np.testing.assert_allclose(exported.call(tokens), expected, atol=1e-5)
    assert exported.out_avals[0].shape[0] == batch
    # What converters to ONNX cannot read: a size made of the batch and others.
    shapes = re.findall(r"f32\[([\d,]+)\]", str(jax.make_jaxpr(layer)(tokens)))
    assert "5,9,16" in shapes
    assert not {"45", "80"} & {size for shape in shapes for size in shape.split(",")}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", LAYERS)
def test_torch_exports_a_dynamic_batch(name: str) -> None:
    import torch

    layer, tokens = LAYERS[name](), values(5, 9, 16)
    expected, two = numpy(layer(tokens)), torch.from_numpy(values(2, 9, 16))
    batches = (({0: torch.export.Dim("batch", min=1, max=1024)},),)
    program = torch.export.export(layer.eval(), (two,), dynamic_shapes=batches)
    found = program.module()(torch.from_numpy(tokens))
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=1e-5)
    nodes = {node.name: node for node in program.graph.nodes}
    products = {name for name, node in nodes.items() if "linear" in str(node.target)}
    assert products
    assert {len(nodes[name].meta["val"].shape) for name in products} == {3}


NOISE, DROPOUT = {"stochastic_depth": 0.4}, {"dropout": 0.3, "attention_dropout": 0.3}


def vision_transformer(remat: bool, **noise: Any) -> keras.Model:
    return bank.fresh(**{**bank.TINY, "depth": 2, "num_classes": 0}, remat=remat, **noise)


def one_layer(cls: Any, shape: tuple[int, ...], **arguments: Any) -> Any:
    def build(remat: bool, **noise: float) -> keras.Model:
        inputs, layer = keras.Input(shape), cls(remat=remat, **arguments, **noise)
        mask = {"mask": keras.ops.array(MASK)} if cls is encoder_block else {}
        return keras.Model(inputs, layer(inputs, **mask))

    return build


def encoder_block(**arguments: Any) -> layers.EncoderBlock:
    return layers.EncoderBlock(layers.BlockConfig(**arguments))


MASK = np.arange(9)[None, None, None] < 7
BLOCK: dict[str, Any] = {"num_heads": 2, "mlp_dim": 24, "layer_scale": 0.5}
MIXER = {"tokens_mlp_dim": 8, "channels_mlp_dim": 24}
MERGING = {"token_merging": 1, "patch_dropout": 0.25}
MODELS: dict[str, tuple[Any, dict[str, float]]] = {
    "encoder_block": (one_layer(encoder_block, (9, 16), **BLOCK), NOISE | DROPOUT),
    "mixer_block": (one_layer(layers.MixerBlock, (9, 16), **MIXER), NOISE),
    "residual_unit": (one_layer(layers.ResidualUnit, (5, 4, 64), width=32, strides=2), {}),
    "vision_transformer": (vision_transformer, NOISE | DROPOUT | MERGING),
}
REMAT_CASES = rows(
    # A few: nothing to draw in the unit.
    [(name, True, False) for name, (_, noise) in MODELS.items() if noise]
    + [(name, False, False) for name in MODELS if name != "vision_transformer"],
    lambda case: case[1] or case[0] == "residual_unit",  # what draws runs everywhere
)
EAGER = [pytest.mark.backends("tensorflow"), pytest.mark.thorough]  # torch always is
REMAT_CASES += [pytest.param("encoder_block", True, True, marks=EAGER)]


def gradients(name: str, noisy: bool, eager: bool, remat: bool) -> dict[str, np.ndarray]:
    """What one step of plain SGD at a rate of 1 takes from every weight."""
    build, noise = MODELS[name]
    keras.utils.set_random_seed(4)
    model, random = build(remat, **(noise if noisy else {})), np.random.default_rng(1)
    for weight in model.trainable_weights:
        weight.assign(0.2 * random.normal(size=weight.shape))
    before = {weight.path: numpy(weight) for weight in model.weights}
    inputs = random.normal(size=(6, *model.input_shape[1:])).astype("float32")
    targets = random.normal(size=(6, *model.output_shape[1:])).astype("float32")
    model.compile(keras.optimizers.SGD(1.0), "mean_squared_error", run_eagerly=eager)
    model.fit(inputs, targets, batch_size=6, verbose=0)
    return {weight.path: before[weight.path] - numpy(weight) for weight in model.weights}


@pytest.mark.parametrize(("name", "noisy", "eager"), REMAT_CASES)
def test_gradients_are_those_of_kept_activations(name: str, noisy: bool, eager: bool) -> None:
    kept, again = (gradients(name, noisy, eager, remat) for remat in (False, True))
    for (path, expected), found in zip(kept.items(), again.values(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-6, err_msg=path)
    assert max(np.abs(gradient).max() for gradient in kept.values()) > 1e-3
