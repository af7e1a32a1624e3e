"""`.safetensors`: a length, a JSON header, raw bytes.

Read here instead of through its library, which keeps the file's mapped pages out of the peak
memory, reads bfloat16 without torch, and lets an error name the byte; written here, because the
library shuffles the header and the same model should make the same bytes.
"""

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

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

# Name in the file: NumPy's, or ml_dtypes's for bfloat16.
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "bfloat16", "BOOL": "?"}
DTYPES |= {f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)}


@contextmanager
def open_safetensors(path: Path) -> Iterator[Container]:
    """The arrays of a `.safetensors` file, checked by its header and read on demand.

    Raises:
        CheckpointError: Truncated, damaged, two tensors of one name or one place, or a dtype or
            shape that is none.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, largest_header(size)):
            raise CheckpointError(
                f"{path} announces a header of {length:,} bytes at byte 0, but is {size:,} bytes "
                f"long, and {largest_header(size):,} is the limit: it was cut off, or is something "
                "else."
            )
        header = _header(path, file.read(length))
        notes = _notes(header.pop("__metadata__", {}))
        start = 8 + length
        places = {name: _place(name, entry) for name, entry in header.items()}
        _check_places(path, places, size - start)
        check_declared_size(path, (place[1] for place in places.values()))
        yield Container(
            path,
            {name: _tensor(file, start, name, *place) for name, place in places.items()},
            notes,
        )


def save_safetensors(
    path: Path, tensors: Iterable[tuple[str, Array]], notes: dict[str, Any]
) -> None:
    """Writes a `.safetensors` file; `notes` go into its metadata."""
    # "format" is what transformers asks for before it loads a file.
    metadata = {"format": "pt", SEAL_KEY: UNSET_SEAL, "keras_vit": pack_notes(notes)}
    header: dict[str, Any] = {"__metadata__": metadata}
    arrays = [(name, np.ascontiguousarray(values, "<f4")) for name, values in tensors]
    end = 0
    for name, values in arrays:
        begin, end = end, end + values.nbytes
        header[name] = {
            "dtype": "F32",
            "shape": values.shape,
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, values in arrays:
            file.write(values.data)


def _header(path: Path, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise CheckpointError(f"{path} holds two tensors named {twice!r}: which one is meant?")
        return found

    try:
        header = json.loads(text, object_pairs_hook=unique)
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"The header of {path}, from byte 8, is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"The header of {path}, from byte 8, is no table of tensors.")
    return header


Place = tuple[np.dtype, tuple[int, ...], int, int]


def _place(name: str, entry: Any) -> Place:
    try:
        dtype_name, shape, (begin, end) = (entry[key] for key in ("dtype", "shape", "data_offsets"))
        dtype = _dtype(DTYPES[dtype_name])
        shape = checked_shape(name, shape)
        size = math.prod(shape) * dtype.itemsize
        fits = type(begin) is int and type(end) is int and end - begin == size
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"Tensor {name!r} has no readable header: {entry!r:.200}") from error
    if not fits:
        raise CheckpointError(
            f"Tensor {name!r} of shape {shape} and dtype {dtype_name} needs {size:,} bytes, but "
            f"its place is {begin} to {end}."
        )
    return dtype, shape, begin, end


def _dtype(name: str) -> np.dtype:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def _check_places(path: Path, places: dict[str, Place], size: int) -> None:
    """The tensors must fill the rest of the file: no gap, no overlap, nothing missing."""
    end = 0
    for name, place in sorted(places.items(), key=lambda item: item[1][2:]):
        if place[2] != end:
            raise CheckpointError(
                f"Tensor {name!r} begins at byte {place[2]:,} of the data, where {end:,} is due: "
                "tensors may neither overlap nor leave gaps."
            )
        end = place[3]
    if end != size:
        raise CheckpointError(
            f"{path} holds {size:,} bytes of data where its header promises {end:,}: "
            "it was cut off, or something was appended. Fetch it again."
        )


def _tensor(
    file: BufferedReader, start: int, name: str, dtype: np.dtype, shape: Any, begin: int, end: int
) -> Tensor:
    def read() -> Array:
        values = np.empty(end - begin, np.uint8)
        file.seek(start + begin)
        if file.readinto(values.data) != len(values):
            raise CheckpointError(f"Tensor {name!r} ends before byte {start + end:,} of the file.")
        return checked_float32(name, values.view(dtype).reshape(shape))

    return Tensor(name, shape, dtype.name, read)


def _notes(metadata: Any) -> dict[str, Any]:
    try:
        notes = json.loads(metadata["keras_vit"])
    except (ValueError, KeyError, TypeError):  # another program's metadata
        return {}
    return notes if isinstance(notes, dict) else {}
