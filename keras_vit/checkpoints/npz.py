"""NumPy's `.npz`, read without trust: nothing is unpickled, nothing is allocated on a claim."""

import json
import math
import struct
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.sums import SEAL_KEY, UNSET_SEAL
from keras_vit.checkpoints.tensors import (
    Array,
    Container,
    Tensor,
    check_declared_size,
    checked_float32,
    checked_shape,
    largest_header,
    pack_notes,
)

CHUNK = 2**20
# An array header is a line of text; NumPy's own limit.
LONGEST_ARRAY_HEADER = 10_000
HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


@contextmanager
def open_npz(path: Path) -> Iterator[Container]:
    """The arrays of a `.npz` file, checked by their headers and read on demand.

    Raises:
        CheckpointError: Truncated or damaged (checksums are compared when an array is read),
            pickled, two arrays of one name, or sizes that the file cannot hold.
    """
    check_zip_sizes(path)  # before any header is read: reading one unpacks it
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        check_unique(entries, path)
        tensors = [_tensor(archive, entry) for entry in entries]
        check_declared_size(path, (tensor.shape for tensor in tensors))
        yield Container(path, {t.name: t for t in tensors}, _notes(archive.comment))


def save_npz(path: Path, tensors: Iterable[tuple[str, Array]], notes: dict[str, Any]) -> None:
    """Writes a `.npz` file; `notes` go where NumPy does not look, the comment of the archive."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, values in tensors:
            # A fixed date: the same model makes the same bytes.
            entry = zipfile.ZipInfo(f"{name}.npy")
            with archive.open(entry, "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, values, allow_pickle=False)
        seal = f'"{SEAL_KEY}": "{UNSET_SEAL}"'
        archive.comment = f'{{"keras_vit": {pack_notes(notes)}, {seal}}}'.encode()


def check_zip_sizes(path: Path) -> None:
    """Refuses an archive that is broken, or would unpack to more than twice its size."""
    _check_directory(path)
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = [entry.file_size for entry in archive.infolist()]
    except Exception as error:  # whatever a hostile directory provokes, it has one meaning
        raise CheckpointError(f"{path} is not a whole zip archive: {error}") from error
    check_declared_size(path, ((size,) for size in sizes), 1)


def _check_directory(path: Path) -> None:
    """Refuses a directory so large that listing it would be the attack."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        tail_start = max(0, size - 22 - 65_535 - 20)
        file.seek(tail_start)
        tail = file.read()
        end = tail.rfind(b"PK\x05\x06")
        if end < 0 or len(tail) < end + 22:
            raise CheckpointError(
                f"{path} ends at byte {size:,} without the directory that closes a zip archive: "
                "it was cut off, or is something else. Fetch it again."
            )
        directory = struct.unpack_from("<I", tail, end + 12)[0]
        if end >= 20 and tail[end - 20 : end - 16] == b"PK\x06\x07":  # zip64 says it elsewhere
            file.seek(min(struct.unpack_from("<Q", tail, end - 12)[0], size))
            record = file.read(48)
            directory = struct.unpack_from("<Q", record, 40)[0] if len(record) == 48 else size
    if directory > largest_header(size):
        raise CheckpointError(
            f"The zip directory of {path} fills {directory:,} of its {size:,} bytes; one of "
            f"weights needs less than {largest_header(size):,}."
        )


def check_unique(entries: list[zipfile.ZipInfo], path: Path) -> None:
    """Refuses an archive with two entries of one name."""
    names = Counter(entry.filename for entry in entries)
    name, count = max(names.items(), key=lambda item: item[1], default=("", 0))
    if count > 1:
        raise CheckpointError(f"{path} holds {count} arrays named {name!r}: which one is meant?")


def _tensor(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Tensor:
    name = entry.filename.removesuffix(".npy")
    try:
        with archive.open(entry) as stream:
            version = np.lib.format.read_magic(stream)
            shape, fortran, dtype = HEADERS[version](stream, LONGEST_ARRAY_HEADER)
            start = stream.tell()
    except Exception as error:
        raise CheckpointError(f"Tensor {name!r} has no readable array header: {error}") from error
    shape = checked_shape(name, shape)
    if dtype.hasobject or dtype.kind not in "fiubV" or dtype.fields:
        raise CheckpointError(
            f"Tensor {name!r} holds {dtype}: only numbers are read, Python objects (pickles) and "
            "text never."
        )
    size = math.prod(shape) * dtype.itemsize
    if size != entry.file_size - start:
        raise CheckpointError(
            f"Tensor {name!r} declares shape {shape} of {dtype}, which is {size:,} bytes, but "
            f"{entry.file_size - start:,} are stored."
        )
    order: Literal["F", "C"] = "F" if fortran else "C"
    if dtype.str == "|V2":  # NumPy has no bfloat16 of its own and stores it as raw bytes
        import ml_dtypes

        dtype = np.dtype(ml_dtypes.bfloat16)

    def read() -> Array:
        values = _read(archive, entry, name, start, size)
        return checked_float32(name, values.view(dtype).reshape(shape, order=order))

    return Tensor(name, shape, dtype.name, read)


def _read(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, name: str, start: int, size: int
) -> Array:
    values = np.empty(size, np.uint8)
    rest = values.data
    try:
        with archive.open(entry) as stream:
            stream.read(start)
            while rest:
                count = stream.readinto(rest[:CHUNK])  # type: ignore[attr-defined]
                if not count:
                    raise EOFError(f"{len(rest):,} bytes are missing")
                rest = rest[count:]
            stream.read(1)  # at the end zipfile compares the checksum
    except Exception as error:
        raise CheckpointError(
            f"Tensor {name!r} (byte {entry.header_offset:,} of the file) is damaged: {error}"
        ) from error
    return values


def _notes(comment: bytes) -> dict[str, Any]:
    try:
        notes = json.loads(comment)["keras_vit"]
    except (ValueError, KeyError, TypeError):  # another program's comment is none of our business
        return {}
    return notes if isinstance(notes, dict) else {}
