"""Gradients of what is computed again in the backward pass: those of what is kept."""

from typing import Any

import keras
import numpy as np
import pytest

from keras_vit import layers
from tests import bank
from tests.backend import numpy, rows

NOISE, DROPOUT = {"stochastic_depth": 0.4}, {"dropout": 0.3, "attention_dropout": 0.3}


def vision_transformer(remat: bool, **noise: Any) -> keras.Model:
    return bank.fresh(**{**bank.TINY, "depth": 2, "num_classes": 0}, remat=remat, **noise)


def one_layer(cls: Any, shape: tuple[int, ...], **arguments: Any) -> Any:
    def build(remat: bool, **noise: float) -> keras.Model:
        inputs = keras.Input(shape)
        layer = cls(remat=remat, **arguments, **noise)
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
CASES = rows(
    # A few: nothing to draw in the unit.
    [(name, True, False) for name, (_, noise) in MODELS.items() if noise]
    + [(name, False, False) for name in MODELS if name != "vision_transformer"],
    lambda case: case[1] or case[0] == "residual_unit",  # what draws runs everywhere
)
EAGER = [pytest.mark.backends("tensorflow"), pytest.mark.thorough]  # torch always is
CASES += [pytest.param("encoder_block", True, True, marks=EAGER)]


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


@pytest.mark.parametrize(("name", "noisy", "eager"), CASES)
def test_gradients_are_those_of_kept_activations(name: str, noisy: bool, eager: bool) -> None:
    kept, again = (gradients(name, noisy, eager, remat) for remat in (False, True))
    for (path, expected), found in zip(kept.items(), again.values(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-6, err_msg=path)
    assert max(np.abs(gradient).max() for gradient in kept.values()) > 1e-3
