"""Warnings of images and labels in another range (0..1, 16 levels, 12 bits), with the fix.

A model cannot see that its images were scaled twice, or hold another unit: it trains, and its
accuracy falls to chance. So the first batch is looked at, and one warning names what is seen, what
is wanted and the fix. NaN and infinity are errors: they would be the loss, and then the weights.

Unnecessary from Keras: none yet. It takes values of any range.
"""

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from keras_vit._base.errors import warn_of_data

MOST_IMAGES = 32  # that are looked at, of a batch or an array

# Images that differ by less than this many of 256 levels are too dark or too flat to be right. A
# few may be: so many have to agree, of which none is of one color alone.
NARROW, NARROW_IMAGES = 16, 4
# How far resizing by cubic or Lanczos curves may leave 0..255, as a part of the brightest pixel.
OVERSHOOT = 0.25
# Normalized images seldom leave -3..3; a bright point in a dark image may.
MOST_NORMALIZED, NORMALIZED_INTEGER = 30, 6
# Of channels in a range of their own, in standard deviations: how far the mean of a batch may be
# away, as bright points may be farther; and the contrast below which images are flat, or, where no
# pixel is on the other side of the mean, were scaled.
FAR, FLAT, SCALED = 20, 0.05, 1
# Rounding of labels in half precision.
LABEL_TOLERANCE = 1e-2


@dataclass(frozen=True)
class PixelRange:
    """Values that are not what a model takes.

    Attributes:
        name: What such images are, after "they look".
    """

    low: float
    high: float
    name: str
    fix: str
    widest: float = inf


# For a model that takes pixels 0..255; the first row that holds all that is seen.
NOT_PIXELS: tuple[PixelRange, ...] = (
    PixelRange(
        0,
        1,
        "scaled to 0..1",
        "multiply them by 255, as keras.layers.Rescaling(255) does "
        "(include_preprocessing=False would take [-1, 1])",
    ),
    PixelRange(
        0,
        16,
        "counted in 16 levels, as scikit-learn's digits are",
        "give keras.layers.Rescaling(255 / 16)(images)",
    ),
    PixelRange(
        -1,
        1,
        "scaled to -1..1",
        "build the model with include_preprocessing=False, which takes them as they are, or give "
        "keras.layers.Rescaling(127.5, offset=127.5)(images)",
    ),
    PixelRange(
        -6,
        6,
        "normalized by a mean and a standard deviation (ImageNet's give -2.1 to 2.6)",
        "leave that out, as the model normalizes pixels itself, or build it with "
        "include_preprocessing=False, which takes them as they are",
    ),
    PixelRange(
        0,
        255,
        f"flat: they differ by no more than {NARROW} of 256 levels",
        "look whether they were divided or cast on their way, and stretch them to 0..255 with "
        "keras.layers.Rescaling(scale, offset)",
        NARROW,
    ),
    PixelRange(
        -160,
        160,
        "centered: a mean was subtracted",
        "leave that out, or add it again: keras.layers.Rescaling(1, offset=128)(images) where it "
        "was 128",
    ),
    PixelRange(
        0,
        4095,
        "stored in 12 bits, or dark ones in 16",
        "give keras.layers.Rescaling(255 / 4095)(images), with the value of white for 4095",
    ),
    PixelRange(
        0,
        65535,
        "stored in 16 bits",
        "give keras.layers.Rescaling(255 / 65535)(images), with the value of white for 65535",
    ),
    PixelRange(
        -32768,
        32767,
        "measured in Hounsfield units or another scale with a sign",
        "choose the window that matters and give np.clip((images - low) / (high - low), 0, 1) * "
        "255, such as low, high = -160, 240 for soft tissue",
    ),
    PixelRange(
        -inf,
        inf,
        "measured in a scale of their own",
        "scale them to 0..255: keras.layers.Rescaling",
    ),
)

# For a model with include_preprocessing=False.
NOT_NORMALIZED: tuple[PixelRange, ...] = (
    PixelRange(
        0,
        255 * (1 + OVERSHOOT),
        "like pixels 0..255",
        "build the model with include_preprocessing=True, which takes them, or normalize them: "
        "keras.layers.Rescaling(1 / 127.5, offset=-1)(images) for [-1, 1]",
    ),
    PixelRange(
        -inf,
        inf,
        "not normalized",
        "normalize them as the weights' authors do, to [-1, 1] or by mean and standard deviation",
    ),
)


def check_pixels(
    images: Any,
    model_name: str,
    normalized: bool = False,
    warned: set[str] | None = None,
    statistics: Any = None,
    axis: int = -1,
) -> bool:
    """Looks at the first images of a batch, and warns of values that the model does not take.

    Args:
        images: Array `(batch, height, width, channels)` of any dtype, on the host.
        normalized: Whether the model takes normalized images; otherwise pixels 0..255.
        warned: What was warned of before, which is not again; added to.
        statistics: The means and standard deviations of channels that have a range of their own, as
            `Spec.statistics` has; None for pixels 0..255 or normalized images.
        axis: Of the channels, where they have statistics: 1 for channels first.

    Returns:
        Whether the images show their range: those of one color each, such as a batch of zeros, do
        not.

    Raises:
        ValueError: A value is NaN or infinite.
    """
    images = np.asarray(images)[:MOST_IMAGES]
    if not images.size or images.dtype.kind not in "biufV":  # V: bfloat16 of ml_dtypes
        return False
    if statistics is not None and images.shape[axis] != len(statistics[0]):
        return False
    rows = images.reshape(len(images), -1).astype("float32")
    lows, highs = rows.min(axis=1), rows.max(axis=1)  # NaN where one is
    _check_finite(rows, lows, highs, model_name)
    low, high, colorful = float(lows.min()), float(highs.max()), int((lows < highs).sum())
    if statistics is not None:
        images = np.moveaxis(images, axis, -1)
        if channels := _not_in_own_range(images, colorful, statistics):
            warn_once(
                f"The images range from {_number(low)} to {_number(high)}, and the channels of the "
                f"images that {model_name} is for have these means and standard deviations: "
                f"{channels}. Give the images in the range of their files, neither scaled nor "
                "normalized, and the bands in the same order.",
                "in a range of their own",
                warned,
            )
    elif (row := _not_as_taken(low, high, colorful, images.dtype, normalized)) is not None:
        takes = "normalized images, about -3 to 3" if normalized else "pixels from 0 to 255"
        warn_once(
            f"The images range from {_number(low)} to {_number(high)}, and {model_name} takes "
            f"{takes}. They look {row.name}: {row.fix}.",
            row.name,
            warned,
        )
    return colorful > 0


def _not_in_own_range(images: np.ndarray, colorful: int, statistics: Any) -> str:
    """Return the channel statistics if these images are not in the range they are for, or ""."""
    means, stds = np.array(statistics, "float32")
    normalized = (images.astype("float32") - means) / stds
    low, high = float(normalized.min()), float(normalized.max())
    is_scaled = high - low < (SCALED if low > 0 or high < 0 else FLAT)
    is_far = float(np.abs(normalized.mean(axis=(0, 1, 2))).max()) > FAR
    if not (is_far or (is_scaled and colorful >= NARROW_IMAGES)):
        return ""
    return "; ".join(f"{m:.4g} and {s:.4g}" for m, s in zip(means[:5], stds[:5], strict=True))


def _not_as_taken(
    low: float, high: float, colorful: int, dtype: Any, normalized: bool
) -> PixelRange | None:
    """Return the table's row for images unlike those the model takes; None if they fit.

    `colorful` is the number of images that are not of one color alone.
    """
    if normalized:
        most = NORMALIZED_INTEGER if dtype == np.uint8 else MOST_NORMALIZED
        fits, table = low >= -MOST_NORMALIZED and high <= most, NOT_NORMALIZED
    else:
        resized = dtype.kind not in "iu" and high > NARROW
        below, above = (OVERSHOOT * high, OVERSHOOT * 255) if resized else (0, 0)
        is_narrow = high - low <= NARROW and colorful >= (1 if high <= 1 else NARROW_IMAGES)
        # Bytes are pixels, as dark as they may be.
        is_inside = -below <= low and high <= 255 + above
        fits, table = is_inside and (dtype == np.uint8 or not is_narrow), NOT_PIXELS
    if fits:
        return None
    return next(
        row for row in table if row.low <= low and high <= row.high and high - low <= row.widest
    )


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _check_finite(rows: Any, lows: Any, highs: Any, model_name: str) -> None:
    bad = ~(np.isfinite(lows) & np.isfinite(highs))
    if not bad.any():
        return
    number = int(bad.argmax())
    values = rows[number]
    value = values[~np.isfinite(values)][0]
    raise ValueError(
        f"The images hold {value}, first in image {number} of the batch, and {model_name} takes "
        "finite numbers alone: its outputs would be NaN, and training would destroy its weights. "
        "Look for a division by zero, such as an empty image divided by its maximum, or replace "
        "missing values: np.nan_to_num(images)."
    )


def check_label_rows(labels: Any, loss_name: str, warned: set[str] | None = None) -> None:
    """Warns of one-hot or multi-hot labels outside 0..1, of which a crossentropy makes no sense.

    Args:
        labels: Array `(batch, classes)` on the host; label smoothing and mixup stay within 0..1.

    Raises:
        ValueError: A value is NaN or infinite.
    """
    labels = np.asarray(labels)
    if not labels.size or labels.dtype.kind not in "biufV":
        return
    low, high = float(labels.min()), float(labels.max())
    if not np.isfinite([low, high]).all():
        raise ValueError(
            f"The labels hold {low if not np.isfinite(low) else high}, and {loss_name} takes "
            "numbers from 0 to 1. Leave such examples out, or give them a label and a "
            "sample_weight of 0."
        )
    if low < -LABEL_TOLERANCE or high > 1 + LABEL_TOLERANCE:
        warn_once(
            f"The labels range from {low:.3g} to {high:.3g}, and {loss_name} takes 0 to 1 for each "
            "class: give (labels + 1) / 2 for labels -1 and 1, labels > 0 for counts, and a "
            "sample_weight of 0 for labels that are not known.",
            "labels",
            warned,
        )


def warn_once(message: str, kind: str, warned: set[str] | None) -> None:
    """Warns of data, once per kind."""
    if warned is not None:
        if kind in warned:
            return
        warned.add(kind)
    warn_of_data(message)
