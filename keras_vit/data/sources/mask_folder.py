"""Photographs with the class of every pixel beside: masks in PNG files, or drawings."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_vit._base.errors import counted, listed, printable, warn_at_caller
from keras_vit.data.data_errors import BadImageError, undecodable_reason
from keras_vit.data.decode.budget import BudgetedFile
from keras_vit.data.decode.image_files import read_contents
from keras_vit.data.decode.quiet_decoders import QUIET
from keras_vit.data.sources.colored_masks import ColoredMask, ColorTable, color_table
from keras_vit.data.sources.folder import FileOptions
from keras_vit.data.sources.label_drawings import (
    BACKGROUND,
    NAMES,
    UNKNOWN,
    Drawing,
    Labelme,
    Shape,
    Yolo,
    drawings_in,
    names_of_yolo,
    numbers_of,
    with_background,
)
from keras_vit.data.sources.listings import read_text
from keras_vit.data.sources.map_folder import (
    MapFiles,
    MapSplit,
    beside,
    check_complete,
    check_map_size,
    each_map,
    readable,
    size_of,
)
from keras_vit.data.sources.table_cells import lookalike
from keras_vit.tasks import Segmentation, Task
from keras_vit.tasks.class_colors import distinct_colors
from keras_vit.tasks.pixel_losses import IGNORED, pixel_counts

_MOST_BYTES = 2**20  # of the list of names
_UNKNOWN = f"{IGNORED} is for pixels of no known class. "
_MODES = ("1", "L", "P", "I;16", "I;16B", "I")


class _Mask(NamedTuple):
    """What is known of a mask once it was read: how often it has each number, and its colors."""

    source: Path | Drawing | ColoredMask
    counts: np.ndarray
    palette: Sequence[int] = ()


class MaskSplit(MapSplit):
    """Image files, and the mask or drawing of each.

    `labels()` are rows of counts, what `Segmentation.summary` returns.
    """

    task_class = Segmentation
    suffixes = (".png",)
    layout = (
        "Give PNG files with the number of a class in each pixel, gray or with a palette, each "
        "with the name and folders of its photograph: photos/train/1.jpg has masks/train/1.png. "
        "Polygons of labelme and YOLO, and a JSON file of COCO, are read as well; and colors, with "
        "their table labelmap.txt, as CVAT writes it, beside."
    )
    augment = "maps"

    @staticmethod
    def read_map(source: Path | Drawing | ColoredMask, task: Any, max_pixels: int | None) -> Any:
        if isinstance(source, Drawing | ColoredMask):
            return source.class_map()
        return read_mask(source, max_pixels)[0]

    @classmethod
    def read_maps(
        cls,
        folder: Path,
        masks: Path,
        paths: Sequence[Path],
        task: str | Task | None,
        options: FileOptions,
    ) -> MapFiles:
        """Find and read masks or drawings; `masks` may also be a file of COCO.

        The names are those of the task, or else in `classes.txt` of the masks; otherwise classes
        are numbers.

        Raises:
            ImportError: COCO's run lengths, and pycocotools is not installed.
            ValueError: A mask has a number that is not of a class, or none.
        """
        listed_names = _listed_names((masks if masks.is_dir() else masks.parent) / NAMES)
        names, size_of_task = _names_of(task), task.size if isinstance(task, Segmentation) else 0
        of_numbers = listed_names or tuple(name for name in names if name not in BACKGROUND)
        drawings = drawings_in(folder, masks, of_numbers)
        if isinstance(drawings, Yolo) and not listed_names:
            listed_names = names_of_yolo(masks)
            drawings.names = listed_names or drawings.names
        layout = drawings.layout if drawings else cls.layout
        sources = drawings.find(paths) if drawings else beside(paths, folder, masks, *cls.suffixes)
        suffix = drawings.suffix if drawings else cls.suffixes[0]
        check_complete(paths, sources, (folder, masks), suffix, "mask", layout)
        paths, checked = readable(paths, options)
        if drawings:
            known, names = _drawn_masks(
                paths, sources, drawings, names, listed_names, options.max_pixels
            )
        else:
            table = _table_of_colors(masks, [sources[path] for path in paths])
            if table is None and names and listed_names and names != listed_names:
                raise ValueError(
                    f"{printable(masks / NAMES)} has {printable(listed(listed_names))}, and the "
                    f"classes are {printable(listed(names))}: a number would be another class. "
                    "Write the masks' numbers, and the list, in this order."
                )
            names = names or (table.names if table else listed_names)
            table = table and table.of_classes(names)
            most = len(names) or size_of_task or None
            known = _checked_masks(paths, sources, most, options.max_pixels, table)
        largest = (int(np.flatnonzero(m.counts[:IGNORED]).max(initial=-1)) for m in known)
        size = len(names) or size_of_task or max([*largest, 1]) + 1
        colors = next((c for m in known if (c := distinct_colors(m.palette, size))), ())
        meaning = Segmentation(names, size, colors)
        counts = np.array([mask.counts[: meaning.size] for mask in known], np.float64)
        _check_numbers(known, names, options.whole)
        return MapFiles(paths, checked, [mask.source for mask in known], meaning, counts)


def _check_numbers(known: Sequence[_Mask], names: Sequence[str], whole: bool) -> None:
    """Refuse masks of one class, of which 255 may mean another; warn of numbers that do not occur.

    And of palettes that differ, as where colors were numbered anew in each file, and of some masks
    of black and white.
    """
    totals = np.sum([mask.counts for mask in known], axis=0)
    there = np.flatnonzero(totals[:IGNORED])
    if len(there) < 2:
        only = names[there[0]] if len(there) and names else listed(list(map(str, there)))
        text = f"The masks have pixels of one class alone, {printable(only)}"
        if totals[IGNORED]:
            text += (
                f", and {IGNORED}, which is for pixels of no known class: where it means the other "
                "class, as in masks of black and white, write labelmap.txt beside the masks, with "
                "the lines background:0,0,0:: and object:255,255,255::"
            )
        if not whole:
            raise ValueError(f"{text}. There is nothing to learn.")
        if totals[IGNORED]:
            warn_at_caller(f"{text}.")
    elif not names and (missing := there[-1] + 1 - len(there)) > 0:
        warn_at_caller(
            f"The masks have the numbers {listed(list(map(str, there)), 12)}, so that "
            f"{counted(int(missing), 'class', 'classes')} from 0 to {there[-1]} never "
            f"{'occurs' if missing == 1 else 'occur'}: are edges blurred, or numbers those of "
            "objects? If this is meant, give the names of all classes in classes.txt."
        )
    unknown = [mask for mask in known if mask.counts[IGNORED]]
    bare = [mask for mask in unknown if mask.counts[0] and not mask.counts[1:IGNORED].any()]
    if bare and len(there) > 1 and len(bare) == len(unknown):
        warn_at_caller(
            f"{counted(len(bare), 'mask')} of {len(known):,}, such as "
            f"{printable(str(bare[0].source))}, {'has' if len(bare) == 1 else 'have'} 0 and "
            f"{IGNORED} alone, and no other mask has {IGNORED}, which is for pixels of no known "
            "class: where it means a class, as in masks of black and white, write its number."
        )
    colors: dict[int, tuple[str, Sequence[int]]] = {}
    for mask in known:
        for number in np.flatnonzero(mask.counts[:IGNORED]).tolist() if mask.palette else ():
            color, place = mask.palette[3 * number : 3 * number + 3], printable(str(mask.source))
            first, before = colors.setdefault(number, (place, color))
            if color and before != color:
                warn_at_caller(
                    f"The palettes of the masks differ: {number} is the color {list(before)} in "
                    f"{first} and {list(color)} in {place}. A number is one class in all masks, "
                    "whatever its color: where colors are the classes, number them alike."
                )
                return


def read_mask(file: Path, max_pixels: int | None) -> tuple[np.ndarray, Sequence[int]]:
    """Return the number in each pixel of a mask, int32 `(height, width)`, and its palette.

    Raises:
        BadImageError: It is not a PNG file of numbers, is damaged or too large.
    """
    from PIL import Image

    contents = read_contents(file)
    try:
        with QUIET, Image.open(BudgetedFile(contents), formats=("PNG",)) as image:
            if max_pixels is not None and image.width * image.height > max_pixels:
                raise BadImageError(f"{image.width} x {image.height} pixels")
            if image.mode not in _MODES:
                raise BadImageError(
                    f"colors or transparency (mode {image.mode} of Pillow) in place of numbers"
                )
            values = np.asarray(image).astype(np.int32)
            if worth := {b"\2\0": 85, b"\4\0": 17}.get(contents[24:26]):  # gray of 2 or 4 bits
                values //= worth  # which Pillow brings to 255
            return values, image.getpalette() or ()
    except BadImageError:
        raise
    except Exception as error:  # each decoder raises what it stumbles over
        raise BadImageError(undecodable_reason(contents, error)) from error


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
    lines = read_text(file, "the names of classes").splitlines()
    return tuple(line.strip() for line in lines if line.strip())


def _table_of_colors(masks: Path, files: Sequence[Path]) -> ColorTable | None:
    """Return the table of the colors of masks; None where there is none, or masks have numbers."""
    from PIL import Image

    try:
        with QUIET, Image.open(files[0], formats=("PNG",)) as image:
            mode = image.mode
    except Exception:  # each decoder raises what it stumbles over; all are reported together
        return None
    table = None if mode.startswith("I") else color_table(masks)
    # Gray ones may be numbers, and colors where the table is of grays, such as black and white.
    return None if table and mode in ("1", "L") and not table.is_gray else table


def _checked_masks(
    paths: Sequence[Path],
    sources: Mapping[Path, Path],
    size: int | None,
    max_pixels: int | None,
    table: ColorTable | None,
) -> list[_Mask]:
    """Read every mask once, and refuse all that do not fit in one error."""

    def look(path: Path) -> _Mask:
        size_of_photograph = size_of(path, max_pixels)
        source: Path | ColoredMask = sources[path]
        if table is None:
            mask, palette = read_mask(sources[path], max_pixels)
        else:
            source = ColoredMask(sources[path], table, max_pixels)
            mask, palette = source.class_map(), table.palette
        check_map_size(mask.shape, size_of_photograph)
        wrong = mask[(mask != IGNORED) & ((mask < 0) | (mask >= (size or IGNORED)))]
        if wrong.size:
            most = "254" if size is None else f"{size - 1}"
            raise ValueError(f"has the number {wrong[0]}, and classes are from 0 to {most}")
        return _Mask(source, pixel_counts(mask[None], IGNORED + 1)[0], palette)

    return each_map(paths, look, sources, "mask", _UNKNOWN + MaskSplit.layout)


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
        size = size_of(path, max_pixels)
        return size, drawings.shapes(sources[path], size)

    layout = _UNKNOWN + drawings.layout
    readings = each_map(paths, read, sources, "mask", layout, drawings.problems)
    shapes = dict(zip(paths, readings, strict=True))
    if not names:
        labels = {shape.label for _, each in shapes.values() for shape in each}
        if not labels and not listed_names:
            raise ValueError(f"Not one file of labels has a shape. {layout}")
        names = with_background(listed_names or drawings.order(labels - {UNKNOWN, *BACKGROUND}))
        if not listed_names and len(same := Counter(map(lookalike, names))) < len(names):
            alike = [name for name in names if same[lookalike(name)] > 1]
            raise ValueError(
                f"Labels differ in case, or in what cannot be seen: {printable(listed(alike))}. "
                f"Write one of them in all drawings, or list all that are meant in {NAMES}."
            )
    numbers = numbers_of(names)

    def draw(path: Path) -> _Mask:
        drawing = Drawing(*shapes[path], numbers)
        return _Mask(drawing, pixel_counts(drawing.class_map()[None], IGNORED + 1)[0])

    return each_map(paths, draw, sources, "mask", layout), names
