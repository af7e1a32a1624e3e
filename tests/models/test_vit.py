"""What is special about the Vision Transformer: its options, and what it refuses."""

from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from tests.models.test_common import SIZES, build, pixels, predict


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_clases": 5}, ["num_clases", "'num_classes'"]),
        ({"num_heads": 5}, ["num_heads=5", "hidden_dim=32", "1, 2, 4, 8, 16"]),
        ({"input_shape": (4, 32, 3)}, ["4 x 32", "8 x 8", "smaller patch_size"]),
        ({"input_shape": (32, 32)}, ["(32, 32)", "(height, width, channels)"]),
        ({"input_shape": (32, 32, None)}, ["(32, 32, None)"]),
        ({"pooling": "mean"}, ["'mean'", "'gap'"]),
        ({"pooling": "token", "class_token": False}, ["class token"]),
        ({"position_embedding": "rotary"}, ["'rotary'", "'sincos2d'"]),
        ({"dropout": 1.5}, ["dropout=1.5", "[0, 1)"]),
        ({"depth": 0}, ["depth=0"]),
        ({"patch_size": (16, 16, 3)}, ["patch_size=(16, 16, 3)"]),
        ({"hidden_dim": 30, "num_heads": 3, "position_embedding": "sincos2d"}, ["30", "4"]),
        ({"activation": "gelu_tan"}, ["gelu_tan"]),
        ({"input_shape": (32.0, 32, 3)}, ["(32.0, 32, 3)", "positive integers"]),
        ({"input_shape": (-32, 32, 3)}, ["(-32, 32, 3)", "positive integers"]),
        ({"input_shape": 32}, ["input_shape=32", "(height, width, channels)"]),
        ({"data_format": "NCHW"}, ["'NCHW'", "'channels_first'"]),
        ({"num_classes": -1}, ["num_classes=-1", "at least 0"]),
        ({"num_classes": 5.0}, ["num_classes=5.0", "integer"]),
        ({"num_registers": -1}, ["num_registers=-1", "at least 0"]),
        ({"hidden_dim": 32.0}, ["hidden_dim=32.0"]),
        ({"mlp_dim": 0}, ["mlp_dim=0"]),
        ({"representation_size": 0}, ["representation_size=0"]),
        ({"position_grid": (0, 4)}, ["position_grid=(0, 4)"]),
        ({"resnet": (1, 0)}, ["resnet[1]=0"]),
        ({"resnet": 3}, ["resnet=3", "(3, 4, 6, 3)"]),
        ({"conv_stem": (32, 64)}, ["conv_stem=(32, 64)", "((32, 2), (64, 1))"]),
        ({"conv_stem": ()}, ["conv_stem=()", "((32, 2), (64, 1))"]),
        ({"conv_stem": ((32, 0),)}, ["stride of conv_stem[0]=0"]),
        ({"conv_stem": ((8, 1),), "resnet": ()}, ["resnet=()", "conv_stem=((8, 1),)", "one"]),
        ({"norm_epsilon": 0.0}, ["norm_epsilon=0.0", "above 0"]),
        ({"norm_epsilon": float("nan")}, ["norm_epsilon=nan", "finite"]),
        ({"layer_scale": float("inf")}, ["layer_scale=inf", "finite"]),
        ({"dropout": "a lot"}, ["dropout='a lot'", "[0, 1)"]),
        ({"patch_dropout": float("nan")}, ["patch_dropout=nan", "[0, 1)"]),
        ({"stochastic_depth": -0.1}, ["stochastic_depth=-0.1", "[0, 1)"]),
    ],
)
def test_errors_say_what_was_given_and_what_is_accepted(arguments: dict, words: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        keras_vit.VisionTransformer(**{**SIZES, **arguments})
    for word in words:
        assert word in str(error.value)


def test_a_misspelled_name_or_argument_proposes_the_right_one() -> None:
    with pytest.raises(ValueError, match="'ViT-B/16'"):
        keras_vit.create("vit-b16")
    with pytest.raises(ValueError, match="'num_classes'"):
        keras_vit.ViTTi16(classes=3)
    with pytest.raises(ValueError, match="'augreg_in21k'"):
        keras_vit.ViTB16(weights="augreg_in21")
    with pytest.raises(ValueError, match=r"ViTTi16\(num_classes=5\)"):
        keras_vit.ViTTi16(5)


def test_a_missing_weights_file() -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.keras"):
        keras_vit.ViTTi16(weights="nowhere.keras")
    with pytest.raises(ValueError, match=r"load_weights\(model, file\)"):
        keras_vit.VisionTransformer(**SIZES, weights="nowhere.keras")


def test_wrong_rank_and_unknown_feature() -> None:
    model = build("token")
    with pytest.raises(ValueError, match="block_0"):
        model.feature_model(["block_00"])
    with pytest.raises(ValueError, match="'grid'"):
        model.feature_model(["block_0"], format="image")
    with pytest.raises(ValueError):
        model(pixels(32, 32, 3))


def test_an_image_that_patches_do_not_cover_warns_and_loses_the_rest() -> None:
    with pytest.warns(UserWarning, match="32 x 24 of 37 x 30"):
        model = build("token", input_shape=(37, 30, 3))
    images = pixels(2, 37, 30, 3)
    cut = model.with_input_shape((32, 24, 3))
    np.testing.assert_allclose(predict(model, images), predict(cut, images[:, :32, :24]), atol=1e-6)


def test_preprocessing_inside_equals_the_released_range() -> None:
    inside, outside = build("token"), build("token", include_preprocessing=False)
    outside.set_weights(inside.get_weights())
    images = pixels(2, 32, 32, 3)
    normalized = (images.astype("float32") - 127.5) / 127.5
    for taken in (images, images.astype("float32")):
        np.testing.assert_allclose(predict(inside, taken), predict(outside, normalized), atol=2e-5)


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_imagenet_preprocessing_equals_its_definition(data_format: str) -> None:
    images = pixels(2, 32, 32, 3)
    wanted = (images / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    shape = (32, 32, 3)
    if data_format == "channels_first":
        images, wanted = images.transpose(0, 3, 1, 2), wanted.transpose(0, 3, 1, 2)
        shape = (3, 32, 32)
    model = build("token", normalization="imagenet", data_format=data_format, input_shape=shape)
    np.testing.assert_allclose(predict(model.feature_model("images"), images), wanted, atol=1e-5)
    with pytest.raises(ValueError, match="5"):
        build("token", normalization="imagenet", input_shape=(32, 32, 5))


def test_weights_for_other_channels_are_not_resized() -> None:
    with pytest.raises(ValueError, match=r"4 channels.*for 3\."):
        build("token").with_input_shape((32, 32, 4))


def test_no_head_returns_features() -> None:
    features = build("token", num_classes=0)
    assert features.output_shape == (None, 32)
    model = build("token")
    features.set_weights(model.get_weights()[:-2])
    images = pixels(2, 32, 32, 3)
    np.testing.assert_allclose(
        predict(features, images), predict(model.feature_model("pre_logits"), images), atol=1e-6
    )


def test_classifier_activation() -> None:
    model = build("token", classifier_activation="softmax", dtype="mixed_bfloat16")
    np.testing.assert_allclose(predict(model, pixels(3, 32, 32, 3)).sum(axis=1), 1, atol=1e-6)


def test_stochastic_depth_rises_to_the_last_block() -> None:
    model = build("token", depth=3, stochastic_depth=0.2)
    rates = [model.get_layer(f"block_{i}").config.stochastic_depth for i in range(3)]
    assert rates == pytest.approx([0, 0.1, 0.2])


def test_dropout_is_off_outside_training_and_on_inside() -> None:
    images = pixels(4, 32, 32, 3)
    for option in ("dropout", "attention_dropout", "stochastic_depth"):
        model = build("token", **{option: 0.5})
        quiet = build("token")
        quiet.set_weights(model.get_weights())
        np.testing.assert_allclose(predict(model, images), predict(quiet, images), atol=1e-6)
        noisy = keras.ops.convert_to_numpy(model(images, training=True))
        assert np.abs(noisy - predict(model, images)).max() > 1e-3, option


def test_copies_share_no_weights_and_keep_what_is_frozen(tmp_path: Path) -> None:
    model = build("token")
    model.get_layer("block_0").trainable = False
    model.save(tmp_path / "model.keras")
    assert not keras.saving.load_model(tmp_path / "model.keras").get_layer("block_0").trainable
    copy = model.with_classifier(3)
    assert not copy.get_layer("block_0").trainable
    assert copy.get_layer("block_1").trainable
    before = model.get_layer("block_1").get_weights()
    copy.get_layer("block_1").set_weights([w + 1 for w in before])
    for own, kept in zip(model.get_layer("block_1").get_weights(), before, strict=True):
        np.testing.assert_array_equal(own, kept)


def test_resizing_there_and_back_is_exact_at_the_corners() -> None:
    """The released rule aligns corners: the four corner embeddings survive any size."""
    model = build("token")
    big = model.with_input_shape((72, 56, 3))
    old = keras.ops.convert_to_numpy(model.get_layer("position_embedding").embedding)[0, 1:]
    new = keras.ops.convert_to_numpy(big.get_layer("position_embedding").embedding)[0, 1:]
    old, new = old.reshape(4, 4, -1), new.reshape(9, 7, -1)
    for row in (0, -1):
        for column in (0, -1):
            np.testing.assert_allclose(new[row, column], old[row, column], atol=1e-6)


@pytest.mark.parametrize("kind", ["map", "relative"])
def test_every_kind_of_position_is_resampled(kind: str) -> None:
    model = build(kind)
    there = model.with_input_shape((24, 48, 3)).with_input_shape((24, 48, 3))
    dynamic = model.with_input_shape((None, None, 3))
    images = pixels(2, 24, 48, 3)
    np.testing.assert_allclose(predict(there, images), predict(dynamic, images), atol=2e-5)
