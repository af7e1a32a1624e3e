"""How images are resized and cropped, as three packages write it: ours, Hugging Face's and timm's.

`eval_transform` of a model, `preprocessor_config.json` of transformers and `pretrained_cfg` of timm
are each read into a `Preparation` and written from it.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keras_vit.data.eval_transform import (
    CROP_FRACTION,
    INTERPOLATIONS,
    PILLOW_MODES,
    EvalTransform,
)
from keras_vit.data.preprocessing import scaled_sides
from keras_vit.data.resizing import PixelSize

# Pillow's numbers, which transformers writes.
RESAMPLE = {"lanczos": 1, "bilinear": 2, "bicubic": 3}
LARGEST_SIDE = 2**13


@dataclass(frozen=True)
class Preparation:
    """A resize by Pillow, with antialiasing, and a central crop.

    Attributes:
        keeps_ratio: Whether the small side is resized and the long side follows; else both are.
        size: Height and width after the crop.
        crop_fraction: The part of the resized sides that the crop keeps.
        interpolation: `"bilinear"`, `"bicubic"` or `"lanczos"`.
    """

    keeps_ratio: bool
    size: PixelSize
    crop_fraction: float
    interpolation: str

    @property
    def scaled(self) -> PixelSize:
        """Height and width that images are resized to before the crop."""
        return scaled_sides(self.size, self.crop_fraction)

    def to_eval_transform(self, package: str) -> EvalTransform:
        """Return the `eval_transform` of a model that prepares images as `package` does."""
        cropping, stretching = {
            "huggingface": ("huggingface_crop", "huggingface_stretch"),
            "timm": ("timm_center", "timm_squash"),
        }[package]
        return EvalTransform(
            mode=cropping if self.keeps_ratio else stretching,
            crop_fraction=self.crop_fraction,
            interpolation=self.interpolation,
            decoder="pillow",  # both packages open files with it
        )


def of_eval_transform(transform: EvalTransform, size: PixelSize) -> Preparation:
    """Return what Pillow can compute of an `eval_transform`; warns of what it cannot."""
    mode, fraction = transform.mode, transform.crop_fraction
    if mode in PILLOW_MODES:
        interpolation = transform.interpolation or "bicubic"
        return Preparation(PILLOW_MODES[mode].keeps_ratio, size, fraction, interpolation)
    if mode == "stretch_bicubic":
        return Preparation(False, size, 1.0, "bicubic")
    if mode == "stretch":
        _warn(mode, "it resizes without antialiasing, which Pillow always has")
        return Preparation(False, size, 1.0, "bilinear")
    if mode == "big_vision":
        _warn(mode, "it averages over areas, which Pillow does not")
    # These modes round where Pillow's round down: 224 / 0.9 is 249 here.
    rounded = (round(size[0] / fraction), round(size[1] / fraction))
    if scaled_sides(size, fraction) != rounded:
        fraction = size[0] / rounded[0]
    return Preparation(True, size, fraction, "bilinear")


def _warn(mode: str, reason: str) -> None:
    warnings.warn(
        f"eval_transform mode {mode!r} cannot be expressed in this folder: {reason}. Images are "
        "resized bilinearly with antialiasing there, so that the pixels differ and some classes "
        "may. For the same pixels on both sides, set model.eval_transform = "
        "keras_vit.weights.folder_transform(model, layout).",
        stacklevel=2,
    )


def to_huggingface(preparation: Preparation) -> dict[str, Any]:
    """Return the part of `preprocessor_config.json` that resizes and crops."""
    (height, width), (scaled_height, scaled_width) = preparation.size, preparation.scaled
    keeps_ratio = preparation.keeps_ratio
    if keeps_ratio and height != width:
        warnings.warn(
            f"transformers crops to {height} x {width} pixels only after a resize of the small "
            "side, which does not fit every image: in this folder, images are resized to that size "
            "without a crop, and their aspect ratio changes.",
            stacklevel=2,
        )
        keeps_ratio, scaled_height, scaled_width = False, height, width
    crops = keeps_ratio or (scaled_height, scaled_width) != (height, width)
    resize = (
        {"shortest_edge": scaled_height}
        if keeps_ratio
        else {"height": scaled_height, "width": scaled_width}
    )
    # That of ViT ignores crops before transformers 5.
    kind = (
        "BitImageProcessor"
        if keeps_ratio
        else "DeiTImageProcessor"
        if crops
        else "ViTImageProcessor"
    )
    config: dict[str, Any] = {
        "image_processor_type": kind,
        "do_resize": True,
        "size": resize,
        "resample": RESAMPLE[preparation.interpolation],
    }
    if crops:
        config |= {"do_center_crop": True, "crop_size": {"height": height, "width": width}}
    return config


def of_huggingface(processor: Mapping[str, Any]) -> Preparation | None:
    """Return the preparation of a `preprocessor_config.json`; None if it cannot be expressed."""
    kind = str(processor.get("image_processor_type") or processor.get("feature_extractor_type"))
    filters = {number: name for name, number in RESAMPLE.items()}
    default = RESAMPLE["bilinear" if kind.startswith("ViT") else "bicubic"]
    resample = processor.get("resample", default)
    interpolation = filters.get(resample) if isinstance(resample, int) else None
    size, crop = processor.get("size"), processor.get("crop_size")
    if isinstance(size, int):  # of versions before 4.26
        is_square = kind.startswith(("ViT", "DeiT", "Beit", "DPT"))
        size = {"height": size, "width": size} if is_square else {"shortest_edge": size}
    if isinstance(crop, int):
        crop = {"height": crop, "width": crop}
    if not processor.get("do_resize", True) or interpolation is None or "crop_pct" in processor:
        return None
    if not isinstance(size, dict) or not isinstance(crop, dict | None):
        return None
    edge = size.get("shortest_edge")
    scaled = _size(size.get("height", edge), size.get("width", edge))
    cropped = scaled if edge is None else None
    if crop is not None and processor.get("do_center_crop", True):
        cropped = _size(crop.get("height"), crop.get("width"))
    if scaled is None or cropped is None or (edge is not None and cropped[0] != cropped[1]):
        return None
    return _preparation(edge is not None, cropped, cropped[0] / scaled[0], interpolation, scaled)


def to_timm(preparation: Preparation) -> dict[str, Any]:
    """Return the part of timm's `pretrained_cfg` that resizes and crops."""
    size, scaled, fraction = preparation.size, preparation.scaled, preparation.crop_fraction
    # timm rounds size / crop_pct down, and so one unit less where the quotient is inexact.
    candidates = (fraction, round(fraction, 3), size[0] / (scaled[0] + 0.5))
    exact = [c for c in candidates if scaled == tuple(math.floor(side / c) for side in size)]
    return {
        "interpolation": preparation.interpolation,
        "crop_pct": exact[0] if exact else fraction,
        "crop_mode": "center" if preparation.keeps_ratio else "squash",
    }


def of_timm(pretrained_cfg: Mapping[str, Any]) -> Preparation | None:
    """Return the preparation of a timm `pretrained_cfg`; None if it cannot be expressed."""
    input_size = pretrained_cfg.get("input_size", (3, 224, 224))
    mode = pretrained_cfg.get("crop_mode") or "center"
    interpolation = pretrained_cfg.get("interpolation") or "bicubic"
    if not isinstance(input_size, list | tuple) or len(input_size) != 3:
        return None
    size = _size(*input_size[1:])
    fraction = pretrained_cfg.get("crop_pct") or CROP_FRACTION
    if size is None or mode not in ("center", "squash") or not isinstance(fraction, float | int):
        return None
    return _preparation(mode == "center", size, fraction, interpolation)


def _preparation(
    keeps_ratio: bool,
    size: PixelSize,
    fraction: float,
    interpolation: str,
    scaled: PixelSize | None = None,
) -> Preparation | None:
    """Return a preparation whose numbers are possible, and which gives `scaled`; else None."""
    if interpolation not in tuple(INTERPOLATIONS) or not 0 < fraction <= 1:
        return None
    preparation = Preparation(keeps_ratio, size, float(fraction), interpolation)
    return preparation if scaled in (None, preparation.scaled) else None


def _size(height: Any, width: Any) -> PixelSize | None:
    if all(type(side) is int and 0 < side <= LARGEST_SIDE for side in (height, width)):
        return height, width
    return None
