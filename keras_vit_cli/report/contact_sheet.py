"""A contact sheet: images with three lines each, the answer, the truth and the file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._base.figures import new_figure
from keras_vit_cli.report.shortening import fits_in, shorten, shorten_apart

TILE = 3.0  # inches: width of an image
ROOM = 72 * TILE - 24  # points: width of a line above or below it
SOFT, FAINT = "0.4", "0.94"  # grays of what stands back: notes, and the tiles behind images
# The fonts of the lines.
ANSWER, TRUTH, FILE = {"size": 10, "weight": "bold"}, {"size": 10}, {"size": 9}


def draw_contact_sheet(
    heading: str,
    images: Sequence[np.ndarray],
    lines: Sequence[tuple[str, str, str]],
) -> Any:
    """Return images as a matplotlib Figure: above each the answer and the truth, below it the file.

    Args:
        images: uint8 `(height, width, 1 or 3)`; without any, the figure says so.
        lines: Answer, truth and file of each. A line that is wider than its image loses its middle,
            and of two long names the part in which they differ stays.
    """
    if not images:
        figure = new_figure(4, 3)
        figure.text(0.5, 0.5, "no mistakes", ha="center", va="center", fontsize=12)
        return figure
    columns, rows = 2, -(-len(images) // 2)
    figure = new_figure(TILE * columns, (TILE + 0.7) * rows + 0.5)
    figure.suptitle(f"{heading}\n(bold: prediction)", fontsize=11)
    cells = figure.subplots(rows, columns, squeeze=False)
    for axes in cells.flat:
        axes.set(xticks=[], yticks=[], facecolor=FAINT, aspect="equal")
        axes.spines[:].set_visible(False)
    for axes in cells.flat[len(images) :]:
        axes.set_visible(False)
    for axes, image, (answer, truth, file) in zip(cells.flat, images, lines, strict=False):
        _show_in_square(axes, image)
        name, bracket, share = answer.rpartition(" (")  # of a probability, if there is one
        after, before = bracket + share if bracket else "", "true: "
        fits = [fits_in(ROOM, ANSWER, after=after), fits_in(ROOM, TRUTH, before=before)]
        name, truth = shorten_apart([name if bracket else answer, truth], fits)
        # Points above the image, or below it.
        _write(axes, (1, 19), name + after, ANSWER)
        _write(axes, (1, 5), before + truth, TRUTH)
        _write(axes, (0, -13), shorten(file, fits_in(ROOM, FILE)), FILE, SOFT)
    return figure


def _write(
    axes: Any,
    position: tuple[int, int],
    text: str,
    font: dict[str, Any],
    color: str = "black",
) -> None:
    edge, offset = position
    axes.annotate(
        text,
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
    """Draw an image in the middle of a square, so that all titles have the same height."""
    height, width = image.shape[:2]
    # A digit of 8 x 8 pixels should show its pixels, not a blur.
    interpolation = "nearest" if max(height, width) < 64 else None
    axes.imshow(image, "gray", interpolation=interpolation, vmin=0, vmax=255)
    half = max(height, width) / 2
    x, y = width / 2 - 0.5, height / 2 - 0.5  # pixels have their centers at integers
    axes.set(xlim=(x - half, x + half), ylim=(y + half, y - half))


def file_text(index: int, file: str | None) -> str:
    """Return a file with its folder, or an image's number in its split if there are no files."""
    return f"image {index}" if file is None else "/".join(Path(file).parts[-2:])
