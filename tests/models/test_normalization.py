"""Gray images for weights that were trained under statistics of three channels."""

import json
from pathlib import Path

import numpy as np
import pytest

from keras_vit.models import ImageModel
from keras_vit.weights import load, load_weights, save_weights
from tests.backend import reloaded, rows
from tests.bank import fill, fresh_kind, outputs, pixels, small_kind

GRAY = pixels(3, 32, 32, 1)
RGB = np.repeat(GRAY, 3, axis=-1)
# All ways from pixels to tokens: with a bias and without, convolutions, padding by zeros.
FAMILIES = ["token", "clip", "hybrid", "mixer", "bit"]


def pair(family: str, normalization: str) -> tuple[ImageModel, ImageModel]:
    kind, options = ("token", {"pre_norm": True}) if family == "clip" else (family, {})
    shapes = [{"input_shape": (32, 32, channels), **options} for channels in (3, 1)]
    rgb, gray = (small_kind(kind, normalization=normalization, **shape) for shape in shapes)
    fill(rgb)
    gray.set_weights(rgb.get_weights())
    return rgb, gray


@pytest.mark.parametrize("kind", ["imagenet", "clip"])
@pytest.mark.parametrize("family", rows(FAMILIES, ["bit"]))
def test_gray_is_rgb_with_equal_channels(family: str, kind: str) -> None:
    rgb, gray = pair(family, kind)
    assert gray.input_shape == (None, 32, 32, 1)
    expected = outputs(rgb, RGB)
    assert np.ptp(expected) > 0
    np.testing.assert_array_equal(outputs(gray, GRAY), expected)
    if (family, kind) == ("token", "imagenet"):
        options = {"data_format": "channels_first", "normalization": "imagenet"}
        first = fresh_kind("token", input_shape=(1, 32, 32), **options)
        first.set_weights(rgb.get_weights())
        np.testing.assert_allclose(outputs(first, GRAY.transpose(0, 3, 1, 2)), expected, atol=1e-5)


def test_files_keep_the_weights(tmp_path: Path) -> None:
    rgb, gray = pair("token", "imagenet")
    expected = outputs(rgb, RGB)
    for copy in (reloaded(gray, tmp_path), gray.copy(), gray.with_input_shape((32, 32, 1))):
        np.testing.assert_array_equal(outputs(copy, GRAY), expected)
    file = tmp_path / "gray.safetensors"
    save_weights(gray, file, "timm")
    of_file = load(file, normalization="imagenet", norm_epsilon=gray.norm_epsilon)
    np.testing.assert_allclose(outputs(of_file, RGB), expected, atol=1e-6)
    fresh = fresh_kind("token", input_shape=(32, 32, 1), normalization="imagenet")
    assert not load_weights(fresh, file).adapted
    np.testing.assert_array_equal(outputs(fresh, GRAY), expected)


@pytest.mark.parametrize("layout", ["huggingface", "timm"])
def test_folders_are_those_of_the_rgb_model(layout: str, tmp_path: Path) -> None:
    rgb, gray = pair("token", "clip")
    save_weights(gray, tmp_path / "model", layout)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    arguments = config["model_args"] if layout == "timm" else {"in_chans": config["num_channels"]}
    assert arguments["in_chans"] == 3
    opened = load(tmp_path / "model")
    assert (opened.channels, opened.normalization) == (3, "clip")
    np.testing.assert_allclose(outputs(opened, RGB), outputs(rgb, RGB), atol=1e-5)


def test_what_is_refused() -> None:
    four = r"or 1 for gray, not 4\. Give include_preprocessing=False"
    with pytest.raises(ValueError, match=four):
        fresh_kind("token", input_shape=(32, 32, 4), normalization="imagenet")
    for value in (0, None, 1, "clip"):
        with pytest.raises(ValueError, match=f"include_preprocessing={value!r} must be True"):
            fresh_kind("token", include_preprocessing=value)
