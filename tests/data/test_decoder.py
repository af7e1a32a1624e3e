"""`decode_image` against Pillow, file by file."""

import io
import itertools
import re
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from keras_vit.data import BadImageError, decode_image
from keras_vit.data.decode.budget import BudgetedFile
from keras_vit.data.decode.decoder import decode_and_orientation, decode_upright_jpeg
from keras_vit.data.decode.image_files import prepare_contents
from keras_vit.data.decode.pillow import decode_with_pillow, displayed_size
from keras_vit.data.sources.verification import checked_files
from tests.backend import refused
from tests.data.image_fixtures import IMAGE, PIXELS, encode, orientation

tf = pytest.importorskip("tensorflow")
TRANSPARENT = IMAGE.copy()
TRANSPARENT.putalpha(Image.fromarray(PIXELS[..., 1]))
# Pillow's and libjpeg's YCbCr conversions differ by a few levels.
LOSSY = {"JPEG": 5, "WEBP": 1}
PALETTE = IMAGE.quantize(16)
TURNED = {"save_all": True, "append_images": [IMAGE.rotate(180)]}  # a second frame
FILES = {
    "jpeg": encode(IMAGE, "JPEG", quality=95),
    "jpeg, progressive": encode(IMAGE, "JPEG", quality=95, progressive=True),
    "jpeg, gray": encode(IMAGE.convert("L"), "JPEG"),
    "jpeg, CMYK": encode(IMAGE.convert("CMYK"), "JPEG", quality=95),
    "png": encode(IMAGE, "PNG"),
    "png, gray": encode(IMAGE.convert("L"), "PNG"),
    "png, gray and alpha": encode(TRANSPARENT.convert("LA"), "PNG"),
    "png, RGBA": encode(TRANSPARENT, "PNG"),
    "png, palette": encode(PALETTE, "PNG"),
    "png, palette and transparency": encode(PALETTE, "PNG", transparency=3),
    "png, black and white": encode(IMAGE.convert("1"), "PNG"),
    "bmp": encode(IMAGE, "BMP"),
    "bmp, palette": encode(PALETTE, "BMP"),
    "bmp, RGBA": encode(TRANSPARENT, "BMP"),
    "gif": encode(PALETTE, "GIF"),
    "gif, animated": encode(PALETTE, "GIF", **TURNED),
    "webp": encode(IMAGE, "WEBP"),
    "webp, lossless": encode(IMAGE, "WEBP", lossless=True),
    "webp, RGBA": encode(TRANSPARENT, "WEBP", lossless=True),
}


def bmp(bits: int, indices: np.ndarray, downwards: bool = False, compression: int = 0) -> bytes:
    """A BMP file of a palette of gray levels, as Pillow does not write it."""
    height, width = indices.shape
    levels = np.linspace(0, 255, 2**bits).astype(np.uint8)[:, None]
    palette = np.hstack([levels, levels[::-1], levels // 2, levels * 0])
    bit = np.unpackbits(indices[..., None].astype(np.uint8), axis=2)[..., 8 - bits :]
    rows = np.packbits(bit.reshape(height, -1), axis=1)
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 4)))
    header = (40, width, -height if downwards else height, 1, bits, compression, 0, 0, 0, 0, 0)
    place = 54 + palette.size
    start = b"BM" + struct.pack("<IHHI", place + rows.size, 0, 0, place)
    pixels = (rows if downwards else rows[::-1]).tobytes()
    return start + struct.pack("<IiiHHIIiiII", *header) + palette.tobytes() + pixels


FILES |= {
    "jpeg, CMYK without Adobe's marker": re.sub(
        rb"\xff\xee\0\x0eAdobe.{7}", b"", FILES["jpeg, CMYK"], flags=re.DOTALL
    ),
    "bmp, black and white": encode(IMAGE.convert("1"), "BMP"),
    "bmp, 2 colors": bmp(1, PIXELS[..., 0] // 128),
    "bmp, 16 colors": bmp(4, PIXELS[..., 0] // 16, downwards=True),
}
BOX = (3, 5, 11, 17)  # top, left, height, width


def check_part(part: tf.Tensor, whole: np.ndarray, lossy: bool) -> None:
    part, expected = part.numpy().astype(int), whole[3:14, 5:22].astype(int)
    assert part.shape == expected.shape
    np.testing.assert_array_equal(part[1:-1, 1:-1], expected[1:-1, 1:-1])
    # At its border libjpeg interpolates color without the pixels beyond, which are not decoded.
    np.testing.assert_allclose(part, expected, atol=8 if lossy else 0)


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("name", FILES)
def test_equals_pillow_and_a_part_is_that_of_the_whole(name: str, channels: int) -> None:
    image_file = Image.open(io.BytesIO(FILES[name]))
    expected = np.asarray(image_file.convert("RGB"))  # drops transparency, shows the first frame
    tolerance = LOSSY.get(image_file.format, 0)
    if channels == 1:
        # Not convert("L") of the file itself: Pillow keeps the gray of transparent palettes apart.
        expected = np.asarray(image_file.convert("RGB").convert("L"))[..., None]
        tolerance += 1  # weights 0.2989, 0.587, 0.114 against 299, 587, 114 of 1000
    image = decode_image(FILES[name], channels).numpy()
    for ours, theirs in (image, expected), (decode_with_pillow(FILES[name], channels), image):
        assert (ours.dtype, ours.shape) == (np.uint8, (24, 32, channels))
        np.testing.assert_allclose(ours.astype(int), theirs.astype(int), atol=tolerance)
    jpeg, crop = name.startswith("jpeg"), lambda shape: tf.constant(BOX)
    check_part(decode_image(FILES[name], channels, crop), image, jpeg)
    if jpeg:
        np.testing.assert_array_equal(decode_upright_jpeg(FILES[name], channels), image)
        check_part(decode_upright_jpeg(FILES[name], channels, crop), image, lossy=True)


def assert_both(contents: bytes, expected: np.ndarray, channels: int = 3) -> None:
    """TensorFlow and Pillow decode these very pixels."""
    for decode in (decode_image, decode_with_pillow):
        np.testing.assert_array_equal(decode(contents, channels), expected)
    assert displayed_size(contents) == expected.shape[:2]


def exif_block(orientation: int, endian: str, entries_before: int = 3) -> bytes:
    """A TIFF directory by hand: Pillow writes little-endian ones alone into PNG and WebP files."""
    entries = [(0x0100 + i, 3, 1, 7) for i in range(entries_before)]
    entries += [(0x0112, 3, 1, orientation), (0x0131, 3, 1, 5)]
    packed = b"".join(struct.pack(f"{endian}HHIHxx", *entry) for entry in entries)
    mark = b"II*\x00" if endian == "<" else b"MM\x00*"
    # The directory need not follow the header at once.
    header = mark + struct.pack(f"{endian}IxxxxH", 12, len(entries))
    return header + packed + bytes(4)


def jpeg_segment(marker: int, data: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data


def jpeg_with_exif(exif: bytes, before: bytes = b"") -> bytes:
    jpeg = FILES["jpeg"]
    return jpeg[:2] + before + jpeg_segment(0xE1, b"Exif\x00\x00" + exif) + jpeg[2:]


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_with_exif(exif: bytes, place: int) -> bytes:
    return FILES["png"][:place] + chunk(b"eXIf", exif) + FILES["png"][place:]


# What may stand before the EXIF block of a JPEG file: a JFIF header with a thumbnail, comments,
# a color profile, XMP, a comment that looks like an EXIF segment, and fill bytes.
BEFORE = (
    jpeg_segment(0xE0, b"JFIF\x00" + bytes(200))
    + jpeg_segment(0xFE, b"a comment of more than sixty bytes " * 40)
    + jpeg_segment(0xE2, b"ICC_PROFILE\x00" + bytes(3000))
    + jpeg_segment(0xE1, b"http://ns.adobe.com/xap/1.0/\x00<x/>")
    + jpeg_segment(0xFE, jpeg_segment(0xE1, b"Exif\x00\x00" + exif_block(3, ">")))
    + b"\xff\xff"
)
WITH_EXIF = {
    "jpeg, first": jpeg_with_exif,
    "jpeg, behind other segments": lambda exif: jpeg_with_exif(exif, BEFORE),
    "png": lambda exif: png_with_exif(exif, 33),
    "png, at its end": lambda exif: png_with_exif(exif, len(FILES["png"]) - 12),
    "webp": lambda exif: encode(IMAGE, "WEBP", lossless=True, exif=exif),
    "webp, with JPEG's prefix": lambda exif: WITH_EXIF["webp"](b"Exif\x00\x00" + exif),
}
DAMAGED_EXIF = {
    "nothing": b"",
    "no directory": b"II*\x00\xff\xff\xff\xff",
    "another byte order": b"XX" + exif_block(6, "<")[2:],
    "too many entries": exif_block(6, "<")[:12] + b"\xff\xff" + exif_block(6, "<", 0)[14:26],
    "orientation 9": exif_block(9, ">"),
}


@pytest.mark.parametrize("kind", WITH_EXIF)
def test_exif_orientation_comes_out_upright(kind: str) -> None:
    decode = tf.function(decode_image, input_signature=[tf.TensorSpec((), tf.string)])
    atol = LOSSY["JPEG"] if kind.startswith("jpeg") else 0
    for endian, number in itertools.product("<>", range(1, 9)):
        file = WITH_EXIF[kind](exif_block(number, endian))
        expected = ImageOps.exif_transpose(Image.open(io.BytesIO(file))).convert("RGB")
        image = decode(file).numpy().astype(int)
        assert image.shape == (*expected.size[::-1], 3)
        np.testing.assert_allclose(image, np.asarray(expected).astype(int), atol=atol)
        np.testing.assert_allclose(decode_with_pillow(file).astype(int), image, atol=atol)
        assert displayed_size(file) == image.shape[:2]


def gif_with_frame(frame: Image.Image, left: int, top: int, canvas: tuple[int, int]) -> bytes:
    gif = encode(frame, "GIF")
    at, place = gif.index(b"\x2c\x00\x00\x00\x00"), struct.pack("<HH", left, top)
    return gif[:6] + struct.pack("<HH", *canvas) + gif[10 : at + 1] + place + gif[at + 5 :]


def test_both_decoders_read_damaged_exif_gray_and_frames_of_gif_alike() -> None:
    for name, exif in DAMAGED_EXIF.items():
        # Of too many entries the one is there, and of what follows there is nothing.
        shape = (32, 24, 3) if name == "too many entries" else (24, 32, 3)
        for decode in (decode_image, decode_with_pillow):
            assert decode(jpeg_with_exif(exif)).shape == shape, name
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    png = encode(Image.fromarray(levels[..., 0]), "PNG")
    for channels in (1, 3):
        assert_both(png, np.repeat(levels, channels, axis=-1), channels)
    deep = (np.arange(64, dtype=np.uint16) * 1021).reshape(8, 8)
    assert_both(encode(Image.fromarray(deep), "PNG"), (deep >> 8)[..., None], 1)
    # A frame lies where its file says, and is black where nothing is drawn.
    for left, top, canvas, shape in (
        (0, 0, (32, 24), (24, 32)),
        (5, 3, (40, 50), (50, 40)),
        (9, 4, (10, 10), (28, 41)),  # beyond its canvas, which Pillow enlarges as well
        (0, 0, (0, 0), (24, 32)),
    ):
        expected = np.zeros((*shape, 3), np.uint8)
        expected[top : top + 24, left : left + 32] = np.asarray(PALETTE.convert("RGB"))
        assert_both(gif_with_frame(PALETTE, left, top, canvas), expected)
    shown = np.asarray(PALETTE)[..., None] != 3
    assert_both(encode(PALETTE, "GIF", transparency=3), np.asarray(PALETTE.convert("RGB")) * shown)


BEFORE_SIZE, MARKER, SIZE = encode(IMAGE, "JPEG").partition(b"\xff\xc0")
WHOLE = ("jpeg", "png", "bmp", "gif", "webp")
BROKEN = {f"half a {name}": FILES[name][: len(FILES[name]) // 2] for name in WHOLE}
BROKEN["animated webp"] = encode(IMAGE, "WEBP", **TURNED)


HEADER = struct.pack(">II", 10_000, 10_000) + FILES["png"][24:29]
# The size alone is another one.
LARGE_FILES = (
    FILES["png"][:8] + chunk(b"IHDR", HEADER) + FILES["png"][33:],
    gif_with_frame(PALETTE, 0, 0, (60_000, 60_000)),
    FILES["webp"][:26] + struct.pack("<HH", 9000, 9000) + FILES["webp"][30:],
    FILES["bmp"][:18] + struct.pack("<ii", 10_000, -10_000) + FILES["bmp"][26:],
    BEFORE_SIZE + MARKER + SIZE[:3] + struct.pack(">HH", 10_000, 10_000) + SIZE[7:],
)


def test_bounds_on_pixels_and_other_channels() -> None:
    message = r"the image has [\dx ]+ pixels, more than max_pixels=67108864 in all"
    kinds = tf.errors.InvalidArgumentError, BadImageError
    for large in LARGE_FILES:
        refused(message, tf.function(decode_image), large, error=kinds)
        refused(message, decode_with_pillow, large, error=kinds)
    for decode in (decode_image, decode_with_pillow):
        for name in ("jpeg", "png", "bmp", "gif", "webp", "webp, lossless", "webp, RGBA"):
            assert decode(FILES[name], max_pixels=24 * 32).shape == (24, 32, 3)
            refused("32 x 24", decode, FILES[name], max_pixels=24 * 32 - 1, error=kinds)
        for channels in (0, 2, 4):
            refused(rf"channels={channels} .* 3 \(RGB\) or 1", decode, FILES["png"], channels)
    # As the exported SavedModel decodes, whose pixels tests/exporting/test_one_preparation.py has.
    refused("not a JPEG or PNG file", decode_image, FILES["bmp"], to_save=True, error=kinds)


def test_the_work_that_a_file_asks_for_is_bounded(tmp_path: Path) -> None:
    """Scans by both readers; what Pillow and its parsers take a step of Python for, by them."""
    file = FILES["jpeg, progressive"]
    last, size = file.rindex(b"\xff\xda"), file.index(b"\xff\xc2") + 5
    scan, end = file[last:-2], file[-2:]
    large = file[:size] + 2 * b"\x20\0" + file[size + 4 : -2]
    for contents in (file[:-2] + 50 * scan + end, file + 200 * scan):  # a preview behind its end
        for decode in (decode_with_pillow, lambda c: prepare_contents(c, 24)):
            assert decode(contents).shape[2] == 3
    for contents, reason in (
        (file[:-2] + 200 * scan + end, r"of 2\d\d scans, of which 100 are read"),
        (large + 20 * scan + end, "which 16 are read in an image of 8192 x 8192"),
    ):
        for decode in (decode_with_pillow, lambda c: prepare_contents(c, 24)):
            refused(reason, decode, contents, error=BadImageError)
        (tmp_path / "1.jpg").write_bytes(contents)
        for reader in ("tensorflow", "grain"):
            ((_, why),), *_ = checked_files([tmp_path / "1.jpg"], None, reader)
            assert re.search(reason, why)
    png, gif, jpeg = FILES["png"], FILES["gif"], FILES["jpeg"]
    place = gif.index(b"\x2c\0\0\0\0")
    for contents in (
        jpeg[:2] + 2**15 * b"\xff\xfe\0\2" + jpeg[2:],
        jpeg[:2] + 2**17 * b"\xff" + jpeg[2:],
        png[:33] + 2**15 * chunk(b"tEXt", b"") + png[33:],
        gif[:place] + b"!\xfe" + 2**13 * b"\1a" + b"\0" + gif[place:],
    ):
        refused("too many parts", decode_with_pillow, contents, error=BadImageError)
    rows = bmp(8, PIXELS[..., 0], compression=1)[:1078]  # each of which four bytes fill
    lines = 4096 * b"\1\1\0\0"
    most, more = (rows[:22] + struct.pack("<i", n) + rows[26:] + lines for n in (4096, 4097))
    assert decode_with_pillow(most).shape == (4096, 32, 3)
    refused("compressed BMP file of 32 x 4097", decode_with_pillow, more, error=BadImageError)
    again = BudgetedFile(bytes(2**20))
    again.left = 0
    refused("lie over each other", again.read, error=BadImageError)  # as tags of TIFF can


@pytest.mark.parametrize("number", range(1, 9))
def test_a_part_of_a_turned_image(number: int) -> None:
    jpeg = encode(IMAGE, "JPEG", quality=95, exif=orientation(number))
    assert decode_and_orientation(jpeg, 3)[1] == number
    whole, shapes = decode_image(jpeg).numpy(), []
    crop = lambda shape: shapes.append(shape.numpy().tolist()) or tf.constant(BOX)  # noqa: E731
    check_part(decode_image(jpeg, crop=crop), whole, lossy=True)
    assert shapes == [list(whole.shape[:2])]  # as it is seen, not as it is stored


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused(name: str) -> None:
    for decode in (decode_image, tf.function(decode_image)):
        refused(".", decode, tf.constant(BROKEN[name]), error=tf.errors.InvalidArgumentError)
    refused(".", decode_with_pillow, BROKEN[name], error=BadImageError)
