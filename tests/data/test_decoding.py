"""`decode_image` against Pillow, file by file."""

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from keras_vit.data import decode_image
from keras_vit.data.decoding import decode_and_orientation, decode_upright_jpeg
from tests.data.pictures import PICTURE, PIXELS, encode

tf = pytest.importorskip("tensorflow")

TRANSPARENT = PICTURE.copy()
TRANSPARENT.putalpha(Image.fromarray(PIXELS[..., 1]))
# Pillow's and libjpeg's YCbCr conversions differ by a few levels.
LOSSY = {"JPEG": 5, "WEBP": 1}

FILES = {
    "jpeg": encode(PICTURE, "JPEG", quality=95),
    "jpeg, progressive": encode(PICTURE, "JPEG", quality=95, progressive=True),
    "jpeg, grey": encode(PICTURE.convert("L"), "JPEG"),
    "jpeg, CMYK": encode(PICTURE.convert("CMYK"), "JPEG", quality=95),
    "png": encode(PICTURE, "PNG"),
    "png, grey": encode(PICTURE.convert("L"), "PNG"),
    "png, grey and alpha": encode(TRANSPARENT.convert("LA"), "PNG"),
    "png, RGBA": encode(TRANSPARENT, "PNG"),
    "png, palette": encode(PICTURE.quantize(16), "PNG"),
    "png, palette and transparency": encode(PICTURE.quantize(16), "PNG", transparency=3),
    "png, black and white": encode(PICTURE.convert("1"), "PNG"),
    "bmp": encode(PICTURE, "BMP"),
    "bmp, grey": encode(PICTURE.convert("L"), "BMP"),
    "bmp, palette": encode(PICTURE.quantize(16), "BMP"),
    "bmp, RGBA": encode(TRANSPARENT, "BMP"),
    "gif": encode(PICTURE.quantize(16), "GIF"),
    "gif, animated": encode(
        PICTURE.quantize(16), "GIF", save_all=True, append_images=[PICTURE.rotate(180)]
    ),
    "webp": encode(PICTURE, "WEBP"),
    "webp, lossless": encode(PICTURE, "WEBP", lossless=True),
    "webp, RGBA": encode(TRANSPARENT, "WEBP", lossless=True),
}


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("name", FILES)
def test_equals_pillow(name: str, channels: int) -> None:
    picture = Image.open(io.BytesIO(FILES[name]))
    expected = np.asarray(picture.convert("RGB"))  # drops transparency, shows the first frame
    tolerance = LOSSY.get(picture.format, 0)
    if channels == 1:
        # Not convert("L") of the file itself: Pillow keeps the grey of transparent palettes apart.
        expected = np.asarray(picture.convert("RGB").convert("L"))[..., None]
        tolerance += 1  # weights 0.2989, 0.587, 0.114 against 299, 587, 114 of 1000
    image = decode_image(FILES[name], channels).numpy()
    assert image.dtype == np.uint8
    assert image.shape == (24, 32, channels)
    np.testing.assert_allclose(image.astype(int), expected.astype(int), atol=tolerance)


def test_grey_stays_exactly_grey() -> None:
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    png = encode(Image.fromarray(levels), "PNG")
    for channels in (1, 3):
        expected = np.repeat(levels[..., None], channels, axis=-1)
        np.testing.assert_array_equal(decode_image(png, channels), expected)


def test_sixteen_bits_keep_the_high_eight() -> None:
    deep = (np.arange(64, dtype=np.uint16) * 1021).reshape(8, 8)
    png = encode(Image.fromarray(deep), "PNG")
    np.testing.assert_array_equal(decode_image(png, 1)[..., 0], deep >> 8)


@pytest.mark.parametrize("endian", ["<", ">"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_comes_out_upright(orientation: int, endian: str) -> None:
    exif = Image.Exif()
    exif.endian = endian
    exif[0x010F] = "A camera's maker"
    exif[0x0112] = orientation
    exif[0x0131] = "software"
    jpeg = encode(PICTURE, "JPEG", quality=95, exif=exif)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(jpeg)))).astype(int)
    image = decode_image(jpeg).numpy().astype(int)
    assert image.shape == expected.shape
    np.testing.assert_allclose(image, expected, atol=LOSSY["JPEG"])


BOX = (3, 5, 11, 17)  # top, left, height, width


def check_part(part: tf.Tensor, whole: np.ndarray, lossy: bool) -> None:
    part, expected = part.numpy().astype(int), whole[3:14, 5:22].astype(int)
    assert part.shape == expected.shape
    np.testing.assert_array_equal(part[1:-1, 1:-1], expected[1:-1, 1:-1])
    # At its border libjpeg interpolates colour without the neighbours that it has not decoded.
    np.testing.assert_allclose(part, expected, atol=8 if lossy else 0)


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("name", FILES)
def test_a_part_is_the_part_of_the_whole(name: str, channels: int) -> None:
    whole = decode_image(FILES[name], channels).numpy()
    part = decode_image(FILES[name], channels, lambda shape: tf.constant(BOX))
    check_part(part, whole, name.startswith("jpeg"))
    if name.startswith("jpeg"):
        np.testing.assert_array_equal(decode_upright_jpeg(FILES[name], channels), whole)
        part = decode_upright_jpeg(FILES[name], channels, lambda shape: tf.constant(BOX))
        check_part(part, whole, lossy=True)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_part_of_a_turned_picture(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    jpeg = encode(PICTURE, "JPEG", quality=95, exif=exif)
    assert decode_and_orientation(jpeg, 3)[1] == orientation
    whole = decode_image(jpeg).numpy()
    shapes = []

    def crop(shape: tf.Tensor) -> tf.Tensor:
        shapes.append(shape.numpy().tolist())
        return tf.constant(BOX)

    part = decode_image(jpeg, crop=crop)
    assert shapes == [list(whole.shape[:2])]  # as it is seen, not as it is stored
    check_part(part, whole, lossy=True)


def test_same_in_a_graph_over_a_batch() -> None:
    # As the exported SavedModel decodes.
    files = [FILES[name] for name in ("png, RGBA", "png, grey", "bmp, palette", "gif, animated")]

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.string)])
    def decode_batch(contents: tf.Tensor) -> tf.Tensor:
        spec = tf.TensorSpec((24, 32, 3), tf.uint8)
        return tf.map_fn(decode_image, contents, fn_output_signature=spec)

    for image, contents in zip(decode_batch(files), files, strict=True):
        np.testing.assert_array_equal(image, decode_image(contents))


BROKEN = {
    "empty": b"",
    "text": b"a list of photographs",
    "half a jpeg": FILES["jpeg"][: len(FILES["jpeg"]) // 2],
    "jpeg without its end": FILES["jpeg"][:-40],
    "half a png": FILES["png"][: len(FILES["png"]) // 2],
    "half a bmp": FILES["bmp"][: len(FILES["bmp"]) // 2],
    "half a gif": FILES["gif"][: len(FILES["gif"]) // 2],
    "half a webp": FILES["webp"][: len(FILES["webp"]) // 2],
    "tiff": encode(PICTURE, "TIFF"),
    # TensorFlow 2.21 writes these past the end of its buffer.
    "animated webp": encode(PICTURE, "WEBP", save_all=True, append_images=[PICTURE.rotate(180)]),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_broken_files_are_refused(name: str, wrap) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError):
        wrap(decode_image)(tf.constant(BROKEN[name]))


@pytest.mark.parametrize("channels", [0, 2, 4])
def test_other_channels_are_refused(channels: int) -> None:
    with pytest.raises(ValueError, match=rf"channels={channels} .* 3 \(RGB\) or 1"):
        decode_image(FILES["png"], channels)
