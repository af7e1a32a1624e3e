"""The header of a JPEG or PNG file, read inside a TensorFlow graph before the image is decoded.

The size, so that a few bytes cannot ask for gigabytes; and the EXIF orientation. Pillow reads both,
but the SavedModel is served without Python. The decoder refuses damaged headers: bytes beyond the
end of a file read as zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras_vit.data._imports import tf
from keras_vit.data.data_errors import too_large
from keras_vit.data.decode.tracing import traced_once

# A 64-megapixel camera fits (9248 x 6936); decoded, this is 192 MiB of RGB.
MAX_PIXELS = 2**26

ORIENTATION_TAG, SHORT = 0x0112, 3
# What undoes each orientation: a transpose (5 to 8), then mirroring left and right, up and down.
MIRRORED = (2, 3, 6, 7)
UPSIDE_DOWN = (3, 4, 7, 8)

# How many segments or chunks are read. libpng writes chunks of 8 KiB: enough for files of 128 MiB,
# and a hostile file takes a second.
_MOST_CHUNKS = 2**14
_ZEROS = 32 * b"\x00"  # appended to a file: the most bytes that are read at once


def starts_with(contents: tf.Tensor, magic: bytes) -> tf.Tensor:
    """Return whether a file begins with these bytes."""
    return tf.strings.substr(contents, 0, len(magic)) == magic


def check_pixel_count(shape: tf.Tensor, max_pixels: int) -> tf.Operation:
    """Asserts that an image of `(height, width)` is not larger than `max_pixels`."""
    shape = tf.cast(shape, tf.int64)
    sizes = tf.strings.reduce_join(tf.strings.as_string(shape[::-1]), separator=" x ")
    before, after = too_large("|", max_pixels).split("|")
    message = tf.strings.join([before, sizes, after])
    return tf.debugging.Assert(tf.reduce_prod(shape) <= max_pixels, [message])


def png_shape(contents: tf.Tensor) -> tf.Tensor:
    """int64 `(height, width)` in the header of a PNG file."""
    return _numbers(_padded(contents), 16, 8, tf.int32, big=True)[::-1]


@traced_once
def jpeg_orientation(contents: tf.Tensor) -> tf.Tensor:
    """Return the EXIF orientation of a JPEG file, uint8 1..8; 1 (upright) by default."""
    size, padded = _length(contents), _padded(contents)

    def segment(at: tf.Tensor) -> tuple[tf.Tensor, ...]:
        first, marker, high, low = tf.unstack(_numbers(padded, at, 4, tf.uint8), 4)
        after = at + 2 + high * 256 + low
        # Fill bytes, and all that is not a marker, are skipped one by one, as decoders do.
        filling = (first != 0xFF) | (marker == 0) | (marker == 0xFF)
        # The image's data follow the start of scan.
        last = ~filling & ((marker == 0xDA) | (marker == 0xD9) | (after < at + 4))
        is_exif = ~filling & (marker == 0xE1)
        is_exif &= tf.strings.substr(padded, at + 4, 6) == b"Exif\x00\x00"
        return tf.where(last, size, tf.where(filling, at + 1, after)), at + 10, after, is_exif

    return _read_exif(_first_chunk(contents, _int64(2), segment))


@traced_once
def png_orientation(contents: tf.Tensor) -> tf.Tensor:
    """Return the EXIF orientation of a PNG file, 1 (upright) where there is none."""
    padded = _padded(contents)

    def chunk(at: tf.Tensor) -> tuple[tf.Tensor, ...]:
        # Length, type, data, checksum.
        after = at + 8 + _numbers(padded, at, 4, tf.int32, big=True)[0]
        is_exif = tf.strings.substr(padded, at + 4, 4) == b"eXIf"
        return after + 4, at + 8, after, is_exif

    return _read_exif(_first_chunk(contents, _int64(8), chunk))


def _first_chunk(
    contents: tf.Tensor, start: tf.Tensor, chunk: Callable[[tf.Tensor], tuple[tf.Tensor, ...]]
) -> tf.Tensor:
    """Return the data of the first chunk that holds EXIF, or nothing, searching from `start` on.

    `chunk` takes the place of a chunk, and returns (the place of the next one, begin and end of its
    data, whether it holds EXIF).
    """
    size = _length(contents)

    def step(
        at: tf.Tensor, begin: tf.Tensor, end: tf.Tensor, count: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        following, begin, end, is_exif = chunk(at)
        return tf.where(is_exif, size, following), begin, tf.where(is_exif, end, begin), count + 1

    _, begin, end, _ = tf.while_loop(
        lambda at, begin, end, count: (at < size) & (count < _MOST_CHUNKS),
        step,
        (start, _int64(0), _int64(0), 0),
    )
    return tf.strings.substr(contents, tf.minimum(begin, size), end - begin)


def _read_exif(exif: tf.Tensor) -> tf.Tensor:
    """Return the orientation in the first directory of an EXIF block."""
    exif = tf.strings.regex_replace(exif, r"^Exif\x00\x00", "")  # some WebP files repeat it
    size, padded, big = _length(exif), _padded(exif), starts_with(exif, b"MM\x00*")
    known = big | starts_with(exif, b"II*\x00")

    def numbers(start: Any, count: Any, dtype: Any) -> tf.Tensor:
        return tf.where(
            big,
            _numbers(padded, start, count, dtype, big=True),
            _numbers(padded, start, count, dtype),
        )

    directory = tf.minimum(numbers(4, 4, tf.int32)[0], size)
    first = tf.minimum(directory + 2, size)
    count = tf.minimum(numbers(directory, 2, tf.uint16)[0], (size - first) // 12)
    entries = tf.reshape(numbers(first, 12 * count, tf.uint16), (-1, 6))
    # Tag, type, the number of values in two halves, and the value.
    orientation = tf.concat([[ORIENTATION_TAG, SHORT], tf.where(big, [0, 1], [1, 0])], 0)
    matching = tf.reduce_all(entries[:, :4] == tf.cast(orientation, tf.int64), axis=1)
    value = tf.concat([tf.boolean_mask(entries[:, 4], matching), [1]], 0)[0]
    return tf.cast(tf.where(known & (value > 0) & (value < 9), value, 1), tf.uint8)


def _padded(contents: tf.Tensor) -> tf.Tensor:
    return tf.strings.join([contents, _ZEROS])


def _numbers(padded: tf.Tensor, start: Any, count: Any, dtype: Any, big: bool = False) -> tf.Tensor:
    """Unsigned integers of the size of `dtype`, as int64, from `count` bytes at `start`."""
    part = tf.strings.substr(padded, tf.cast(start, tf.int64), tf.cast(count, tf.int64))
    values = tf.io.decode_raw(part, dtype, little_endian=not big)
    return tf.cast(values, tf.int64) % 2 ** (8 * dtype.size)


def _length(contents: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.strings.length(contents), tf.int64)


def _int64(value: int) -> tf.Tensor:
    return tf.constant(value, tf.int64)
