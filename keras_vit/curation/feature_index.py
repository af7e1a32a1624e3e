"""An index of features: a folder with a row of numbers per photograph, and what they are of.

    index/
      features.safetensors   one tensor, "features" (rows, dimension), float16 or float32
      files.jsonl            a line per image file, sorted by name; those without an error have
                             rows, in this order
      index.json             what made the rows: weights, layer, preparation; counts, class names
      modified.npy           when each file was modified, in nanoseconds: lets the next call skip
                             files without reading them, and may differ between two copies
      SHA256SUMS             the sums of all these
      measures.bin           what `measure_photos` keeps: see kept_measures.py; not in SHA256SUMS

The header of `features.safetensors` is filled up with blanks to `HEADER` bytes, so that rows can be
written before their number is known, and mapped into memory from that byte on.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import sys
from array import array
from bisect import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np

from keras_vit._base.errors import printable
from keras_vit._base.manifest import MANIFEST, Manifest, read_manifest, sha256
from keras_vit.curation.curation_errors import DamagedIndexError, IndexMismatchError
from keras_vit.curation.photo_encoder import Encoder
from keras_vit.data.decode.image_files import irregular
from keras_vit.models.image_model import ImageModel

KIND, VERSION = "feature index", 1
FEATURES, FILES, INFO, MODIFIED = (
    "features.safetensors",
    "files.jsonl",
    "index.json",
    "modified.npy",
)
HEADER = 256  # bytes before the first row
_TENSOR_TYPES = {"float16": "F16", "float32": "F32"}
# Keys of index.json whose values decide the rows; weights are last, as their sum says the least.
IDENTITY = ("layer", "pooling", "dtype", "preparation", "weights")
# What the values of index.json and of a line of files.jsonl are; of those that may be None the key,
# too, may be missing from index.json.
_OPTIONAL = (str, NoneType)
_INFO_TYPES: dict[str, Any] = {
    **dict.fromkeys(("layer", "weights", "model", "photos"), str),
    **dict.fromkeys(("pooling", "source", "table"), _OPTIONAL),
    **{"preparation": dict, "class_names": list, "left_out": (dict, NoneType)},
    "made_with": (int, NoneType),
}
_ENTRY_TYPES: dict[str, Any] = {
    **{"file": str, "size": int},
    **dict.fromkeys(("sha256", "label", "split", "error"), _OPTIONAL),
}
_DAMAGE = (OSError, ValueError, KeyError, TypeError, RecursionError)


@dataclass(frozen=True)
class FeatureIndex:
    """The features of many photographs, as `keras_vit.curation.embed` writes them.

    Attributes:
        folder: Where it lies.
        features: `(n, dimension)`, mapped from the file: a row is read when it is asked for.
        files: Names of the `n` images, relative to `photos`, sorted.
        labels: int32 `(n,)`, the class of each image as its place in `class_names`, -1 where it is
            not known.
        splits: `"train"`, `"val"`, `"test"` or None per image.
        sizes: int64 `(n,)`, bytes of each file.
        sums: SHA-256 of each file in hexadecimal.
        class_names: Sorted.
        unreadable: The reason for each file that cannot be decoded; those do not have a row.
        info: The content of `index.json`; its `made_with` is how many of the images the model was
            made with, see `keras_vit.data.seen_images`, where it has a record of them.

    Example:

    >>> import tempfile, keras_vit, numpy as np
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from keras_vit.curation import FeatureIndex, embed
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "photos").mkdir()
    >>> Image.new("RGB", (8, 8), "red").save(folder / "photos/red.png")
    >>> model = keras_vit.VisionTransformer(patch_size=4, hidden_dim=16, depth=1, num_heads=2,
    ...     input_shape=(8, 8, 3))
    >>> index = embed(model, folder / "photos", folder / "index")
    >>> FeatureIndex.open(folder / "index").files, index.features.shape
    (('red.png',), (1, 16))
    """

    folder: Path
    features: np.ndarray = field(repr=False)
    files: tuple[str, ...] = field(repr=False)
    labels: np.ndarray = field(repr=False)
    splits: tuple[str | None, ...] = field(repr=False)
    sizes: np.ndarray = field(repr=False)
    sums: tuple[str, ...] = field(repr=False)
    class_names: tuple[str, ...]
    unreadable: Mapping[str, str] = field(repr=False)
    info: Mapping[str, Any] = field(repr=False)

    @classmethod
    def open(cls, folder: str | os.PathLike[str], verify: bool = False) -> FeatureIndex:
        """Reads an index, but for its features, which stay on the disk.

        Args:
            folder: What `embed` wrote.
            verify: Whether to compare the sum of the features, too, which reads all of them. Their
                size and the sums of the other files are always compared.

        Raises:
            DamagedIndexError: The folder is something else, a file was cut off or changed, or has
                what `embed` does not write, such as the name of an image outside `photos`.
        """
        folder = Path(folder)
        manifest = _whole_manifest(folder)
        times = (MODIFIED,) if (folder / MODIFIED).exists() else ()
        for name in (INFO, FILES, *times, *((FEATURES,) if verify else ())):
            _check_sum(folder, manifest, name)
        info = read_info(folder)
        number = {name: i for i, name in enumerate(info["class_names"])}
        files: list[str] = []
        sums: list[str] = []
        splits: list[str | None] = []
        labels, sizes = array("i"), array("q")
        unreadable: dict[str, str] = {}
        for entry in read_entries(folder):  # a million dictionaries would take a gigabyte
            if entry["error"] is not None:
                unreadable[entry["file"]] = entry["error"]
                continue
            files.append(entry["file"])
            sums.append(entry["sha256"])
            splits.append(entry["split"] and sys.intern(entry["split"]))
            labels.append(number.get(entry["label"], -1))
            sizes.append(entry["size"])
        if len(files) != info["rows"]:
            raise DamagedIndexError(
                f"{folder / FILES} has {len(files):,} images, and {INFO} says {info['rows']:,}: "
                f"delete {folder}, and make it again."
            )
        return cls(
            folder,
            map_features(folder, info),
            tuple(files),
            np.array(labels, np.int32),
            tuple(splits),
            np.array(sizes, np.int64),
            tuple(sums),
            tuple(info["class_names"]),
            unreadable,
            info,
        )

    def __len__(self) -> int:
        return len(self.files)

    @property
    def dimension(self) -> int:
        """Numbers per image."""
        return int(self.features.shape[1])

    @property
    def photos(self) -> Path:
        """The folder that the names of files are relative to."""
        return Path(os.path.normpath(self.folder / self.info["photos"]))

    @property
    def bands(self) -> tuple[int, ...] | None:
        """The bands of raster files that the model saw; None for photographs."""
        return tuple(self.info["preparation"].get("bands") or ()) or None

    def path(self, row: int) -> Path:
        """Return the file of a row."""
        return self.photos / self.files[row]

    def rows(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """float32 features `(stop - start, dimension)` of these rows; of all by default."""
        return np.asarray(self.features[start:stop], np.float32)

    def blocks(self, size: int = 8192) -> Iterator[np.ndarray]:
        """Return all rows in order, float32, so many at a time."""
        return (self.rows(start, start + size) for start in range(0, len(self), size))

    def encoder(self, model: ImageModel, batch_size: int = 32) -> Encoder:
        """Return the function that this index was made with, which `model` has to be the model of.

        Raises:
            IndexMismatchError: The index is of other weights or another preparation.
        """
        of_files = {key: self.info["preparation"].get(key) for key in ("max_pixels", "decoder")}
        encoder = Encoder(model, self.info["layer"], self.info["pooling"], batch_size, **of_files)
        check_identity(self.folder, self.info, encoder.identity, model.name)
        return encoder


def check_identity(
    folder: Path, info: Mapping[str, Any], identity: Mapping[str, Any], model: str
) -> None:
    """Raises an IndexMismatchError where an index was not made by what `identity` describes."""
    for key in IDENTITY:
        if key not in identity or info[key] == identity[key]:
            continue
        there, here = info[key], identity[key]
        if key == "preparation":
            differ = [name for name in here if there.get(name) != here[name]]
            there = ", ".join(f"{name}={there.get(name)!r}" for name in differ)
            here = ", ".join(f"{name}={here[name]!r}" for name in differ)
        elif key == "weights":
            there = f"{info['model']!r}, sum {there[:12]}"
            here = f"{model!r}, sum {here[:12]}"
        else:
            there, here = repr(there), repr(here)
        other = "other weights" if key == "weights" else f"another {key}"
        raise IndexMismatchError(
            f"{folder} was made with {other}: {there}, and this is {here}. Give another folder, or "
            f"what {folder} was made with."
        )


def modified_times(index: FeatureIndex) -> np.ndarray:
    """Return when each row's file was modified, int64 `(n,)` nanoseconds; -1 where not known."""
    unreadable = sorted(index.unreadable)
    times = read_times(index.folder)
    if len(times) != len(index) + len(unreadable):
        return np.full(len(index), -1)
    # Those of all files in the order of their names, the unreadable ones included.
    places = (row + bisect(unreadable, file) for row, file in enumerate(index.files))
    return np.asarray(times[np.fromiter(places, np.int64, len(index))])


def read_times(folder: Path) -> np.ndarray:
    """When each file was modified, mapped from `modified.npy`; empty where that was deleted.

    Raises:
        DamagedIndexError: It is not a row of integers.
    """
    path = folder / MODIFIED
    if not path.exists():
        return np.zeros(0, np.int64)
    try:
        # Mapped: the size in its header may be more than the file has, or the memory.
        times = np.lib.format.open_memmap(path, mode="r")
        if times.ndim != 1 or times.dtype != np.int64:
            raise TypeError("it does not have a row of int64")
    except Exception as error:  # NumPy parses the header as Python: it fails in many ways
        raise _not_whole(path, error) from error
    return times


def read_info(folder: Path) -> dict[str, Any]:
    """Return the content of `index.json`, or a DamagedIndexError."""
    path = folder / INFO
    try:
        info: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if info["version"] != VERSION:
            raise DamagedIndexError(
                f"{folder} has version {info['version']!r} of the format, and {VERSION} is read: "
                "it was written by a newer keras_vit. Install that, or make the index again."
            )
        missing = {*IDENTITY, "class_names", "dimension", "model", "photos"} - set(info)
        if missing:
            raise KeyError(*missing)
        _check_info(info)
    except _DAMAGE as error:
        if isinstance(error, DamagedIndexError):
            raise
        raise _not_whole(path, error) from error
    return info


def read_entries(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of `files.jsonl`, one at a time, or a DamagedIndexError."""
    path = folder / FILES
    try:
        with path.open("rb") as file:
            for line in file:
                entry = json.loads(line)
                _check_entry(entry)
                yield entry
    except _DAMAGE as error:
        raise _not_whole(path, error) from error


def _check_info(info: Mapping[str, Any]) -> None:
    """Raises an error of `_DAMAGE` for an `index.json` with what `embed` does not write."""
    for key, kind in _INFO_TYPES.items():
        if not isinstance(info.get(key), kind):
            raise TypeError(f"{key!r} is {info[key]!r}")
    preparation, left_out = info["preparation"], info.get("left_out") or {}
    bands = preparation.get("bands") or ()
    numbers = [*preparation["image_size"], preparation["max_pixels"], *bands, *left_out.values()]
    numbers.append(info.get("made_with") or 0)
    for number in (info["rows"], info["dimension"], *numbers):
        if type(number) is not int or not 0 <= number < 2**48:
            raise ValueError(f"{number!r} is not a number of rows, pixels or files")
    names = info["class_names"]
    if info["dtype"] not in _TENSOR_TYPES or not all(isinstance(name, str) for name in names):
        raise ValueError(f"dtype={info['dtype']!r} or a name of a class is not one")
    for key in ("photos", "source"):
        if b"\0" in os.fsencode(info.get(key) or ""):
            raise ValueError(f"{key!r} is {info[key]!r}")


def _check_entry(entry: Mapping[str, Any]) -> None:
    """Raises an error of `_DAMAGE` for a line of `files.jsonl` that `embed` does not write."""
    for key, kind in _ENTRY_TYPES.items():
        if not isinstance(entry[key], kind):
            raise TypeError(f"{key!r} is {entry[key]!r}")
    file, digest = entry["file"], entry["sha256"]
    # As text: what ".." means must not depend on where a link leads. Whoever made the index may be
    # another than the one who opens it, whose images are audited, shown and listed.
    if file.startswith(("/", "../")) or file in (".", "..") or posixpath.normpath(file) != file:
        raise ValueError(f"{file!r} is not the path of an image in its folder")
    if b"\0" in os.fsencode(file):
        raise ValueError(f"{file!r} is not a name")
    if not re.fullmatch("[0-9a-f]{64}", digest or ("" if entry["error"] is None else 64 * "0")):
        raise ValueError(f"'sha256' is {digest!r}")
    if entry["split"] not in ("train", "val", "test", None) or not 0 <= entry["size"] < 2**63:
        raise ValueError(f"'split' is {entry['split']!r}, and 'size' {entry['size']}")


def map_features(folder: Path, info: Mapping[str, Any]) -> np.ndarray:
    """Return the features `(rows, dimension)`, mapped read-only, or a DamagedIndexError."""
    path, shape = folder / FEATURES, (info["rows"], info["dimension"])
    expected = features_header(info["dtype"], *shape)
    size = HEADER + shape[0] * shape[1] * np.dtype(info["dtype"]).itemsize
    try:
        if kind := irregular(path):
            raise ValueError(f"it is {kind}")
        with path.open("rb") as file:
            begin = file.read(HEADER)
            actual = os.fstat(file.fileno()).st_size
    except (OSError, ValueError) as error:
        raise _not_whole(path, error) from error
    if begin != expected or actual != size:
        raise DamagedIndexError(
            f"{path} is not the file of {shape[0]:,} rows of {shape[1]:,} numbers that {INFO} "
            f"describes: it has {actual:,} bytes of {size:,}. Delete {folder}, and make it again."
        )
    if not shape[0]:
        return np.zeros(shape, info["dtype"])
    return np.memmap(path, np.dtype(info["dtype"]).newbyteorder("<"), "r", HEADER, shape)


def features_header(dtype: str, rows: int, dimension: int) -> bytes:
    """Return the first `HEADER` bytes of `features.safetensors`."""
    end = rows * dimension * np.dtype(dtype).itemsize
    tensor = {
        "dtype": _TENSOR_TYPES[dtype],
        "shape": [rows, dimension],
        "data_offsets": [0, end],
    }
    text = json.dumps({"features": tensor}).encode()
    return (HEADER - 8).to_bytes(8, "little") + text.ljust(HEADER - 8)


def _whole_manifest(folder: Path) -> Manifest:
    manifest = read_manifest(folder)
    if manifest is None or manifest.kind != KIND or not manifest.complete:
        raise DamagedIndexError(
            f"{folder} is not an index of features: {MANIFEST} in it is missing, changed, or of "
            "something else. Make one with keras_vit.curation.embed(model, photos, out)."
        )
    return manifest


def _check_sum(folder: Path, manifest: Manifest, name: str) -> None:
    path = folder / name
    try:
        if kind := irregular(path):  # reading it might never end
            reason = f"it is {kind}"
        elif sha256(path) == manifest.sums[name]:
            return
        else:
            reason = f"its sum is not that in {MANIFEST}"
    except (OSError, KeyError) as error:
        reason = str(error)
    raise DamagedIndexError(
        f"{path} was changed or cut off since it was written ({reason}): delete {folder}, and make "
        "it again."
    )


def _not_whole(path: Path, error: Exception) -> DamagedIndexError:
    reason = printable(" ".join(str(error).split())[:200])
    return DamagedIndexError(
        f"{path} is not a whole file of an index ({type(error).__name__}: {reason}): delete "
        f"{path.parent}, and make it again."
    )
