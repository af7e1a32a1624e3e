"""Pillow decodes image files: all without TensorFlow; BMP, GIF and WebP called from its graph.

The same rules as in `decoder`, a TensorFlow graph: a test compares the two. Only JPEG files differ
a little, see `read_image`.
"""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from keras_vit._base.version import install_command
from keras_vit.data.data_errors import (
    BadImageError,
    check_channels,
    damaged_reason,
    too_large,
    undecodable_reason,
)
from keras_vit.data.decode.bit_depth import EIGHT_BITS_FIRST
from keras_vit.data.decode.budget import MOST_READS, BudgetedFile, check_scans
from keras_vit.data.decode.headers import MAX_PIXELS, MIRRORED, ORIENTATION_TAG, UPSIDE_DOWN
from keras_vit.data.decode.image_kinds import PILLOW_FORMATS, ImageKind, kind_of_contents
from keras_vit.data.decode.quiet_decoders import QUIET

_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP")
_ANIMATED = {"WEBP": "WebP", "AVIF": "AVIF"}  # formats of which some files are
# GIF: quadratic in the blocks of a comment before Pillow 13. BMP: two reads per run of RLE.
_MOST_READS = {"GIF": 2**13, "BMP": 2**20}
# Of BMP in RLE, which Pillow decodes in Python: four bytes are a row, filled pixel by pixel, and
# before Pillow 13 a step of four was up to 255 rows, whatever the height.
_LONGEST_RLE = 2**12
_EIGHT_BITS = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB")
_BITS_TAG = 258  # of each sample
_RAW_TAGS = {330, 50706}  # further images, whose first one is small; Adobe's DNG
_GRAY_WEIGHTS = np.array([0.2989, 0.587, 0.114], "float32")  # TensorFlow's
_Value = TypeVar("_Value")


def decode_with_pillow(
    contents: bytes, channels: int = 3, max_pixels: int | None = MAX_PIXELS
) -> np.ndarray:
    """`decode_image` without TensorFlow: an upright uint8 array `(height, width, channels)`.

    Where that raises an InvalidArgumentError, this raises a BadImageError.
    """
    check_channels(channels)

    def decode(image: Any) -> np.ndarray:
        pixels = array_to_channels(_pixels(image), channels)
        return turn_upright(pixels, exif_orientation(image.info.get("exif", b"")))

    return _read(contents, max_pixels, decode)


def displayed_size(contents: bytes, max_pixels: int | None = MAX_PIXELS) -> tuple[int, int]:
    """Return the height and width that `decode_with_pillow` returns, from the header alone.

    Raises:
        BadImageError: It does not have one, or has more pixels.
    """

    def size(image: Any) -> tuple[int, int]:
        exif = png_exif(contents) if image.format == "PNG" else image.info.get("exif", b"")
        return image.size if exif_orientation(exif) > 4 else image.size[::-1]

    return _read(contents, max_pixels, size)


def reduced_gray(contents: bytes, side: int) -> np.ndarray:
    """Return the gray levels of an upright image at `side` x `side` pixels; of JPEG files, quickly.

    Raises:
        BadImageError: As in `decode_with_pillow`.
    """

    def reduce(image: Any) -> np.ndarray:
        from PIL import Image

        image.draft("RGB", (2 * side, 2 * side))
        pixels = array_to_channels(_pixels(image), 1)[..., 0]
        small = Image.fromarray(pixels).resize((side, side), Image.Resampling.LANCZOS)
        orientation = exif_orientation(image.info.get("exif", b""))
        upright = turn_upright(np.asarray(small)[..., None], orientation)
        return upright[..., 0].astype(np.float64)

    return _read(contents, MAX_PIXELS, reduce)


def _read(contents: bytes, max_pixels: int | None, reader: Callable[[Any], _Value]) -> _Value:
    """Return what a function makes of the opened image, and raise a BadImageError for any other."""
    check_scans(contents)
    from PIL import Image, UnidentifiedImageError

    formats: tuple[str, ...] = _FORMATS
    known = kind_of_contents(contents)
    kind = known if known in PILLOW_FORMATS else None
    if kind is not None:
        if reason := missing_plugin(kind):
            raise BadImageError(reason)
        formats = (kind.pillow,)
    file = BudgetedFile(contents, _MOST_READS.get(known.name if known else "", MOST_READS))
    try:
        # It warns of text and EXIF that are damaged, and of sizes, which we check ourselves.
        with QUIET, Image.open(file, formats=formats) as image:
            _check(image, max_pixels)
            return reader(image)
    except Image.DecompressionBombError as error:  # Pillow's own limit, checked before ours
        count = int(re.findall(r"\d+", str(error))[0])
        if max_pixels is None or count <= max_pixels:
            raise BadImageError(f"{error} Raise PIL.Image.MAX_IMAGE_PIXELS, too.") from error
        raise BadImageError(too_large(str(count), max_pixels)) from error
    except BadImageError:
        raise
    except Exception as error:  # each decoder and plugin raises what it stumbles over
        if kind is not None:  # one that is not identified is named by its address in memory
            said = None if isinstance(error, UnidentifiedImageError) else error
            raise BadImageError(damaged_reason(kind.name, "Pillow", said)) from error
        raise BadImageError(undecodable_reason(contents, error)) from error


def missing_plugin(kind: ImageKind) -> str | None:
    """Registers what Pillow reads a format with; what to install where it is missing."""
    from PIL import Image

    if kind.name == "HEIC":
        try:
            from pillow_heif import register_heif_opener
        except ImportError:
            return f"a HEIC file, which pillow-heif reads: {install_command('heic')}"
        register_heif_opener()
    Image.init()
    if kind.pillow in Image.OPEN:
        return None
    return f"a file of {kind.name}, which this Pillow does not read: pip install --upgrade pillow"


def _check(image: Any, max_pixels: int | None) -> None:
    width, height = image.size
    if max_pixels is not None and width * height > max_pixels:
        raise BadImageError(too_large(f"{width} x {height}", max_pixels))
    if image.tile and image.tile[0][0] == "bmp_rle" and max(image.size) > _LONGEST_RLE:
        raise BadImageError(
            f"a compressed BMP file of {width} x {height} pixels, of which sides of "
            f"{_LONGEST_RLE} are read: save it again, without compression"
        )
    if (name := _ANIMATED.get(image.format)) and image.is_animated:
        raise BadImageError(f"an animated {name} file, which is not supported")
    if image.format == "TIFF" and (reason := _unsuitable(image)):
        raise BadImageError(reason)


def _unsuitable(image: Any) -> str | None:
    """Return why a TIFF file is not read, of which Pillow would show a part."""
    if not _RAW_TAGS.isdisjoint(image.tag_v2):
        return "a raw camera file or one of several resolutions: develop it, or write one of them"
    if image.is_animated:  # n_frames would read all of them, in quadratic time
        return "a TIFF file of several pages: write each to a file of its own"
    bits = max(image.tag_v2.get(_BITS_TAG, (1,)))  # of colors of 16, Pillow shows the high 8
    if image.mode not in _EIGHT_BITS or bits > 8:
        deep = f"a TIFF file of more than 8 bits per channel (mode {image.mode} of Pillow)"
        return f"{deep}: {EIGHT_BITS_FIRST}"
    return None


def _pixels(image: Any) -> np.ndarray:
    """uint8 `(height, width, 1 or 3)`, without transparency."""
    if image.format == "GIF":
        left, top, right, bottom = image.tile[0].extents
        rgba = np.asarray(image.convert("RGBA"))
        shown = np.zeros(rgba.shape[:2], bool)
        shown[top:bottom, left:right] = rgba[top:bottom, left:right, 3] > 0
        return rgba[..., :3] * shown[..., None]
    if image.mode.startswith("I"):  # 16 bits
        return (np.asarray(image) >> 8).astype("uint8")[..., None]
    if image.mode in ("1", "L", "LA"):
        return np.asarray(image.convert("L"))[..., None]
    return np.asarray(image.convert("RGB"))


def array_to_channels(pixels: np.ndarray, channels: int) -> np.ndarray:
    """`to_channels` without TensorFlow, of gray or RGB."""
    if pixels.shape[-1] == channels:
        return pixels
    if channels == 3:
        return np.repeat(pixels, 3, axis=-1)
    gray = pixels.astype("float32") @ (_GRAY_WEIGHTS * np.float32(255.5 / 255))
    return gray.astype("uint8")[..., None]


def exif_orientation(block: bytes) -> int:
    """Return the orientation of an EXIF block, 1..8; 1 (upright) by default.

    `getexif` of Pillow also reads XMP, which TensorFlow cannot.
    """
    from PIL.Image import Exif

    exif = Exif()
    try:
        exif.load(block)
        value: Any = exif.get(ORIENTATION_TAG)
    except Exception:  # as above
        return 1
    return value if value in range(1, 9) else 1


def png_exif(contents: bytes) -> bytes:
    """Return the EXIF block of a PNG file, wherever it stands; or nothing."""
    place = 8  # behind the signature
    while place + 8 <= len(contents):
        length, kind = int.from_bytes(contents[place : place + 4]), contents[place + 4 : place + 8]
        if kind == b"eXIf":
            return contents[place + 8 : place + 8 + length]
        place += 12 + length
    return b""


def turn_upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Undoes the turn of an EXIF orientation, 1..8, of an array `(height, width, channels)`."""
    if orientation not in range(1, 9):
        return pixels
    if orientation > 4:
        pixels = pixels.swapaxes(0, 1)
    if orientation in MIRRORED:
        pixels = pixels[:, ::-1]
    if orientation in UPSIDE_DOWN:
        pixels = pixels[::-1]
    return pixels
