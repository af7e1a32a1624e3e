"""Photographs and models for the commands, and the tables that they write."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from keras_vit.tasks import Classification
from tests import bank

COLORS = ("green", "red")


def color_photos(folder: Path, count: int, size: tuple[int, int] = (20, 24)) -> Path:
    """JPEG files of two classes that differ by color."""
    random = np.random.default_rng(0)
    for channel, name in enumerate(COLORS):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = random.integers(0, 60, (*size, 3)).astype("uint8")
            pixels[..., 1 - channel] += 150
            Image.fromarray(pixels).save(folder / name / f"{i}.jpg")
    return folder


def save_tiny(file: str | Path, **changes: Any) -> Path:
    """The file of a tiny ViT with weights that are not zero, by default of the two colors."""
    if "num_classes" not in changes:
        changes = {"task": Classification(COLORS), **changes}
        changes["num_classes"] = changes["task"].outputs
    bank.tiny(**changes).save(file)
    return Path(file)


def rows_of(file: str | Path) -> list[dict[str, str]]:
    with Path(file).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, strict=True))
