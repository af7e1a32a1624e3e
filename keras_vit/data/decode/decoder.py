"""Encoded bytes to upright uint8 pixels, inside a TensorFlow graph.

The training pipeline, the evaluation and the exported SavedModel all decode with this function. It
can decode a part alone, which is less work for a JPEG file. TensorFlow's own decoder needs help in
seven places: BMP files of a palette, CMYK without Adobe's marker, animated WebP files (it writes
past its buffer), four-channel WebP files, GIF frames smaller than their canvas (it also decodes all
further frames), EXIF orientation, and the size of images, which it does not limit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from keras_vit._base.errors import check_choice
from keras_vit.data._imports import tf
from keras_vit.data.augment.boxes import crop_to_box
from keras_vit.data.data_errors import BMP, GIF, JPEG
from keras_vit.data.decode.headers import (
    MAX_PIXELS,
    bmp_header,
    check_pixel_count,
    chunk_orientation,
    first_frame,
    header_shape,
    jpeg_orientation,
    starts_with,
)
from keras_vit.data.decode.tracing import traced_once

# From the (height, width) of an upright image to the box (top, left, height, width) to decode.
Crop = Callable[[Any], Any]

# How TensorFlow's libjpeg computes the cosine transform of JPEG files. "tensorflow" is its default,
# the fast transform; "pillow" is the accurate one, which gives Pillow's pixels bit for bit.
DECODERS = {"tensorflow": "", "pillow": "INTEGER_ACCURATE"}

# The segment that says, before one of the file's own: CMYK by Adobe's rule, 255 without any ink.
_ADOBE = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00"


def decode_image(
    contents: tf.Tensor,
    channels: int = 3,
    crop: Crop | None = None,
    *,
    max_pixels: int | None = MAX_PIXELS,
    upright: bool = False,
    decoder: str = "tensorflow",
) -> tf.Tensor:
    """Decodes one JPEG, PNG, BMP, GIF or WebP file. A graph function, also callable eagerly.

    Gray, palette, 16-bit (the high 8 bits), CMYK and transparent images all come out as RGB, or
    all as gray; transparency is dropped, not blended. An animated GIF gives its first frame, on a
    black canvas where it does not fill it. A file with an EXIF orientation comes out upright.

    Args:
        contents: scalar string tensor, the bytes of the file.
        channels: 3 for RGB, 1 for gray.
        crop: from the `(height, width)` of the upright image to the box `(top, left, height,
            width)` to decode, both int32 tensors; None for the whole image. Along the border of
            the box of a JPEG file, colors are a few levels off those of the whole image.
        max_pixels: height times width that is accepted, read from the header before anything is
            decoded; None for any size.
        upright: the file is known to be without an EXIF orientation, and is not searched for one.
        decoder: a key of `DECODERS`: of a JPEG file, the pixels that TensorFlow decodes by default,
            or Pillow's, which timm and Hugging Face see. A few levels lie between them.

    Returns:
        uint8 tensor of shape `(height, width, channels)`, values 0..255.

    Raises:
        ValueError: channels is neither 1 nor 3, or the decoder is unknown.
        tf.errors.InvalidArgumentError: the bytes are not such an image, or only part of one, or
            an animated WebP (TensorFlow 2.21 corrupts memory on those), or an image larger than
            `max_pixels`.

    Example:
        >>> import tensorflow as tf
        >>> png = tf.io.encode_png(tf.zeros((4, 6, 1), tf.uint8))
        >>> decode_image(png).shape.as_list()
        [4, 6, 3]
    """
    return decode_and_orientation(contents, channels, crop, max_pixels, upright, decoder)[0]


def decode_and_orientation(
    contents: tf.Tensor,
    channels: int,
    crop: Crop | None = None,
    max_pixels: int | None = MAX_PIXELS,
    upright: bool = False,
    decoder: str = "tensorflow",
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return what `decode_image` returns, and the EXIF orientation, uint8 1..8."""
    image, orientation = tf.cond(
        starts_with(contents, JPEG),
        lambda: _decode_jpeg(contents, channels, crop, max_pixels, upright, decoder),
        lambda: _decode_other(contents, channels, crop, max_pixels, upright),
    )
    if not upright:
        image = tf.cond(orientation > 1, lambda: _upright(image, orientation), lambda: image)
    image.set_shape((None, None, channels))
    return image, orientation


def check_channels(channels: int) -> None:
    """Raises a ValueError for another number than 1 or 3."""
    if channels not in (1, 3):
        raise ValueError(
            f"channels={channels} must be 3 (RGB) or 1 (gray): files of images have one, three or "
            "four channels, of which transparency is left out. Give a model of other channels "
            "arrays, as model.predict(pixels)."
        )


def to_channels(image: tf.Tensor, channels: int) -> tf.Tensor:
    """Turns uint8 pixels that are gray or RGB, with or without alpha, into `channels` of 1 or 3."""
    check_channels(channels)
    if image.shape[-1] != channels:
        has_color = tf.shape(image)[-1] > 2
        image = tf.cond(
            has_color, lambda: image[..., :3], lambda: tf.repeat(image[..., :1], 3, axis=-1)
        )
        image.set_shape((None, None, 3))
        if channels == 1:
            image = tf.image.rgb_to_grayscale(image)
    image.set_shape((None, None, channels))
    return image


def _refuse_animated_webp(contents: tf.Tensor) -> tf.Tensor:
    """Asserts that no extended WebP header (VP8X) has the animation bit of its flags, byte 20."""
    extended = tf.strings.regex_full_match(
        tf.strings.substr(contents, 0, 20), r"RIFF\C{4}WEBPVP8X\C{4}"
    )
    flags = tf.io.decode_raw(tf.strings.substr(contents, 0, 21), tf.uint8)[20:]
    animated = extended & tf.reduce_any(tf.bitwise.bitwise_and(flags, 2) > 0)
    return tf.debugging.Assert(~animated, ["an animated WebP file, which is not supported"])


def _refuse_other_bmp(contents: tf.Tensor) -> tf.Tensor:
    """Asserts that a BMP file is not of an old kind, of which TensorFlow makes something else."""
    _, size, _, bits, compression = tf.unstack(bmp_header(contents), 5)
    is_known = (size >= 40) & ((bits > 16) | ((bits < 16) & (compression == 0)))
    reason = "a BMP file of 16 bits, of OS/2 or compressed, which TensorFlow does not read"
    fix = "save it as PNG with Pillow"
    return tf.debugging.Assert(is_known | ~starts_with(contents, BMP), [f"{reason}: {fix}"])


def _decode_bmp_palette(contents: tf.Tensor) -> tf.Tensor:
    """Decode a BMP of 1, 4 or 8 bits; TensorFlow returns indices for 8, and refuses the others."""
    place, size, rows, bits, _ = tf.unstack(bmp_header(contents), 5)
    height, width = tf.unstack(header_shape(contents), 2)
    length = (width * bits + 31) // 32 * 4
    pixels = tf.io.decode_raw(tf.strings.substr(contents, place, height * length), tf.uint8)
    shifts = tf.cast(tf.range(8 - bits, -1, -bits), tf.uint8)
    indices = tf.bitwise.right_shift(tf.reshape(pixels, (height, length, 1)), shifts)
    indices = tf.bitwise.bitwise_and(indices, tf.cast(2**bits - 1, tf.uint8))
    indices = tf.reshape(indices, (height, -1))[:, :width]
    indices = tf.cond(rows < 2**31, lambda: indices[::-1], lambda: indices)
    # Of each color blue, green, red and 0.
    colors = tf.clip_by_value((place - 14 - size) // 4, 0, 256)
    palette = tf.io.decode_raw(tf.strings.substr(contents, 14 + size, 4 * colors), tf.uint8)
    return tf.gather(tf.reshape(palette, (-1, 4))[:, 2::-1], tf.cast(indices, tf.int32))


def _as_adobe(contents: tf.Tensor) -> tf.Tensor:
    """Puts Adobe's marker into a CMYK file, as Pillow and browsers read those without one."""
    marker = tf.where(tf.io.extract_jpeg_shape(contents)[2] == 4, _ADOBE, b"")
    rest = tf.strings.substr(contents, 2, -1)
    return tf.strings.join([tf.strings.substr(contents, 0, 2), marker, rest])


def decode_upright_jpeg(
    contents: tf.Tensor,
    channels: int = 3,
    crop: Crop | None = None,
    decoder: str = "tensorflow",
) -> tf.Tensor:
    """Return a JPEG file as it is stored, or the part that `crop` returns for its stored size.

    For files known to be JPEG and upright this is `decode_image` without a `tf.cond`, which costs
    as much as decoding a small image: TensorFlow also walks through the branch that is not taken.
    """
    # libjpeg turns gray and CMYK into RGB; gray we compute ourselves, as for all other formats.
    stored = 3 if channels == 3 else 0
    dct_method = DECODERS[check_choice(decoder, "decoder", DECODERS)]
    contents = _as_adobe(contents)
    if crop is None:
        image = tf.io.decode_jpeg(contents, stored, dct_method=dct_method)
    else:
        box = crop(tf.io.extract_jpeg_shape(contents)[:2])
        image = tf.io.decode_and_crop_jpeg(contents, box, stored, dct_method=dct_method)
    if channels == 3:
        image.set_shape((None, None, 3))
    return to_channels(image, channels)


def _decode_jpeg(
    contents: tf.Tensor,
    channels: int,
    crop: Crop | None,
    max_pixels: int | None,
    upright: bool,
    decoder: str,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the image as it is stored, and its orientation."""
    if max_pixels is not None:
        check = check_pixel_count(tf.io.extract_jpeg_shape(contents)[:2], max_pixels)
        with tf.control_dependencies([check]):
            contents = tf.identity(contents)
    orientation = tf.constant(1, tf.uint8) if upright else jpeg_orientation(contents)
    if crop is not None and not upright:
        crop = partial(_stored_box, crop, orientation)
    return decode_upright_jpeg(contents, channels, crop, decoder), orientation


def _decode_other(
    contents: tf.Tensor, channels: int, crop: Crop | None, max_pixels: int | None, upright: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the image as it is stored, and its orientation."""
    image = _other_pixels(contents, max_pixels)
    orientation = tf.constant(1, tf.uint8) if upright else chunk_orientation(contents)
    if crop is not None and not upright:
        crop = partial(_stored_box, crop, orientation)
    return to_channels(crop_to_box(image, crop), channels), orientation


@traced_once
def _other_pixels(contents: tf.Tensor, max_pixels: int | None) -> tf.Tensor:
    """Return all pixels of a file that is not JPEG, with the channels that it has."""
    checks = [_refuse_animated_webp(contents), _refuse_other_bmp(contents)]
    if max_pixels is not None:
        checks.append(check_pixel_count(header_shape(contents), max_pixels))
    with tf.control_dependencies(checks):
        contents = tf.identity(contents)
    has_palette = starts_with(contents, BMP) & (bmp_header(contents)[3] <= 8)
    return tf.cond(
        starts_with(contents, GIF),
        lambda: _decode_gif(contents, max_pixels),
        lambda: tf.cond(
            has_palette,
            lambda: _decode_bmp_palette(contents),
            # channels=0 keeps what the file has; asking for 3 fails on GIF or WebP variants.
            lambda: tf.io.decode_image(contents, channels=0, expand_animations=False),
        ),
    )


def _decode_gif(contents: tf.Tensor, max_pixels: int | None) -> tf.Tensor:
    """Decode the first frame at its place on the canvas; TensorFlow's canvas is too small."""
    frame, box, canvas = first_frame(contents)
    with tf.control_dependencies(
        [] if max_pixels is None else [check_pixel_count(canvas, max_pixels)]
    ):
        image = tf.io.decode_image(frame, channels=3, expand_animations=False)
    margins = tf.stack([box[:2], canvas - box[:2] - box[2:]], axis=1)
    return tf.pad(image, tf.concat([margins, [[0, 0]]], 0))


def _stored_box(crop: Crop, orientation: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """Return the upright image's box in the stored image, the inverse of `_upright`."""
    upright = tf.where(orientation > 4, shape[::-1], shape)
    box = crop(upright)

    def turned() -> tf.Tensor:
        # Top and left count from the other side where the image is mirrored.
        mirrored = tf.stack([_any_of(orientation, UPSIDE_DOWN), _any_of(orientation, MIRRORED)])
        corner = tf.where(mirrored, upright - box[:2] - box[2:], box[:2])
        turned_box = tf.stack([corner, box[2:]])
        return tf.reshape(tf.where(orientation > 4, turned_box[:, ::-1], turned_box), (4,))

    return tf.cond(orientation > 1, turned, lambda: box)


# What undoes each orientation: a transpose (5 to 8), then mirroring left and right, up and down.
MIRRORED = (2, 3, 6, 7)
UPSIDE_DOWN = (3, 4, 7, 8)


def _any_of(orientation: tf.Tensor, cases: tuple[int, ...]) -> tf.Tensor:
    return tf.reduce_any(orientation == tf.constant(cases, tf.uint8))


def _upright(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Undoes the turn of an EXIF orientation."""

    def when(applies: tf.Tensor, change: Any, image: tf.Tensor) -> tf.Tensor:
        return tf.cond(applies, lambda: change(image), lambda: image)

    image = when(orientation > 4, lambda x: tf.transpose(x, (1, 0, 2)), image)
    image = when(_any_of(orientation, MIRRORED), lambda x: tf.reverse(x, (1,)), image)
    return when(_any_of(orientation, UPSIDE_DOWN), lambda x: tf.reverse(x, (0,)), image)
