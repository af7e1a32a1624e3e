"""The functions in which images are prepared: TensorFlow's, or the same of NumPy and Pillow.

Augmentations and evaluation transforms are written once, in the functions of an `array_namespace`.
TensorFlow's is the module itself, so its graphs are what they would be without this file; NumPy's
is a table under the same names, with the arguments that are used. The bits of every pixel are the
same, except where the two libraries round sums and antialiased pixels otherwise.

`tf.experimental.numpy` would need no table, but graphs of it have a third more operations (85
instead of 61 for the contrast of RandAugment) and take 16 to 31 % longer. Keras's layers, which
compute on every backend, apply RandAugment to 2 (JAX) and 6 (torch) images per second of 224
pixels and core; this does to more than 500.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

from keras_vit.data._imports import tf

Array: TypeAlias = Any  # an ndarray or a tensor of TensorFlow


def array_namespace(*values: Array) -> Any:
    """NumPy's functions for arrays (or sizes and seeds as tuples), TensorFlow's for any tensor.

    >>> float(array_namespace(np.ones(3)).reduce_sum(np.ones(3)))
    3.0
    """
    return NUMPY if all(isinstance(value, np.ndarray | tuple | list) for value in values) else tf


def map_channels(image: np.ndarray, change: Callable[[Any], Any]) -> np.ndarray:
    """Applies `change` to each channel as a Pillow image, of bytes or floats as `image` is."""
    from PIL.Image import fromarray

    channels = [fromarray(channel) for channel in np.moveaxis(image, -1, 0)]
    return np.stack([np.asarray(change(channel)) for channel in channels], axis=-1)


def _resize(
    image: np.ndarray, size: Any, method: str = "bilinear", antialias: bool = False
) -> np.ndarray:
    """`tf.image.resize`, whose cubic curves without antialiasing are not needed."""
    height, width = map(int, size)
    if antialias:
        from PIL.Image import Resampling

        filter = Resampling[method.upper().rstrip("3")]
        image = image.astype("float32")
        return map_channels(image, lambda channel: channel.resize((width, height), filter))
    if method == "area":
        return _mean_over_rows(_mean_over_rows(image, height).swapaxes(0, 1), width).swapaxes(0, 1)
    return _bilinear(image, height, width)


def _bilinear(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize in TensorFlow's order of operations, for the same bits; twice as fast as Pillow."""
    channels = image.shape[-1]
    top, bottom, down = _neighbors(len(image), height)
    left, right, along = _neighbors(image.shape[1], width)
    rows, places = np.unique([top, bottom], return_inverse=True)  # of a large image only a few
    top, bottom = places.reshape(2, height)
    image = image.reshape(len(image), -1)[rows]
    left, right = (
        (column[:, None] * channels + np.arange(channels)).ravel() for column in (left, right)
    )
    lines = _between(image[:, left], image[:, right], along.repeat(channels))
    return _between(lines[top], lines[bottom], down[:, None]).reshape(height, width, channels)


def _between(before: np.ndarray, after: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Overwrites its arguments where they are floats."""
    before, result = (p.astype("float32", copy=False) for p in (before, after))
    result -= before
    result *= place
    result += before
    return result


def _neighbors(length: int, target: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the pixels before and after each new one, and its place between them."""
    scale, half = np.float32(length) / np.float32(target), np.float32(0.5)
    places = (np.arange(target, dtype="float32") + half) * scale - half
    before = np.floor(places)
    after = np.minimum(np.ceil(places), length - 1)
    return np.maximum(before, 0).astype(int), after.astype(int), places - before


def _mean_over_rows(image: np.ndarray, rows: int) -> np.ndarray:
    """Average the rows that each new row covers, weighted by overlap; Pillow cannot do that."""
    image = image.astype("float32")
    edges, old = np.arange(rows + 1) * (len(image) / rows), np.arange(len(image))
    overlap = np.minimum(edges[1:, None], old + 1) - np.maximum(edges[:-1, None], old)
    weights = (np.maximum(overlap, 0) * (rows / len(image))).astype("float32")
    # Few weights are above 0: multiplying by all of them would take many times as long.
    return np.stack([np.tensordot(row[row > 0], image[row > 0], 1) for row in weights])


def transform_array(
    image: np.ndarray, matrix: tuple[Any, ...], interpolation: str, fill_value: float
) -> np.ndarray:
    """`ImageProjectiveTransformV3`: output pixel (x, y) from (a x + b y + c, d x + e y + f)."""
    height, width, channels = image.shape
    padded = np.pad(image, ((1, 1), (1, 1), (0, 0)), constant_values=fill_value)
    padded = padded.reshape(-1, channels)
    a, b, c, d, e, f = np.array(matrix, "float32")
    # In float32, so that what lies halfway between two pixels becomes the same one.
    x, y = np.arange(width, dtype="float32"), np.arange(height, dtype="float32")[:, None]
    x, y = a * x + b * y + c, d * x + e * y + f

    def pixels(y: np.ndarray, x: np.ndarray) -> np.ndarray:
        y, x = np.clip(y, -1, height).astype(int) + 1, np.clip(x, -1, width).astype(int) + 1
        return padded.take(y * (width + 2) + x, axis=0)

    if interpolation == "NEAREST":  # half a pixel is rounded away from 0
        return pixels(*(np.trunc(p + np.copysign(np.float64(0.5), p)) for p in (y, x)))
    top, left = np.floor(y), np.floor(x)
    down, right = (y - top)[..., None], (x - left)[..., None]
    up, back = (top + 1 - y)[..., None], (left + 1 - x)[..., None]
    above = back * pixels(top, left) + right * pixels(top, left + 1)
    below = back * pixels(top + 1, left) + right * pixels(top + 1, left + 1)
    return up * above + down * below


def _slice(image: np.ndarray, begin: Any, size: Any) -> np.ndarray:
    ends = [None if n < 0 else start + n for start, n in zip(begin, size, strict=True)]
    return image[tuple(map(slice, begin, ends))]


def _depthwise_convolution(images: np.ndarray, kernel: np.ndarray, *_: Any) -> np.ndarray:
    """Convolve each channel by itself, with stride 1 and without padding."""
    count, height, width, channels = images.shape
    rows, columns = height - kernel.shape[0] + 1, width - kernel.shape[1] + 1
    lines, length = images.reshape(count, height, width * channels), columns * channels
    result = np.zeros((count, rows, length), "float32")
    for y, x in np.ndindex(kernel.shape[:2]):
        part = lines[:, y : y + rows, x * channels : x * channels + length]
        result += part * np.tile(kernel[y, x, :, 0], columns)
    return result.reshape(count, rows, columns, channels)


def _reduced(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reduction that takes one axis after another: two at once are 100 times slower."""

    def of(values: np.ndarray, axis: Any = None, **options: Any) -> np.ndarray:
        if not isinstance(axis, tuple) or options:
            return reduce(values, axis=axis, **options)
        for done, place in enumerate(axis):
            values = reduce(values, axis=place - done)
        return values

    return of


_SAME = "broadcast_to cumsum floor maximum minimum ones_like reshape roll round sqrt stack"
_SAME += " tile where zeros_like"
_REDUCED = "all max mean min sum"

# Names and arguments as in TensorFlow.
NUMPY = SimpleNamespace(
    **{name: np.dtype(name) for name in ("bool", "uint8", "int32", "int64", "float32", "float64")},
    **{name: getattr(np, name) for name in _SAME.split()},
    **{f"reduce_{name}": _reduced(getattr(np, name)) for name in _REDUCED.split()},
    cast=lambda values, dtype: np.asarray(values).astype(dtype),
    clip_by_value=np.clip,
    concat=np.concatenate,
    cond=lambda choice, yes, no: yes() if choice else no(),
    constant=np.array,
    convert_to_tensor=np.asarray,
    ensure_shape=lambda image, _: image,
    function=lambda function, **_: function,
    gather=lambda values, places, batch_dims=0: (
        np.take_along_axis(values, places, axis=1) if batch_dims else values.take(places)
    ),
    gather_nd=lambda values, places: values[tuple(np.moveaxis(places, -1, 0))],
    pad=lambda image, margins, mode="CONSTANT": np.pad(image, margins, mode.lower()),
    range=np.arange,
    reverse=lambda image, axes: np.flip(image, tuple(axes)),
    shape=lambda image: np.array(image.shape, "int32"),
    size=lambda image, dtype: dtype.type(image.size),
    slice=_slice,
    switch_case=lambda index, branches: branches[index](),
    unstack=list,
    image=SimpleNamespace(resize=_resize),
    math=SimpleNamespace(bincount=np.bincount),
    nn=SimpleNamespace(depthwise_conv2d=_depthwise_convolution),
)
