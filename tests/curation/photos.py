"""Pictures with soft shapes, an index of them, and a tiny model."""

import hashlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from keras_vit.curation import FeatureIndex, PhotoMeasures
from keras_vit.curation.photo_sources import find_photos
from keras_vit.models import ImageModel
from tests.bank import TINY, fresh


def picture(seed: int, side: int = 64) -> Image.Image:
    """Soft shapes, another picture for each seed."""
    noise = np.random.default_rng(seed).integers(0, 256, (6, 8, 3)).astype("uint8")
    return Image.fromarray(noise).resize((side * 4 // 3, side), Image.Resampling.BICUBIC)


def grainy(image: Image.Image) -> Image.Image:
    pixels = np.asarray(image) + np.random.default_rng(0).normal(0, 20, np.asarray(image).shape)
    return Image.fromarray(pixels.clip(0, 255).astype("uint8"))


def blurred(image: Image.Image) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(4))


def tiny_model() -> ImageModel:
    return fresh(**TINY | {"patch_size": 4, "input_shape": (8, 8, 3)}, pooling="gap", filled=False)


def in_memory(features: np.ndarray) -> FeatureIndex:
    """An index of rows that were not computed, of photographs that are not there."""
    count = len(features)
    names = tuple(f"{i}.png" for i in range(count))
    labels, splits = np.zeros(count, np.int32), (None,) * count
    return FeatureIndex(Path(), features, names, labels, splits, labels, names, ("a",), {}, {})


def no_hashes(count: int) -> PhotoMeasures:
    """Those of photographs that are gone."""
    return PhotoMeasures(*[np.zeros(count, np.uint64)] * 6, failed={})


def index_of(folder: Path) -> FeatureIndex:
    """An index in memory, by few pixels in place of a model, which would be compiled for each."""
    names, given, splits = zip(*find_photos(folder).walk(), strict=True)
    classes = tuple(sorted({label for label in given if label}))
    labels = np.array([classes.index(label) if label else -1 for label in given], np.int32)
    images = [Image.open(folder / name).convert("RGB").resize((4, 4)) for name in names]
    rows = np.stack([np.asarray(image) for image in images]).reshape(len(names), -1)
    contents = [(folder / name).read_bytes() for name in names]
    sizes = np.array([len(each) for each in contents])
    sums = tuple(hashlib.sha256(each).hexdigest() for each in contents)
    info = {"photos": ".", "preparation": {"max_pixels": 10**6}, "weights": "none"}
    features = rows.astype("float32") - 128
    return FeatureIndex(folder, features, names, labels, splits, sizes, sums, classes, {}, info)
