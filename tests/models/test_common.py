"""One suite of checks that every kind of model passes on every backend."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models import ImageModel
from tests.backend import gradients, temporary_bytes

SIZES = {"patch_size": 8, "hidden_dim": 32, "depth": 2, "num_heads": 4, "input_shape": (32, 32, 3)}
# Every kind of model, small. Options that do not meet share a kind: compiling takes all the time.
KINDS: dict[str, dict[str, Any]] = {
    "token": {},
    "gap": {"pooling": "gap", "position_embedding": "sincos2d"},
    "map": {"pooling": "map", "position_embedding": "learned_2d"},
    "all_tokens": {"pooling": None, "num_classes": 0, "position_embedding": "none"},
    "relative": {"position_embedding": "relative", "num_registers": 2},
    "exact_gelu": {"activation": "gelu", "norm_epsilon": 1e-12, "representation_size": 24},
    "dinov2_giant": {"activation": "swiglu", "layer_scale": 0.5, "num_registers": 4},
    "clip": {
        "pre_norm": True,
        "activation": "quick_gelu",
        "normalization": "clip",
        "distilled": True,
    },
    "dinov3": {
        "position_embedding": "none",
        "rotary": "dinov3",
        "key_bias": False,
        "layer_scale": 0.5,
        "num_registers": 2,
        "pooling": "token_gap",
    },
    "eva02": {
        "rotary": "eva02",
        "key_bias": False,
        "mlp_norm": True,
        "activation": "swiglu",
        "pooling": "gap",
        "class_token": True,
        "norm_after_pooling": True,
    },
    "beit": {"position_embedding": "relative_2d", "key_bias": False, "layer_scale": 0.5},
    "beit_shared": {"position_embedding": "relative_2d_shared"},
    "hybrid": {"resnet": (1,), "resnet_width": 32, "patch_size": 2},
    "conv_stem": {"conv_stem": ((8, 2), (12, 1)), "patch_size": 4, "pooling": "gap"},
    "mixer": {},
    "bit": {},
}
# Adds the same to all channels of a token, which every layer norm behind takes away again: its
# exact gradient is 0, and the computed one rounding.
WITHOUT_GRADIENT = "token_mixing/dense_1/bias"
# The models that are no ViT, and their sizes.
OTHERS: dict[str, tuple[type[ImageModel], dict[str, Any]]] = {
    "mixer": (keras_vit.MLPMixer, {k: v for k, v in SIZES.items() if k != "num_heads"}),
    "bit": (keras_vit.BiTResNet, {"depths": (1, 1), "width": 32, "input_shape": (32, 32, 3)}),
}
ONE_BLOCK = {"bit": {"depths": (1,)}}
NOISE = {
    "mixer": {"stochastic_depth": 0.3},
    "token": {"dropout": 0.2, "attention_dropout": 0.2, "stochastic_depth": 0.3},
}
# One of each architecture, where options change nothing about the check; and all layers there are.
FAMILIES = ("token", "hybrid", *OTHERS)
TRAINED = ("token", *OTHERS)
EVERY_LAYER = ("hybrid", *OTHERS, "map", "relative", "dinov2_giant")
# Off on JAX means operation by operation, each compiled on its own: far slower than at once.
JIT = keras.backend.backend() == "jax"


def build(kind: str, **changes: Any) -> ImageModel:
    constructor, sizes = OTHERS.get(kind, (keras_vit.VisionTransformer, SIZES))
    model = constructor(**{**sizes, "num_classes": 5, **KINDS[kind], **changes})
    wake(model)
    return model


@cache
def built(kind: str) -> ImageModel:
    """The one model of its kind that tests share; they must leave it as it is."""
    return build(kind)


@cache
def gradients_of(kind: str) -> dict[str, np.ndarray]:
    """Of the shared model, at `pixels(2, 32, 32, 3)`."""
    return gradients(built(kind), pixels(2, 32, 32, 3))


def wake(model: keras.Model) -> None:
    """Gives zero-initialized weights values, without which no gradient passes the head."""
    random = np.random.default_rng(0)
    for variable in model.trainable_variables:
        if not keras.ops.convert_to_numpy(variable).any():
            variable.assign(random.normal(0, 0.1, variable.shape).astype("float32"))


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape).astype("uint8")


def predict(model: keras.Model, images: np.ndarray) -> np.ndarray:
    """The outputs, operation by operation: to compile a model takes longer than to run it so."""
    return np.asarray(keras.ops.convert_to_numpy(model(images)), "float32")


def compiled(model: keras.Model, images: np.ndarray) -> np.ndarray:
    """The outputs of the compiled model, as `predict` and export run it."""
    return np.asarray(model.predict(images, verbose=0), "float32")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def test_forward_has_the_promised_shape_and_dtype(kind: str) -> None:
    model = built(kind)
    outputs = model(pixels(2, 32, 32, 3))
    assert tuple(outputs.shape)[1:] == model.output_shape[1:]
    assert len(outputs) == 2
    assert keras.backend.standardize_dtype(outputs.dtype) == "float32"


def test_gradient_reaches_every_variable(kind: str) -> None:
    for path, gradient in gradients_of(kind).items():
        assert np.isfinite(gradient).all(), path
        assert np.abs(gradient).max() > 0 or path.endswith(WITHOUT_GRADIENT), path


def test_config_round_trip(kind: str) -> None:
    model = built(kind)
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(model)))
    clone = keras.saving.deserialize_keras_object(config)
    assert clone.get_config() == model.get_config()
    assert [w.shape for w in clone.weights] == [w.shape for w in model.weights]


def test_keras_file_round_trip(kind: str, tmp_path: Path) -> None:
    model, images = built(kind), pixels(2, 32, 32, 3)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model)
    np.testing.assert_array_equal(predict(loaded, images), predict(model, images))
    other = type(model).from_config(model.get_config())
    for weights in (v for v in other.trainable_variables if "kernel" in v.path):
        weights.assign(weights * 2)
    keras_vit.load_weights(other, tmp_path / "model.keras")
    np.testing.assert_array_equal(predict(other, images), predict(model, images))


@pytest.mark.parametrize("kind", FAMILIES)
def test_weights_file_round_trip(kind: str, tmp_path: Path) -> None:
    model, images = built(kind), pixels(2, 32, 32, 3)
    model.save_weights(tmp_path / "w.weights.h5")
    keras.utils.set_random_seed(1)
    other = build(kind)
    keras_vit.load_weights(other, tmp_path / "w.weights.h5")
    np.testing.assert_array_equal(predict(other, images), predict(model, images))


def test_mixed_precision_is_near_float32(kind: str) -> None:
    exact, images = built(kind), pixels(2, 32, 32, 3)
    model = build(kind, dtype="mixed_bfloat16")
    model.set_weights(exact.get_weights())
    outputs = model(images)
    assert keras.backend.standardize_dtype(outputs.dtype) == "float32"
    wanted = predict(exact, images)
    found = np.asarray(keras.ops.convert_to_numpy(outputs))
    assert np.abs(found - wanted).max() < 0.05 * max(1, np.abs(wanted).max())


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        *((kind, "mixed_bfloat16") for kind in TRAINED),
        ("token", "mixed_float16"),
        *(pytest.param(kind, "mixed_float16", marks=pytest.mark.slow) for kind in OTHERS),
    ],
)
def test_mixed_precision_trains(kind: str, policy: str) -> None:
    if policy == "mixed_float16" and (keras.backend.backend() == "jax" or kind not in FAMILIES):
        pytest.skip("one of a family will do; XLA has no float16 attention on CPUs (a GPU feature)")
    model = build(kind, dtype=policy, **NOISE.get(kind, {}))
    images = pixels(8, 32, 32, 3)
    # Any learnable target will do: the loss must fall and stay finite.
    model.compile(keras.optimizers.AdamW(1e-3), "mean_squared_error", jit_compile=JIT)
    target = np.zeros((8, *model.output_shape[1:]), "float32")
    losses = model.fit(images, target, epochs=12, batch_size=4, verbose=0).history["loss"]
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.8 * losses[0]  # dropout alone moves it by a tenth
    # Master weights stay in float32: bfloat16 ones would swallow small steps.
    assert {w.dtype for w in model.trainable_weights} == {"float32"}


@pytest.mark.parametrize("kind", [*TRAINED, "map"])
def test_compiled_training_and_prediction(kind: str) -> None:
    if keras.backend.backend() == "torch" and kind != "token":
        pytest.skip("torch.compile takes a minute a model: one stands for all")
    model, images = build(kind, **ONE_BLOCK.get(kind, {"depth": 1})), pixels(8, 32, 32, 3)
    eager = predict(model, images)
    model.compile("sgd", "mean_squared_error", jit_compile=True)
    np.testing.assert_allclose(compiled(model, images), eager, atol=2e-5)
    losses = model.fit(images, np.zeros_like(eager), epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_images_of_any_size(kind: str) -> None:
    """Positions resampled inside the compiled graph equal those resampled beforehand."""
    model = built(kind)
    if kind == "mixer":
        pytest.skip("has a weight for every pair of tokens")
    if kind.startswith("beit"):
        pytest.skip("has a table for one image size")
    dynamic = model.with_input_shape((None, None, 3))
    # Another size for every kind; a second one for one of each architecture.
    for height, width in ((24, 48), (32, 32))[: 1 + (kind in FAMILIES)]:
        images = pixels(2, height, width, 3)
        fixed = model.with_input_shape((height, width, 3))
        if kind != "bit":
            assert fixed.position_grid == (height // 8, width // 8)
        np.testing.assert_allclose(compiled(dynamic, images), predict(fixed, images), atol=2e-5)


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("channels", [1, 5])
def test_other_channels(kind: str, channels: int) -> None:
    model, images = build(kind, input_shape=(32, 32, channels)), pixels(2, 32, 32, channels)
    before = predict(model, images)
    for channel in range(channels):  # every channel is looked at
        changed = images.copy()
        changed[..., channel] = 255 - changed[..., channel]
        assert np.abs(predict(model, changed) - before).max() > 1e-4


@pytest.mark.parametrize("kind", FAMILIES)
def test_channels_first_gives_the_same_values(kind: str) -> None:
    last = build(kind, input_shape=(24, 48, 3))
    first = build(kind, input_shape=(3, 24, 48), data_format="channels_first")
    first.set_weights(last.get_weights())
    images = pixels(2, 24, 48, 3)
    np.testing.assert_allclose(
        predict(first, images.transpose(0, 3, 1, 2)), predict(last, images), atol=1e-6
    )


def test_features(kind: str) -> None:
    model, images = built(kind), pixels(2, 32, 32, 3)
    name, width = ("stage_2", 256) if kind == "bit" else ("block_0", 32)
    tokens = model.feature_model([name, "pre_logits", "logits"])(images)
    grid = model.feature_model([name], format="grid")(images)[name]
    assert tuple(grid.shape) == (2, 4, 4, width)
    flat = keras.ops.convert_to_numpy(tokens[name])
    if kind != "bit":
        flat = flat[:, model.num_prefix_tokens :]
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(grid).reshape(flat.shape), flat)
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(tokens["logits"]), predict(model, images), atol=1e-5
    )


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_copy_in_bfloat16_shares_no_variable_and_is_near(kind: str) -> None:
    model = built(kind)
    copy = model.copy(dtype="mixed_bfloat16")
    assert {variable.dtype for variable in copy.trainable_variables} == {"float32"}
    assert copy.layers[-1].compute_dtype == "float32"  # of the head
    found, wanted = (predict(m, pixels(2, 32, 32, 3)) for m in (copy, model))
    np.testing.assert_allclose(found, wanted, atol=0.1 * np.abs(wanted).max())
    assert (found != wanted).any()


def test_with_classifier_keeps_the_backbone(kind: str) -> None:
    model, images = built(kind), pixels(2, 32, 32, 3)
    other = model.with_classifier(7)
    name = "pre_logits"
    np.testing.assert_allclose(
        predict(other.feature_model(name), images),
        predict(model.feature_model(name), images),
        atol=1e-6,
    )
    assert not predict(other, images).any()  # a new head starts at zero
    assert other.output_shape[-1] == 7


@pytest.mark.parametrize("kind", TRAINED)
def test_rematerialization_changes_memory_and_nothing_else(kind: str) -> None:
    """Same seeds, same losses: a mask drawn anew in the backward pass would part them."""
    losses = []
    for remat in (False, True):
        keras.utils.set_random_seed(3)
        model = build(kind, remat=remat, **NOISE.get(kind, {}))
        images = pixels(8, 32, 32, 3)
        target = np.ones((8, 5), "float32")
        model.compile(keras.optimizers.SGD(0.05), "mean_squared_error", jit_compile=JIT)
        fit = model.fit(images, target, batch_size=4, epochs=4, shuffle=False, verbose=0)
        losses.append(fit.history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-5)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="others do not tell what they plan")
def test_rematerialization_spares_memory() -> None:
    """Kept are a block's inputs, and one block's arrays at a time."""
    images = pixels(16, 64, 64, 3)
    kept, spared = (
        temporary_bytes(build("token", input_shape=(64, 64, 3), depth=8, remat=on), images)
        for on in (False, True)
    )
    assert spared < 0.25 * kept


@pytest.mark.parametrize("kind", ["map", "clip", "dinov2_giant", "dinov3", "eva02", "beit"])
def test_int8_quantization(kind: str) -> None:
    if keras.backend.backend() == "jax" and kind != "map":
        pytest.skip("compiling takes half a minute, and options are the same to JAX")
    model, images = build(kind, depth=1), pixels(4, 32, 32, 3)
    exact = predict(model, images)
    model.quantize("int8")
    dense = [one for one in model._flatten_layers() if isinstance(one, keras.layers.Dense)]
    assert {layer.quantization_mode for layer in dense} == {"int8"}
    assert np.abs(compiled(model, images) - exact).max() < 0.1 * np.abs(exact).max()
