"""What the header of an encoded image says before it is decoded, inside a TensorFlow graph.

The size, so that a few bytes cannot ask for gigabytes; the EXIF orientation, wherever the format
keeps it; and the place of a GIF's first frame on its canvas. Bytes beyond the end of a file read as
zeros, so that a damaged header is left to the decoder to refuse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._imports import tf

# A 64-megapixel camera fits (9248 x 6936); decoded, this is 192 MiB of RGB.
MAX_PIXELS = 2**26

JPEG, PNG, BMP, GIF = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"BM", b"GIF8"

# Segments, chunks or extensions that are looked at. libpng writes chunks of 8 KiB: enough for files
# of 128 MiB, and a hostile file takes a second.
_MOST_CHUNKS = 2**14

ORIENTATION_TAG, SHORT = 0x0112, 3


def starts_with(contents: tf.Tensor, magic: bytes) -> tf.Tensor:
    """Whether a file begins with these bytes."""
    return tf.strings.substr(contents, 0, len(magic)) == magic


def is_webp(contents: tf.Tensor) -> tf.Tensor:
    """Whether a file begins as WebP files do."""
    return tf.strings.regex_full_match(tf.strings.substr(contents, 0, 12), r"RIFF\C{4}WEBP")


def read_bytes(contents: tf.Tensor, start: Any, count: Any) -> tf.Tensor:
    """int64 values of the bytes from `start` on, zeros beyond the end of the file."""
    start = tf.minimum(tf.cast(start, tf.int64), _length(contents))
    count = tf.cast(count, tf.int64)
    found = tf.io.decode_raw(tf.strings.substr(contents, start, count), tf.uint8)
    return tf.cast(tf.pad(found, [[0, count - tf.size(found, tf.int64)]]), tf.int64)


def check_pixels(height: tf.Tensor, width: tf.Tensor, max_pixels: int) -> tf.Operation:
    """An assertion that an image is not larger than `max_pixels`."""
    height, width = tf.cast(height, tf.int64), tf.cast(width, tf.int64)
    words = ["the image has ", " x ", f" pixels, more than max_pixels={max_pixels} in all"]
    sizes = [tf.strings.as_string(height), tf.strings.as_string(width)]
    message = tf.strings.join([words[0], sizes[1], words[1], sizes[0], words[2]])
    return tf.debugging.Assert(height * width <= max_pixels, [message])


def image_shape(contents: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Height and width, int64, that a PNG, BMP, GIF or WebP header states; zeros for others."""

    def png() -> tf.Tensor:
        return tf.stack([_big(contents, 20, 4), _big(contents, 16, 4)])

    def bmp() -> tf.Tensor:  # a negative height means that the rows run downwards
        sizes = tf.stack([_little(contents, 22, 4), _little(contents, 18, 4)])
        return tf.minimum(sizes, 2**32 - sizes)

    def gif() -> tf.Tensor:
        return tf.stack([_little(contents, 8, 2), _little(contents, 6, 2)])

    def webp() -> tf.Tensor:
        kind = tf.strings.substr(contents, 12, 4)
        both = _little(contents, 21, 4)  # 14 bits each
        lossless = tf.stack([both // 2**14 % 2**14 + 1, both % 2**14 + 1])
        extended = tf.stack([_little(contents, 27, 3), _little(contents, 24, 3)]) + 1
        lossy = tf.stack([_little(contents, 28, 2), _little(contents, 26, 2)]) % 2**14
        return tf.where(kind == "VP8L", lossless, tf.where(kind == "VP8X", extended, lossy))

    cases = [
        (starts_with(contents, PNG), png),
        (starts_with(contents, BMP), bmp),
        (starts_with(contents, GIF), gif),
        (is_webp(contents), webp),
    ]
    height, width = tf.unstack(tf.case(cases, lambda: tf.zeros(2, tf.int64)))
    return height, width


def find_orientation(contents: tf.Tensor) -> tf.Tensor:
    """The EXIF orientation of a file of any format, uint8 1..8; 1 (upright) where it has none."""
    return tf.cond(
        starts_with(contents, JPEG),
        lambda: jpeg_orientation(contents),
        lambda: chunk_orientation(contents),
    )


def jpeg_orientation(contents: tf.Tensor) -> tf.Tensor:
    """The EXIF orientation of a JPEG file, uint8 1..8; 1 (upright) where it has none."""

    def segment(at: tf.Tensor) -> tuple[tf.Tensor, ...]:
        head = read_bytes(contents, at, 4)
        marker, length = head[1], head[2] * 256 + head[3]
        # Fill bytes and what is no marker are passed over one by one, as decoders do.
        filling = (head[0] != 0xFF) | (marker == 0) | (marker == 0xFF)
        following = at + tf.where(filling, _int64(1), 2 + length)
        # The image's data follow the start of scan.
        last = ~filling & ((marker == 0xDA) | (marker == 0xD9) | (length < 2))
        is_exif = ~filling & (marker == 0xE1)
        is_exif &= tf.strings.substr(contents, tf.minimum(at + 4, size), 6) == b"Exif\x00\x00"
        return tf.where(last, size, following), at + 10, at + 2 + length, is_exif

    size = _length(contents)
    return _orientation_of(_first_chunk(contents, 2, segment))


def chunk_orientation(contents: tf.Tensor) -> tf.Tensor:
    """The EXIF orientation of a PNG or WebP file; 1 (upright) where it has none, or of others."""
    png, webp = starts_with(contents, PNG), is_webp(contents)

    def chunk(at: tf.Tensor) -> tuple[tf.Tensor, ...]:
        # PNG: length, type, data, checksum. WebP: type, length, data, padding to an even length.
        length = tf.where(png, _big(contents, at, 4), _little(contents, at + 4, 4))
        after = tf.where(png, _int64(4), length % 2)
        kind = tf.strings.substr(contents, tf.minimum(at + tf.where(png, over, 0), size), 4)
        is_exif = kind == tf.where(png, b"eXIf", b"EXIF")
        return at + 8 + length + after, at + 8, at + 8 + length, is_exif

    size, over = _length(contents), _int64(4)
    start = tf.where(png, _int64(8), tf.where(webp, _int64(12), size))
    return _orientation_of(_first_chunk(contents, start, chunk))


def first_frame(contents: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
    """The first frame of a GIF file, and where it lies.

    Returns:
        A GIF file of this frame alone; the frame's int32 (top, left, height, width); int32
        `(height, width)` of the canvas, which is enlarged where the frame reaches beyond it.
    """
    size, none = _length(contents), _int64(0)
    # All bytes at once, with the end of a file's data behind them: blocks of 255 bytes are many.
    values = tf.cast(tf.pad(tf.io.decode_raw(contents, tf.uint8), [[0, 16]]), tf.int32)

    def colours(flags: tf.Tensor) -> tf.Tensor:  # bytes of a palette
        return tf.where(flags >= 128, 3 * tf.bitwise.left_shift(2, flags % 8), 0)

    def after_blocks(at: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The place behind blocks of data, each with its length before it; 0 is the last."""

        def step(at: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            for _ in range(8):  # the loop costs more than its body
                length = values[at]
                at = tf.minimum(at + tf.where(length > 0, length + 1, 0), last)
            return at, count + 1

        at, count = tf.while_loop(
            lambda at, count: (values[at] > 0) & (count < _MOST_CHUNKS),
            step,
            (tf.minimum(at, last), count),
        )
        return tf.minimum(at + 1, last), count + 1

    last = tf.size(values) - 16
    start = tf.minimum(13 + colours(values[10]), last)
    frame, count = tf.while_loop(
        lambda at, count: (values[at] == 0x21) & (count < _MOST_CHUNKS),
        lambda at, count: after_blocks(at + 2, count),
        (start, 0),
    )
    end, _ = after_blocks(frame + 11 + colours(values[frame + 9]), count)
    end = tf.cast(end, tf.int64)
    frame = tf.cast(frame, tf.int64)
    left, top, width, height = (_little(contents, frame + 1 + 2 * i, 2) for i in range(4))
    canvas_height, canvas_width = _little(contents, 8, 2), _little(contents, 6, 2)
    # At the origin of its canvas, where TensorFlow leaves it as it is.
    alone = tf.strings.join(
        [
            tf.strings.substr(contents, none, frame + 1),
            b"\x00\x00\x00\x00",
            tf.strings.substr(
                contents, tf.minimum(frame + 5, size), tf.maximum(end - frame - 5, 0)
            ),
            b";",
        ]
    )
    box = tf.stack([top, left, height, width])
    canvas = tf.maximum([canvas_height, canvas_width], [top + height, left + width])
    return alone, tf.unstack(tf.cast(box, tf.int32)), tf.cast(canvas, tf.int32)


def _first_chunk(
    contents: tf.Tensor, start: Any, chunk: Callable[[tf.Tensor], tuple[tf.Tensor, ...]]
) -> tf.Tensor:
    """The data of the first chunk that holds EXIF, or nothing.

    Args:
        contents: the file.
        start: where its first chunk begins.
        chunk: from the place of a chunk to (the place of the next one, begin and end of its data,
            whether it holds EXIF).
    """
    size = _length(contents)

    def step(
        at: tf.Tensor, begin: tf.Tensor, end: tf.Tensor, count: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        following, begin, end, is_exif = chunk(at)
        return tf.where(is_exif, size, following), begin, tf.where(is_exif, end, begin), count + 1

    nowhere = _int64(0)
    _, begin, end, _ = tf.while_loop(
        lambda at, begin, end, count: (at < size) & (count < _MOST_CHUNKS),
        step,
        (tf.cast(start, tf.int64), nowhere, nowhere, 0),
    )
    return tf.strings.substr(contents, tf.minimum(begin, size), end - begin)


def _orientation_of(exif: tf.Tensor) -> tf.Tensor:
    """The orientation in the first directory of an EXIF block."""
    return tf.cond(
        tf.strings.length(exif) > 0, lambda: _read_exif(exif), lambda: tf.constant(1, tf.uint8)
    )


def _read_exif(exif: tf.Tensor) -> tf.Tensor:
    exif = tf.strings.regex_replace(exif, r"^Exif\x00\x00", "")  # some WebP files repeat it
    big = starts_with(exif, b"MM\x00*")

    def number(values: tf.Tensor) -> tf.Tensor:
        return _sum(tf.where(big, values, values[..., ::-1]))

    directory = number(read_bytes(exif, 4, 4))
    count = number(read_bytes(exif, directory, 2))
    entries = tf.reshape(read_bytes(exif, directory + 2, 12 * count), (-1, 12))
    tag, kind, length = number(entries[:, :2]), number(entries[:, 2:4]), number(entries[:, 4:8])
    matching = (tag == ORIENTATION_TAG) & (kind == SHORT) & (length == 1)
    values = tf.boolean_mask(number(entries[:, 8:10]), matching)
    value = tf.concat([values, [1]], 0)[0]
    known = (big | starts_with(exif, b"II*\x00")) & (value > 0) & (value < 9)
    return tf.cast(tf.where(known, value, 1), tf.uint8)


def _big(contents: tf.Tensor, start: Any, count: int) -> tf.Tensor:
    return _sum(read_bytes(contents, start, count))


def _little(contents: tf.Tensor, start: Any, count: int) -> tf.Tensor:
    return _sum(read_bytes(contents, start, count)[::-1])


def _sum(digits: tf.Tensor) -> tf.Tensor:
    """Numbers from their bytes along the last axis, the highest first."""
    places = tf.range(tf.shape(digits)[-1] - 1, -1, -1)
    return tf.reduce_sum(digits * tf.cast(256**places, tf.int64), axis=-1)


def _length(contents: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.strings.length(contents), tf.int64)


def _int64(value: int) -> tf.Tensor:
    return tf.constant(value, tf.int64)
