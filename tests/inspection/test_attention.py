"""Attention maps are the official code's, and those of the fused kernel."""

from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit import from_checkpoint
from keras_vit.inspection import attention_maps, pooling_attention, readout_attention
from keras_vit.ops import has_fused_attention
from tests.golden_cases import golden_case
from tests.inspection.models import (
    KINDS,
    array,
    everywhere,
    images_for,
    maps_of,
    model_of,
    untrained,
)
from tests.weights.test_golden import CASES

# big_vision ran the bfloat16 file in bfloat16.
WITH_PROBE = "bv_vit_map_inline_probe"
RECORDED = [name for name in CASES if name.startswith("vit_")]
RECORDED += ["bv_vit_tok", "bv_vit_gap_learn", WITH_PROBE]


@pytest.mark.filterwarnings("ignore:Patches of")
@pytest.mark.parametrize("name", everywhere(RECORDED, "vit_token", WITH_PROBE))
def test_maps_equal_the_recorded_softmax_weights(name: str, shared: Path) -> None:
    case = golden_case(name, shared)
    model = from_checkpoint(case.file, include_preprocessing=False, **CASES[name])
    recorded = case.outputs()
    maps = attention_maps(model, recorded["images"])
    expected = np.stack([recorded[f"attn_{i}"] for i in range(model.depth)], axis=1)
    assert maps.shape == expected.shape
    assert np.abs(maps - expected).max() <= 1e-5
    if name == WITH_PROBE:
        probe = pooling_attention(model, recorded["images"])
        assert np.abs(probe - recorded["attn_map_head"][:, :, 0]).max() <= 1e-5


@pytest.mark.parametrize("kind", everywhere(KINDS, "token", "map", "channels_first"))
def test_maps_equal_the_fused_kernel(kind: str) -> None:
    model, images, maps = model_of(kind), images_for(kind), maps_of(kind)
    assert np.abs(maps.sum(axis=-1) - 1).max() < 1e-5
    for i in range(2):
        block = model.get_layer(f"block_{i}")
        before = model.feature_model("tokens" if i == 0 else f"block_{i - 1}")(images)
        normed = block.norm_0(before)
        kernel, bias = map(array, block.attention.query_key_value.weights)
        value = (array(normed) @ kernel + bias)[..., -16:].reshape(len(images), -1, 2, 8)
        heads = np.einsum("bhqk,bkhd->bqhd", maps[:, i], value).reshape(*value.shape[:2], 16)
        kernel, bias = map(array, block.attention.output_projection.weights)
        assert np.abs(heads @ kernel + bias - array(block.attention(normed))).max() < 1e-4


@pytest.mark.backends("torch", "jax")
@pytest.mark.skipif(not has_fused_attention(), reason="a GPU's on JAX")
def test_training_and_inference_use_the_fused_kernel(monkeypatch) -> None:
    model, images = untrained(), images_for("token")

    def never(*_: object) -> None:
        raise AssertionError("the probabilities were computed")

    with monkeypatch.context() as patched:
        patched.setattr("keras_vit.layers.attention.attention_probabilities", never)
        model(images, training=True)
        model(images)
        with pytest.raises(AssertionError, match="probabilities"):
            attention_maps(model, images)
    attention_maps(model, images)


def test_layers_and_batches() -> None:
    model, images = model_of("token"), images_for("token")
    twice = np.concatenate([images, images[::-1]])
    some = attention_maps(model, twice, layers=[-1, 0], batch_size=3)
    expected = maps_of("token")[:, [1, 0]]
    assert np.abs(some - np.concatenate([expected, expected[::-1]])).max() < 1e-6


@pytest.mark.parametrize("kind", everywhere(KINDS, "map"))
def test_the_readout_is_the_row_of_the_prediction(kind: str) -> None:
    model, images = model_of(kind), images_for(kind)
    maps, prefix = maps_of(kind), model.num_prefix_tokens
    if kind == "map":
        probe = pooling_attention(model, images).mean(axis=1)
        rows = (probe[:, None, None, :, None] * maps).sum(axis=3)
    elif model.class_token and kind != "gap_registers":
        rows = maps[..., 0, :]
    else:
        rows = maps[..., prefix:, :].mean(axis=3)
    expected = rows[..., prefix:].reshape(3, 2, 2, 4, 3)
    assert np.abs(readout_attention(model, images) - expected).max() < 1e-6


@pytest.mark.every_backend
def test_mixed_precision_gives_nearly_the_same_maps() -> None:
    model, images = model_of("token"), images_for("token")
    mixed = type(model).from_config({**model.get_config(), "dtype": "mixed_bfloat16"})
    mixed.set_weights(model.get_weights())
    maps, exact = attention_maps(mixed, images), maps_of("token")
    assert maps.dtype == np.float32
    assert np.abs(maps.sum(axis=-1) - 1).max() < 0.02
    assert np.abs(maps - exact).mean() < 0.01


def test_errors() -> None:
    model, images = model_of("token"), images_for("token")
    with pytest.raises(ValueError, match=r"depth 2.*0 to 1"):
        attention_maps(model, images, layers=[2])
    with pytest.raises(ValueError, match=r"\(32, 12, 3\).*images\[None\]"):
        attention_maps(model, images[0])
    with pytest.raises(ValueError, match="at least one"):
        attention_maps(model, images[:0])
    with pytest.raises(ValueError, match="without encoder blocks"):
        attention_maps(keras.Sequential([keras.layers.Dense(1)]), images)
    with pytest.raises(ValueError, match='pooling="map"'):
        pooling_attention(model, images)
