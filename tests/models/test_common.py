"""One suite of checks that every kind of model passes, on every backend where it may differ."""

import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from tests.backend import gradients, numpy, reloaded, rows, temporary_bytes
from tests.bank import KIND_SIZES, KINDS, OTHERS, fresh_kind, outputs, pixels, small_kind

SIZES, build, built, predict = KIND_SIZES, fresh_kind, small_kind, outputs
# Adds the same to all channels of a token, which every layer norm behind takes away again: its
# exact gradient is 0, and the computed one rounding.
WITHOUT_GRADIENT = "token_mixing/dense_1/bias"
ONE_BLOCK = {"bit": {"depths": (1,)}}
# One of each architecture, where options change nothing about the check; and all layers there are.
FAMILIES = ("token", "hybrid", *OTHERS)
EVERY_LAYER = ("hybrid", *OTHERS, "map", "relative", "dinov2_giant")
# Off on JAX means operation by operation, each compiled on its own: far slower than at once.
JIT = keras.backend.backend() == "jax"
IMAGES = pixels(2, 32, 32, 3)


@cache
def gradients_of(kind: str) -> dict[str, np.ndarray]:
    return gradients(built(kind), IMAGES)


def compiled(model: keras.Model, images: np.ndarray) -> np.ndarray:
    return np.asarray(model.predict(images, verbose=0), "float32")


# What the others have of their own, these have as well, or a backend cannot change it.
ALIKE = ("gap", "all_tokens", "exact_gelu", "beit_shared")


@pytest.mark.parametrize("kind", rows(KINDS, lambda kind: kind not in ALIKE))
def test_outputs_are_as_promised_and_gradients_reach_every_variable(kind: str) -> None:
    model = built(kind)
    found = model(IMAGES)
    assert tuple(found.shape) == (2, *model.output_shape[1:])
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    for path, gradient in gradients_of(kind).items():
        assert np.isfinite(gradient).all(), path
        assert np.abs(gradient).max() > 0 or path.endswith(WITHOUT_GRADIENT), path


@pytest.mark.parametrize("kind", rows(KINDS, ["hybrid"]))
def test_keras_file_and_config_round_trip(kind: str, tmp_path: Path) -> None:
    model = built(kind)
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(model)))
    clone = keras.saving.deserialize_keras_object(config)
    assert clone.get_config() == model.get_config()
    assert [w.shape for w in clone.weights] == [w.shape for w in model.weights]
    loaded, expected = reloaded(model, tmp_path), predict(model, IMAGES)
    assert type(loaded) is type(model)
    np.testing.assert_array_equal(predict(loaded, IMAGES), expected)
    file, weights = tmp_path / "reloaded.keras", tmp_path / "model.weights.h5"
    np.testing.assert_equal(keras_vit.load(file).get_weights(), model.get_weights())
    model.save_weights(weights)
    ours, of_keras = keras_vit.load_weights, keras.Model.load_weights
    for load, path in ((ours, file), (ours, weights), (of_keras, weights)):
        clone.set_weights([weight + 1 for weight in model.get_weights()])
        assert (predict(clone, IMAGES) != expected).any()
        load(clone, path)
        np.testing.assert_array_equal(predict(clone, IMAGES), expected)


@pytest.mark.parametrize("kind", rows(KINDS, ["hybrid", "map", "eva02"]))
def test_mixed_precision_is_near_float32(kind: str) -> None:
    model, wanted = build(kind, dtype="mixed_bfloat16"), predict(built(kind), IMAGES)
    model.set_weights(built(kind).get_weights())
    found = model(IMAGES)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    assert np.abs(numpy(found) - wanted).max() < 0.05 * max(1, np.abs(wanted).max())


# torch.compile takes long per model: one stands for all.
BY_TORCH = pytest.param("token", marks=[pytest.mark.backends("torch"), pytest.mark.thorough])
ON_XLA = pytest.mark.backends("tensorflow")  # JAX compiles whatever is trained
COMPILED = [BY_TORCH, pytest.param("token", marks=ON_XLA)]
COMPILED += [pytest.param(k, marks=[ON_XLA, pytest.mark.thorough]) for k in (*OTHERS, "map")]


@pytest.mark.parametrize("kind", COMPILED)
def test_compiled_training_and_prediction(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if keras.backend.backend() == "torch":
        import torch

        # Its graphs, without C++ of them, which takes minutes and is torch's own.
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    model, images = build(kind, **ONE_BLOCK.get(kind, {"depth": 1})), pixels(8, 32, 32, 3)
    eager = predict(model, images)
    model.compile("sgd", "mean_squared_error", jit_compile=True)
    np.testing.assert_allclose(compiled(model, images), eager, atol=2e-5)
    losses = model.fit(images, np.zeros_like(eager), epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


# The mixer has a weight for every pair of tokens, BEiT a table for one image size; others have the
# positions of "token". One of each rule of positions is quick.
LEFT_OUT = ("mixer", "beit", "beit_shared", "exact_gelu", "clip", "all_tokens")
QUICK = ("token", "map", "relative", "dinov3")
OF_ANY_SIZE = [
    pytest.param(kind, marks=[] if kind in QUICK else pytest.mark.thorough)
    for kind in KINDS
    if kind not in LEFT_OUT
]


@pytest.mark.backends("tensorflow")  # the others trace every size anew
@pytest.mark.parametrize("kind", OF_ANY_SIZE)
def test_images_of_any_size(kind: str) -> None:
    dynamic = built(kind).with_input_shape((None, None, 3))
    # Another size for every kind; a second one for one of each architecture.
    for height, width in ((24, 48), (32, 32))[: 1 + (kind in FAMILIES)]:
        images = pixels(2, height, width, 3)
        fixed = built(kind).with_input_shape(images.shape[1:])
        if kind != "bit":
            assert fixed.position_grid == (height // 8, width // 8)
        np.testing.assert_allclose(compiled(dynamic, images), predict(fixed, images), atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_features_and_a_new_head(kind: str) -> None:
    model = built(kind)
    name, width = ("stage_2", 256) if kind == "bit" else ("block_0", 32)
    tokens = model.feature_model([name, "pre_logits", "logits"])(IMAGES)
    grid = model.feature_model([name], format="grid")(IMAGES)[name]
    assert tuple(grid.shape) == (2, 4, 4, width)
    flat = numpy(tokens[name])
    flat = flat if kind == "bit" else flat[:, model.num_prefix_tokens :]
    np.testing.assert_array_equal(numpy(grid).reshape(flat.shape), flat)
    np.testing.assert_allclose(numpy(tokens["logits"]), predict(model, IMAGES), atol=1e-5)
    other = model.with_classifier(7)
    kept = predict(other.feature_model("pre_logits"), IMAGES)
    np.testing.assert_allclose(kept, numpy(tokens["pre_logits"]), atol=1e-6)
    assert not predict(other, IMAGES).any()  # a new head starts at zero
    assert other.output_shape[-1] == 7


@pytest.mark.backends("jax")  # the others do not tell what they plan
def test_rematerialization_spares_memory() -> None:
    """Kept are a block's inputs, and one block's arrays at a time."""
    deep: dict[str, Any] = {"input_shape": (64, 64, 3), "depth": 8}
    models = [build("token", **deep, remat=remat) for remat in (False, True)]
    kept, spared = (temporary_bytes(model, pixels(16, 64, 64, 3)) for model in models)
    assert spared < 0.25 * kept
