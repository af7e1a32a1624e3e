"""A plot of augmented images: what the model sees in training."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._base.errors import check_positive, printable
from keras_vit._base.files import atomic_write, begins_with_mark
from keras_vit._base.fonts import without_glyph_warnings
from keras_vit._base.version import install_command
from keras_vit.data._imports import require
from keras_vit.data.augment.augment_layers import Augment, describe_augment, mixes, resolve_augment
from keras_vit.data.augment.augmentation import get_augmentation
from keras_vit.data.input_pipeline import pipeline
from keras_vit.data.sources.array_splits import DecodedSplit
from keras_vit.data.sources.splits import IndexedSplit, Split
from keras_vit.tasks import Regression, Segmentation, Task
from keras_vit.tasks.class_colors import color_table
from keras_vit.tasks.depth_colors import depth_colors, depth_range

MOST_PIXELS = 8000  # of a side: a hundred images in a hundred versions would be 300 megapixels
_SOFTWARE = "keras_vit augment"  # marks what this module wrote, in PNG's metadata


def plot_augmentations(
    split: Split,
    path: str | Path,
    image_size: int | tuple[int, int],
    *,
    augment: Augment | None = None,
    images: int = 6,
    versions: int = 7,
    seed: int = 0,
    channels: int = 3,
    overwrite: bool = False,
) -> None:
    """Plots images of a split, each beside its augmented versions in the first passes of training.

    Every row is one image: as evaluation prepares it, then as `pipeline` augments it in one pass
    after the other. Mixup and CutMix mix it with the row above, layers that mix with any row; the
    soft labels are the titles. Of a split of masks or maps, a row of these in colors is below.

    Args:
        split: one of `load(...)`; images are taken evenly from all of it.
        path: the file to write, .png, .pdf or another format of matplotlib.
        image_size: int or `(height, width)` of the model's images.
        augment: as in `pipeline`.
        images: number of rows.
        versions: augmented versions of each image.
        seed: as in `pipeline`.
        channels: 3, or 1 for gray.
        overwrite: replace a PNG file that this function wrote; never another one.

    Raises:
        ImportError: matplotlib is missing.
        ValueError: an argument out of range, an unknown name, or a path without the suffix of a
            format that matplotlib writes.
        FileExistsError: there is a folder, another file, or a plot and `overwrite` is False.

    Example:
        >>> import tempfile
        >>> from keras_vit.data import load
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     plot_augmentations(load("digits").train, f"{folder}/plot.png", 8, channels=1)
    """
    check_positive(images=images, versions=versions)
    figure_class = require("matplotlib.figure", install_command("plots")).Figure
    path = Path(path)
    _check_path(path, overwrite)
    count = min(images, len(split))
    places, task = np.linspace(0, len(split) - 1, count).astype(int), split.task
    chosen: Any
    if split.per_pixel and isinstance(split, IndexedSplit):  # whose maps are read, and moved, too
        chosen = split.take(places)
    else:
        chosen = DecodedSplit(split, channels, places)
    chosen.order = lambda *_: np.arange(len(chosen))  # so that a row shows one image
    augmentation, layers = resolve_augment(augment, get_augmentation(split.augment))
    mixed = augmentation.mixup or augmentation.cutmix or any(map(mixes, layers))
    classes = task.size if task.sums_to_one else None
    options: dict[str, Any] = {"channels": channels, "num_classes": classes}
    whole: dict[str, Any] = {"eval_transform": "stretch"} if split.per_pixel else {}
    originals = list(pipeline(chosen, image_size, count, **options, **whole).as_numpy_iterator())
    if not originals:
        raise ValueError(f"None of {count} images of {split!r} can be decoded. Check its files.")
    count = len(originals[0][0])  # files that cannot be decoded are skipped in every column
    options |= {"training": True, "seed": seed, "augment": [augmentation, *layers]}
    options["repeat"] = True
    augmented = pipeline(chosen, image_size, count, **options).as_numpy_iterator()
    columns = [*originals, *islice(augmented, versions)]
    rows_per_image = 1 + split.per_pixel
    size = (1.6 * len(columns), 1.8 * count * rows_per_image)
    dpi = min(100, MOST_PIXELS / max(size))
    figure = figure_class(figsize=size, layout="constrained", dpi=dpi)
    axes = figure.subplots(count * rows_per_image, len(columns), squeeze=False)
    for column, (pixels, labels) in enumerate(columns):
        for row in range(count):
            cell = axes[row * rows_per_image, column]
            shown = np.clip(pixels[row] / 255, 0, 1)
            cell.imshow(shown[..., 0] if channels == 1 else shown, cmap="gray", vmin=0, vmax=1)
            cell.set_axis_off()
            if split.per_pixel:
                below = axes[row * rows_per_image + 1, column]
                below.imshow(_in_colors(np.asarray(labels[row]), columns[0][1][row], task))
                below.set_axis_off()
            if column == 0 or mixed:
                title = printable(_title(labels[row], task))
                cell.set_title(title, fontsize=6, parse_math=False)
    title = printable(describe_augment(augmentation, layers))
    figure.suptitle(title, fontsize=7, wrap=True, parse_math=False)
    with atomic_write(path) as temporary, without_glyph_warnings():
        png = path.suffix.lower() == ".png"
        figure.savefig(temporary, metadata={"Software": _SOFTWARE} if png else None)


def _in_colors(label_map: np.ndarray, original: np.ndarray, task: Task) -> np.ndarray:
    """Return a mask or a map of depth in colors, which are those of the original's range."""
    if isinstance(task, Segmentation):
        return color_table(task.colors)[label_map]
    return depth_colors(label_map, *depth_range(np.asarray(original)))


def _check_path(path: Path, overwrite: bool) -> None:
    canvas = require("matplotlib.backend_bases", install_command("plots")).FigureCanvasBase
    if path.is_dir():
        raise FileExistsError(f"{printable(path)} is a folder: give a file, such as plot.png.")
    if path.suffix[1:].lower() not in canvas.filetypes:
        raise ValueError(
            f"{printable(path)} does not have the suffix of an image: give one of "
            f"{', '.join(sorted(canvas.filetypes))}, such as plot.png."
        )
    if not os.path.lexists(path):
        return
    if not begins_with_mark(path, b"Software\x00" + _SOFTWARE.encode()):
        raise FileExistsError(
            f"{printable(path)} exists, and is not a PNG file that keras_vit wrote: it is not "
            "replaced. Give another file."
        )
    if not overwrite:
        raise FileExistsError(f"{printable(path)} exists. Give another file, or overwrite=True.")


def _title(label: np.ndarray, task: Task) -> str:
    if isinstance(task, Regression):  # labels are scaled as outputs are
        return task.to_text(task.answers(label[None])[0])
    if task.per_pixel:
        return ""
    names = task.shown_names
    return names[label] if label.ndim == 0 else format_soft_label(label, names)


def format_soft_label(label: np.ndarray, names: tuple[str, ...]) -> str:
    """Return the classes of a soft label in percent, the largest first.

    Example:
        >>> format_soft_label(np.array([0.25, 0.0, 0.75]), ("rose", "tulip", "daisy"))
        'daisy 75 %, rose 25 %'
        >>> format_soft_label(np.array([0.0, 1.0, 0.0]), ("rose", "tulip", "daisy"))
        'tulip'
    """
    order = [i for i in np.argsort(-label, kind="stable") if round(100 * label[i])]
    if len(order) == 1:
        return names[order[0]]
    return ", ".join(f"{names[i]} {round(100 * label[i])} %" for i in order)
