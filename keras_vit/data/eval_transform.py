"""How an image is brought to a model's size where nothing is random: `EvalTransform`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from numbers import Integral, Real
from typing import Any, NamedTuple

from keras_vit._base.errors import check_choice
from keras_vit.data.decode.decoder import DECODERS

CROP_FRACTION = 0.875  # 224 of 256: the part of the small side that the central crop keeps
VIEW_NAMES = ("one", "flip", "crops")  # keys of `keras_vit.models.views.VIEWS`


class PillowRule(NamedTuple):
    """How a package that prepares images with Pillow computes sizes.

    Attributes:
        keeps_ratio: Whether the aspect ratio stays, so that the crop cuts the long side.
        rounds_center: Where half a pixel is left, whether the crop begins at the nearest even
            pixel, as torchvision's does, or at the one above.
    """

    keeps_ratio: bool
    rounds_center: bool


PILLOW_MODES = {
    "timm_center": PillowRule(keeps_ratio=True, rounds_center=True),
    "timm_squash": PillowRule(keeps_ratio=False, rounds_center=True),
    "huggingface_crop": PillowRule(keeps_ratio=True, rounds_center=False),
    "huggingface_stretch": PillowRule(keeps_ratio=False, rounds_center=False),
}
MODES = ("crop", "stretch", "stretch_bicubic", "big_vision", *PILLOW_MODES)
# All of an image; the second ones where the crop is all of it.
STRETCHES, SQUASHES = ("stretch", "stretch_bicubic"), ("timm_squash", "huggingface_stretch")
BAND_MODES = ("crop", "stretch")  # the others round to 0..255, or clip
MOST_BANDS = 1024
NODATA = ("mean", "refuse")  # besides numbers
# Pillow's filters -> TensorFlow's methods.
INTERPOLATIONS = {"bilinear": "bilinear", "bicubic": "bicubic", "lanczos": "lanczos3"}


def check_bands(bands: Sequence[int]) -> tuple[int, ...]:
    """Return numbers of bands, as they are stored; a ValueError for what cannot be some.

    >>> check_bands([4, 3, 2])
    (4, 3, 2)
    """
    listed = list(bands) if isinstance(bands, Sequence) and not isinstance(bands, str) else []
    whole = all(isinstance(n, Integral) and 1 <= n <= MOST_BANDS for n in listed)
    if not listed or not whole or len(set(listed)) < len(listed):
        raise ValueError(
            f"bands={bands!r} must be different numbers from 1 to {MOST_BANDS}, as (4, 3, 2), "
            "which are the channels in this order: the first band of a file is 1."
        )
    return tuple(map(int, listed))


def check_nodata(nodata: Any, bands: Sequence[int] | str | None) -> Any:
    """Return how to fill pixels without a value, in its stored form; a ValueError if unknown.

    >>> check_nodata("mean", None), check_nodata("-1", "all"), check_nodata([2, 3], (4, 1))
    ('mean', -1.0, (2.0, 3.0))
    """
    if bands is None and nodata != "mean":
        raise ValueError(f"nodata={nodata!r} is for raster files: give bands= too.")
    if nodata in NODATA:
        return nodata
    try:
        one = isinstance(nodata, str | Real)
        numbers = tuple(float(value) for value in ([nodata] if one else nodata))
    except (TypeError, ValueError):
        numbers = ()
    fits = one or bands is None or bands == "all" or len(numbers) == len(bands)
    if not numbers or not fits or not all(map(isfinite, numbers)):
        raise ValueError(
            f"nodata={nodata!r} must be 'mean', which is that of each band over the training "
            "images, 'refuse', or the number to write where a raster file does not have a value, "
            "such as 0."
        )
    return numbers[0] if one else numbers


@dataclass(frozen=True)
class EvalTransform:
    """How an image file becomes the input of a model in evaluation and prediction.

    A model has one, `model.eval_transform`, which is saved with it and in its exported files.

    Attributes:
        mode: How the image is resized and cropped; see `keras_vit.data.evaluation_image`.
        crop_fraction: The part of the resized small side that the crop keeps, in (0, 1].
        interpolation: `"bilinear"`, `"bicubic"` or `"lanczos"`, of timm's and Hugging Face's
            modes; None for bicubic. The other modes have their own.
        decoder: `"tensorflow"` or `"pillow"`, for JPEG files; None for the backend's.
        views: What predictions are averaged over: `"one"`, `"flip"` or `"crops"`; None for one.
        bands: The bands of a raster file, counted from 1, that are the channels, in the file's own
            range: see `keras_vit.data.load`. None for photographs, gray or RGB, 0..255.
        nodata: What a model sees where a raster file does not have a value: `"mean"`, that of each
            band, which `model.eval_transform` has as numbers from the model's `normalization`;
            `"refuse"` for an error; or a number, or one for each band.

    Raises:
        ValueError: A name is unknown, the fraction out of range, or a band is not a number from 1
            on; or bands are resized in a mode that rounds to 0..255.

    Example:

    >>> from dataclasses import replace
    >>> from keras_vit.data import EvalTransform
    >>> replace(EvalTransform(mode="stretch"), views="flip").to_dict()
    {'mode': 'stretch', 'views': 'flip'}
    """

    mode: str = "crop"
    crop_fraction: float = CROP_FRACTION
    interpolation: str | None = None
    decoder: str | None = None
    views: str | None = None
    bands: tuple[int, ...] | None = None
    nodata: str | float | tuple[float, ...] = "mean"

    def __post_init__(self) -> None:
        check_choice(self.mode, "mode", MODES)
        check_choice(self.decoder, "decoder", (None, *DECODERS))
        check_choice(self.views, "views", (None, *VIEW_NAMES))
        if self.interpolation is not None:
            check_choice(self.interpolation, "interpolation", INTERPOLATIONS)
            check_choice(self.mode, "mode beside interpolation", PILLOW_MODES)
        if not 0 < self.crop_fraction <= 1:
            raise ValueError(
                f"crop_fraction={self.crop_fraction} must lie in (0, 1], for instance 0.875"
            )
        if self.bands is not None:
            object.__setattr__(self, "bands", check_bands(self.bands))
            check_choice(self.mode, "mode beside bands", BAND_MODES)
        object.__setattr__(self, "nodata", check_nodata(self.nodata, self.bands))

    @classmethod
    def of(cls, value: EvalTransform | str | Mapping[str, Any] | None) -> EvalTransform:
        """Return the transform that a mode, or the arguments as a dictionary, stand for.

        Raises:
            TypeError: A key is not an argument.
            ValueError: As for the class.

        Example:

        >>> from keras_vit.data import EvalTransform
        >>> EvalTransform.of({"crop_fraction": 0.9}).mode
        'crop'
        """
        if isinstance(value, EvalTransform):
            return value
        return cls(value) if isinstance(value, str) else cls(**(value or {}))

    @property
    def is_whole(self) -> bool:
        """Whether all of an image is seen."""
        return self.mode in STRETCHES or (self.mode in SQUASHES and self.crop_fraction == 1)

    @property
    def crops_long_side(self) -> bool:
        """Whether the aspect ratio stays, and a crop shows the center of the long side."""
        return self.mode not in (*STRETCHES, *SQUASHES)

    def check_whole(self, maps: str) -> None:
        """Raise a ValueError for what crops the border of images that have these maps."""
        if not self.is_whole:
            part = f" with crop_fraction={self.crop_fraction}" if self.mode in SQUASHES else ""
            raise ValueError(
                f"eval_transform={self.mode!r}{part} crops the border, which the maps of {maps} "
                "have: set model.eval_transform = 'stretch', or 'stretch_bicubic', or one of "
                f"{', '.join(SQUASHES)} with crop_fraction=1."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return what differs from the defaults, as it is saved."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("bands", "nodata"):  # as JSON has it
            values[name] = list(values[name]) if isinstance(values[name], tuple) else values[name]
        return {k: v for k, v in values.items() if v != getattr(EvalTransform, k)}
