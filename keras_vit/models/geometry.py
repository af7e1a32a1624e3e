"""Shapes of images and of the grids of patches that are cut from them."""

import warnings
from collections.abc import Sequence
from math import prod

from keras_vit._base.errors import check_positive
from keras_vit.layers.patches import check_data_format

# Pixels per side where a model takes images of any size and a size is needed.
DEFAULT_SIZE = 224

Size = tuple[int | None, int | None]
ImageShape = tuple[int | None, int | None, int | None]


def image_layout(
    input_shape: Sequence[int | None] | None, data_format: str | None
) -> tuple[ImageShape, str]:
    """Return the `input_shape` and the data format of a model, with Keras's defaults.

    Raises:
        ValueError: The data format is unknown, or the shape is not an image shape in it.
    """
    data_format = check_data_format(data_format)
    last = data_format == "channels_last"
    default = image_shape((DEFAULT_SIZE, DEFAULT_SIZE), 3, data_format)
    if input_shape is None:
        return default, data_format
    shape = tuple(input_shape) if isinstance(input_shape, Sequence) else ()
    if (
        len(shape) != 3
        or shape[2 if last else 0] is None
        or not all(side is None or (isinstance(side, int) and side > 0) for side in shape)
    ):
        layout = "(height, width, channels)" if last else "(channels, height, width)"
        raise ValueError(
            f"input_shape={input_shape!r} is not {layout} without the batch, in positive integers. "
            f"Give for example {default}; height and width may be None."
        )
    return (shape[0], shape[1], shape[2]), data_format


def image_shape(size: tuple[int, int], channels: int, data_format: str) -> tuple[int, int, int]:
    """Return the `input_shape` of images of that height and width."""
    return (*size, channels) if data_format == "channels_last" else (channels, *size)


def image_size(input_shape: Sequence[int | None], data_format: str) -> Size:
    """Return height and width of an `input_shape`."""
    height, width = input_shape[:2] if data_format == "channels_last" else input_shape[1:]
    return height, width


def stages(units: Sequence[int], argument: str) -> tuple[int, ...]:
    """Return the number of units of each stage of a ResNet, or a ValueError."""
    if not isinstance(units, Sequence):
        raise ValueError(
            f"{argument}={units!r} must be the number of units of each stage, such as (3, 4, 6, 3)."
        )
    check_positive(**{f"{argument}[{stage}]": number for stage, number in enumerate(units)})
    return tuple(units)


def feature_stride(
    resnet: Sequence[int] | None, conv_stem: Sequence[Sequence[int]] | None = None
) -> int:
    """Return the image pixels per pixel of the map that patches are cut from; its size rounds up.

    A hybrid's stem halves the size twice, and every stage of its ResNet but the first once.

    >>> feature_stride((3, 4, 9)), feature_stride(()), feature_stride(None, ((32, 2), (64, 1)))
    (16, 4, 2)
    """
    if resnet is not None:
        return 4 * 2 ** max(len(resnet) - 1, 0)
    return prod(stride for _, stride in conv_stem or ())


def patch_grid(size: Size, patch_size: tuple[int, int], stride: int = 1) -> tuple[int, int]:
    """Return rows and columns of the patches of an image; warns of pixels that no patch covers.

    Args:
        size: Height and width in pixels; None counts as 224.
        patch_size: Height and width of a patch on the feature map.
        stride: The `feature_stride`; 1 for patches of the image itself.
    """
    height, width = (DEFAULT_SIZE if side is None else side for side in size)
    patch_h, patch_w = patch_size[0] * stride, patch_size[1] * stride
    # The feature map's height and width are rounded up, then the number of patches down.
    grid = -(-height // stride) // patch_size[0], -(-width // stride) // patch_size[1]
    if 0 in grid:
        raise ValueError(
            f"An image of {height} x {width} pixels is smaller than one patch of {patch_h} x "
            f"{patch_w}. Give a larger image size, such as {DEFAULT_SIZE}, or a smaller patch_size."
        )
    covered = grid[0] * patch_h, grid[1] * patch_w
    if (covered[0] < height or covered[1] < width) and None not in size:
        warnings.warn(
            f"Patches of {patch_h} x {patch_w} cover {covered[0]} x {covered[1]} of "
            f"{height} x {width} pixels: the rest at the bottom and the right is dropped, "
            f"as in the released code. Give {covered[0]} x {covered[1]} to lose nothing.",
            stacklevel=5,  # the line that calls the model's constructor
        )
    return grid


def mixer_grid(
    input_shape: ImageShape, patch_size: tuple[int, int], data_format: str
) -> tuple[int, int]:
    """Return rows and columns of an MLP-Mixer's patches, with those partly outside the image."""
    height, width = image_size(input_shape, data_format)
    if height is None or width is None:
        raise ValueError(
            f"input_shape={tuple(input_shape)} leaves the image size open, but an MLP-Mixer has a "
            "weight for every pair of patches. Give height and width."
        )
    return -(-height // patch_size[0]), -(-width // patch_size[1])
