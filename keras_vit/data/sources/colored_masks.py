"""Masks whose colors are the classes, with a table of the colors beside, as CVAT writes them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_vit._base.errors import listed, printable
from keras_vit.data.data_errors import BadImageError
from keras_vit.data.decode.image_files import decode_array, read_contents
from keras_vit.data.sources.listings import read_text
from keras_vit.tasks.class_colors import Color
from keras_vit.tasks.pixel_losses import IGNORED

# CVAT's and Datumaro's, of lines such as "cat:250,50,83::"; and of name,r,g,b.
TABLES = ("labelmap.txt", "class_dict.csv")
_BORDER = (224, 224, 192)  # of PASCAL VOC's objects, whose class is not known


class ColorTable(NamedTuple):
    """The names of classes with their colors, in the order of the file, and their numbers."""

    file: Path
    names: tuple[str, ...]
    colors: tuple[Color, ...]
    numbers: tuple[int, ...]

    def of_classes(self, names: Sequence[str]) -> ColorTable:
        """Return the table with the numbers that classes have by their names.

        Raises:
            ValueError: It has another class.
        """
        if others := [name for name in self.names if name not in names]:
            raise ValueError(
                f"{printable(self.file)} has {printable(listed(others))}, and the classes are "
                f"{printable(listed(list(names)))}: write the same names."
            )
        return self._replace(numbers=tuple(map(list(names).index, self.names)))

    @property
    def is_gray(self) -> bool:
        """Whether all colors are shades of gray."""
        return all(len(set(color)) == 1 for color in self.colors)

    @property
    def palette(self) -> list[int]:
        """The levels of all colors in a row, by the number of the class; none without one's."""
        order = sorted(range(len(self.numbers)), key=self.numbers.__getitem__)
        whole = [self.numbers[i] for i in order] == list(range(len(order)))
        return [level for i in order for level in self.colors[i]] if whole else []


class ColoredMask(NamedTuple):
    """A PNG file whose colors are those of a table."""

    file: Path
    table: ColorTable
    max_pixels: int | None

    def class_map(self) -> np.ndarray:
        """Return the number of the class in each pixel, int32 `(height, width)`.

        Raises:
            BadImageError: The file does not decode, or has a color that is not in the table.
        """
        codes = _codes(decode_array(read_contents(self.file), 3, self.max_pixels))
        known = _codes(np.array([*self.table.colors, _BORDER]))
        numbers = np.array([*self.table.numbers, IGNORED], np.int32)
        order = np.argsort(known, kind="stable")  # a class may have the color of borders
        place = np.searchsorted(known[order], codes).clip(max=len(known) - 1)
        if (odd := codes[known[order][place] != codes]).size:
            red, green, blue = odd[0] >> 16, odd[0] >> 8 & 255, odd[0] & 255
            raise BadImageError(
                f"has the color {red},{green},{blue}, which is not in {self.table.file.name}"
            )
        return numbers[order][place]


def color_table(masks: Path) -> ColorTable | None:
    """Return the table of colors in a folder of masks, or beside it; None without one.

    Raises:
        ValueError: It does not have a name and three numbers of 0 to 255 in each line, two of its
            colors or names are one, or there is one class.
    """
    places = [folder / name for folder in (masks, masks.parent) for name in TABLES]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        return None
    lines = [line for line in read_text(file, "the table of colors").splitlines() if line.strip()]
    if file.name == TABLES[0]:
        cells = [line.split(":") for line in lines if not line.startswith("#")]
        rows = [[row[0], *"".join(row[1:2]).split(",")] for row in cells]
    else:
        rows = list(csv.reader(lines, skipinitialspace=True))[1:]
    try:
        colors = [tuple(map(int, row[1:4])) for row in rows]
    except ValueError:
        colors = [()]
    names = [row[0].strip() for row in rows]
    if (
        not all(len(c) == 3 and min(c) >= 0 and max(c) <= 255 for c in colors)
        or not len(set(colors)) == len(set(names)) == len(rows) > 1
    ):
        raise ValueError(
            f"{printable(file)} is not a table of the masks' colors: give two classes or more, "
            "each with its name, red, green and blue from 0 to 255, such as cat:250,50,83::, and "
            "no name or color twice; or move it elsewhere, if masks have numbers."
        )
    levels = tuple((c[0], c[1], c[2]) for c in colors)
    return ColorTable(file, tuple(names), levels, tuple(range(len(names))))


def _codes(colors: np.ndarray) -> np.ndarray:
    """Return a number for each color, of `(..., 3)`."""
    return colors.astype(np.int32) @ np.array([1 << 16, 1 << 8, 1], np.int32)
