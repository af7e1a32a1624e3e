"""Photographs with a map beside each, a value for every pixel: what all kinds of maps share."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from glob import escape
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar
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
from keras_vit.data.sources.named_sources import validated
from keras_vit.data.sources.split_names import splits_by_folders, with_validation
from keras_vit.data.sources.split_tables import files_of_splits
from keras_vit.data.sources.splits import MOST_LINES, FileReport, Splits
from keras_vit.data.sources.verification import Checked
from keras_vit.tasks import Task, get

_Value = TypeVar("_Value")


class MapFiles(NamedTuple):
    """Photographs, what their check has seen, and the source and task's `summary` of each map."""

    paths: list[Path]
    checked: Checked
    sources: Sequence[Any]
    task: Task
    rows: np.ndarray


class MapSplit(FileSplit):
    """Image files, and the map of each, which is read and moved with its image.

    `labels()` are what the task's `summary` returns. A subclass is a kind of maps, a row of `MAPS`
    in `load.py`: it has `read_map`, and `read_maps` where there is not one file per photograph.

    Args:
        sources: What `read_map` reads the map of each image from.
        *args: As for `FileSplit`, like the other options.
    """

    task_class: ClassVar[type[Task]]  # what its maps mean; a subclass of that means it, too
    suffixes: ClassVar[tuple[str, ...]]  # of its files; the first of several counts
    layout: ClassVar[str]  # what to give, as a sentence
    _per_example: tuple[str, ...] = (*FileSplit._per_example, "sources")
    per_pixel = True

    def __init__(self, *args: Any, sources: Sequence[Any], **options: Any) -> None:
        super().__init__(*args, **options)
        self.sources: tuple[Any, ...] = tuple(sources)

    @property
    def label_shape(self) -> tuple[int, ...]:
        return (0, 0, *self.task.pixel_shape)  # of any size

    @cached_property
    def _label_tensor(self) -> tf.Tensor:
        with tf.device("CPU"), tf.init_scope():
            return tf.range(len(self))  # the number of the map, until it is read

    def read(self, example: tf.Tensor, label: tf.Tensor, guarded: bool = False) -> tuple[Any, Any]:
        label_map = tf.numpy_function(self.label_map, [label], tf.as_dtype(self.task.pixel_dtype))
        return example, tf.ensure_shape(label_map, (None, None, *self.task.pixel_shape))

    def label_map(self, index: int) -> np.ndarray:
        return self.read_map(self.sources[index], self.task, self.max_pixels)

    @staticmethod
    @abstractmethod
    def read_map(source: Any, task: Any, max_pixels: int | None) -> np.ndarray:
        """Return the value of each pixel, `(height, width, *task.pixel_shape)`.

        Args:
            source: Of `sources`; by default the path of a file.
            task: Of `task_class`.
            max_pixels: Height times width that is accepted.

        Raises:
            BadImageError, OSError: It cannot be decoded.
        """

    @classmethod
    def load_maps(
        cls,
        folder: Path,
        maps: Path,
        task: str | Task | None,
        val_fraction: float,
        seed: int,
        options: FileOptions,
    ) -> Splits:
        """Find the photographs and maps of two folders, and check that they fit each other.

        Args:
            folder: Of photographs, in any folders; `train`, `val` and `test` at the top are splits.
            maps: Of maps, with the names and folders of the photographs.
            task: Of `task_class`, or its kind; None for what the maps show, or the class itself.
            val_fraction, seed: As for `load`.
            options: How files are read.

        Returns:
            The splits by the folders at the top, or drawn; their task is fitted to the training's.

        Raises:
            FileNotFoundError: The folder of photographs does not exist.
            ValueError: A photograph does not have a map, or has one of another size, or a map is
                not one of the task; the message lists the files.
        """
        photographs = photographs_in(folder, maps, options, cls.layout)
        paths, checked, sources, task, rows = cls.read_maps(
            folder, maps, photographs, task, options
        )
        places = {"all" if options.whole else "train": list(range(len(paths)))}
        if top := splits_by_folders(folder, paths, options.whole):
            places = {
                name: [i for i, split in enumerate(top) if split == name]
                for name in ("train", "val", "test")
                if name in top
            }
        groups: np.ndarray | None = None
        if not options.whole:
            places = with_validation(places, folder)
            places, groups = validated(places, paths, rows, task, (val_fraction, seed), folder)
            task = task.fitted(rows[places["train"]])
        splits = {}
        for name, part in places.items():
            files, of_part = [paths[i] for i in part], [sources[i] for i in part]
            splits[name] = checked_split(
                name, task, files, rows[part], None, checked, options, cls, sources=of_part
            )
            if groups is not None:
                splits[name].groups = groups[part]
        report = FileReport(tuple(checked.unreadable), ())
        return Splits(str(folder), task.names, splits, report)

    @classmethod
    def read_maps(
        cls,
        folder: Path,
        maps: Path,
        paths: Sequence[Path],
        task: str | Task | None,
        options: FileOptions,
    ) -> MapFiles:
        """Return what `load_maps` goes on with; for a file per photograph, of `suffixes`.

        A map of which not one pixel is known does not fit.
        """
        layout = cls.layout
        if not maps.is_dir():
            kind = cls.task_class.kind
            raise ValueError(
                f"{printable(maps)} is a file, not a folder of maps of {kind}. {layout}"
            )
        files = beside(paths, folder, maps, *cls.suffixes)
        check_complete(paths, files, (folder, maps), cls.suffixes[0], "map", layout)
        paths, checked = readable(paths, options)
        meaning = get(task or cls.task_class.kind)

        def look(path: Path) -> np.ndarray:
            size = size_of(path, options.max_pixels)
            values = cls.read_map(files[path], meaning, options.max_pixels)
            check_map_size(values.shape[:2], size)
            if (values == meaning.unknown_pixel).all():
                raise ValueError("not one of its pixels is measured")
            return meaning.summary(values[None])[0]

        rows = np.array(each_map(paths, look, files, "map", layout))
        if task is None:
            cls.doubt(maps, rows)
        return MapFiles(paths, checked, [files[path] for path in paths], meaning, rows)

    @staticmethod
    def doubt(maps: Path, rows: np.ndarray) -> None:
        """Warn of maps that nobody said to be of this kind, and that may be of another."""


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
    top, place = folder.resolve(), maps.resolve()
    inside = folder / place.relative_to(top) if top in place.parents else None
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

    Raises:
        ValueError: A photograph would be the file of its own labels.
    """
    there: dict[Path, Path] = {}
    files = sorted(labels.rglob("*"))  # of two, the one in lower case
    for suffix in reversed(suffixes):
        there |= {path.with_suffix(""): path for path in files if path.suffix.lower() == suffix}
    stems = {path: (labels / path.relative_to(folder)).with_suffix("") for path in paths}
    composed = {_composed(stem): path for stem, path in there.items()}  # or not, as Macs do
    of_each = {p: there.get(stem) or composed.get(_composed(stem)) for p, stem in stems.items()}
    same = {path: file for path, file in of_each.items() if file is not None}
    both = [path for path, file in same.items() if path.name == file.name]
    if both and folder.resolve() == labels.resolve():
        raise ValueError(
            f"{printable(both[0])} would be its own map: photographs and {both[0].suffix} "
            f"files of labels lie in one folder, {printable(folder)}. Give each a folder of its "
            "own: photos/1.jpg has masks/1.png."
        )
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
        name = f"{escape(first.stem)}*"
        beneath = [*first.parent.glob(name)] or maps.rglob(name) if maps.is_dir() else []
        near = [path for path in sorted(beneath) if path not in paths]
        where = f"; {printable(first)} is not there" if maps.is_dir() else ""
        where += f", and {printable(min(near, key=lambda path: len(path.name)))} is" if near else ""
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
            return unreadable_reason(error) if isinstance(error, OSError) else str(error)

    with ThreadPoolExecutor(available_processors()) as pool:
        looked = list(pool.map(attempt, paths))
    reasons: dict[str, list[str]] = {}
    for path, reason in zip(paths, looked, strict=True):
        if isinstance(reason, str):
            source = sources[path] if isinstance(sources[path], Path) else path
            reasons.setdefault(reason, []).append(str(source))
    if problems or reasons:
        wrong = [*problems, *(f"{listed(f, 3)}: {reason}" for reason, f in reasons.items())]
        lines = "".join(f"\n    {printable(one)}" for one in wrong[:MOST_LINES])
        more = f"\n    and {len(wrong) - MOST_LINES:,} more" if len(wrong) > MOST_LINES else ""
        count, total = sum(map(len, reasons.values())) + len(problems), len(looked) + len(problems)
        raise ValueError(
            f"{counted(count, noun)} of {total:,} cannot be used:{lines}{more}\n{layout}"
        )
    return [one for one in looked if not isinstance(one, str)]


def readable(paths: Sequence[Path], options: FileOptions) -> tuple[list[Path], Checked]:
    """Return the photographs that can be decoded, and what their check has seen."""
    _, checked = check_images(paths, options)
    bad = {file for file, _ in checked.unreadable}
    return [path for path in paths if path not in bad], checked
