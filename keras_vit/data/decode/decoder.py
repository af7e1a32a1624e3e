"""Encoded bytes to upright uint8 pixels, inside a TensorFlow graph.

The training pipeline, the evaluation and the exported SavedModel all decode with this function. It
can decode a part alone, which is less work for a JPEG file. JPEG and PNG files are decoded by
TensorFlow, whose decoder needs help in three places: CMYK without Adobe's marker, EXIF orientation,
and the size of images, which it does not limit. Other files are Pillow's, called from the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from keras_vit._base.errors import check_choice
from keras_vit.data._imports import tf
from keras_vit.data.augment.boxes import crop_to_box
from keras_vit.data.data_errors import (
    JPEG,
    PNG,
    BadImageError,
    check_channels,
    undecodable_reason,
)
from keras_vit.data.decode.headers import (
    MAX_PIXELS,
    MIRRORED,
    UPSIDE_DOWN,
    check_pixel_count,
    jpeg_orientation,
    png_orientation,
    png_shape,
    starts_with,
)
from keras_vit.data.decode.image_kinds import pillow_format
from keras_vit.data.decode.pillow import decode_with_pillow
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
    to_save: bool = False,
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
        to_save: the graph is to be saved, and runs without Python: only JPEG and PNG are decoded.

    Returns:
        uint8 tensor of shape `(height, width, channels)`, values 0..255.

    Raises:
        ValueError: channels is neither 1 nor 3, or the decoder is unknown.
        tf.errors.InvalidArgumentError: the bytes are not such an image, or only part of one, or
            an animated WebP, or an image larger than `max_pixels`.

    Example:
        >>> import tensorflow as tf
        >>> png = tf.io.encode_png(tf.zeros((4, 6, 1), tf.uint8))
        >>> decode_image(png).shape.as_list()
        [4, 6, 3]
    """
    how = (channels, crop, max_pixels, upright, decoder, to_save)
    image, _ = decode_and_orientation(contents, *how)
    return image


def decode_and_orientation(
    contents: tf.Tensor,
    channels: int,
    crop: Crop | None = None,
    max_pixels: int | None = MAX_PIXELS,
    upright: bool = False,
    decoder: str = "tensorflow",
    to_save: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return what `decode_image` returns, and the EXIF orientation, uint8 1..8.

    Of files that Pillow decodes, which come out of it upright, this is 1.
    """
    check_channels(channels)

    def png() -> tuple[tf.Tensor, tf.Tensor]:
        return _decode_png(contents, channels, crop, max_pixels, upright)

    def other() -> tuple[tf.Tensor, tf.Tensor]:
        image = _other_pixels(contents, channels, max_pixels)
        return crop_to_box(image, crop), tf.constant(1, tf.uint8)

    image, orientation = tf.cond(
        starts_with(contents, JPEG),
        lambda: _decode_jpeg(contents, channels, crop, max_pixels, upright, decoder),
        lambda: png() if to_save else tf.cond(starts_with(contents, PNG), png, other),
    )
    if not upright:
        image = tf.cond(orientation > 1, lambda: _upright(image, orientation), lambda: image)
    image.set_shape((None, None, channels))
    return image, orientation


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


def _decode_png(
    contents: tf.Tensor, channels: int, crop: Crop | None, max_pixels: int | None, upright: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the image as it is stored, and its orientation."""
    image = _png_pixels(contents, max_pixels)
    with tf.control_dependencies([image]):  # its loop is not beside what may fail: `map_or_else`
        contents = tf.identity(contents)
    orientation = tf.constant(1, tf.uint8) if upright else png_orientation(contents)
    if crop is not None and not upright:
        crop = partial(_stored_box, crop, orientation)
    return to_channels(crop_to_box(image, crop), channels), orientation


@traced_once
def _png_pixels(contents: tf.Tensor, max_pixels: int | None) -> tf.Tensor:
    """Return all pixels of a PNG file, with the channels that it has; an error for other files."""
    check = tf.debugging.Assert(starts_with(contents, PNG), ["not a JPEG or PNG file"])
    if max_pixels is not None:
        with tf.control_dependencies([check]):  # one after the other: see `map_or_else`
            check = check_pixel_count(png_shape(tf.identity(contents)), max_pixels)
    with tf.control_dependencies([check]):
        return tf.io.decode_png(tf.identity(contents), channels=0)


@traced_once  # called eagerly, NumPy would drop zeros at the end of a file
def _other_pixels(contents: tf.Tensor, channels: int, max_pixels: int | None) -> tf.Tensor:
    """Return all pixels of a BMP, GIF or WebP file, upright, by Pillow."""

    def decode(contents: bytes) -> Any:
        if pillow_format(contents) is not None:  # of Grain's reader
            raise BadImageError(undecodable_reason(contents, ValueError()))
        return decode_with_pillow(contents, channels, max_pixels)

    image = tf.numpy_function(decode, [contents], tf.uint8)
    image.set_shape((None, None, channels))
    return image


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


def _any_of(orientation: tf.Tensor, cases: tuple[int, ...]) -> tf.Tensor:
    return tf.reduce_any(orientation == tf.constant(cases, tf.uint8))


def _upright(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Undoes the turn of an EXIF orientation."""

    def when(applies: tf.Tensor, change: Any, image: tf.Tensor) -> tf.Tensor:
        return tf.cond(applies, lambda: change(image), lambda: image)

    image = when(orientation > 4, lambda x: tf.transpose(x, (1, 0, 2)), image)
    image = when(_any_of(orientation, MIRRORED), lambda x: tf.reverse(x, (1,)), image)
    return when(_any_of(orientation, UPSIDE_DOWN), lambda x: tf.reverse(x, (0,)), image)
