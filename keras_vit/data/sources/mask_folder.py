"""Photographs with a mask beside each: the class of every pixel, in PNG files of the same name."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_vit._base.errors import counted, listed, printable
from keras_vit._base.processors import available_processors
from keras_vit.data._imports import tf
from keras_vit.data.data_errors import BadImageError, undecodable_reason
from keras_vit.data.decode.budget import BudgetedFile
from keras_vit.data.decode.image_files import read_contents, unreadable_reason
from keras_vit.data.decode.image_kinds import is_hidden, kind_of
from keras_vit.data.decode.pillow import displayed_size
from keras_vit.data.sources.folder import FileOptions, FileSplit, check_images, checked_split
from keras_vit.data.sources.split_names import split_of, with_validation
from keras_vit.data.sources.splits import MOST_LINES, FileReport, Splits
from keras_vit.tasks import Segmentation, Task
from keras_vit.tasks.pixel_losses import IGNORED, pixel_counts

SUFFIX, NAMES = ".png", "classes.txt"
_MOST_BYTES = 2**20  # of the list of names
_MODES = ("1", "L", "P", "I;16", "I;16B", "I")
_LAYOUT = (
    "Give PNG files with the number of a class in each pixel, gray or with a palette, each with "
    "the name and folders of its photograph: photos/train/1.jpg has masks/train/1.png."
)


class MaskSplit(FileSplit):
    """Image files, and the mask of each, which is read and moved with its image.

    `labels()` are rows of counts, what `Segmentation.summary` returns.
    """

    _per_example: tuple[str, ...] = (*FileSplit._per_example, "masks")
    per_pixel = True
    augment = "maps"

    def __init__(self, *args: Any, masks: Sequence[Path], **options: Any) -> None:
        super().__init__(*args, **options)
        self.masks: tuple[Path, ...] = tuple(masks)

    @property
    def label_shape(self) -> tuple[int, ...]:
        return (0, 0)  # any size

    @cached_property
    def _label_tensor(self) -> tf.Tensor:
        with tf.device("CPU"), tf.init_scope():
            return tf.range(len(self))  # the number of the mask, until it is read

    def read(self, example: tf.Tensor, label: tf.Tensor, guarded: bool = False) -> tuple[Any, Any]:
        mask = tf.numpy_function(self.label_map, [label], tf.int32)
        return example, tf.ensure_shape(mask, (None, None))

    def label_map(self, index: int) -> np.ndarray:
        return read_mask(self.masks[index], self.max_pixels)


class _Mask(NamedTuple):
    """What is known of a mask once it was read: how often it has each number, and its size."""

    counts: np.ndarray
    shape: tuple[int, ...]


def masks_in(folder: Path, labels: str | os.PathLike[str]) -> Path | None:
    """Return the folder of masks that labels are, which may lie in the folder; None of a table."""
    path = Path(labels).expanduser()
    return next((one for one in (path, folder / path) if one.is_dir()), None)


def load_masks(
    folder: Path,
    masks: Path,
    task: str | Task | None,
    val_fraction: float,
    seed: int,
    options: FileOptions,
) -> Splits:
    """Find the photographs and masks of two folders, and check that they fit each other.

    Args:
        folder: Of photographs, in any folders; `train`, `val` and `test` at the top are splits.
        masks: Of masks, with the names and folders of the photographs.
        task: "segmentation", or a `Segmentation` with the names; None for those in `classes.txt`
            of the masks, or numbers.
        val_fraction: As for `load`.
        seed: As for `load`.
        options: How files are read.

    Raises:
        FileNotFoundError: A folder does not exist.
        ValueError: A photograph does not have a mask, or has one of another size, or a mask has a
            number that is not of a class; the message lists the files.
    """
    for path in (folder, masks):
        if not path.is_dir():
            raise FileNotFoundError(f"There is no folder {printable(path)}. {_LAYOUT}")
    if options.bands is not None:
        raise ValueError("masks are for photographs, and bands for rasters: leave one out.")
    names = _class_names(task, masks / NAMES)
    paths = [p for p in _images(folder, options.read_by) if not p.is_relative_to(masks)]
    if not paths:
        raise ValueError(f"{printable(folder)} does not hold a photograph. {_LAYOUT}")
    there = {
        p.with_suffix(SUFFIX): p for p in sorted(masks.rglob("*")) if p.suffix.lower() == SUFFIX
    }
    beside = {p: (masks / p.relative_to(folder)).with_suffix(SUFFIX) for p in paths}
    if missing := [p for p in paths if beside[p] not in there]:
        names_of = printable(listed([str(path.relative_to(folder)) for path in missing], 3))
        raise ValueError(
            f"{counted(len(missing), 'photograph')} of {len(paths):,} in {printable(folder)} have "
            f"no mask in {printable(masks)}: {names_of}; {printable(beside[missing[0]])} is not "
            f"there. {_LAYOUT}"
        )
    beside = {p: there[mask] for p, mask in beside.items()}
    _, checked = check_images(paths, options)
    bad = {file for file, _ in checked.unreadable}
    paths = [p for p in paths if p not in bad]
    known = _checked_masks(paths, beside, len(names) or None, options.max_pixels)
    most = max((int(np.flatnonzero(m.counts[:IGNORED]).max(initial=-1)) for m in known), default=-1)
    meaning = Segmentation(names, 0 if names else max(most + 1, 2))
    counts = np.array([mask.counts[: meaning.size] for mask in known], np.float64)
    splits = {}
    for name, places in _parts(paths, folder, meaning, counts, val_fraction, seed, options).items():
        files = [paths[i] for i in places]
        its_masks = [beside[file] for file in files]
        splits[name] = checked_split(
            name, meaning, files, counts[places], None, checked, options, MaskSplit, masks=its_masks
        )
    report = FileReport(tuple(checked.unreadable), ())
    return Splits(str(folder), meaning.names, splits, report)


def read_mask(file: Path, max_pixels: int | None) -> np.ndarray:
    """Return the number in each pixel of a mask, int32 `(height, width)`.

    Raises:
        BadImageError: It is not a PNG file of numbers, is damaged or too large.
    """
    from PIL import Image

    contents = read_contents(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about its size, which is checked here
            with Image.open(BudgetedFile(contents), formats=("PNG",)) as image:
                if max_pixels is not None and image.width * image.height > max_pixels:
                    raise BadImageError(f"a mask of {image.width} x {image.height} pixels")
                if image.mode not in _MODES:
                    raise BadImageError(
                        f"a mask with colors or transparency (mode {image.mode} of Pillow) in "
                        "place of numbers"
                    )
                return np.asarray(image).astype(np.int32)
    except BadImageError:
        raise
    except Exception as error:  # each decoder raises what it stumbles over
        raise BadImageError(undecodable_reason(contents, error)) from error


def _images(folder: Path, reader: str) -> Iterator[Path]:
    """Yield the images at any depth, sorted."""
    for path in sorted(folder.rglob("*")):
        hidden = any(is_hidden(part) for part in path.relative_to(folder).parts)
        kind = None if hidden or not path.is_file() else kind_of(path)
        if kind is not None and reader in kind.readers:
            yield path


def _class_names(task: str | Task | None, file: Path) -> tuple[str, ...]:
    if isinstance(task, Segmentation) and task.names:
        return task.names
    kind = task.kind if isinstance(task, Task) else task
    if kind not in (None, Segmentation.kind):
        raise ValueError(
            f"task={kind!r} is for a table of labels, and masks are of {Segmentation.kind!r}: "
            "leave it out."
        )
    if not file.is_file():
        return ()
    if file.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{printable(file)} is not a list of up to {IGNORED} names.")
    try:
        lines = file.read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{printable(file)} is not UTF-8 ({error}): write the name of a class per line, that "
            "of number 0 first."
        ) from error
    return tuple(line.strip() for line in lines if line.strip())


def _checked_masks(
    paths: Sequence[Path], beside: dict[Path, Path], size: int | None, max_pixels: int | None
) -> list[_Mask]:
    """Read every mask once, and refuse all that do not fit in one error."""

    def look(path: Path) -> _Mask | str:
        try:
            shape = displayed_size(read_contents(path), max_pixels)
        except (OSError, BadImageError) as error:
            return f"{path}: {unreadable_reason(error)}"
        try:
            mask = read_mask(beside[path], max_pixels)
        except (OSError, BadImageError) as error:
            return f"{beside[path]}: {unreadable_reason(error)}"
        if mask.shape != shape:
            (rows, columns), (height, width) = mask.shape, shape
            of_image = f"its photograph {width} x {height}"
            return f"{beside[path]}: has {columns} x {rows} pixels, and {of_image}"
        wrong = mask[(mask != IGNORED) & ((mask < 0) | (mask >= (size or IGNORED)))]
        if wrong.size:
            most = "254" if size is None else f"{size - 1}"
            return f"{beside[path]}: has the number {wrong[0]}, and classes are from 0 to {most}"
        return _Mask(pixel_counts(mask[None], IGNORED)[0], shape)

    with ThreadPoolExecutor(available_processors()) as pool:
        looked = list(pool.map(look, paths))
    if wrong := [one for one in looked if isinstance(one, str)]:
        lines = "".join(f"\n    {printable(one)}" for one in wrong[:MOST_LINES])
        more = f"\n    and {len(wrong) - MOST_LINES:,} more" if len(wrong) > MOST_LINES else ""
        raise ValueError(
            f"{counted(len(wrong), 'mask')} of {len(looked):,} cannot be used:{lines}{more}\n"
            f"{IGNORED} is for pixels of no known class. {_LAYOUT}"
        )
    return [one for one in looked if isinstance(one, _Mask)]


def _parts(
    paths: Sequence[Path],
    folder: Path,
    task: Segmentation,
    counts: np.ndarray,
    val_fraction: float,
    seed: int,
    options: FileOptions,
) -> dict[str, np.ndarray]:
    """Return the places of each split: by the folders at the top, or drawn."""
    top = [split_of(path.relative_to(folder).parts[0]) for path in paths]
    is_split = "train" in top and None not in top
    if is_split:
        places: dict[str, Any] = {
            name: np.array([i for i, split in enumerate(top) if split == name])
            for name in ("train", "val", "test")
            if name in top
        }
    else:
        places = {"all" if options.whole else "train": np.arange(len(paths))}
    if options.whole:
        return places
    places = with_validation(places, folder)
    if "val" not in places:
        train = places["train"]
        is_held_out = task.split(counts[train], val_fraction, seed)
        places |= {"train": train[~is_held_out], "val": train[is_held_out]}
    return places
