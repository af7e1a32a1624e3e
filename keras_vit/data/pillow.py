"""Image files to pixels with Pillow and NumPy, where TensorFlow is not the backend.

The same rules as in `decoding` and `preprocessing`, which are TensorFlow graphs: a test compares
the two. JPEG files alone differ a little, see `read_image`.
"""

from __future__ import annotations

import io
import re
import struct
import warnings
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from .decoding import MIRRORED, UPSIDE_DOWN
from .errors import BadImageError, too_large, undecodable_reason
from .headers import MAX_PIXELS, ORIENTATION_TAG, SHORT
from .preprocessing import CROP_FRACTION, Size, check_evaluation

# What Pillow raises for damaged files: its decoders check some fields and stumble over others.
_DAMAGED = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    OverflowError,
    struct.error,
    zlib.error,
)
_GREY_WEIGHTS = np.array([0.2989, 0.587, 0.114], "float32")  # TensorFlow's


def decode_with_pillow(
    contents: bytes, channels: int = 3, max_pixels: int = MAX_PIXELS
) -> np.ndarray:
    """`decode_image` without TensorFlow: an upright uint8 array `(height, width, channels)`.

    Raises:
        ValueError: channels is neither 1 nor 3.
        BadImageError: the bytes are no such image, or only part of one, or a larger one than
            `max_pixels`.
        ImportError: Pillow is not installed.
    """
    if channels not in (1, 3):
        raise ValueError(f"channels={channels} must be 3 (RGB) or 1 (grey)")
    from PIL import Image

    try:
        with warnings.catch_warnings():
            # Of text and EXIF that are damaged, and of a size that is our own check's matter.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(contents), formats=_FORMATS) as image:
                _check(image, max_pixels)
                pixels = _to_channels(_pixels(image), channels)
                exif = image.info.get("exif", b"")
    except Image.DecompressionBombError as error:  # Pillow's own limit, before any check of ours
        count = int(re.findall(r"\d+", str(error))[0])
        if count <= max_pixels:
            raise BadImageError(f"{error} Raise PIL.Image.MAX_IMAGE_PIXELS, too.") from error
        raise BadImageError(too_large(str(count), max_pixels)) from error
    except BadImageError:
        raise
    except _DAMAGED as error:
        raise BadImageError(undecodable_reason(contents, error)) from error
    return _upright(pixels, _orientation(exif))


def evaluation_array(
    image: np.ndarray, size: Size, mode: str = "crop", crop_fraction: float = CROP_FRACTION
) -> np.ndarray:
    """`evaluation_image` without TensorFlow: a float32 array `(*size, channels)`, values 0..255.

    Example:
        >>> evaluation_array(np.zeros((60, 90, 3), np.uint8), (32, 32)).shape
        (32, 32, 3)
    """
    check_evaluation(mode, crop_fraction)
    if mode == "stretch":
        return _resize(image, size, lambda *sides: _interpolation(_linear, False, *sides))
    if mode == "stretch_bicubic":
        resized = _resize(image, size, lambda *sides: _interpolation(_cubic, True, *sides))
        return np.clip(resized, 0, 255)
    if mode == "crop" and image.shape[:2] == size:
        return image.astype("float32")
    # As in TensorFlow in float32, or a side could be rounded the other way.
    shape = np.array(image.shape[:2], "float32")
    wanted = np.array([round(side / crop_fraction) for side in size], "float32")
    height, width = np.maximum(np.round(shape * np.max(wanted / shape)).astype(int), size)
    if mode == "big_vision":
        resized = np.floor(np.clip(_resize(image, (height, width), _area), 0, 255))
    else:
        resized = _resize(
            image, (height, width), lambda *sides: _interpolation(_linear, True, *sides)
        )
    top, left = (height - size[0]) // 2, (width - size[1]) // 2
    return resized[top : top + size[0], left : left + size[1]]


_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP")


def _check(image: Any, max_pixels: int) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise BadImageError(too_large(f"{width} x {height}", max_pixels))
    if image.format == "WEBP" and image.is_animated:
        raise BadImageError("an animated WebP file, which is not supported")


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


def _to_channels(pixels: np.ndarray, channels: int) -> np.ndarray:
    if pixels.shape[-1] == channels:
        return pixels
    if channels == 3:
        return np.repeat(pixels, 3, axis=-1)
    grey = pixels.astype("float32") @ (_GREY_WEIGHTS * np.float32(255.5 / 255))
    return grey.astype("uint8")[..., None]


def _orientation(exif: bytes) -> int:
    """The orientation 1..8 in the first directory of an EXIF block; 1 where it has none."""
    exif = exif.removeprefix(b"Exif\x00\x00")
    order = {b"II*\x00": "little", b"MM\x00*": "big"}.get(exif[:4])
    if order is None:
        return 1

    def number(at: int, count: int) -> int:
        return int.from_bytes(exif[at : at + count], order)  # type: ignore[arg-type]

    directory = number(4, 4)
    entries = range(directory + 2, len(exif) - 11, 12)[: number(directory, 2)]
    for at in entries:
        if (number(at, 2), number(at + 2, 2), number(at + 4, 4)) == (ORIENTATION_TAG, SHORT, 1):
            value = number(at + 8, 2)
            return value if 1 <= value <= 8 else 1
    return 1


def _upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    if orientation > 4:
        pixels = pixels.swapaxes(0, 1)
    if orientation in MIRRORED:
        pixels = pixels[:, ::-1]
    if orientation in UPSIDE_DOWN:
        pixels = pixels[::-1]
    return pixels


def _resize(image: np.ndarray, size: Size, weights: Callable[[int, int], np.ndarray]) -> np.ndarray:
    """Both axes one after the other, by `weights(length, side)` of shape `(side, length)`."""
    for side in size:
        image = _resize_rows(image, weights(image.shape[0], side)).swapaxes(0, 1)
    return image


def _resize_rows(image: np.ndarray, weights: np.ndarray) -> np.ndarray:
    resized = np.empty((len(weights), *image.shape[1:]), "float32")
    for row, of_row in zip(resized, weights, strict=True):
        (used,) = np.nonzero(of_row)  # few of them: to multiply by all would take many times longer
        part = slice(used[0], used[-1] + 1)
        row[...] = np.tensordot(of_row[part], image[part].astype("float32"), 1)
    return resized


def _interpolation(
    kernel: Callable[[np.ndarray], np.ndarray], antialias: bool, length: int, side: int
) -> np.ndarray:
    """Weights from `length` pixels to `side`, by a kernel that antialiasing widens."""
    scale = length / side
    centres = (np.arange(side) + 0.5) * scale - 0.5
    distances = np.abs(np.arange(length) - centres[:, None])
    weights = kernel(distances / max(scale, 1.0) if antialias else distances)
    return (weights / weights.sum(axis=1, keepdims=True)).astype("float32")


def _linear(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - x, 0)


def _cubic(x: np.ndarray) -> np.ndarray:
    """Keys's cubic convolution with a = -1/2."""
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def _area(length: int, side: int) -> np.ndarray:
    """Weights of the mean over the part of the image that a pixel covers."""
    edges, pixels = np.arange(side + 1) * (length / side), np.arange(length)
    begin, end = edges[:-1, None], edges[1:, None]
    overlap = np.minimum(end, pixels + 1) - np.maximum(begin, pixels)
    return (np.maximum(overlap, 0) * (side / length)).astype("float32")
