"""What is special about each architecture: options, first values, gray images, less work."""

import json
from collections.abc import Callable
from functools import partial
from math import inf, nan
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.inspection import attention_maps, attention_rollout, pooling_attention
from keras_vit.models import ImageModel
from keras_vit.weights import load, load_weights, save_weights
from tests.backend import gradients, numpy, refused, reloaded, rows, warned
from tests.bank import KINDS, fill, fresh_kind
from tests.models.test_common import IMAGES, SIZES, build, built, compiled, pixels, predict

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
FOUR, NORMALIZED = "for gray, not 4. Give include_preprocessing=False", "include_preprocessing"
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
    ({"input_shape": (32, 32, 4), "normalization": "imagenet"}, [FOUR]),
    *(({NORMALIZED: v}, [f"{NORMALIZED}={v!r} must be True"]) for v in (0, None, 1, "clip")),
]

MIXER = {"patch_size": 8, "hidden_dim": 32, "depth": 3, "input_shape": (32, 32, 3)}
NOWHERE = ["nowhere.keras"]
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
    (lambda: keras_vit.applications.RViTTi16(weights="deit_in1k"), ["released", "augreg_in21k"]),
    (lambda: build("hybrid", input_shape=(4, 32, 3)), ["4 x 32", "8 x 8"]),
    (lambda: keras_vit.create("vit-b16"), ["'ViT-B/16'"]),
    (lambda: keras_vit.ViTTi16(weights="nowhere.keras"), NOWHERE),
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
    error = FileNotFoundError if words == NOWHERE else ValueError
    refused(words, make if callable(make) else of_options, error=error)


def test_an_image_that_patches_do_not_cover_warns_and_loses_the_rest() -> None:
    model = warned("32 x 24 of 37 x 30", build, "token", input_shape=(37, 30, 3))
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


# Operation by operation, every length of a sequence is compiled anew on JAX; elsewhere, compiling
# the model takes longer than running it so.
answer = compiled if keras.backend.backend() == "jax" else predict
token_vit = partial(fresh_kind, "token")


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
    model = token_vit(**arguments)
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
    model = token_vit(**arguments)
    names = [f"block_{i}" for i in range(model.depth)]
    assert [x.shape[1] for x in features(model, *names)] == wanted
    assert [model.feature_model(name).output_shape[1] for name in names] == wanted


def test_merging_nothing_is_the_plain_model_bit_by_bit() -> None:
    plain = token_vit()
    expected = answer(plain, IMAGES)
    for nothing in (0, (0, 0)):
        same = token_vit(token_merging=nothing, patch_dropout=0.0)
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
    plain, logits = token_vit(depth=1), []
    expected = answer(plain, IMAGES)
    for _ in range(2):
        keras.utils.set_random_seed(3)
        model = token_vit(depth=1, patch_dropout=0.5)
        model.set_weights(plain.get_weights())
        np.testing.assert_array_equal(answer(model, IMAGES), expected)
        found = model.feature_model(["tokens", "logits"])(IMAGES, training=True)
        assert tuple(found["tokens"].shape) == (2, 1 + 8, 32)
        logits.append(numpy(found["logits"]))
    np.testing.assert_array_equal(logits[0], logits[1])
    assert np.abs(logits[0] - expected).max() > 1e-4
    with pytest.raises(ValueError, match="8 patches do not fill a grid of 4 x 4"):
        model.feature_model("block_0", format="grid")(IMAGES, training=True)


@pytest.mark.backends("tensorflow")  # the others trace every size anew
def test_images_and_batches_of_any_size() -> None:
    model = token_vit(depth=1, token_merging=3, num_registers=1, patch_dropout=0.5)
    dynamic = model.with_input_shape((None, None, 3))
    for shape in ((1, 32, 32, 3), (3, 24, 48, 3)):
        images, fixed = pixels(*shape), model.with_input_shape(shape[1:])
        np.testing.assert_allclose(compiled(dynamic, images), answer(fixed, images), atol=2e-5)
    dynamic.compile("sgd", "mean_squared_error")
    assert np.isfinite(dynamic.fit(images, np.zeros((3, 5)), verbose=0).history["loss"]).all()


# Beside the kinds of all other tests, poolings and merging in their combinations.
COMBINED: dict[str, dict[str, Any]] = {
    "two_registers": {"num_registers": 2},
    "merging": {"token_merging": 3},
    "merging_gap": {"token_merging": 3, "pooling": "gap"},
    "merging_map": {"token_merging": (0, 3), "pooling": "map"},
    "merging_distilled": {"token_merging": 3, "distilled": True},
    "token_gap": {"pooling": "token_gap"},
    "map_with_class_token": {"pooling": "map", "class_token": True},
    "pre_logits": {"representation_size": 24, "distilled": True},
}
ONE_IMAGE, NEAR = pixels(1, 32, 32, 3).astype("float32"), {"rtol": 1e-5, "atol": 1e-5}
STEPS = (0.004, -0.004, 0.002, -0.002)  # of Richardson's extrapolation: of the fourth order
HEADED = [kind for kind, options in KINDS.items() if options.get("num_classes") != 0]


def values_of(model: ImageModel, tensors: list[Any]) -> list[Any]:
    return keras.tree.flatten(keras.Model(model.inputs[0], tensors)(ONE_IMAGE))


def rest_of(model: ImageModel, name: str, feature: Any) -> tuple[keras.Model, list[Any]]:
    beside = [n for n in model.feature_names if n == "patches" or n.endswith("_token_index")]
    tensors = [model.feature_model(n).output for n in beside if n != name]
    for others in ([], *([t] for t in tensors), tensors):
        try:
            rest = keras.Model([feature, *others], model.output)
        except ValueError:  # the logits read more than these
            continue
        return rest, values_of(model, others) if others else []
    raise AssertionError(f"no logits from {name}")


def gradients_by(model: ImageModel, features: dict[str, Any]) -> dict[str, Any]:
    """Of the score by each feature, as users compute them; None where there is none."""
    import torch

    joint = keras.Model(model.inputs[0], [*features.values(), model.output])
    *values, logits = joint(ONE_IMAGE)
    found = torch.autograd.grad((logits[:, 1] - logits[:, 0]).sum(), values, allow_unused=True)
    arrays = [None if gradient is None else numpy(gradient) for gradient in found]
    return dict(zip(features, arrays, strict=True))


def slope(rest: keras.Model, value: np.ndarray, others: list[Any], direction: np.ndarray) -> float:
    moved = np.concatenate([value + step * direction for step in STEPS]).astype("float32")
    repeated = [np.repeat(numpy(x), len(STEPS), axis=0) for x in others]
    inputs = [ops.convert_to_tensor(x) for x in (moved, *repeated)]
    logits = numpy(ops.stop_gradient(rest(inputs))).astype("float64")
    up, down, half_up, half_down = logits[:, 1] - logits[:, 0]
    whole, half = (up - down) / 0.008, (half_up - half_down) / 0.004
    return float((4 * half - whole) / 3)


@pytest.mark.backends("torch")  # those of the others: tests/inspection/test_attention.py
@pytest.mark.parametrize("kind", [*HEADED, *COMBINED])
def test_gradients_of_features_are_finite_differences(kind: str) -> None:
    model = fresh_kind(kind) if kind in KINDS else fresh_kind("token", **COMBINED[kind])
    names = [name for name in model.feature_names if name not in ("images", "logits")]
    features = {name: model.feature_model(name).output for name in names}
    features = {name: x for name, x in features.items() if "float" in str(x.dtype)}
    assert len(features) > 3
    values = values_of(model, list(features.values()))
    for (name, gradient), value in zip(gradients_by(model, features).items(), values, strict=True):
        assert gradient is not None, name
        size = np.linalg.norm(gradient)
        assert size > 0, name
        random = np.random.default_rng(0).normal(size=gradient.shape)
        rest, others = rest_of(model, name, features[name])
        for direction in (gradient / size, random / np.linalg.norm(random)):
            found = slope(rest, numpy(value), others, direction)
            assert abs(found - float((gradient * direction).sum())) < 0.005 * size, name


def test_features_of_a_nested_model_keep_all_tokens_and_are_those_of_the_images_alone() -> None:
    """A model may call both: its last block leaves tokens out in one of them alone."""
    model, images = fresh_kind("token"), keras.Input((32, 32, 3))
    both = keras.Model(images, [model(images), model.feature_model("encoder_norm")(images)])
    logits, tokens = both.predict(ONE_IMAGE, verbose=0)
    assert tokens.shape == (1, 17, 32)
    np.testing.assert_allclose(logits, model.predict(ONE_IMAGE, verbose=0), **NEAR)
    pooled = model.feature_model("pre_logits").predict(ONE_IMAGE, verbose=0)
    np.testing.assert_allclose(numpy(model.get_layer("head")(pooled)), logits, **NEAR)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("layer", ["block_1", "encoder_norm", "block_1/mlp", "all"])
def test_hooks_see_all_tokens(layer: str) -> None:
    """As libraries of attribution register them: Captum, pytorch-grad-cam."""
    import torch

    model, seen = fresh_kind("token"), []

    def hook(module: Any, inputs: Any, outputs: Any) -> None:
        if getattr(outputs, "ndim", 0) == 3:
            seen.append(outputs.shape[1])

    register = torch.nn.modules.module.register_module_forward_hook
    if layer != "all":
        found = next(one for one in model._flatten_layers() if one.path == layer)
        register = found.register_forward_hook
    with register(hook):
        model(ONE_IMAGE)
        model.predict(ONE_IMAGE, verbose=0)
    assert len(seen) >= 2
    assert set(seen) == {17} if layer != "all" else max(seen) == 17


def test_fewer_operations_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model, encoded = fresh_kind("token", depth=1), []
    mlp = model.get_layer("block_0").mlp
    call = mlp.call

    def watched(tokens: Any, **options: Any) -> Any:
        encoded.append(tokens.shape[1])
        return call(tokens, **options)

    monkeypatch.setattr(mlp, "call", watched)
    model(ONE_IMAGE)
    model.feature_model("encoder_norm")(ONE_IMAGE)
    assert encoded == [1, 17]
