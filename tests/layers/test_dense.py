"""The dense layer: Keras's, and a batch that exports can leave open."""

import re
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit import layers
from keras_vit.layers._dense import Dense
from tests.layers.test_layers import numpy, values


@pytest.mark.every_backend
@pytest.mark.parametrize("shape", [(3, 8), (2, 5, 8), (2, 3, 4, 8)])
def test_it_is_that_of_keras(shape: tuple[int, ...]) -> None:
    inputs = values(*shape)
    for use_bias in (False, True):
        ours = Dense(6, activation="tanh", use_bias=use_bias)
        theirs = keras.layers.Dense(6, activation="tanh", use_bias=use_bias)
        theirs(inputs), ours(inputs)
        theirs.set_weights(ours.get_weights())
        for training in (False, True):
            found = numpy(ours(inputs, training=training))
            np.testing.assert_allclose(found, numpy(theirs(inputs)), atol=1e-6)


BLOCK = layers.BlockConfig(num_heads=4, mlp_dim=24, layer_scale=0.1)
LAYERS: dict[str, Any] = {
    "dense": lambda: Dense(6),
    "encoder_block": lambda: layers.EncoderBlock(BLOCK),
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
