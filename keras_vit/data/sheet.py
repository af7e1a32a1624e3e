"""A sheet of augmented pictures, so that people see what the network sees."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.errors import check_positive, printable
from keras_vit.files import atomic_write, begins_with_mark
from keras_vit.version import install_command

from ._imports import require
from .augmentation import Augmentation, get_augmentation
from .input_pipeline import pipeline
from .memory import DecodedSplit
from .splits import Split

_SOFTWARE = "keras_vit augment"  # marks what this module wrote, in PNG's metadata


def augmentation_sheet(
    split: Split,
    path: str | Path,
    image_size: int | tuple[int, int] = 224,
    *,
    augment: Augmentation | str | None = None,
    mixup: float = 0.0,
    cutmix: float = 0.0,
    pictures: int = 6,
    versions: int = 7,
    seed: int = 0,
    channels: int = 3,
    overwrite: bool = False,
) -> None:
    """Draws pictures of a split, each beside what training makes of it in its first passes.

    Every row is one picture: as the evaluation sees it, then as it comes out of `pipeline` in one
    pass after the other. Where pictures are mixed, with the row above, the names and shares of the
    labels stand over them.

    Args:
        split: one of `load(...)`; pictures are taken evenly from all of it.
        path: the file to write, .png, .pdf or whatever matplotlib writes.
        image_size: int or `(height, width)` that the network sees.
        augment: as in `pipeline`.
        mixup: as in `pipeline`.
        cutmix: as in `pipeline`.
        pictures: rows.
        versions: augmented pictures beside each.
        seed: as in `pipeline`.
        channels: 3, or 1 for grey.
        overwrite: replace a PNG file that this function wrote; never another one.

    Raises:
        ImportError: matplotlib is missing.
        ValueError: an argument out of range, an unknown name, or a path without the suffix of a
            format that matplotlib writes.
        FileExistsError: there is a folder, another file, or a sheet and `overwrite` is False.

    Example:
        >>> import tempfile
        >>> from keras_vit.data import load
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     augmentation_sheet(load("digits").train, f"{folder}/sheet.png", 8, channels=1)
    """
    check_positive(pictures=pictures, versions=versions)
    figure_class = require("matplotlib.figure", install_command("plots")).Figure
    path = Path(path)
    _check_path(path, overwrite)
    count = min(pictures, len(split))
    chosen = DecodedSplit(split, channels, np.linspace(0, len(split) - 1, count).astype(int))
    names = split.class_names
    augmentation = get_augmentation(split.augment if augment is None else augment)
    options: dict[str, Any] = {"channels": channels, "num_classes": len(names)}
    originals = pipeline(chosen, image_size, count, **options)
    training = pipeline(
        chosen,
        image_size,
        count,
        training=True,
        seed=seed,
        augment=augmentation,
        mixup=mixup,
        cutmix=cutmix,
        shuffle=False,
        repeat=True,
        **options,
    ).take(versions)
    columns = [*originals.as_numpy_iterator(), *training.as_numpy_iterator()]
    figure = figure_class(figsize=(1.6 * len(columns), 1.8 * count), layout="constrained", dpi=100)
    axes = figure.subplots(count, len(columns), squeeze=False)
    mixed = bool(mixup or cutmix)
    for column, (images, labels) in enumerate(columns):
        for row in range(count):
            cell = axes[row, column]
            shown = np.clip(images[row] / 255, 0, 1)
            cell.imshow(shown[..., 0] if channels == 1 else shown, cmap="gray", vmin=0, vmax=1)
            cell.set_axis_off()
            if column == 0 or mixed:
                title = printable(shares(labels[row], names))
                cell.set_title(title, fontsize=6, parse_math=False)
    settings = [f"mixup {mixup}"] * bool(mixup) + [f"CutMix {cutmix}"] * bool(cutmix)
    figure.suptitle("; ".join([str(augmentation), *settings]), fontsize=7, wrap=True)
    with atomic_write(path) as temporary:
        png = path.suffix.lower() == ".png"
        figure.savefig(temporary, metadata={"Software": _SOFTWARE} if png else None)


def _check_path(path: Path, overwrite: bool) -> None:
    formats = require(
        "matplotlib.backend_bases", install_command("plots")
    ).FigureCanvasBase.filetypes
    if path.is_dir():
        raise FileExistsError(f"{printable(path)} is a folder: give a file, such as sheet.png.")
    if path.suffix[1:].lower() not in formats:
        raise ValueError(
            f"{printable(path)} has no suffix of an image: give one of {', '.join(sorted(formats))}"
            ", such as sheet.png."
        )
    if not os.path.lexists(path):
        return
    if not begins_with_mark(path, b"Software\x00" + _SOFTWARE.encode()):
        raise FileExistsError(
            f"{printable(path)} exists, and is not a PNG file that keras-vit augment wrote: it is "
            "not replaced. Give another file."
        )
    if not overwrite:
        raise FileExistsError(
            f"{printable(path)} exists. Give another file, or overwrite=True (on the command line "
            "--overwrite)."
        )


def shares(label: np.ndarray, names: tuple[str, ...]) -> str:
    """A row of label shares in words, the largest first.

    Example:
        >>> shares(np.array([0.25, 0.0, 0.75]), ("rose", "tulip", "daisy"))
        'daisy 75 %, rose 25 %'
        >>> shares(np.array([0.0, 1.0, 0.0]), ("rose", "tulip", "daisy"))
        'tulip'
    """
    order = [i for i in np.argsort(-label, kind="stable") if round(100 * label[i])]
    if len(order) == 1:
        return names[order[0]]
    return ", ".join(f"{names[i]} {round(100 * label[i])} %" for i in order)
