"""Labels drawn as polygons, in files of labelme, COCO and YOLO: a class for every pixel."""

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_vit._base.errors import ReadingWarning, counted, listed, printable, warn_at_caller
from keras_vit._base.version import install_command
from keras_vit.data.data_errors import BadImageError
from keras_vit.data.decode.image_files import read_contents
from keras_vit.data.sources.listings import read_text
from keras_vit.data.sources.map_folder import beside
from keras_vit.data.sources.polygons import polygon_pixels
from keras_vit.data.sources.split_names import split_of
from keras_vit.data.sources.split_tables import files_of_splits
from keras_vit.tasks.pixel_losses import IGNORED

NAMES = "classes.txt"
_DATA = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")  # of YOLO, which have the names
BACKGROUND = ("background", "_background_", "__background__")  # of pixels that nothing covers
UNKNOWN = "__ignore__"  # labelme's label of pixels of no known class
_CORNERS = 128  # of a circle


class Shape(NamedTuple):
    """A part of an image that has a label: the inside of outlines, or COCO's run lengths."""

    label: str
    outlines: tuple[np.ndarray, ...] = ()
    runs: Mapping[str, Any] | None = None

    def inside(self, size: tuple[int, int]) -> np.ndarray:
        """Return whether each pixel of an image is in it, bool `(height, width)`."""
        if self.runs is None:
            return np.any([polygon_pixels(one, size) for one in self.outlines], axis=0)
        coco = _pycocotools()
        is_text = isinstance(self.runs["counts"], str)
        encoded = self.runs if is_text else coco.frPyObjects(self.runs, *size)
        return np.asarray(coco.decode(encoded), bool)


@dataclass(frozen=True)
class Drawing:
    """The labels of a photograph: shapes, of which later ones cover earlier ones."""

    size: tuple[int, int]
    shapes: tuple[Shape, ...]
    numbers: Mapping[str, int]

    def class_map(self) -> np.ndarray:
        """Return the number of the class in each pixel, int32 `(height, width)`.

        Raises:
            ValueError: A label is not that of a class.
        """
        classes = np.full(self.size, self.numbers[BACKGROUND[0]], np.int32)
        for shape in self.shapes:
            if shape.label not in self.numbers:
                known = listed([x for x in self.numbers if x not in (*BACKGROUND, UNKNOWN)], 5)
                raise ValueError(f"has the label {shape.label!r}, and the classes are {known}")
            classes[shape.inside(self.size)] = self.numbers[shape.label]
        return classes


class Labelme:
    """A JSON file of labelme per photograph, of the same name and folders."""

    suffix = ".json"
    layout = (
        "Give a JSON file of labelme for each photograph, with its name and folders: photos/a/1.jpg"
        " has labels/a/1.json. Of COCO, give the file itself."
    )

    def __init__(self, folder: Path, labels: Path, names: Sequence[str]) -> None:
        self.folder, self.labels, self.names = folder, labels, names
        self.problems: list[str] = []

    def find(self, paths: Iterable[Path]) -> dict[Path, Any]:
        """Return which file has the labels of each photograph, and leave out the others."""
        return beside(paths, self.folder, self.labels, self.suffix)

    def shapes(self, source: Any, size: tuple[int, int]) -> tuple[Shape, ...]:
        """Return what a file has of a photograph of this size, or raise a ValueError."""
        record = _fields(_read_json(source), "shapes")
        _check_size(record.get("imageHeight"), record.get("imageWidth"), size)
        return tuple(
            self._shape_of(_fields(one, "label", "points"), size) for one in record["shapes"]
        )

    def order(self, labels: set[str]) -> list[str]:
        """Return the names of the classes in order, where no list has them."""
        return sorted(labels)

    def _shape_of(self, shape: Mapping[str, Any], size: tuple[int, int]) -> Shape:
        kind, points = shape.get("shape_type") or "polygon", shape["points"]
        if kind in ("rectangle", "circle") and np.shape(points) == (2, 2):
            (left, top), (right, bottom) = np.asarray(points, np.float64)
            points = [(left, top), (right, top), (right, bottom), (left, bottom)]
            if kind == "circle":  # a center, and a point on it
                turns = np.linspace(0, 2 * np.pi, _CORNERS, endpoint=False)
                radius = np.hypot(right - left, bottom - top)
                points = np.stack([left + radius * np.cos(turns), top + radius * np.sin(turns)], -1)
        elif kind not in ("polygon", "rotation") and not (  # the last two as X-AnyLabeling writes
            kind == "rectangle" and np.shape(points) == (4, 2)
        ):
            raise ValueError(
                f"has a shape of the type {kind!r}: polygon, rectangle of 2 or 4 points and circle "
                "of 2 are read"
            )
        return Shape(str(shape["label"]), (_outline(points, size),))


class Yolo(Labelme):
    """A text file per photograph: a line per polygon, the number of its class, then x and y.

    These are parts of the photograph's width and height. A photograph without a file has nothing
    but background; but a split without any file lacks its labels.
    """

    suffix = ".txt"
    layout = (
        "Give a text file for each photograph, with its name and folders, and in it a line per "
        "polygon: the number of its class, then x and y of each corner as parts of width and height"
    )

    def find(self, paths: Iterable[Path]) -> dict[Path, Any]:
        paths = list(paths)
        files = super().find(paths)
        top = {path: path.relative_to(self.folder).parts[0] for path in paths}
        labeled, folders = {top[path] for path in files}, {path.parent for path in files}
        photographs = [p for p in paths if files and (top[p] in labeled or not split_of(top[p]))]
        bare = [path for path in photographs if path.parent not in folders]
        others = set(self.labels.rglob(f"*{self.suffix}")) - {*files.values(), self.labels / NAMES}
        if files and others and len(files) < len(paths):
            warn_at_caller(
                f"{counted(len(paths) - len(files), 'photograph')} without a text file in "
                f"{printable(self.labels)} will be background alone. Do the names fit? There: "
                f"{counted(len(others), 'text file')} without a photograph, such as "
                f"{printable(min(others).name)}."
            )
        elif bare:
            warn_at_caller(
                f"{counted(len(bare), 'photograph')} will be background alone, as in "
                f"{printable(bare[0].parent)} not one has a text file in {printable(self.labels)}: "
                "are their labels elsewhere?"
            )
        return {**dict.fromkeys(photographs), **files}

    def shapes(self, source: Any, size: tuple[int, int]) -> tuple[Shape, ...]:
        if source is None or not os.path.getsize(source):
            return ()
        rows = [line.split() for line in read_contents(source).decode("utf-8").splitlines()]
        return tuple(self._row(i, row, size) for i, row in enumerate(rows, 1) if row)

    def order(self, labels: set[str]) -> list[str]:
        return list(map(str, range(max(map(int, labels), default=0) + 1)))

    def _row(self, line: int, row: list[str], size: tuple[int, int]) -> Shape:
        if len(row) == 5:
            raise ValueError(f"has a box in line {line}, and polygons alone are of pixels")
        if not (row[0].isascii() and row[0].isdigit() and len(row[0]) < 9):
            raise ValueError(f"has the class {row[0]!r} in line {line}, which is not a number")
        number = int(row[0])
        if number >= (len(self.names) or IGNORED):
            most = len(self.names) or IGNORED
            raise ValueError(f"has the class {number} in line {line}: give 0 to {most - 1}")
        try:
            corners = np.reshape(np.array(row[1:], np.float64), (-1, 2)) * size[::-1]
        except ValueError as error:
            raise ValueError(f"has a line {line} that is not pairs of numbers") from error
        return Shape(self.names[number] if self.names else row[0], (_outline(corners, size),))


def names_of_yolo(labels: Path) -> tuple[str, ...]:
    """Return the names of classes in YOLO's `data.yaml`, in the folder of labels or above it.

    Without such a file there are none; nor without PyYAML, which a warning says.

    Raises:
        ValueError: The file does not have a list of names, or a number for each.
    """
    folders = (labels, *labels.absolute().parents[:2])
    for file in (folder / name for folder in folders for name in _DATA):
        if not file.is_file():
            continue
        try:
            import yaml
        except ImportError:
            warn_at_caller(
                f"{printable(file)} may have the names of the classes; PyYAML reads it: "
                f"pip install pyyaml; or list them in {NAMES}.",
                ReadingWarning,
            )
            return ()
        try:
            names = yaml.safe_load(read_text(file, "the names of classes"))["names"]
            if isinstance(names, dict):
                names = [names[number] for number in range(len(names))]
            if not isinstance(names, list) or not all(isinstance(x, str | int) for x in names):
                raise TypeError("they are not a list of texts")
        # PyYAML's own for tags such as "!!int ''" and "!!timestamp x".
        except (yaml.YAMLError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ValueError(
                f"{printable(file)} does not have the names of YOLO's classes "
                f"({printable(repr(error))}): give names: [cat, dog], or list them in {NAMES}."
            ) from error
        return tuple(map(str, names))
    return ()


class Coco(Labelme):
    """One JSON file of COCO for all photographs: polygons, and run lengths by pycocotools."""

    layout = (
        "Give a JSON file of COCO with images, categories and annotations; file_name is the path "
        "of a photograph in its folder, or from the JSON file. A table is CSV, TSV, JSON lines or "
        "Parquet."
    )

    def __init__(self, folder: Path, labels: Path, names: Sequence[str]) -> None:
        super().__init__(folder, labels, names)
        self.images: dict[str, tuple[Path, Mapping[str, Any]]] = {}
        self.kinds: dict[int, str] = {}
        self.annotations: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for file in [labels] if labels.exists() else files_of_splits(folder, labels.name):
            try:
                self._read(file)
            except (BadImageError, TypeError, ValueError) as error:
                raise ValueError(
                    f"{printable(file)}: {printable(str(error))}. {self.layout}"
                ) from error
        rows = [one for each in self.annotations.values() for one in each]
        if any(isinstance(one["segmentation"], dict) for one in rows):
            _pycocotools()  # before any work

    def _read(self, file: Path) -> None:
        record = _fields(_read_json(file), "images", "annotations", "categories")
        images = [_fields(one, "id", "file_name") for one in record["images"]]
        self.images |= {f"{file}:{one['id']}": (file, one) for one in images}
        if len({str(x["id"]) for x in images}) < len(
            {f"{x['id']} {x['file_name']}" for x in images}
        ):
            raise ValueError("has two images with one id")
        kinds = [_fields(one, "id", "name") for one in record["categories"]]
        numbers = {int(one["id"]): str(one["name"]) for one in kinds}
        if len(numbers) < len(kinds):
            raise ValueError("has two categories with one id")
        if any(self.kinds.get(number, name) != name for number, name in numbers.items()):
            raise ValueError("has other categories than the files of the other splits")
        # Roboflow's files begin with a category that is but the kind of the others.
        used = {one.get("category_id") for one in record["annotations"] if isinstance(one, dict)}
        above = {one.get("supercategory") for one in kinds}
        unused = {n for n, name in numbers.items() if name in above and n not in used}
        self.kinds |= {n: name for n, name in numbers.items() if n not in unused}
        for one in record["annotations"]:
            each = _fields(one, "image_id", "category_id", "segmentation")
            self.annotations[f"{file}:{each['image_id']}"].append(each)

    def find(self, paths: Iterable[Path]) -> dict[Path, Any]:
        there = {os.path.abspath(path): path for path in paths}
        sources: dict[Path, Any] = {}
        for number, (file, image) in self.images.items():
            name = str(image["file_name"])
            places = [os.path.abspath(top / name) for top in (file.parent, self.folder)]
            path = next((there[place] for place in places if place in there), None)
            if path is None:
                self.problems.append(f"{name}: is in {file}, and not in {self.folder}")
            elif path in sources:
                ids = f"{self.images[sources[path]][1]['id']} and {image['id']}"
                self.problems.append(f"{name}: is two images of {file}, {ids}: join them in one")
            else:
                sources[path] = number
        return sources

    def shapes(self, source: Any, size: tuple[int, int]) -> tuple[Shape, ...]:
        _, image = self.images[source]
        _check_size(image.get("height"), image.get("width"), size)
        return tuple(self._annotation(one, size) for one in self.annotations[source])

    def order(self, labels: set[str]) -> list[str]:
        return [self.kinds[number] for number in sorted(self.kinds)]

    def _annotation(self, one: Mapping[str, Any], size: tuple[int, int]) -> Shape:
        what, parts, kind = f"annotation {one.get('id')}", one["segmentation"], one["category_id"]
        label = self.kinds.get(kind) if isinstance(kind, int) else None
        if label is None:
            raise ValueError(f"{what} has the category {kind}, which is not listed")
        if isinstance(parts, dict):
            counts = parts.get("counts")
            is_whole = not isinstance(counts, list) or sum(counts) == size[0] * size[1]
            if (
                parts.get("size") != list(size)
                or not isinstance(counts, str | list)
                or not is_whole
            ):
                raise ValueError(f"{what} has run lengths of {parts.get('size')}")
            return Shape(label, (), parts)
        if not isinstance(parts, list) or not parts:
            raise ValueError(f"{what} does not have a polygon or run lengths")
        return Shape(label, tuple(_outline(part, size) for part in parts))


def drawings_in(folder: Path, labels: Path, names: Sequence[str]) -> Labelme | None:
    """Return who reads the labels of a folder of photographs; None for masks in PNG files.

    Args:
        labels: A folder, which may be the same one, or a file of COCO.
        names: Of the classes, in the order of YOLO's numbers.
    """
    if not labels.is_dir():
        return Coco(folder, labels, names)
    files = [path for path in labels.rglob("*") if path.name != NAMES]
    suffixes = {path.suffix.lower() for path in files}
    if ".png" in suffixes and not os.path.samefile(folder, labels):
        return None
    kinds: tuple[type[Labelme], ...] = (Labelme, Yolo)
    kind = next((kind for kind in kinds if kind.suffix in suffixes), None)
    return None if kind is None else kind(folder, labels, names)


def with_background(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of classes without labelme's for unknown pixels, and with a background.

    >>> with_background(["__ignore__", "_background_", "cat"]), with_background(["cat"])
    (('_background_', 'cat'), ('background', 'cat'))
    """
    known = [name for name in names if name != UNKNOWN]
    has = any(name in BACKGROUND for name in known)
    return tuple(known) if has else (BACKGROUND[0], *known)


def numbers_of(names: Sequence[str]) -> dict[str, int]:
    """Return the number of each label; without a background, what nothing covers is unknown."""
    numbers = {name: i for i, name in enumerate(names)} | {UNKNOWN: IGNORED}
    ground = next((numbers[name] for name in BACKGROUND if name in numbers), IGNORED)
    return {**dict.fromkeys(BACKGROUND, ground), **numbers}


def _read_json(file: Path) -> Any:
    try:
        return json.loads(read_contents(file))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON ({error})") from error


def _fields(record: Any, *names: str) -> Mapping[str, Any]:
    """Return a record of JSON that has these fields; those of several things are lists."""
    if not isinstance(record, dict) or any(name not in record for name in names):
        raise ValueError(f"does not have {' and '.join(names)} where they should be")
    for name in ("shapes", "images", "annotations", "categories"):
        if name in names and not isinstance(record[name], list):
            raise ValueError(f"does not have a list as {name}")
    return record


def _check_size(height: Any, width: Any, size: tuple[int, int]) -> None:
    if height is not None and (height, width) != size:
        raise ValueError(
            f"is of {width} x {height} pixels, and its photograph {size[1]} x {size[0]}"
        )


def _outline(points: Any, size: tuple[int, int]) -> np.ndarray:
    """Return the corners of a polygon, float64 `(corners, 2)`, or raise a ValueError."""
    try:
        corners = np.reshape(np.asarray(points, np.float64), (-1, 2))
    except (TypeError, ValueError) as error:
        raise ValueError("has a polygon that is not pairs of numbers") from error
    if len(corners) < 3:
        raise ValueError(f"has a polygon of {counted(len(corners), 'corner')}")
    far = np.array(size[::-1])
    if not ((corners >= -far) & (corners <= 2 * far)).all():  # nor NaN
        raise ValueError(f"has a polygon far beyond its photograph, {size[1]} x {size[0]}")
    return corners


def _pycocotools() -> Any:
    try:
        from pycocotools import mask
    except ImportError as error:
        raise ImportError(
            f"Run lengths in COCO's files are read by pycocotools: {install_command('coco')}",
            name="pycocotools",
        ) from error
    return mask
