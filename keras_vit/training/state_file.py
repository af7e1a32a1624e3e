"""Everything a run needs to go on, in one `.safetensors` file that knows when it is damaged.

The format is the public one, so other programs read the arrays. Two tensors stand at its end:
`notes`, JSON as bytes, and `checksums`, one CRC-32 for every tensor before it and, as the file's
last four bytes, one for the header. Sums at the end let arrays be written one at a time.
"""

import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np

from keras_vit.checkpoints import CheckpointError
from keras_vit.checkpoints.safetensors_file import DTYPES

# Name in the file of every dtype that Keras has for variables.
NAMES = {np.dtype(kind): name for name, kind in DTYPES.items() if name != "BF16"}
NAMES |= {
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3",
    np.dtype(ml_dtypes.float8_e5m2): "F8_E5M2",
}
KINDS = {name: dtype for dtype, name in NAMES.items()}

_BLOCK = 2**24
_METADATA = {"format": "pt", "written_by": "keras_vit"}


@dataclass(frozen=True)
class Place:
    """Where a tensor stands: dtype, shape, first byte of the file, number of bytes."""

    dtype: np.dtype
    shape: tuple[int, ...]
    begin: int
    size: int


@dataclass(frozen=True)
class StateFile:
    """A verified file: its notes, and where to read its arrays."""

    path: Path
    notes: dict[str, Any]
    places: dict[str, Place] = field(repr=False)

    def read(self, name: str) -> np.ndarray:
        """One array, exactly as it was written."""
        place = self.places[name]
        with self.path.open("rb") as file:
            return _read(file, place).view(place.dtype).reshape(place.shape)


def write_state(path: Path, arrays: Mapping[str, Any], notes: dict[str, Any]) -> None:
    """Writes NumPy arrays or Keras variables, and what JSON can say, so that a kill does no harm.

    The file is written beside its place, forced to the disk and then renamed: under its name it is
    either whole or absent.

    Raises:
        OSError: The disk is full or the folder cannot be written; what stood there stands.
        TypeError: A dtype that the format does not know.
    """
    text = np.frombuffer(json.dumps(notes).encode(), np.uint8)
    sums = np.zeros(len(arrays) + 2, np.uint32)
    tensors = {**arrays, "notes": text, "checksums": sums}
    head = _head(tensors)
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(head)
            sums[-1] = zlib.crc32(head)
            for i, value in enumerate(tensors.values()):
                block = _bytes(value)
                if value is not sums:
                    sums[i] = zlib.crc32(block)
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    _sync_folder(path.parent)


def is_state(path: Path) -> bool:
    """Whether `write_state` began this file, by the mark at its start."""
    if path.is_symlink() or not path.is_file():
        return False
    mark = json.dumps({"__metadata__": _METADATA})[:-1].encode()
    with path.open("rb") as file:
        return file.read(8 + len(mark))[8:] == mark


def open_state(path: Path) -> StateFile:
    """Reads and verifies a whole file, keeping only its notes.

    Raises:
        CheckpointError: It was cut off or changed; the message names the bytes or the tensor.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= size - 12:
            raise CheckpointError(
                f"{path} announces a header of {length:,} bytes at byte 0, but is {size:,} bytes "
                "long: it was cut off, or is something else."
            )
        file.seek(0)
        head = file.read(8 + length)
        file.seek(size - 4)
        if zlib.crc32(head) != int.from_bytes(file.read(4), "little"):
            raise CheckpointError(
                f"The last four of the {size:,} bytes of {path} are not the checksum of its "
                f"header, bytes 0 to {len(head):,}: the file was cut off, or the header changed."
            )
        try:
            places = dict(_places(head))
            *checked, last = places
            sums = _read(file, places[last]).view(np.uint32)
            for name, wanted in zip(checked, sums, strict=False):
                _verify(file, path, name, places[name], int(wanted))
            notes = json.loads(_read(file, places["notes"]).tobytes())
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{path} is no checkpoint of a run: {error!r}.") from error
    return StateFile(path, notes, places)


def _head(tensors: Mapping[str, Any]) -> bytes:
    header: dict[str, Any] = {"__metadata__": _METADATA}
    end = 0
    for name, value in tensors.items():
        kind = NAMES.get(np.dtype(keras.backend.standardize_dtype(value.dtype)))
        if kind is None:
            raise TypeError(f"{name} is {value.dtype}. Known: {', '.join(map(str, NAMES))}.")
        begin, end = end, end + math.prod(value.shape) * KINDS[kind].itemsize
        header[name] = {"dtype": kind, "shape": list(value.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight
    return len(text).to_bytes(8, "little") + text


def _bytes(value: Any) -> memoryview:
    """The bytes of an array; bfloat16 has no buffer of its own."""
    values = value if isinstance(value, np.ndarray) else keras.ops.convert_to_numpy(value)
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def _places(head: bytes) -> Iterator[tuple[str, Place]]:
    header = json.loads(head[8:])
    header.pop("__metadata__", None)
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        dtype = KINDS[entry["dtype"]]
        yield name, Place(dtype, tuple(entry["shape"]), len(head) + begin, end - begin)


def _read(file: Any, place: Place) -> np.ndarray:
    values = np.empty(place.size, np.uint8)  # writable, as torch asks for
    file.seek(place.begin)
    file.readinto(values.data)
    return values


def _verify(file: Any, path: Path, name: str, place: Place, wanted: int) -> None:
    file.seek(place.begin)
    left, found = place.size, 0
    while left > 0 and (block := file.read(min(left, _BLOCK))):
        left -= len(block)
        found = zlib.crc32(block, found)
    if left or found != wanted:
        raise CheckpointError(
            f"Tensor {name!r} of {path}, bytes {place.begin:,} to {place.begin + place.size:,}, "
            "does not match its checksum: the file is damaged."
        )


def _sync_folder(folder: Path) -> None:
    """Forces the new name to the disk, too, where the system can (POSIX)."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
