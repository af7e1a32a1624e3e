"""Image files to pixels with Pillow, where TensorFlow is not the backend.

The same rules as in `decoder` and `preprocessing`, which are TensorFlow graphs: a test compares the
two. Only JPEG files differ a little, see `read_image`.
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

from keras_vit.data.data_errors import BadImageError, too_large, undecodable_reason
from keras_vit.data.decode.decoder import MIRRORED, UPSIDE_DOWN, check_channels
from keras_vit.data.decode.headers import MAX_PIXELS, ORIENTATION_TAG
from keras_vit.data.eval_transform import CROP_FRACTION, PILLOW_MODES, EvalTransform, PillowRule
from keras_vit.data.preprocessing import PixelSize, scaled_sides

# What Pillow raises for damaged files: its decoders check some fields and stumble over others.
_DAMAGED: tuple[type[Exception], ...] = (struct.error, zlib.error, OSError, EOFError, SyntaxError)
_DAMAGED += (ValueError, LookupError, TypeError, OverflowError)
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP")
_GRAY_WEIGHTS = np.array([0.2989, 0.587, 0.114], "float32")  # TensorFlow's


def decode_with_pillow(
    contents: bytes, channels: int = 3, max_pixels: int = MAX_PIXELS
) -> np.ndarray:
    """`decode_image` without TensorFlow: an upright uint8 array `(height, width, channels)`.

    Where that raises an InvalidArgumentError, this raises a BadImageError.
    """
    check_channels(channels)
    from PIL import Image

    try:
        with warnings.catch_warnings():
            # About text and EXIF that are damaged, and about sizes, which we check ourselves.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(contents), formats=_FORMATS) as image:
                _check(image, max_pixels)
                pixels = _to_channels(_pixels(image), channels)
                return _upright(pixels, _orientation(image))
    except Image.DecompressionBombError as error:  # Pillow's own limit, checked before ours
        count = int(re.findall(r"\d+", str(error))[0])
        if count <= max_pixels:
            raise BadImageError(f"{error} Raise PIL.Image.MAX_IMAGE_PIXELS, too.") from error
        raise BadImageError(too_large(str(count), max_pixels)) from error
    except BadImageError:
        raise
    except _DAMAGED as error:
        raise BadImageError(undecodable_reason(contents, error)) from error


def evaluation_array(
    image: np.ndarray,
    size: PixelSize,
    transform: EvalTransform | str = "crop",
    crop_fraction: float = CROP_FRACTION,
    interpolation: str | None = None,
) -> np.ndarray:
    """`evaluation_image` without TensorFlow: a float32 array `(*size, channels)`, values 0..255."""
    if isinstance(transform, str):
        transform = EvalTransform(transform, crop_fraction, interpolation)
    mode, crop_fraction = transform.mode, transform.crop_fraction
    if mode in PILLOW_MODES:
        return _as_pillow(image, size, PILLOW_MODES[mode], crop_fraction, transform.interpolation)
    from PIL.Image import Resampling, Transform

    if mode == "stretch":  # without antialiasing, which Pillow's resize always does
        box = (0, 0, image.shape[1], image.shape[0])
        options = (size[::-1], Transform.EXTENT, box, Resampling.BILINEAR)
        return _map_channels(image, lambda channel: channel.transform(*options))
    if mode == "stretch_bicubic":
        resized = _map_channels(image, lambda c: c.resize(size[::-1], Resampling.BICUBIC))
        return np.clip(resized, 0, 255)
    if mode == "crop" and image.shape[:2] == size:
        return image.astype("float32")
    # As in TensorFlow in float32, or a side could be rounded the other way.
    shape = np.array(image.shape[:2], "float32")
    target = np.array([round(side / crop_fraction) for side in size], "float32")
    height, width = np.maximum(np.round(shape * np.max(target / shape)).astype(int), size)
    if mode == "big_vision":
        resized = np.floor(np.clip(_resize_by_area(image, (height, width)), 0, 255))
    else:
        resized = _map_channels(image, lambda c: c.resize((width, height), Resampling.BILINEAR))
    top, left = (height - size[0]) // 2, (width - size[1]) // 2
    return resized[top : top + size[0], left : left + size[1]]


def _as_pillow(
    image: np.ndarray,
    size: PixelSize,
    rule: PillowRule,
    crop_fraction: float,
    interpolation: str | None,
) -> np.ndarray:
    """Pillow's `resize` of bytes, and a central crop."""
    from PIL.Image import Resampling, fromarray

    shape, target = np.array(image.shape[:2]), np.array(scaled_sides(size, crop_fraction))
    if rule.keeps_ratio and size[0] == size[1]:
        target = shape * target // min(shape)
    elif rule.keeps_ratio:
        target = np.maximum(np.round(shape / np.min(shape / target)).astype(int), size)
    method, sides = Resampling[(interpolation or "bicubic").upper()], target[::-1].tolist()
    channels = [fromarray(channel).resize(sides, method) for channel in np.moveaxis(image, -1, 0)]
    margins = (target - size) / 2
    top, left = (np.round(margins) if rule.rounds_center else np.floor(margins)).astype(int)
    resized = np.stack([np.asarray(channel, "float32") for channel in channels], axis=-1)
    return resized[top : top + size[0], left : left + size[1]]


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
    gray = pixels.astype("float32") @ (_GRAY_WEIGHTS * np.float32(255.5 / 255))
    return gray.astype("uint8")[..., None]


def _orientation(image: Any) -> int:
    """The EXIF orientation, 1..8; `getexif` of Pillow also reads XMP, which TensorFlow cannot."""
    from PIL.Image import Exif

    exif = Exif()
    try:
        exif.load(image.info.get("exif", b""))
        value: Any = exif.get(ORIENTATION_TAG)
    except _DAMAGED:
        return 1
    return value if value in range(1, 9) else 1


def _upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    if orientation > 4:
        pixels = pixels.swapaxes(0, 1)
    if orientation in MIRRORED:
        pixels = pixels[:, ::-1]
    if orientation in UPSIDE_DOWN:
        pixels = pixels[::-1]
    return pixels


def _map_channels(image: np.ndarray, change: Callable[[Any], Any]) -> np.ndarray:
    """Applies `change` to every channel, as a Pillow image of floats: bytes would be rounded."""
    from PIL.Image import fromarray

    channels = np.moveaxis(image.astype("float32"), -1, 0)
    return np.stack([np.asarray(change(fromarray(channel))) for channel in channels], axis=-1)


def _resize_by_area(image: np.ndarray, size: PixelSize) -> np.ndarray:
    """The mean over the part of the image that each pixel covers, which Pillow does not have."""
    for side in size:  # one axis after the other
        edges, rows = np.arange(side + 1) * (len(image) / side), np.arange(len(image))
        overlap = np.minimum(edges[1:, None], rows + 1) - np.maximum(edges[:-1, None], rows)
        weights = (np.maximum(overlap, 0) * (side / len(image))).astype("float32")
        # Few weights are above 0: multiplying by all of them would take many times as long.
        sums = [np.tensordot(w[w > 0], image[w > 0].astype("float32"), 1) for w in weights]
        image = np.stack(sums).swapaxes(0, 1)
    return image
