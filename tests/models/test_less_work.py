"""Token merging and patch dropout as options of the model: what they cost, and what they keep."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.inspection import attention_maps, attention_rollout, pooling_attention
from tests.backend import gradients
from tests.models.test_common import JIT, SIZES, compiled, pixels, predict, wake

# Operation by operation, every length of a sequence is compiled anew on JAX; elsewhere, compiling
# the model takes longer than running it so.
answer = compiled if keras.backend.backend() == "jax" else predict


def build(**changes: Any) -> keras_vit.VisionTransformer:
    model = keras_vit.VisionTransformer(**{**SIZES, "num_classes": 5, **changes})
    wake(model)
    return model


def features(model: keras_vit.VisionTransformer, *names: str, **options: Any) -> Any:
    found = model.feature_model(names, **options).predict(pixels(2, 32, 32, 3), verbose=0)
    return [np.asarray(found[name]) for name in names]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"remat": True, "layer_scale": 0.5},
        {"position_embedding": "relative", "num_registers": 2},
        {"token_merging": 3},
    ],
)
def test_the_last_block_encodes_what_is_read_alone(arguments: dict[str, Any]) -> None:
    """The same logits and gradients as when every patch goes through the last block."""
    model, images = build(**arguments), pixels(2, 32, 32, 3)
    tokens = model.get_layer("encoder_norm").output  # users and `feature_model` get every token
    assert tokens.shape[1] == features(model, "encoder_norm")[0].shape[1] > 1
    assert model.get_layer("pooling").input is tokens
    whole = keras.Model(model.input, model.get_layer("head")(tokens[:, 0]))
    np.testing.assert_allclose(predict(model, images), predict(whole, images), atol=1e-5)
    found, wanted = gradients(model, images), gradients(whole, images)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        np.testing.assert_allclose(found[name], gradient, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({"token_merging": 3, "depth": 4}, [14, 11, 8, 5]),
        ({"token_merging": (0, 5, 0), "depth": 3}, [17, 12, 12]),
        ({"token_merging": 100, "num_registers": 2, "depth": 3}, [3 + 8, 3 + 4, 3 + 2]),
        ({"token_merging": 5, "pooling": "gap", "depth": 4}, [11, 6, 3, 2]),
        ({"token_merging": 0}, [17, 17]),
    ],
)
def test_tokens_left_after_each_block(arguments: dict[str, Any], wanted: list[int]) -> None:
    model = build(**arguments)
    names = [f"block_{i}" for i in range(model.depth)]
    assert [x.shape[1] for x in features(model, *names)] == wanted
    assert [model.feature_model(name).output_shape[1] for name in names] == wanted


def test_merging_nothing_is_the_plain_model_bit_by_bit() -> None:
    plain, images = build(), pixels(2, 32, 32, 3)
    for nothing in (0, (0, 0)):
        same = build(token_merging=nothing, patch_dropout=0.0)
        same.set_weights(plain.get_weights())
        assert [type(x) for x in same.layers] == [type(x) for x in plain.layers]
        np.testing.assert_array_equal(answer(same, images), answer(plain, images))
    faster = plain.with_token_merging(3)
    assert np.abs(answer(faster, images) - answer(plain, images)).max() > 1e-4
    back = faster.with_token_merging(0)
    np.testing.assert_array_equal(answer(back, images), answer(plain, images))


TWINS: dict[str, dict[str, Any]] = {
    "token": {},
    "gap": {"pooling": "gap"},
    "map": {"pooling": "map"},
    "all_tokens": {"pooling": None, "num_classes": 0},
}


@pytest.mark.parametrize("kind", TWINS)
def test_equal_patches_are_merged_without_a_trace(kind: str) -> None:
    """Every patch has an equal neighbor: answer, grid, and attention stay the plain model's."""
    plain = build(position_embedding="none", **TWINS[kind])
    images = np.repeat(pixels(2, 4, 8, 16, 3).reshape(2, 32, 2, 8, 3), 2, axis=2)
    images = images.reshape(2, 32, 32, 3)
    merging = plain.with_token_merging((8, 0))
    close = {"atol": 3e-5, "rtol": 1e-4}
    np.testing.assert_allclose(answer(merging, images), answer(plain, images), **close)
    names = ["block_0", "encoder_norm"]
    found, wanted = (
        m.feature_model(names, format="grid").predict(images, verbose=0) for m in (merging, plain)
    )
    for name in names:
        np.testing.assert_allclose(found[name], wanted[name], **close)
    looks = {"token": [attention_maps, attention_rollout], "map": [pooling_attention]}
    for look in looks.get(kind, []):
        np.testing.assert_allclose(look(merging, images), look(plain, images), atol=1e-5)


def test_attention_maps_are_laid_out_on_every_patch() -> None:
    model, images = build(token_merging=(8, 0)), pixels(2, 32, 32, 3)
    maps = attention_maps(model, images)
    assert maps.shape == (2, 2, 4, 17, 17)
    np.testing.assert_allclose(maps.sum(axis=-1), 1, atol=1e-5)
    (token_index,) = features(model, "block_0_token_index")
    a, b = next(
        (i, j) for i in range(17) for j in range(i) if token_index[0, i] == token_index[0, j]
    )
    np.testing.assert_array_equal(maps[0, 1, :, a], maps[0, 1, :, b])
    np.testing.assert_array_equal(maps[0, 1, :, :, a], maps[0, 1, :, :, b])
    assert (token_index[:, 0] == 0).all()  # the class token stays in front, alone
    assert (token_index[:, 1:] > 0).all()


def test_gradients_reach_every_variable() -> None:
    model = build(token_merging=(3, 0), patch_dropout=0.25, num_registers=1)
    for path, gradient in gradients(model, pixels(2, 32, 32, 3), training=True).items():
        assert np.isfinite(gradient).all(), path
        assert np.abs(gradient).max() > 0, path


def test_patch_dropout_works_in_training_only_and_repeats_by_seed() -> None:
    images, plain = pixels(2, 32, 32, 3), build(depth=1)
    outputs = []
    for _ in range(2):
        keras.utils.set_random_seed(3)
        model = build(depth=1, patch_dropout=0.5)
        model.set_weights(plain.get_weights())
        np.testing.assert_array_equal(answer(model, images), answer(plain, images))
        found = model.feature_model(["tokens", "logits"])(images, training=True)
        assert tuple(found["tokens"].shape) == (2, 1 + 8, 32)
        outputs.append(keras.ops.convert_to_numpy(found["logits"]))
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert np.abs(outputs[0] - answer(plain, images)).max() > 1e-4
    with pytest.raises(ValueError, match="8 patches do not fill a grid of 4 x 4"):
        model.feature_model("block_0", format="grid")(images, training=True)


def test_both_train_with_remat_as_without() -> None:
    images, target = pixels(8, 32, 32, 3), np.ones((8, 5), "float32")
    losses = []
    for remat in (False, True):
        keras.utils.set_random_seed(3)
        model = build(token_merging=3, patch_dropout=0.5, dropout=0.1, remat=remat)
        model.compile(keras.optimizers.SGD(0.05), "mean_squared_error", jit_compile=JIT)
        fit = model.fit(images, target, batch_size=4, epochs=3, shuffle=False, verbose=0)
        losses.append(fit.history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-5)
    assert losses[0][-1] < losses[0][0]


def test_mixed_precision_trains() -> None:
    images, target = pixels(4, 32, 32, 3), np.ones((4, 5), "float32")
    model = build(depth=1, token_merging=3, patch_dropout=0.5, dtype="mixed_bfloat16")
    model.compile(keras.optimizers.SGD(0.05), "mean_squared_error", jit_compile=JIT)
    losses = model.fit(images, target, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert model.predict(images, verbose=0).dtype == np.float32


def test_config_and_file_round_trip(tmp_path: Path) -> None:
    model = build(token_merging=[3, 0], patch_dropout=0.5)
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(model)))
    clone = keras.saving.deserialize_keras_object(config)
    assert clone.get_config() == model.get_config()
    assert clone.token_merging == (3, 0)
    model.save(tmp_path / "model.keras")
    loaded, images = keras.saving.load_model(tmp_path / "model.keras"), pixels(2, 32, 32, 3)
    np.testing.assert_array_equal(answer(loaded, images), answer(model, images))
    assert loaded.feature_model("block_1").output_shape == (None, 14, 32)


def test_images_and_batches_of_any_size() -> None:
    model = build(depth=1, token_merging=3, num_registers=1, patch_dropout=0.5)
    dynamic = model.with_input_shape((None, None, 3))
    for batch, height, width in ((1, 32, 32), (3, 24, 48)):
        images = pixels(batch, height, width, 3)
        fixed = model.with_input_shape((height, width, 3))
        np.testing.assert_allclose(compiled(dynamic, images), answer(fixed, images), atol=2e-5)
    dynamic.compile("sgd", "mean_squared_error")
    assert np.isfinite(dynamic.fit(images, np.zeros((3, 5)), verbose=0).history["loss"]).all()


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="others export through it")
def test_saved_model(tmp_path: Path) -> None:
    import tensorflow as tf

    model, images = build(depth=1, token_merging=3, patch_dropout=0.5), pixels(3, 32, 32, 3)
    folder = keras_vit.export_model(model, tmp_path / "1")
    serve = tf.saved_model.load(str(folder)).signatures["images"]
    for batch in (1, 3):
        found = serve(images=tf.constant(images[:batch]))["probabilities"].numpy()
        wanted = tf.nn.softmax(predict(model, images[:batch])).numpy()
        np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"token_merging": -1}, ["token_merging=-1", "at least 0"]),
        ({"token_merging": (1, 2, 3)}, ["(1, 2, 3)", "2 blocks"]),
        ({"patch_dropout": 1.0}, ["patch_dropout=1.0", "[0, 1)"]),
        ({"token_merging": 2, "position_embedding": "relative"}, ["relative", "token_merging=2"]),
        ({"patch_dropout": 0.5, "position_embedding": "relative"}, ["patch_dropout=0.5"]),
    ],
)
def test_errors(arguments: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        keras_vit.VisionTransformer(**{**SIZES, "num_classes": 5, **arguments})
    for word in words:
        assert word in str(error.value)
