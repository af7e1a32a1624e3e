"""The header of an encoded image, read inside a TensorFlow graph before the image is decoded.

The size, so that a few bytes cannot ask for gigabytes; the EXIF orientation; and the place of a
GIF's first frame on its canvas. Pillow reads all of it, but the SavedModel is served without
Python. The decoder refuses damaged headers: bytes beyond the end of a file read as zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras_vit.data._imports import tf
from keras_vit.data.data_errors import PNG, WEBP, too_large
from keras_vit.data.decode.tracing import traced_once

# A 64-megapixel camera fits (9248 x 6936); decoded, this is 192 MiB of RGB.
MAX_PIXELS = 2**26

ORIENTATION_TAG, SHORT = 0x0112, 3

# How many segments, chunks or steps of four GIF blocks are read. libpng writes chunks of 8 KiB:
# enough for files of 128 MiB, and a hostile file takes a second.
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


def header_shape(contents: tf.Tensor) -> tf.Tensor:
    """int64 `(height, width)` in a PNG, BMP, GIF or WebP header; zeros for other files."""
    head, kind = _padded(contents), tf.strings.substr(contents, 0, 16)
    bmp = _numbers(head, 18, 8, tf.int32)
    sides = [tf.strings.substr(head, start, 3) for start in (24, 27)]  # of three bytes each
    extended = _numbers(tf.strings.join([sides[0], b"\0", sides[1], b"\0"]), 0, 8, tf.int32)
    of_formats = {  # width, height
        rb"\CPNG\r\n\C*": _numbers(head, 16, 8, tf.int32, big=True),
        rb"BM\C*": tf.minimum(bmp, 2**32 - bmp),  # negative: the rows run downwards
        rb"GIF8\C*": _numbers(head, 6, 4, tf.uint16),
        rb"RIFF\C{4}WEBPVP8X": extended + 1,
        rb"RIFF\C{4}WEBPVP8 ": _numbers(head, 26, 4, tf.uint16) % 2**14,
        rb"RIFF\C{4}WEBPVP8L": _numbers(head, 21, 4, tf.int32) // [1, 2**14] % 2**14 + 1,
    }
    shape = tf.zeros(2, tf.int64)
    for pattern, size in of_formats.items():
        shape = tf.where(tf.strings.regex_full_match(kind, pattern), size[::-1], shape)
    return shape


def bmp_header(contents: tf.Tensor) -> tf.Tensor:
    """int64 (place of the pixels, size of the header, height, bits per pixel, compression) of BMP.

    The height is 2**31 or more where the rows run downwards.
    """
    head = _padded(contents)
    place = _numbers(head, 10, 8, tf.int32)
    height, bits = _numbers(head, 22, 4, tf.int32), _numbers(head, 28, 2, tf.uint16)
    return tf.concat([place, height, bits, _numbers(head, 30, 4, tf.int32)], 0)


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
def chunk_orientation(contents: tf.Tensor) -> tf.Tensor:
    """Return the EXIF orientation of a PNG or WebP file, 1 (upright) where there is none."""
    png, size, padded = starts_with(contents, PNG), _length(contents), _padded(contents)

    def chunk(at: tf.Tensor) -> tuple[tf.Tensor, ...]:
        # PNG: length, type, data, checksum. WebP: type, length, data, padding to an even length.
        of_png = _numbers(padded, at, 4, tf.int32, big=True)[0]
        length = tf.where(png, of_png, _numbers(padded, at + 4, 4, tf.int32)[0])
        after = at + 8 + length
        kind = tf.strings.substr(padded, at + tf.where(png, _int64(4), _int64(0)), 4)
        is_exif = kind == tf.where(png, b"eXIf", b"EXIF")
        return after + tf.where(png, _int64(4), length % 2), at + 8, after, is_exif

    is_webp = starts_with(contents, WEBP)
    start = tf.where(png, _int64(8), tf.where(is_webp, _int64(12), size))
    return _read_exif(_first_chunk(contents, start, chunk))


def first_frame(contents: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the first frame of a GIF file, and where it lies.

    Returns:
        A GIF file of this frame alone; the frame's int32 (top, left, height, width); int32
        `(height, width)` of the canvas, which is enlarged where the frame reaches beyond it.
    """
    padded, size = _padded(contents), tf.strings.length(contents)
    values = tf.cast(tf.io.decode_raw(padded, tf.uint8), tf.int32)

    def colors(flags: tf.Tensor) -> tf.Tensor:  # bytes of a palette
        return tf.where(flags >= 128, 3 * tf.bitwise.left_shift(2, flags % 8), 0)

    def after_blocks(at: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the position after blocks that each begin with their length; 0 ends them."""

        def step(at: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            for _ in range(4):  # the loop costs more than its body
                length = values[at]
                at = tf.minimum(at + tf.where(length > 0, length + 1, 0), size)
            return at, count + 1

        at, count = tf.while_loop(
            lambda at, count: (values[at] > 0) & (count < _MOST_CHUNKS),
            step,
            (tf.minimum(at, size), count),
        )
        return tf.minimum(at + 1, size), count + 1

    at, count = tf.while_loop(
        lambda at, count: (values[at] == 0x21) & (count < _MOST_CHUNKS),  # an extension
        lambda at, count: after_blocks(at + 2, count),
        (tf.minimum(13 + colors(values[10]), size), 0),
    )
    end, _ = after_blocks(at + 11 + colors(values[at + 9]), count)
    place = tf.cast(_numbers(padded, at + 1, 8, tf.uint16), tf.int32)  # left, top, width, height
    box = tf.gather(place, (1, 0, 3, 2))
    # At the origin of its canvas, where TensorFlow leaves it as it is.
    pixels = tf.strings.substr(padded, at + 5, tf.maximum(end - at - 5, 0))
    alone = tf.strings.join(
        [tf.strings.substr(padded, 0, at + 1), b"\x00\x00\x00\x00", pixels, b";"]
    )
    canvas = tf.cast(header_shape(contents), tf.int32)
    return alone, box, tf.maximum(canvas, box[:2] + box[2:])


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
