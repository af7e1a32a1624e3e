"""A contact sheet: images with three lines each, the answer, the truth and the file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._base.figures import new_figure
from keras_vit_cli.report.shortening import fits_in, shorten

TILE = 2.0  # inches: width of an image
SOFT, FAINT = "0.4", "0.94"  # grays of what stands back: notes, and the tiles behind images
# The fonts of the lines.
ANSWER, TRUTH, FILE = {"size": 10, "weight": "bold"}, {"size": 10}, {"size": 9}


def draw_contact_sheet(
    heading: str,
    images: Sequence[np.ndarray],
    lines: Sequence[tuple[str, str, str]],
    columns: int = 3,
    tile: float = TILE,
) -> Any:
    """Images as a matplotlib Figure: above each the answer and the truth, below it the file.

    Args:
        heading: What they are.
        images: uint8 `(height, width, 1 or 3)`, at least one.
        lines: Answer, truth and file of each; a line that is wider than its image loses its middle.
        columns: Images per row, at most.
        tile: The width of an image, in inches.
    """
    rows = -(-len(images) // columns)
    columns = max(-(-len(images) // rows), 2)  # rows of equal length; the heading needs two
    figure = new_figure(tile * columns, (tile + 0.6) * rows + 0.5)
    figure.suptitle(f"{heading}\n(bold: prediction)", fontsize=11)
    cells = figure.subplots(rows, columns, squeeze=False)
    for axes in cells.flat:
        axes.set(xticks=[], yticks=[], facecolor=FAINT, aspect="equal")
        axes.spines[:].set_visible(False)
    for axes in cells.flat[len(images) :]:
        axes.set_visible(False)
    for axes, image, (answer, truth, file) in zip(cells.flat, images, lines, strict=False):
        _show_in_square(axes, image)
        # Points above the image, or below it.
        _write(axes, (1, 19), answer, tile, ANSWER)
        _write(axes, (1, 5), truth, tile, TRUTH)
        _write(axes, (0, -13), file, tile, FILE, SOFT)
    return figure


def room(tile: float = TILE) -> float:
    """The width of a line above or below an image, in points."""
    return 72 * tile - 14


def _write(
    axes: Any,
    position: tuple[int, int],
    text: str,
    tile: float,
    font: dict[str, Any],
    color: str = "black",
) -> None:
    edge, offset = position
    axes.annotate(
        shorten(text, fits_in(room(tile), font)),
        (0.5, edge),
        (0, offset),  # of the baseline: the height of a line depends on the letters in it
        xycoords="axes fraction",
        textcoords="offset points",
        ha="center",
        parse_math=False,
        color=color,
        **font,
    )


def _show_in_square(axes: Any, image: np.ndarray) -> None:
    """An image in the middle of a square, so that titles stand at one height whatever its shape."""
    height, width = image.shape[:2]
    # A digit of 8 x 8 pixels should show its pixels, not a blur.
    interpolation = "nearest" if max(height, width) < 64 else None
    axes.imshow(image, "gray", interpolation=interpolation, vmin=0, vmax=255)
    half = max(height, width) / 2
    x, y = width / 2 - 0.5, height / 2 - 0.5  # pixels have their centers at integers
    axes.set(xlim=(x - half, x + half), ylim=(y + half, y - half))


def file_text(index: int, file: str | None) -> str:
    """A file with its folder, or the number of an image in its split where there are no files."""
    return f"image {index}" if file is None else "/".join(Path(file).parts[-2:])
