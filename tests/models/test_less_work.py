"""Token merging and patch dropout as options of the model: what they cost, and what they keep."""

from functools import partial
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit.inspection import attention_maps, attention_rollout, pooling_attention
from tests.backend import gradients, numpy, rows
from tests.bank import fresh_kind
from tests.models.test_common import IMAGES, JIT, compiled, pixels, predict

# Operation by operation, every length of a sequence is compiled anew on JAX; elsewhere, compiling
# the model takes longer than running it so.
answer = compiled if keras.backend.backend() == "jax" else predict
build = partial(fresh_kind, "token")


def features(model: Any, *names: str, **options: Any) -> Any:
    found = model.feature_model(names, **options)(IMAGES)
    return [numpy(found[name]) for name in names]


OPTIONS: list[dict[str, Any]] = [{}, {"remat": True, "layer_scale": 0.5}, {"token_merging": 3}]
OPTIONS += [{"position_embedding": "relative", "num_registers": 2}]
OPTIONS += [{"token_merging": 3, "pre_norm": True}]
LEFT: list[tuple[dict[str, Any], list[int]]] = [
    ({"token_merging": 3, "depth": 4}, [14, 11, 8, 5]),
    ({"token_merging": (0, 5, 0), "depth": 3}, [17, 12, 12]),
    ({"token_merging": 100, "num_registers": 2, "depth": 3}, [3 + 8, 3 + 4, 3 + 2]),
    ({"token_merging": 5, "pooling": "gap", "depth": 4}, [11, 6, 3, 2]),
    ({"token_merging": 0}, [17, 17]),
]


@pytest.mark.parametrize("arguments", rows(OPTIONS, [{}]))
def test_the_last_block_encodes_what_is_read_alone(arguments: dict[str, Any]) -> None:
    model = build(**arguments)
    tokens = model.get_layer("encoder_norm").output  # users and `feature_model` get every token
    assert tokens.shape[1] == features(model, "encoder_norm")[0].shape[1] > 1
    assert model.get_layer("pooling").input is tokens
    whole = keras.Model(model.input, model.get_layer("head")(tokens[:, 0]))
    np.testing.assert_allclose(predict(model, IMAGES), predict(whole, IMAGES), atol=1e-5)
    found, wanted = gradients(model, IMAGES), gradients(whole, IMAGES)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        np.testing.assert_allclose(found[name], gradient, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(("arguments", "wanted"), LEFT)
def test_tokens_left_after_each_block(arguments: dict[str, Any], wanted: list[int]) -> None:
    model = build(**arguments)
    names = [f"block_{i}" for i in range(model.depth)]
    assert [x.shape[1] for x in features(model, *names)] == wanted
    assert [model.feature_model(name).output_shape[1] for name in names] == wanted


def test_merging_nothing_is_the_plain_model_bit_by_bit() -> None:
    plain = build()
    expected = answer(plain, IMAGES)
    for nothing in (0, (0, 0)):
        same = build(token_merging=nothing, patch_dropout=0.0)
        same.set_weights(plain.get_weights())
        assert [type(x) for x in same.layers] == [type(x) for x in plain.layers]
        np.testing.assert_array_equal(answer(same, IMAGES), expected)
    faster = plain.with_token_merging(3)
    assert np.abs(answer(faster, IMAGES) - expected).max() > 1e-4
    np.testing.assert_array_equal(answer(faster.with_token_merging(0), IMAGES), expected)


@pytest.mark.parametrize("kind", rows(["token", "gap", "map", "all_tokens"], ["token"]))
def test_equal_patches_are_merged_without_a_trace(kind: str) -> None:
    """Every patch has an equal neighbor: answer, grid, and attention stay the plain model's."""
    plain = fresh_kind(kind, position_embedding="none")
    images = np.repeat(pixels(2, 4, 8, 16, 3).reshape(2, 32, 2, 8, 3), 2, axis=2)
    images, merging = images.reshape(2, 32, 32, 3), plain.with_token_merging((8, 0))
    close, names = {"atol": 3e-5, "rtol": 1e-4}, ["block_0", "encoder_norm"]
    np.testing.assert_allclose(answer(merging, images), answer(plain, images), **close)
    grids = [model.feature_model(names, format="grid") for model in (merging, plain)]
    found, wanted = (grid.predict(images, verbose=0) for grid in grids)
    for name in names:
        np.testing.assert_allclose(found[name], wanted[name], **close)
    looks = {"token": [attention_maps, attention_rollout], "map": [pooling_attention]}
    for look in looks.get(kind, []):
        np.testing.assert_allclose(look(merging, images), look(plain, images), atol=1e-5)


@pytest.mark.every_backend
def test_patch_dropout_works_in_training_only_and_repeats_by_seed() -> None:
    plain, logits = build(depth=1), []
    expected = answer(plain, IMAGES)
    for _ in range(2):
        keras.utils.set_random_seed(3)
        model = build(depth=1, patch_dropout=0.5)
        model.set_weights(plain.get_weights())
        np.testing.assert_array_equal(answer(model, IMAGES), expected)
        found = model.feature_model(["tokens", "logits"])(IMAGES, training=True)
        assert tuple(found["tokens"].shape) == (2, 1 + 8, 32)
        logits.append(numpy(found["logits"]))
    np.testing.assert_array_equal(logits[0], logits[1])
    assert np.abs(logits[0] - expected).max() > 1e-4
    with pytest.raises(ValueError, match="8 patches do not fill a grid of 4 x 4"):
        model.feature_model("block_0", format="grid")(IMAGES, training=True)


def losses_of(model: Any, images: int, **options: Any) -> list[float]:
    model.compile(keras.optimizers.SGD(0.05), "mean_squared_error", jit_compile=JIT)
    data = pixels(images, 32, 32, 3), np.ones((images, 5), "float32")
    return model.fit(*data, epochs=3, shuffle=False, verbose=0, **options).history["loss"]


@pytest.mark.every_backend
def test_gradients_reach_every_variable() -> None:
    model = build(token_merging=(3, 0), patch_dropout=0.25, num_registers=1)
    for path, gradient in gradients(model, IMAGES, training=True).items():
        assert 0 < np.abs(gradient).max() < np.inf, path  # and no NaN


def test_mixed_precision_trains() -> None:
    model = build(token_merging=[3, 0], patch_dropout=0.5, dtype="mixed_bfloat16")
    losses = losses_of(model, 4)
    assert losses[-1] < losses[0]
    assert model.predict(IMAGES, verbose=0).dtype == np.float32
    assert model.token_merging == (3, 0)
    assert model.feature_model("block_1").output_shape == (None, 14, 32)


@pytest.mark.backends("tensorflow")  # the others trace every size anew
def test_images_and_batches_of_any_size() -> None:
    model = build(depth=1, token_merging=3, num_registers=1, patch_dropout=0.5)
    dynamic = model.with_input_shape((None, None, 3))
    for shape in ((1, 32, 32, 3), (3, 24, 48, 3)):
        images, fixed = pixels(*shape), model.with_input_shape(shape[1:])
        np.testing.assert_allclose(compiled(dynamic, images), answer(fixed, images), atol=2e-5)
    dynamic.compile("sgd", "mean_squared_error")
    assert np.isfinite(dynamic.fit(images, np.zeros((3, 5)), verbose=0).history["loss"]).all()
