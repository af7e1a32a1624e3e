"""Photographs of phones and scans: what Pillow reads, on every backend, and what is refused."""

import io
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps, features

from keras_vit.data import BadImageError, load, pipeline, read_image
from keras_vit.data.decode.pillow import decode_with_pillow
from keras_vit.data.decode.pillow_formats import PILLOW_FORMATS, missing_plugin
from tests.data.image_fixtures import encode, orientation, write

pytestmark = pytest.mark.backends("torch")  # Pillow alone reads them
RANDOM = np.random.default_rng(0)
PHOTO = Image.fromarray(RANDOM.integers(0, 256, (4, 6, 3), np.uint8)).resize((60, 40))
KINDS = [pytest.param(PILLOW_FORMATS[0], marks=pytest.mark.every_backend), *PILLOW_FORMATS[1:]]
DEEP = Image.fromarray(np.zeros((8, 8), np.uint16))
REFUSED = {
    "more than 8 bits per channel": lambda: encoded("TIFF", DEEP),
    "several pages": lambda: encoded("TIFF", save_all=True, append_images=[PHOTO]),
    "a raw camera file": lambda: encoded("TIFF", tiffinfo={50706: b"\1\4\0\0"}),
}


def encoded(format: str, image: Image.Image = PHOTO, **options: Any) -> bytes:
    if format == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener()
    if format == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow does not write AVIF")
    return encode(image, format, **options)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("turn", [1, 6])
def test_pixels_are_those_of_pillow(kind: Any, turn: int, tmp_path) -> None:
    contents = encoded(kind.pillow, exif=orientation(turn), quality=90)
    with Image.open(io.BytesIO(contents)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    np.testing.assert_array_equal(decode_with_pillow(contents), expected)
    file = tmp_path / f"photo{kind.suffixes[-1]}"
    file.write_bytes(contents)
    # As every command reads a file, whatever the backend.
    np.testing.assert_array_equal(read_image(file, expected.shape[:2]), expected)


def test_a_folder_of_them(tmp_path) -> None:
    for format, suffix in (("TIFF", "tif"), ("JPEG", "jpg")):
        write(tmp_path, {f"{'ab'[i % 2]}/{i}.{suffix}": encoded(format) for i in range(8)})
    with pytest.warns(UserWarning, match="Or let Grain read TIFF as it is: reader='grain'"):
        assert sum(map(len, load(tmp_path, reader="tensorflow").values())) == 8
    splits = load(tmp_path, reader="grain")
    assert sum(map(len, splits.values())) == 16
    assert not splits.report
    images, _ = next(iter(pipeline(splits.train, 40, 12)))
    assert images.shape == (12, 40, 40, 3)


@pytest.mark.parametrize("reason", REFUSED)
def test_what_pillow_would_show_in_part_is_refused(reason: str) -> None:
    with pytest.raises(BadImageError, match=reason):
        decode_with_pillow(REFUSED[reason]())


def test_a_missing_plugin_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    contents = encoded("HEIF")
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(BadImageError, match=r"pip install 'keras3-vit\[heic\]'"):
        decode_with_pillow(contents)
    assert missing_plugin(PILLOW_FORMATS[0]) is None
