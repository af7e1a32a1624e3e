"""Depth of a photograph, by random weights in the folder of Depth Anything."""

from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from tests.examples import load_example


@pytest.mark.parametrize("size", [(480, 640), (100, 37), (2000, 1500), (518, 518), (301, 900)])
def test_the_size_is_that_of_transformers(size: tuple[int, int]) -> None:
    theirs = pytest.importorskip(
        "transformers.models.dpt.image_processing_dpt", exc_type=ImportError
    )
    image = np.empty((3, *size), np.uint8)
    expected = theirs.get_resize_output_image_size(image, (518, 518), True, 14)
    assert load_example("depth").size_for(*size) == (expected.height, expected.width)


def test_from_a_file_to_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keras.utils.set_random_seed(0)
    head = {"width": 8, "depth_width": 4, "activation": "relu"}
    model = keras_vit.VisionTransformer(
        patch_size=14, hidden_dim=16, depth=4, num_heads=2, layer_scale=1.0, num_classes=1,
        map_head=head, input_shape=(28, 28, 3), activation="gelu", normalization="imagenet",
    )  # fmt: skip
    keras_vit.save_weights(model, tmp_path / "folder", "huggingface")
    pixels = np.random.default_rng(0).integers(0, 256, (30, 47, 3)).astype("uint8")
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    out = tmp_path / "depth.png"
    words = [str(tmp_path / "folder"), str(tmp_path / "photo.png"), "--side", "28"]
    load_example("depth").main([*words, "--out", str(out)])
    assert "depth from" in capsys.readouterr().out
    with Image.open(out) as picture:
        found = np.asarray(picture)
    assert found.shape == (30, 94, 3)
    np.testing.assert_array_equal(found[:, :47], pixels)
    assert len(np.unique(found[:, 47:].reshape(-1, 3), axis=0)) > 20
