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
from keras_vit.weights.containers.metadata import with_metadata
from keras_vit.weights.tables.layout import Checkpoint
from keras_vit.weights.tables.layouts import LAYOUTS
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
    options = {"normalization": kind, **FAMILIES[family]}
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
                  normalization="imagenet")  # fmt: skip
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
    file = from_checkpoint(tmp_path / "gray.safetensors", normalization="imagenet",
                           norm_epsilon=gray.norm_epsilon)  # fmt: skip
    np.testing.assert_allclose(logits(file, RGB), expected, atol=1e-6)
    fresh = build("token", input_shape=(32, 32, 1), normalization="imagenet")
    assert not load_weights(fresh, tmp_path / "gray.safetensors").adapted
    np.testing.assert_array_equal(logits(fresh, GRAY), expected)


@pytest.mark.parametrize("layout", ["huggingface", "timm"])
def test_folders_are_those_of_the_rgb_model(layout: str, tmp_path: Path) -> None:
    rgb, gray = pair("token", "clip")
    save_weights(gray, tmp_path / "model", layout)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    arguments = config["model_args"] if layout == "timm" else {"in_chans": config["num_channels"]}
    assert arguments["in_chans"] == 3
    opened = from_checkpoint(tmp_path / "model")
    assert (opened.channels, opened.normalization) == (3, "clip")
    np.testing.assert_allclose(logits(opened, RGB), logits(rgb, RGB), atol=1e-5)


def test_other_channels_are_refused_with_what_can_be_done() -> None:
    with pytest.raises(
        ValueError, match=r"or 1 for gray, not 4\. Give include_preprocessing=False"
    ):
        build("token", input_shape=(32, 32, 4), normalization="imagenet")


def test_the_spelling_of_earlier_files() -> None:
    """The text was in `include_preprocessing`: in configurations, headers and users' programs."""
    with pytest.warns(DeprecationWarning, match=r"is now normalization='clip'"):
        model = build("token", include_preprocessing="clip")
    assert (model.include_preprocessing, model.normalization) == (True, "clip")
    config = model.get_config()
    for earlier, now in (("clip", (True, "clip")), (True, (True, "inception"))):
        old = {**config, "include_preprocessing": earlier}
        del old["normalization"]
        again = type(model).from_config(old)
        assert (again.include_preprocessing, again.normalization) == now
    # A header with True is of [-1, 1], whatever the conventions of its layout are.
    dinov2 = Checkpoint("dinov2", "vit", LAYOUTS["dinov2"].conventions, {})
    for earlier, name in ((True, "inception"), ("clip", "clip"), (False, "imagenet")):
        header = {"arguments": {"include_preprocessing": earlier}}
        stated = with_metadata(dinov2, header).stated
        assert (stated["include_preprocessing"], stated["normalization"]) == (bool(earlier), name)


@pytest.mark.parametrize("kind", [0, None, 1])
def test_whether_is_true_or_false(kind: Any) -> None:
    with pytest.raises(ValueError, match=f"include_preprocessing={kind} must be True"):
        build("token", include_preprocessing=kind)


def test_real_weights(shared: Path) -> None:
    """As a user asks for them; these were trained under [-1, 1], whose kernel is summed."""
    file = shared / "weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k/model.safetensors"
    gray, rgb = pixels(2, 224, 224, 1), keras_vit.create
    for kind, atol in (("imagenet", 0), ("inception", 2e-4)):
        models = [
            rgb("ViT-Ti/16", weights=file, input_shape=(224, 224, c), normalization=kind)
            for c in (1, 3)
        ]
        assert models[0].load_report.adapted == (("patch_embedding/kernel",) if atol else ())
        outputs, expected = (
            logits(model, np.repeat(gray, c, axis=-1))
            for model, c in zip(models, (1, 3), strict=True)
        )
        np.testing.assert_allclose(outputs, expected, rtol=0, atol=atol)
