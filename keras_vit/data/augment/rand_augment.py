"""RandAugment (Cubuk et al. 2020): a few of sixteen operations, drawn anew for each image.

The operations and their strengths are those of big_vision's `pp/autoaugment.py`; colors equal
Pillow's, which the paper used, to the last level. Only the chosen operations are computed. The
layer of keras-cv has a random state, which breaks exact resume, and Keras's takes twenty times as
long; `pipeline(augment=...)` takes both.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from keras_vit._base.errors import check_choice, check_positive, counted
from keras_vit.data.arrays import Array, array_namespace
from keras_vit.data.augment.affine import transform
from keras_vit.data.augment.boxes import box_mask
from keras_vit.data.augment.change import Change, Draws, matrix_rows

_GRAY = 128.0  # fills what comes in from outside the image
_SIDE = 224.0  # the size for which the strengths in pixels are stated


@dataclass(frozen=True)
class RandAugment(Change):
    """Applies some operations to an image, each drawn evenly.

    Args:
        number: how many operations follow each other, 1 or more; 2 in the released training.
        magnitude: their strength, 0 to 30; 10, 15 and 20 in the released training. "posterize" and
            "solarize" grow weaker with it, as they do there.
        operations: names in `OPERATIONS`; None for all.

    Raises:
        ValueError: an unknown operation, a number below 1 or a magnitude outside 0..30.
    """

    number: int = 2
    magnitude: float = 10
    operations: tuple[str, ...] | None = None
    of_bytes = True

    def __post_init__(self) -> None:
        check_positive(number=self.number)
        if not 0 <= self.magnitude <= 30:
            raise ValueError(
                f"magnitude={self.magnitude!r} must lie between 0 and 30, for instance 10"
            )
        if self.operations is not None and not self.operations:
            raise ValueError(
                f"operations={self.operations!r} is empty: name some, or give None for all"
            )
        for name in self.operations or ():
            check_choice(name, "operation", OPERATIONS)

    @property
    def numbers(self) -> int:  # type: ignore[override]
        return 4 * self.number

    @property
    def _names(self) -> tuple[str, ...]:
        return self.operations or tuple(OPERATIONS)

    def draw(self, uniform: np.ndarray, size: tuple[int, int]) -> Draws:
        """Draw which operations, to which side they move the image, and where they cut it out."""
        # Per operation: which one, to which side, and where.
        uniform = uniform.reshape(len(uniform), self.number, 4)
        which = (uniform[..., 0] * len(self._names)).astype("int32")
        side, strength = np.where(uniform[..., 1] < 0.5, -1.0, 1.0), self.magnitude / 10
        moves = {name: move(strength * side, *size) for name, move in MOVES.items()}
        still = matrix_rows(1, 0, 0, 0, 1, np.zeros_like(side))
        rows = np.stack([moves.get(name, still) for name in self._names])
        return {
            "which": which,
            "matrix": np.take_along_axis(rows, which[None, ..., None], axis=0)[0],
            "box": _cutout_box(strength, uniform[..., 2:], size),
        }

    def apply(self, image: Array, draws: Draws) -> Array:
        xp, shape = array_namespace(image), image.shape
        chosen = [OPERATIONS[name] for name in self._names]

        def change(image: Array, which: Array, matrix: Array, box: Array) -> Array:
            how = image, self.magnitude / 10, matrix, box
            run = [partial(operation, *how) for operation in chosen]
            return xp.ensure_shape(xp.switch_case(which, run), shape)

        change = xp.function(change, autograph=False)  # traced once, however often it is called
        image = xp.cast(xp.round(image), xp.uint8)
        for i in range(self.number):
            image = change(image, draws["which"][i], draws["matrix"][i], draws["box"][i])
        return xp.cast(image, xp.float32)

    def __str__(self) -> str:
        chosen = "" if self.operations is None else f" of {', '.join(self.operations)}"
        count = counted(self.number, "operation")
        return f"RandAugment ({count}{chosen}, magnitude {self.magnitude:g})"


# --- colors, as Pillow computes them


def _gray(image: Array) -> Array:
    """Pillow's luma in integers, int32 `(height, width, 1)`."""
    xp = array_namespace(image)
    image = xp.cast(image, xp.int32)
    if image.shape[-1] == 1:
        return image
    weights = xp.constant((19595, 38470, 7471), xp.int32)
    return (xp.reduce_sum(image * weights, axis=-1, keepdims=True) + 0x8000) // 2**16


def _blend(degenerate: Array, image: Array, strength: float) -> Array:
    """Interpolates from the degenerate image (factor 0) to the image (1), and extrapolates."""
    xp = array_namespace(image)
    factor = strength * 1.8 + 0.1
    degenerate, image = xp.cast(degenerate, xp.float32), xp.cast(image, xp.float32)
    blended = degenerate + factor * (image - degenerate)
    return xp.cast(xp.clip_by_value(blended, 0.0, 255.0), xp.uint8)


def _contrast(image: Array, strength: float, *_: Array) -> Array:
    xp = array_namespace(image)
    # The released code divides the number of pixels by 256 here, by mistake for the mean gray.
    gray = _gray(image)
    mean = xp.reduce_sum(xp.cast(gray, xp.int64)) / xp.size(gray, xp.int64)
    return _blend(xp.floor(mean + 0.5), image, strength)


def _sharpness(image: Array, strength: float, *_: Array) -> Array:
    xp = array_namespace(image)
    pixels = xp.cast(image, xp.float32)
    # Pillow's SMOOTH: ones around a five, over 13; the border stays as it is.
    rows = pixels[:-2] + pixels[1:-1] + pixels[2:]
    around = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]
    smooth = xp.floor((around + 4 * pixels[1:-1, 1:-1]) / 13 + 0.5)
    margin = ((1, 1), (1, 1), (0, 0))
    inside = xp.pad(xp.ones_like(smooth, xp.bool), margin)
    return _blend(xp.where(inside, xp.pad(smooth, margin), pixels), image, strength)


def _look_up(image: Array, tables: Array) -> Array:
    """Replaces every level by its entry in the table of its channel, `(channels, 256)`."""
    xp = array_namespace(image)
    channels = image.shape[-1]
    places = xp.cast(image, xp.int32) + 256 * xp.range(channels)
    return xp.gather(xp.reshape(xp.cast(tables, xp.uint8), (-1,)), places)


def _autocontrast(image: Array, *_: Any) -> Array:
    xp = array_namespace(image)
    low = xp.cast(xp.reduce_min(image, axis=(0, 1)), xp.float64)[:, None]
    high = xp.cast(xp.reduce_max(image, axis=(0, 1)), xp.float64)[:, None]
    levels = xp.range(256, dtype=xp.float64)
    scale = 255.0 / xp.maximum(high - low, 1.0)
    stretched = xp.clip_by_value(levels * scale - low * scale, 0.0, 255.0)
    return _look_up(image, xp.where(high > low, stretched, levels))


def _equalize(image: Array, *_: Any) -> Array:
    xp = array_namespace(image)
    channels = image.shape[-1]
    places = xp.cast(image, xp.int32) + 256 * xp.range(channels)
    counts = xp.math.bincount(xp.reshape(places, (-1,)), minlength=256 * channels)
    counts = xp.reshape(counts[: 256 * channels], (channels, 256))
    highest = xp.cast(xp.reduce_max(image, axis=(0, 1)), xp.int32)
    of_highest = xp.gather(counts, highest[:, None], batch_dims=1)
    step = (xp.reduce_sum(counts, axis=1, keepdims=True) - of_highest) // 255
    below = xp.cumsum(counts, axis=1) - counts
    tables = xp.minimum((below + step // 2) // xp.maximum(step, 1), 255)
    return _look_up(image, xp.where(step > 0, tables, xp.range(256)))


def _posterize(image: Array, strength: float, *_: Array) -> Array:
    bits = min(int(strength * 4), 8)
    return image & ((0xFF << (8 - bits)) & 0xFF)


def _solarize(image: Array, strength: float, *_: Array) -> Array:
    xp = array_namespace(image)
    threshold = int(strength * 256)
    return image if threshold > 255 else xp.where(image < threshold, image, 255 - image)


def _solarize_add(image: Array, strength: float, *_: Array) -> Array:
    xp = array_namespace(image)
    brighter = xp.minimum(xp.cast(image, xp.int32) + int(strength * 110), 255)
    return xp.where(image < 128, xp.cast(brighter, xp.uint8), image)


# --- geometry, with nearest-neighbor interpolation as released


def _move(image: Array, _: float, matrix: Array, *__: Array) -> Array:
    return transform(image, matrix, "NEAREST", _GRAY)


def _rotation(strength: np.ndarray, height: int, width: int) -> np.ndarray:
    angle = np.radians(30 * strength)
    cos, sin = np.cos(angle), np.sin(angle)
    x, y = (width - 1) / 2, (height - 1) / 2
    return matrix_rows(cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y)


# (strength to either side, height, width) -> a matrix for each.
MOVES: dict[str, Callable[[np.ndarray, int, int], np.ndarray]] = {
    "rotate": _rotation,
    "shear_x": lambda strength, *_: matrix_rows(1, 0.3 * strength, 0, 0, 1, 0),
    "shear_y": lambda strength, *_: matrix_rows(1, 0, 0, 0.3 * strength, 1, 0),
    "translate_x": lambda s, _, width: matrix_rows(1, 0, 100 / _SIDE * width * s, 0, 1, 0),
    "translate_y": lambda s, height, _: matrix_rows(1, 0, 0, 0, 1, 100 / _SIDE * height * s),
}


def _cutout_box(strength: float, place: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return a box of up to 80 of 224 pixels around a point that may lie at the border."""
    half = np.array([int(40 / _SIDE * side * strength) for side in size])
    center = np.floor(place * np.array(size))
    return np.concatenate([center - half, center + half], axis=-1).astype("float32")


def _cutout(image: Array, _: float, __: Array, box: Array) -> Array:
    inside = box_mask(box[:2], box[2:], image.shape[:2])
    return array_namespace(image).where(inside, np.uint8(_GRAY), image)


# (image, strength, matrix, box) -> image: strength is magnitude / 10.
OPERATIONS: dict[str, Callable[..., Any]] = {
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "invert": lambda image, *_: 255 - image,
    "posterize": _posterize,
    "solarize": _solarize,
    "solarize_add": _solarize_add,
    "color": lambda image, strength, *_: _blend(_gray(image), image, strength),
    "contrast": _contrast,
    "brightness": lambda image, strength, *_: _blend(0.0, image, strength),
    "sharpness": _sharpness,
    **dict.fromkeys(MOVES, _move),
    "cutout": _cutout,
}
