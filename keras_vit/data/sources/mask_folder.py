"""Photographs with the class of every pixel beside: masks in PNG files, or drawings."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

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
from keras_vit.data.sources.label_drawings import (
    BACKGROUND,
    NAMES,
    UNKNOWN,
    Drawing,
    Labelme,
    Shape,
    beside,
    drawings_in,
    numbers_of,
    with_background,
)
from keras_vit.data.sources.split_names import split_of, with_validation
from keras_vit.data.sources.splits import MOST_LINES, FileReport, Splits
from keras_vit.tasks import Segmentation, Task
from keras_vit.tasks.class_colors import distinct_colors
from keras_vit.tasks.pixel_losses import IGNORED, pixel_counts

SUFFIX = ".png"
_MOST_BYTES = 2**20  # of the list of names
_Value = TypeVar("_Value")
_MODES = ("1", "L", "P", "I;16", "I;16B", "I")
_LAYOUT = (
    "Give PNG files with the number of a class in each pixel, gray or with a palette, each with "
    "the name and folders of its photograph: photos/train/1.jpg has masks/train/1.png. Polygons of "
    "labelme and YOLO, and a JSON file of COCO, are read as well."
)


class MaskSplit(FileSplit):
    """Image files, and the mask or drawing of each, which is read and moved with its image.

    `labels()` are rows of counts, what `Segmentation.summary` returns.
    """

    _per_example: tuple[str, ...] = (*FileSplit._per_example, "masks")
    per_pixel = True
    augment = "maps"

    def __init__(self, *args: Any, masks: Sequence[Path | Drawing], **options: Any) -> None:
        super().__init__(*args, **options)
        self.masks: tuple[Path | Drawing, ...] = tuple(masks)

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
        mask = self.masks[index]
        if isinstance(mask, Drawing):
            return mask.class_map()
        return read_mask(mask, self.max_pixels)[0]


class _Mask(NamedTuple):
    """What is known of a mask once it was read: how often it has each number, and its colors."""

    source: Path | Drawing
    counts: np.ndarray
    palette: Sequence[int] = ()


def masks_in(folder: Path, labels: str | os.PathLike[str]) -> Path | None:
    """Return the folder of masks that labels are, or their file of COCO; None of a table.

    Both may lie in the folder.
    """
    path = Path(labels).expanduser()
    is_file = path.suffix.lower() == ".json"
    return next((p for p in (path, folder / path) if p.is_dir() or (is_file and p.is_file())), None)


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
        masks: Of masks or drawings, with the names and folders of the photographs; or a file of
            COCO.
        task: "segmentation", or a `Segmentation` with the names; None for those in `classes.txt`
            of the masks, or numbers.
        val_fraction: As for `load`.
        seed: As for `load`.
        options: How files are read.

    Raises:
        FileNotFoundError: The folder of photographs does not exist.
        ImportError: COCO's run lengths, and pycocotools is not installed.
        ValueError: A photograph does not have a mask, or has one of another size, or a mask has a
            number that is not of a class; the message lists the files.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {printable(folder)}. {_LAYOUT}")
    if options.bands is not None:
        raise ValueError("masks are for photographs, and bands for rasters: leave one out.")
    listed_names = _listed_names((masks if masks.is_dir() else masks.parent) / NAMES)
    names = _names_of(task)
    of_numbers = listed_names or tuple(name for name in names if name not in BACKGROUND)
    drawings = drawings_in(folder, masks, of_numbers)
    inside = masks if masks != folder and masks.is_relative_to(folder) else None
    paths = [p for p in _images(folder, options.read_by) if not inside or inside not in p.parents]
    layout = drawings.layout if drawings else _LAYOUT
    if not paths:
        raise ValueError(f"{printable(folder)} does not hold a photograph. {layout}")
    sources = drawings.find(paths) if drawings else beside(paths, folder, masks, SUFFIX)
    if missing := [path.relative_to(folder) for path in paths if path not in sources]:
        names_of = printable(listed(list(map(str, missing)), 3))
        first = (masks / missing[0]).with_suffix(drawings.suffix if drawings else SUFFIX)
        where = f"; {printable(first)} is not there" if masks.is_dir() else ""
        raise ValueError(
            f"{counted(len(missing), 'photograph')} of {len(paths):,} in {printable(folder)} have "
            f"no mask in {printable(masks)}: {names_of}{where}. {layout}"
        )
    _, checked = check_images(paths, options)
    bad = {file for file, _ in checked.unreadable}
    paths = [p for p in paths if p not in bad]
    if drawings:
        known, names = _drawn_masks(
            paths, sources, drawings, names, listed_names, options.max_pixels
        )
    else:
        names = names or listed_names
        known = _checked_masks(paths, sources, len(names) or None, options.max_pixels)
    most = max((int(np.flatnonzero(m.counts[:IGNORED]).max(initial=-1)) for m in known), default=-1)
    size = len(names) or max(most + 1, 2)
    colors = next((c for m in known if (c := distinct_colors(m.palette, size))), ())
    meaning = Segmentation(names, size, colors)
    counts = np.array([mask.counts[: meaning.size] for mask in known], np.float64)
    splits = {}
    for name, places in _parts(paths, folder, meaning, counts, val_fraction, seed, options).items():
        files = [paths[i] for i in places]
        its_masks = [known[i].source for i in places]
        splits[name] = checked_split(
            name, meaning, files, counts[places], None, checked, options, MaskSplit, masks=its_masks
        )
    report = FileReport(tuple(checked.unreadable), ())
    return Splits(str(folder), meaning.names, splits, report)


def read_mask(file: Path, max_pixels: int | None) -> tuple[np.ndarray, Sequence[int]]:
    """Return the number in each pixel of a mask, int32 `(height, width)`, and its palette.

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
                return np.asarray(image).astype(np.int32), image.getpalette() or ()
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


def _names_of(task: str | Task | None) -> tuple[str, ...]:
    """Return the names of a task; none of those that do not have any."""
    kind = task.kind if isinstance(task, Task) else task
    if kind not in (None, Segmentation.kind):
        raise ValueError(
            f"task={kind!r} is for a table of labels, and masks are of {Segmentation.kind!r}: "
            "leave it out."
        )
    return task.names if isinstance(task, Segmentation) else ()


def _listed_names(file: Path) -> tuple[str, ...]:
    """Return the names in a list of classes; none without the file."""
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
    paths: Sequence[Path], sources: Mapping[Path, Path], size: int | None, max_pixels: int | None
) -> list[_Mask]:
    """Read every mask once, and refuse all that do not fit in one error."""

    def look(path: Path) -> _Mask:
        shape = _size_of(path, max_pixels)
        mask, palette = read_mask(sources[path], max_pixels)
        if mask.shape != shape:
            (rows, columns), (height, width) = mask.shape, shape
            raise ValueError(
                f"has {columns} x {rows} pixels, and its photograph {width} x {height}"
            )
        wrong = mask[(mask != IGNORED) & ((mask < 0) | (mask >= (size or IGNORED)))]
        if wrong.size:
            most = "254" if size is None else f"{size - 1}"
            raise ValueError(f"has the number {wrong[0]}, and classes are from 0 to {most}")
        return _Mask(sources[path], pixel_counts(mask[None], IGNORED)[0], palette)

    return _each(paths, look, sources, _LAYOUT)


def _drawn_masks(
    paths: Sequence[Path],
    sources: Mapping[Path, Any],
    drawings: Labelme,
    names: tuple[str, ...],
    listed_names: tuple[str, ...],
    max_pixels: int | None,
) -> tuple[list[_Mask], tuple[str, ...]]:
    """Read every drawing and draw it once; return also the names of the classes."""

    def read(path: Path) -> tuple[tuple[int, int], tuple[Shape, ...]]:
        size = _size_of(path, max_pixels)
        return size, drawings.shapes(sources[path], size)

    readings = _each(paths, read, sources, drawings.layout, drawings.problems)
    shapes = dict(zip(paths, readings, strict=True))
    if not names:
        labels = {shape.label for _, each in shapes.values() for shape in each}
        names = with_background(listed_names or drawings.order(labels - {UNKNOWN, *BACKGROUND}))
    numbers = numbers_of(names)

    def draw(path: Path) -> _Mask:
        drawing = Drawing(*shapes[path], numbers)
        return _Mask(drawing, pixel_counts(drawing.class_map()[None], IGNORED)[0])

    return _each(paths, draw, sources, drawings.layout), names


def _size_of(photograph: Path, max_pixels: int | None) -> tuple[int, int]:
    try:
        return displayed_size(read_contents(photograph), max_pixels)
    except (OSError, BadImageError) as error:
        reason = unreadable_reason(error)
        raise ValueError(f"its photograph {photograph.name} cannot be read: {reason}") from error


def _each(
    paths: Sequence[Path],
    look: Callable[[Path], _Value],
    sources: Mapping[Path, Any],
    layout: str,
    problems: Sequence[str] = (),
) -> list[_Value]:
    """Return what a function makes of every photograph, or raise one error with all its errors."""

    def attempt(path: Path) -> _Value | str:
        try:
            return look(path)
        except (OSError, TypeError, ValueError) as error:  # and BadImageError
            reason = unreadable_reason(error) if isinstance(error, OSError) else str(error)
            return f"{sources[path] if isinstance(sources[path], Path) else path}: {reason}"

    with ThreadPoolExecutor(available_processors()) as pool:
        looked = list(pool.map(attempt, paths))
    if wrong := [*problems, *(one for one in looked if isinstance(one, str))]:
        lines = "".join(f"\n    {printable(one)}" for one in wrong[:MOST_LINES])
        more = f"\n    and {len(wrong) - MOST_LINES:,} more" if len(wrong) > MOST_LINES else ""
        total = len(looked) + len(problems)
        raise ValueError(
            f"{counted(len(wrong), 'mask')} of {total:,} cannot be used:{lines}{more}\n"
            f"{IGNORED} is for pixels of no known class. {layout}"
        )
    return [one for one in looked if not isinstance(one, str)]


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
