"""Photographs with a map beside each, a value for every pixel: what all kinds of maps share."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from glob import escape
from pathlib import Path
from typing import Any, TypeVar
from unicodedata import normalize

import numpy as np

from keras_vit._base.errors import ReadingWarning, counted, listed, printable, warn_at_caller
from keras_vit._base.processors import available_processors
from keras_vit.data._imports import tf
from keras_vit.data.data_errors import BadImageError
from keras_vit.data.decode.image_files import read_contents, unreadable_reason
from keras_vit.data.decode.image_kinds import is_hidden, kind_of
from keras_vit.data.decode.pillow import displayed_size
from keras_vit.data.sources.folder import FileOptions, FileSplit, check_images, checked_split
from keras_vit.data.sources.named_sources import kept_apart, warn_of_shared_sources
from keras_vit.data.sources.split_names import split_of, with_validation
from keras_vit.data.sources.split_tables import files_of_splits
from keras_vit.data.sources.splits import MOST_LINES, FileReport, Splits
from keras_vit.data.sources.verification import Checked
from keras_vit.tasks import Task

_Value = TypeVar("_Value")


class MapSplit(FileSplit):
    """Image files, and the map of each, which is read and moved with its image.

    `labels()` are what the task's `summary` returns.

    Args:
        sources: What `label_map` reads the map of each image from.
        *args: As for `FileSplit`, like the other options.
    """

    _per_example: tuple[str, ...] = (*FileSplit._per_example, "sources")
    per_pixel = True

    def __init__(self, *args: Any, sources: Sequence[Any], **options: Any) -> None:
        super().__init__(*args, **options)
        self.sources: tuple[Any, ...] = tuple(sources)

    @property
    def label_shape(self) -> tuple[int, ...]:
        return (0, 0)  # any size

    @cached_property
    def _label_tensor(self) -> tf.Tensor:
        with tf.device("CPU"), tf.init_scope():
            return tf.range(len(self))  # the number of the map, until it is read

    def read(self, example: tf.Tensor, label: tf.Tensor, guarded: bool = False) -> tuple[Any, Any]:
        dtype = tf.as_dtype(self.task.pixel_dtype)
        return example, tf.ensure_shape(
            tf.numpy_function(self.label_map, [label], dtype), (None, None)
        )

    @abstractmethod
    def label_map(self, index: int) -> np.ndarray: ...


def maps_in(folder: Path, labels: str | os.PathLike[str]) -> Path | None:
    """Return the folder of maps that labels are, or their file of COCO; None of a table.

    Both may lie in the folder.
    """
    path = Path(labels).expanduser()
    is_file = path.suffix.lower() == ".json"
    if is_file and not path.exists() and files_of_splits(folder, path):
        return folder / path  # which stands for those of all splits
    return next((p for p in (path, folder / path) if p.is_dir() or (is_file and p.is_file())), None)


def photographs_in(folder: Path, maps: Path, options: FileOptions, layout: str) -> list[Path]:
    """Return the photographs at any depth of a folder, sorted, but for those among the maps.

    Raises:
        FileNotFoundError: The folder does not exist.
        ValueError: It does not hold a photograph, or bands are asked for.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {printable(folder)}. {layout}")
    if options.bands is not None:
        raise ValueError(
            "maps of pixels are for photographs, and bands for rasters: leave one out."
        )
    inside = maps if maps != folder and maps.is_relative_to(folder) else None
    paths = []
    for path in sorted(folder.rglob("*")):
        if inside and inside in path.parents:
            continue
        hidden = any(is_hidden(part) for part in path.relative_to(folder).parts)
        kind = None if hidden or not path.is_file() else kind_of(path)
        if kind is not None and options.read_by in kind.readers:
            paths.append(path)
    if not paths:
        raise ValueError(f"{printable(folder)} does not hold a photograph. {layout}")
    return paths


def beside(paths: Iterable[Path], folder: Path, labels: Path, *suffixes: str) -> dict[Path, Path]:
    """Return the file of labels of each photograph: of its name and folders, with a suffix.

    The suffix may be in upper case, and the first of several counts. Photographs without such a
    file are left out. Where none has one, all files may have one ending more, as `1_mask.png`.
    """
    there: dict[Path, Path] = {}
    files = sorted(labels.rglob("*"))  # of two, the one in lower case
    for suffix in reversed(suffixes):
        there |= {path.with_suffix(""): path for path in files if path.suffix.lower() == suffix}
    stems = {path: (labels / path.relative_to(folder)).with_suffix("") for path in paths}
    composed = {_composed(stem): path for stem, path in there.items()}  # or not, as Macs do
    of_each = {p: there.get(stem) or composed.get(_composed(stem)) for p, stem in stems.items()}
    same = {path: file for path, file in of_each.items() if file is not None}
    if same or not stems:
        return same
    first = next(iter(stems.values()))
    near = (each.name for each in there if each.parent == first.parent)
    endings = [name[len(first.name) :] for name in near if name.startswith(first.name)]
    endings = [end for end in endings if not end[:1].isdigit()]  # 1.jpg and 10.png
    longer = {end: {p: s.with_name(s.name + end) for p, s in stems.items()} for end in endings}
    fitting = {end: names for end, names in longer.items() if there.keys() >= {*names.values()}}
    if len(fitting) != 1:
        return {}
    ((end, names),) = fitting.items()
    warn_at_caller(
        f"Files whose names end in {printable(end)} are taken for the photographs' maps.",
        ReadingWarning,
    )
    return {path: there[name] for path, name in names.items()}


def _composed(path: Path) -> str:
    return normalize("NFC", str(path))


def check_complete(
    paths: Sequence[Path],
    sources: Mapping[Path, Any],
    folders: tuple[Path, Path],
    suffix: str,
    noun: str,
    layout: str,
) -> None:
    """Raise a ValueError with the photographs of which `sources` do not have a map.

    It names one by its suffix, and what a map is by the noun; `folders` are of both kinds of files.
    """
    folder, maps = folders
    missing = [path.relative_to(folder) for path in paths if path not in sources]
    if missing:
        names = printable(listed(list(map(str, missing)), 3))
        first = (maps / missing[0]).with_suffix(suffix)
        near = sorted(first.parent.glob(f"{escape(first.stem)}*")) if maps.is_dir() else []
        where = f"; {printable(first)} is not there" if maps.is_dir() else ""
        where += f", and {printable(near[0].name)} is" if near else ""
        have = "has" if len(missing) == 1 else "have"
        raise ValueError(
            f"{counted(len(missing), 'photograph')} of {len(paths):,} in {printable(folder)} "
            f"{have} no {noun} in {printable(maps)}: {names}{where}. {layout}"
        )


def size_of(photograph: Path, max_pixels: int | None) -> tuple[int, int]:
    """Return the height and width of a photograph as it is shown, or raise a ValueError."""
    try:
        return displayed_size(read_contents(photograph), max_pixels)
    except (OSError, BadImageError) as error:
        reason = unreadable_reason(error)
        raise ValueError(f"its photograph {photograph.name} cannot be read: {reason}") from error


def check_map_size(shape: tuple[int, ...], size: tuple[int, int]) -> None:
    """Raise a ValueError where a map does not have the size of its photograph."""
    if shape != size:
        (rows, columns), (height, width) = shape, size
        turned = ": does its EXIF orientation turn it, and not this?" if shape == size[::-1] else ""
        raise ValueError(
            f"has {columns} x {rows} pixels, and its photograph {width} x {height}{turned}"
        )


def each_map(
    paths: Sequence[Path],
    look: Callable[[Path], _Value],
    sources: Mapping[Path, Any],
    noun: str,
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
            f"{counted(len(wrong), noun)} of {total:,} cannot be used:{lines}{more}\n{layout}"
        )
    return [one for one in looked if not isinstance(one, str)]


def readable(paths: Sequence[Path], options: FileOptions) -> tuple[list[Path], Checked]:
    """Return the photographs that can be decoded, and what their check has seen."""
    _, checked = check_images(paths, options)
    bad = {file for file, _ in checked.unreadable}
    return [path for path in paths if path not in bad], checked


def splits_of_maps(
    kind: type[MapSplit],
    folder: Path,
    photographs: tuple[Sequence[Path], Checked],
    sources: Sequence[Any],
    task: Task,
    rows: np.ndarray,
    part: tuple[float, int],
    options: FileOptions,
) -> Splits:
    """Return the splits of photographs: by the folders at the top, or drawn.

    Args:
        kind, folder, options: Of the splits.
        photographs: What `readable` returned.
        sources, rows: What each map is read from, and the task's `summary` of it.
        task: What the maps mean; it is fitted to those of the training images.
        part: What part to hold out where folders do not say so, and the seed.
    """
    paths, checked = photographs
    top = [split_of(path.relative_to(folder).parts[0]) for path in paths]
    places: dict[str, Any] = {"all" if options.whole else "train": np.arange(len(paths))}
    if "train" in top and None not in top:
        places = {
            name: np.array([i for i, split in enumerate(top) if split == name])
            for name in ("train", "val", "test")
            if name in top
        }
    groups: np.ndarray | None = None
    if not options.whole:
        places = with_validation(places, folder)
        if "val" not in places:
            groups = kept_apart(paths, None, folder)
            train = places["train"]
            of_train = None if groups is None else groups[train]
            is_held_out = task.split(rows[train], *part, of_train)
            places |= {"train": train[~is_held_out], "val": train[is_held_out]}
        else:
            train, val = ([paths[i] for i in places[name]] for name in ("train", "val"))
            warn_of_shared_sources(train, val, folder)
        task = task.fitted(rows[places["train"]])
    splits = {}
    for name, of_split in places.items():
        files, maps = [paths[i] for i in of_split], [sources[i] for i in of_split]
        splits[name] = checked_split(
            name, task, files, rows[of_split], None, checked, options, kind, sources=maps
        )
        if groups is not None:
            splits[name].groups = groups[of_split]
    report = FileReport(tuple(checked.unreadable), ())
    return Splits(str(folder), task.names, splits, report)
