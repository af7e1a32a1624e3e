"""Which image files a folder, a table or a list has, with their labels and splits where known."""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from keras_vit._base.errors import printable
from keras_vit.data.decode.image_kinds import PILLOW, is_hidden, is_image, suffixes_of
from keras_vit.data.sources.label_table import read_file_table
from keras_vit.data.sources.listings import read_listing
from keras_vit.data.sources.other_formats import note_left_out, shown_left_out
from keras_vit.data.sources.split_names import (
    are_splits,
    folders_in,
    split_folders,
    split_lists,
    split_of,
)
from keras_vit.data.sources.table_files import SUFFIXES as TABLE_SUFFIXES

PhotoSource = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Photo(NamedTuple):
    """An image file.

    Attributes:
        name: Its path relative to the folder of its source, with forward slashes.
        label: The name of its class; None where that is not known.
        split: `"train"`, `"val"` or `"test"`; None where that is not known.
    """

    name: str
    label: str | None
    split: str | None


@dataclass(frozen=True)
class PhotoList:
    """The image files of a source.

    Attributes:
        root: The folder that names are relative to.
        walk: Lists them anew, sorted by name, without repetitions.
        is_folder: Whether all that lies in `root` belongs to it.
        left_out: How many files are not images, by their suffix, once `walk` is done.
        known: The size of each file and when it was changed, in nanoseconds, where `root` is not on
            a disk.
        table: The name of the table in `root` that lists them; None without one.
    """

    root: Path
    walk: Callable[[], Iterator[Photo]]
    is_folder: bool = False
    left_out: Counter[str] = field(default_factory=Counter)
    known: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    table: str | None = None

    def status(self, name: str) -> tuple[int, int]:
        """Return the size of a file and when it was changed; zeros where it is not there."""
        try:
            status = os.stat(self.root / name)
        except OSError:  # reading it raises the reason
            return self.known.get(name, (0, 0))
        return status.st_size, status.st_mtime_ns


def find_photos(source: PhotoSource) -> PhotoList:
    """Return the image files that a source stands for.

    Args:
        source: One of

            - a folder, with all folders in it but hidden ones. Files of `FOLDER/<class>/*` and of
              `FOLDER/train/<class>/*` are labeled by their folder; names of splits, `train.txt` and
              `val.txt` are
              read as `keras_vit.data.load` reads them;
            - a table, CSV, TSV, JSON lines or Parquet, with a column of files relative to its
              folder, and perhaps one of labels, and `split`;
            - a list of files.

    Raises:
        FileNotFoundError: There is no such folder or table.
        ValueError: The source does not have an image, or the table cannot be used.

    >>> [photo.name for photo in find_photos(["photos/b.jpg", "photos/a.jpg"]).walk()]
    ['a.jpg', 'b.jpg']
    """
    if not isinstance(source, str | os.PathLike):
        photos = _of_files(source)
    else:
        path = Path(source).expanduser()
        if path.is_dir():
            photos = _of_folder(path)
        elif path.suffix.lower() in TABLE_SUFFIXES:
            rows = sorted({row[0]: Photo(*row) for row in read_file_table(path)}.items())
            photos = PhotoList(path.parent, lambda: (photo for _, photo in rows), table=path.name)
        elif path.exists():
            raise ValueError(
                f"{printable(path)} is neither a folder nor a table: give a folder of images, or "
                f"a table of them, {', '.join(TABLE_SUFFIXES)}."
            )
        else:
            raise FileNotFoundError(f"There is no folder or table {printable(path)}.")
    if next(photos.walk(), None) is None:
        shown = printable(source) if isinstance(source, str | os.PathLike) else "the list"
        others = f"There are {shown_left_out(photos.left_out)}. " if photos.left_out else ""
        raise ValueError(
            f"No image is in {shown}. {others}Give some with {', '.join(suffixes_of(PILLOW))}."
        )
    return photos


def _of_files(files: Sequence[str | os.PathLike[str]]) -> PhotoList:
    paths = [os.path.abspath(os.path.expanduser(file)) for file in files]
    root = Path(os.path.commonpath([os.path.dirname(path) for path in paths] or [os.getcwd()]))
    names = sorted({Path(path).relative_to(root).as_posix() for path in paths})
    return PhotoList(root, lambda: (Photo(name, None, None) for name in names))


def _of_folder(folder: Path) -> PhotoList:
    places = _class_places(folder)
    split_of_file = _listed_splits(folder, places)
    left_out: Counter[str] = Counter()

    def walk() -> Iterator[Photo]:
        left_out.clear()
        for name in _image_names(folder, places, left_out):
            parent = name.rpartition("/")[0]
            label, split = places.get(parent, (None, None))
            yield Photo(name, label, split or split_of_file.get(name))

    return PhotoList(folder, walk, is_folder=True, left_out=left_out)


def _class_places(folder: Path) -> dict[str, tuple[str | None, str | None]]:
    """Return the class and the split of the images in each folder that stands for one of them."""
    inner = folders_in(folder)
    if not (split_folders(folder)[0] or are_splits(inner)):
        return {path.name: (path.name, None) for path in inner} if len(inner) > 1 else {}
    places: dict[str, tuple[str | None, str | None]] = {}
    for part in inner:
        if split := split_of(part.name):
            places[part.name] = (None, split)
            places |= {f"{part.name}/{c.name}": (c.name, split) for c in folders_in(part)}
    return places


def _listed_splits(
    folder: Path, places: Mapping[str, tuple[str | None, str | None]]
) -> dict[str, str]:
    """Return the split of each file by the lists of a folder of classes."""
    lists, _ = split_lists(folder)
    if "train" not in lists or not places or any(split for _, split in places.values()):
        return {}
    return {
        file.relative_to(folder).as_posix(): split
        for split, path in lists.items()
        for file, _ in read_listing(path, list(places))
    }


def _image_names(
    folder: Path, places: Collection[str], left_out: Counter[str], prefix: str = ""
) -> Iterator[str]:
    """Yield the images below a folder in the order of their names, one folder in memory at a time.

    Links to folders are followed where they stand for a class, as `keras_vit.data.load` does:
    elsewhere they may lead in circles. A folder that cannot be opened is an error: its images
    would seem to be gone.
    """
    with os.scandir(folder / prefix) as entries:
        # With the slash, the order is that of the whole names: "a-1.jpg" comes before "a/1.jpg".
        names = sorted(
            entry.name
            + ("/" if entry.is_dir(follow_symlinks=prefix + entry.name in places) else "")
            for entry in entries
            if not is_hidden(entry.name)
        )
    for name in names:
        if name.endswith("/"):
            yield from _image_names(folder, places, left_out, prefix + name)
        elif is_image(path := folder / prefix / name):
            yield prefix + name
        else:
            note_left_out(path, left_out)
