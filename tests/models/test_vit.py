"""What is special about each architecture: options, first values, gray images, what it refuses."""

import json
from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_vit
from keras_vit.models import ImageModel
from keras_vit.weights import load, load_weights, save_weights
from tests.backend import numpy, refused, reloaded, rows
from tests.bank import fill
from tests.models.test_common import IMAGES, SIZES, build, built, pixels, predict

RATES = [("dropout", 1.5), ("dropout", "a lot"), ("stochastic_depth", -0.1)]
# What the error of a value besides the value says.
WRONG: dict[str, list[tuple[str, Any]]] = {
    "[0, 1)": [*RATES, ("patch_dropout", 1.0), ("patch_dropout", nan)],
    "at least 0": [("token_merging", -1), ("num_classes", -1), ("num_registers", -1)],
    "integer": [("num_classes", 5.0), ("hidden_dim", 32.0), ("depth", 0), ("mlp_dim", 0)],
    "at least 1": [("representation_size", 0)],
    "pair": [("patch_size", (16, 16, 3)), ("position_grid", (0, 4))],
    "above 0": [("norm_epsilon", 0.0)],
    "finite": [("norm_epsilon", nan), ("layer_scale", inf)],
}
ERRORS: list[tuple[dict[str, Any], list[str]]] = [
    *(({k: v}, [f"{k}={v!r}", says]) for says, values in WRONG.items() for k, v in values),
    ({"num_clases": 5}, ["num_clases", "'num_classes'"]),
    ({"token_merging": (1, 2, 3)}, ["(1, 2, 3)", "2 blocks"]),
    ({"token_merging": 2, "position_embedding": "relative"}, ["relative", "token_merging=2"]),
    ({"patch_dropout": 0.5, "position_embedding": "relative"}, ["patch_dropout=0.5"]),
    ({"num_heads": 5}, ["num_heads=5", "hidden_dim=32", "1, 2, 4, 8, 16"]),
    ({"input_shape": (4, 32, 3)}, ["4 x 32", "8 x 8", "smaller patch_size"]),
    ({"input_shape": (32, 32)}, ["(32, 32)", "(height, width, channels)"]),
    ({"input_shape": (32, 32, None)}, ["(32, 32, None)"]),
    ({"pooling": "mean"}, ["'mean'", "'gap'"]),
    ({"pooling": "token", "class_token": False}, ["class token"]),
    ({"position_embedding": "rotary"}, ["'rotary'", "'sincos2d'"]),
    ({"hidden_dim": 30, "num_heads": 3, "position_embedding": "sincos2d"}, ["30", "4"]),
    ({"activation": "gelu_tan"}, ["gelu_tan"]),
    ({"input_shape": (32.0, 32, 3)}, ["(32.0, 32, 3)", "positive integers"]),
    ({"input_shape": (-32, 32, 3)}, ["(-32, 32, 3)", "positive integers"]),
    ({"input_shape": 32}, ["input_shape=32", "(height, width, channels)"]),
    ({"data_format": "NCHW"}, ["'NCHW'", "'channels_first'"]),
    ({"resnet": (1, 0)}, ["resnet[1]=0"]),
    ({"resnet": 3}, ["resnet=3", "(3, 4, 6, 3)"]),
    ({"conv_stem": (32, 64)}, ["conv_stem=(32, 64)", "((32, 2), (64, 1))"]),
    ({"conv_stem": ()}, ["conv_stem=()", "((32, 2), (64, 1))"]),
    ({"conv_stem": ((32, 0),)}, ["stride of conv_stem[0]=0"]),
    ({"conv_stem": ((8, 1),), "resnet": ()}, ["resnet=()", "conv_stem=((8, 1),)", "one"]),
]

MIXER = {"patch_size": 8, "hidden_dim": 32, "depth": 3, "input_shape": (32, 32, 3)}
# Of others, hybrids among them, and of names.
OTHERS: list[tuple[Callable[[], Any], list[str]]] = [
    (lambda: keras_vit.models.MLPMixer(input_shape=(None, None, 3)), ["(None, None, 3)", "height"]),
    (lambda: keras_vit.models.MLPMixer(pooling="gap"), ["'pooling'", "patch_size"]),
    (lambda: keras_vit.models.MLPMixer(stochastic_depth=1), ["stochastic_depth=1"]),
    (lambda: built("mixer").with_input_shape((48, 32, 3)), ["6 x 4", "4 x 4", "32 x 32"]),
    (lambda: keras_vit.models.BiTResNet(depths=()), ["depths=()", "(3, 4, 6, 3)"]),
    (lambda: keras_vit.models.BiTResNet(depths=(1, 0)), ["depths[1]=0"]),
    (lambda: keras_vit.models.BiTResNet(depths=3), ["depths=3", "(3, 4, 6, 3)"]),
    (lambda: keras_vit.models.BiTResNet(num_classes=-1), ["num_classes=-1", "at least 0"]),
    (lambda: keras_vit.models.MLPMixer(norm_epsilon=-1e-6), ["norm_epsilon=-1e-06", "above 0"]),
    (lambda: keras_vit.models.MLPMixer(tokens_mlp_dim=0), ["mlp_dim=0"]),
    (lambda: keras_vit.models.BiTResNet(width=40), ["width=40", "64"]),
    (lambda: keras_vit.models.BiTResNet(version=3), ["version=3", "1, 2"]),
    (lambda: keras_vit.create("BiT-50x1"), ["'BiT-R50x1'"]),
    (lambda: keras_vit.applications.MixerB16(weights="in22k"), ["'in22k'", "'in21k'"]),
    # The ViT of these sizes has such weights, the Mixer and the hybrid have not.
    (lambda: keras_vit.applications.MixerB16(weights="augreg_in21k"), ["released for", "sam_in1k"]),
    (
        lambda: keras_vit.applications.RViTTi16(weights="deit_in1k"),
        ["released for", "augreg_in21k"],
    ),
    (lambda: build("hybrid", input_shape=(4, 32, 3)), ["4 x 32", "8 x 8"]),
    (lambda: keras_vit.create("vit-b16"), ["'ViT-B/16'"]),
    (lambda: keras_vit.ViTTi16(classes=3), ["'num_classes'"]),
    (lambda: keras_vit.ViTTi16(5), ["ViTTi16(num_classes=5)"]),
    (lambda: build("token", weights="nowhere.keras"), ["load_weights(model, file)"]),
    (lambda: built("token").feature_model(["block_00"]), ["block_0"]),
    (lambda: built("token").feature_model(["block_0"], format="image"), ["'grid'"]),
    (lambda: built("token")(pixels(32, 32, 3)), []),
    (lambda: built("token").with_input_shape((32, 32, 4)), ["4 channels", "for 3."]),
]


@pytest.mark.parametrize(("make", "words"), [*ERRORS, *OTHERS])
def test_errors_say_what_was_given_and_what_is_accepted(make: Any, words: list[str]) -> None:
    of_options = lambda: keras_vit.VisionTransformer(**{**SIZES, **make})  # noqa: E731
    refused(words, make if callable(make) else of_options)


def test_a_file_that_is_not_there() -> None:
    refused(r"nowhere\.keras", keras_vit.ViTTi16, weights="nowhere.keras", error=FileNotFoundError)


def test_an_image_that_patches_do_not_cover_warns_and_loses_the_rest() -> None:
    with pytest.warns(UserWarning, match="32 x 24 of 37 x 30"):
        model = build("token", input_shape=(37, 30, 3))
    images, cut = pixels(2, 37, 30, 3), model.with_input_shape((32, 24, 3))
    np.testing.assert_allclose(predict(model, images), predict(cut, images[:, :32, :24]), atol=1e-6)


@pytest.mark.every_backend
def test_preprocessing_inside_equals_the_released_range_and_imagenets_definition() -> None:
    inside, outside = built("token"), build("token", include_preprocessing=False)
    outside.set_weights(inside.get_weights())
    normalized = (IMAGES.astype("float32") - 127.5) / 127.5
    for taken in (IMAGES, IMAGES.astype("float32")):
        np.testing.assert_allclose(predict(inside, taken), predict(outside, normalized), atol=2e-5)
    wanted = (IMAGES / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    for data_format, axes in (("channels_last", (0, 1, 2, 3)), ("channels_first", (0, 3, 1, 2))):
        options = {"data_format": data_format, "input_shape": IMAGES.transpose(axes).shape[1:]}
        model = build("token", normalization="imagenet", **options)
        found = predict(model.feature_model("images"), IMAGES.transpose(axes))
        np.testing.assert_allclose(found, wanted.transpose(axes), atol=1e-5)


def test_without_a_head_with_an_activation_and_with_stochastic_depth() -> None:
    features, model = build("token", num_classes=0), built("token")
    assert features.output_shape == (None, 32)
    features.set_weights(model.get_weights()[:-2])
    wanted = predict(model.feature_model("pre_logits"), IMAGES)
    np.testing.assert_allclose(predict(features, IMAGES), wanted, atol=1e-6)
    softmax = build("token", classifier_activation="softmax", dtype="mixed_bfloat16")
    np.testing.assert_allclose(predict(softmax, IMAGES).sum(axis=1), 1, atol=1e-6)
    deep = build("token", depth=3, stochastic_depth=0.2)
    rates = [deep.get_layer(f"block_{i}").config.stochastic_depth for i in range(3)]
    assert rates == pytest.approx([0, 0.1, 0.2])  # rises to the last block


def test_copies_share_no_weights_and_keep_the_corners_of_positions() -> None:
    model, grids = built("token"), []
    before, copy = model.get_weights(), model.with_classifier(3)
    copy.set_weights([w + 1 for w in copy.get_weights()])
    assert all(map(np.array_equal, before, model.get_weights()))
    # The released rule of resizing aligns corners: their embeddings survive any size.
    for each, shape in ((model, (4, 4, -1)), (model.with_input_shape((72, 56, 3)), (9, 7, -1))):
        embedding = numpy(each.get_layer("position_embedding").embedding)
        grids.append(embedding[0, 1:].reshape(shape)[:: shape[0] - 1, :: shape[1] - 1])
    np.testing.assert_allclose(grids[1], grids[0], atol=1e-6)


def test_grids_are_of_the_stride_of_what_is_before_the_tokens() -> None:
    model = build("mixer", input_shape=(30, 44, 3))
    assert model.position_grid == (4, 6)  # patches that the image fills in part count
    assert model.with_input_shape((32, 48, 3)).position_grid == (4, 6)
    noisy = keras_vit.models.MLPMixer(**MIXER, stochastic_depth=0.2)
    rates = [noisy.get_layer(f"block_{i}").stochastic_depth for i in range(3)]
    assert rates == pytest.approx([0, 0.1, 0.2])
    hybrid = build("hybrid", resnet=(1, 1), patch_size=1, input_shape=(45, 32, 3))
    stem = build("conv_stem", conv_stem=((8, 2), (8, 2)), patch_size=2, input_shape=(45, 32, 3))
    for model in (hybrid, stem):  # the feature map's height is rounded up
        assert (model.patch_pixels, model.position_grid) == ((8, 8), (6, 4))
    with pytest.warns(UserWarning, match="8 x 8 cover 32 x 32 of 33 x 32"):
        assert build("hybrid", input_shape=(33, 32, 3)).position_grid == (4, 4)


@pytest.mark.every_backend  # each draws its own
def test_initial_values_of_others_are_the_released_codes() -> None:
    fresh = keras_vit.models.MLPMixer(**MIXER).get_layer("block_0")
    for mixing, inputs in ((fresh.token_mixing, 16), (fresh.channel_mixing, 32)):
        assert numpy(mixing.dense_0.kernel).std() == pytest.approx(inputs**-0.5, rel=0.15)
    assert not numpy(fresh.token_mixing.dense_0.bias).any()
    for version, last in ((1, 0), (2, 1)):
        bit = keras_vit.models.BiTResNet(depths=(1,), width=32, version=version)
        unit = bit.get_layer("stage_1_unit_1")
        assert (numpy(unit.norm_3.gamma) == last).all()
        assert numpy(unit.conv_2.kernel).std() == pytest.approx((9 * 32) ** -0.5, rel=0.05)


GRAY = pixels(3, 32, 32, 1)
RGB = np.repeat(GRAY, 3, axis=-1)
# All ways from pixels to tokens: with a bias and without, convolutions, padding by zeros.
PREPARED = ["token", "clip", "hybrid", "mixer", "bit"]


def pair(family: str, normalization: str) -> tuple[ImageModel, ImageModel]:
    kind, options = ("token", {"pre_norm": True}) if family == "clip" else (family, {})
    shapes = [{"input_shape": (32, 32, channels), **options} for channels in (3, 1)]
    rgb, gray = (built(kind, normalization=normalization, **shape) for shape in shapes)
    fill(rgb)
    gray.set_weights(rgb.get_weights())
    return rgb, gray


@pytest.mark.parametrize("kind", ["imagenet", "clip"])
@pytest.mark.parametrize("family", rows(PREPARED, ["bit"]))
def test_gray_is_rgb_with_equal_channels(family: str, kind: str) -> None:
    rgb, gray = pair(family, kind)
    assert gray.input_shape == (None, 32, 32, 1)
    expected = predict(rgb, RGB)
    assert np.ptp(expected) > 0
    np.testing.assert_array_equal(predict(gray, GRAY), expected)
    if (family, kind) == ("token", "imagenet"):
        options = {"data_format": "channels_first", "normalization": "imagenet"}
        first = build("token", input_shape=(1, 32, 32), **options)
        first.set_weights(rgb.get_weights())
        np.testing.assert_allclose(predict(first, GRAY.transpose(0, 3, 1, 2)), expected, atol=1e-5)


def test_files_keep_the_weights(tmp_path: Path) -> None:
    rgb, gray = pair("token", "imagenet")
    expected = predict(rgb, RGB)
    for copy in (reloaded(gray, tmp_path), gray.copy(), gray.with_input_shape((32, 32, 1))):
        np.testing.assert_array_equal(predict(copy, GRAY), expected)
    file = tmp_path / "gray.safetensors"
    save_weights(gray, file, "timm")
    of_file = load(file, normalization="imagenet", norm_epsilon=gray.norm_epsilon)
    np.testing.assert_allclose(predict(of_file, RGB), expected, atol=1e-6)
    fresh = build("token", input_shape=(32, 32, 1), normalization="imagenet")
    assert not load_weights(fresh, file).adapted
    np.testing.assert_array_equal(predict(fresh, GRAY), expected)


@pytest.mark.parametrize("layout", ["huggingface", "timm"])
def test_folders_are_those_of_the_rgb_model(layout: str, tmp_path: Path) -> None:
    rgb, gray = pair("token", "clip")
    save_weights(gray, tmp_path / "model", layout)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    arguments = config["model_args"] if layout == "timm" else {"in_chans": config["num_channels"]}
    assert arguments["in_chans"] == 3
    opened = load(tmp_path / "model")
    assert (opened.channels, opened.normalization) == (3, "clip")
    np.testing.assert_allclose(predict(opened, RGB), predict(rgb, RGB), atol=1e-5)


def test_statistics_that_do_not_fit_are_refused() -> None:
    four = r"or 1 for gray, not 4\. Give include_preprocessing=False"
    refused(four, build, "token", input_shape=(32, 32, 4), normalization="imagenet")
    for value in (0, None, 1, "clip"):
        with pytest.raises(ValueError, match=f"include_preprocessing={value!r} must be True"):
            build("token", include_preprocessing=value)
