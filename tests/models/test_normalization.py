"""Gray images for weights that were trained under statistics of three channels."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models import ImageModel
from keras_vit.weights import from_checkpoint, load_weights, save_weights
from tests.models.test_common import build, pixels
from tests.weights.models import fill

GRAY = pixels(3, 32, 32, 1)
RGB = np.repeat(GRAY, 3, axis=-1)
# All ways from pixels to tokens: with a bias and without, convolutions, padding by zeros.
FAMILIES: dict[str, dict[str, Any]] = {
    "token": {},
    "clip": {"pre_norm": True},
    "hybrid": {},
    "mixer": {},
    "bit": {},
}


def pair(family: str, kind: str) -> tuple[ImageModel, ImageModel]:
    """A model of three channels and one of one, with the same weights."""
    options = {"include_preprocessing": kind, **FAMILIES[family]}
    name = "token" if family == "clip" else family
    rgb = build(name, input_shape=(32, 32, 3), **options)
    gray = build(name, input_shape=(32, 32, 1), **options)
    fill(rgb)
    gray.set_weights(rgb.get_weights())
    return rgb, gray


def logits(model: Any, images: np.ndarray) -> np.ndarray:
    return np.asarray(model.predict(images, verbose=0))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["imagenet", "clip"])
def test_gray_is_rgb_with_equal_channels(family: str, kind: str) -> None:
    rgb, gray = pair(family, kind)
    assert gray.input_shape == (None, 32, 32, 1)
    assert np.ptp(logits(rgb, RGB)) > 0
    np.testing.assert_array_equal(logits(gray, GRAY), logits(rgb, RGB))


def test_channels_first() -> None:
    rgb, _ = pair("token", "imagenet")
    first = build("token", input_shape=(1, 32, 32), data_format="channels_first",
                  include_preprocessing="imagenet")  # fmt: skip
    first.set_weights(rgb.get_weights())
    outputs = logits(first, GRAY.transpose(0, 3, 1, 2))
    np.testing.assert_allclose(outputs, logits(rgb, RGB), atol=1e-5)


def test_files_keep_the_weights(tmp_path: Path) -> None:
    """As the model's own file, and in other layouts, where they are those of the RGB model."""
    rgb, gray = pair("token", "imagenet")
    gray.save(tmp_path / "gray.keras")
    again = keras.saving.load_model(tmp_path / "gray.keras")
    expected = logits(rgb, RGB)
    np.testing.assert_array_equal(logits(again, GRAY), expected)
    np.testing.assert_array_equal(logits(gray.copy(), GRAY), expected)
    np.testing.assert_array_equal(logits(gray.with_input_shape((32, 32, 1)), GRAY), expected)
    save_weights(gray, tmp_path / "gray.safetensors", "timm")
    file = from_checkpoint(tmp_path / "gray.safetensors", include_preprocessing="imagenet",
                           norm_epsilon=gray.norm_epsilon)  # fmt: skip
    np.testing.assert_allclose(logits(file, RGB), expected, atol=1e-6)
    fresh = build("token", input_shape=(32, 32, 1), include_preprocessing="imagenet")
    assert not load_weights(fresh, tmp_path / "gray.safetensors").adapted
    np.testing.assert_array_equal(logits(fresh, GRAY), expected)


@pytest.mark.once
@pytest.mark.parametrize("layout", ["huggingface", "timm"])
def test_folders_are_those_of_the_rgb_model(layout: str, tmp_path: Path) -> None:
    rgb, gray = pair("token", "clip")
    save_weights(gray, tmp_path / "model", layout)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    arguments = config["model_args"] if layout == "timm" else {"in_chans": config["num_channels"]}
    assert arguments["in_chans"] == 3
    opened = from_checkpoint(tmp_path / "model")
    assert (opened.channels, opened.include_preprocessing) == (3, "clip")
    np.testing.assert_allclose(logits(opened, RGB), logits(rgb, RGB), atol=1e-5)


def test_other_channels_are_refused_with_what_can_be_done() -> None:
    with pytest.raises(ValueError, match=r"for 3 channels, or 1 for gray, not 4\. Give False"):
        build("token", input_shape=(32, 32, 4), include_preprocessing="imagenet")


@pytest.mark.once
def test_real_weights(shared: Path) -> None:
    """As a user asks for them; these were trained under [-1, 1], whose kernel is summed."""
    file = shared / "weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k/model.safetensors"
    gray, rgb = pixels(2, 224, 224, 1), keras_vit.create
    for kind, atol in (("imagenet", 0), (True, 2e-4)):
        models = [
            rgb("ViT-Ti/16", weights=file, input_shape=(224, 224, c), include_preprocessing=kind)
            for c in (1, 3)
        ]
        assert models[0].load_report.adapted == (("patch_embedding/kernel",) if atol else ())
        outputs, expected = (
            logits(model, np.repeat(gray, c, axis=-1))
            for model, c in zip(models, (1, 3), strict=True)
        )
        np.testing.assert_allclose(outputs, expected, rtol=0, atol=atol)
