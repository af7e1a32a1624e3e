"""HDF5 as Keras writes it, looked through before Keras reads it.

HDF5 can do much that a file of weights does not need and a hostile one would use: links to other
files, data that lies in other files, sizes without data, groups that contain themselves.
"""

import math
from pathlib import Path
from typing import Any

import h5py

from keras_vit.weights.checkpoint_error import CheckpointError, reason
from keras_vit.weights.containers.tensors import TensorShape, check_declared_size

DEEPEST = 32
# A heap of texts: its mark and version, its size, and from `_HEADER` on objects with headers.
_HEAP, _HEADER, _BLOCK = b"GCOL\x01\0\0\0", 16, 2**16
_SMALLEST = 4096 - _HEADER  # HDF5 makes no smaller ones


def h5_shapes(path: Path, content: Any = None) -> dict[str, TensorShape]:
    """Return the shape of every dataset in an HDF5 file, by its path; nothing of them is read.

    `path` is the file, or the archive that holds it; then `content` is the file inside, open.
    """
    try:
        if content is None:
            with path.open("rb") as stream:
                _check_heaps(path, stream)
        else:
            _check_heaps(path, content)
        with h5py.File(path if content is None else content, "r") as file:
            datasets = _walk(path, file)
    except CheckpointError:
        raise
    except Exception as error:  # HDF5 fails in many ways, all with one meaning
        raise CheckpointError(f"{path} is not a whole HDF5 file: {reason(error)}") from error
    check_declared_size(path, ((size,) for _, size in datasets.values()), 1)
    return {name: shape for name, (shape, _) in datasets.items()}


def _check_heaps(path: Path, stream: Any) -> None:
    """Refuses a heap whose objects do not fill it one after the other, in linear time.

    HDF5 goes on by the size of each object, and where that is 0 without end.
    """
    place = 0
    while (place := _find_heap(stream, place)) >= 0:
        stream.seek(place)
        length = int.from_bytes(stream.read(_HEADER)[8:], "little") - _HEADER
        heap, at = stream.read(max(0, min(length, path.stat().st_size))), 0
        while at + _HEADER <= len(heap):
            is_free = heap[at : at + 2] == b"\0\0"
            size = int.from_bytes(heap[at + 8 : at + 16], "little")
            size = size if is_free else _HEADER + (size + 7) // 8 * 8
            if not _HEADER <= size <= len(heap) - at:
                break
            at += size
        if len(heap) != length or length < _SMALLEST or at + _HEADER <= len(heap):
            raise CheckpointError(
                f"{path} has a damaged heap of texts at byte {place:,}: download it again, or "
                "take an earlier checkpoint."
            )
        place += _HEADER + length
    stream.seek(0)


def _find_heap(stream: Any, start: int) -> int:
    """Find where the next heap begins, or -1; in blocks, as files may be large."""
    stream.seek(start)
    before = b""
    while block := stream.read(_BLOCK):
        text = before + block
        if (at := text.find(_HEAP)) >= 0:
            return start - len(before) + at
        start, before = start + len(block), text[1 - len(_HEAP) :]
    return -1


def _walk(path: Path, file: Any) -> dict[str, tuple[TensorShape, int]]:
    """Shape and bytes of every dataset."""
    datasets: dict[str, tuple[TensorShape, int]] = {}
    _check_attributes(path, "/", file)
    seen = {_address(file)}
    groups = [("", file)]
    while groups:
        prefix, group = groups.pop()
        for key in group:
            name = prefix + key
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                raise CheckpointError(f"{name!r} in {path} is a link to elsewhere: never followed.")
            entry = group[key]
            if _address(entry) in seen or name.count("/") > DEEPEST:
                raise CheckpointError(f"{name!r} in {path} is a second name of another entry.")
            seen.add(_address(entry))
            _check_attributes(path, name, entry)
            if isinstance(entry, h5py.Group):
                groups.append((name + "/", entry))
            else:
                datasets[name] = _dataset(path, name, entry)
    return datasets


def _check_attributes(path: Path, name: str, entry: Any) -> None:
    """Refuses attributes that would fill more memory than the file: Keras reads them whole."""
    size = path.stat().st_size
    for key in entry.attrs:
        attribute = entry.attrs.get_id(key)
        declared = math.prod(attribute.shape) * attribute.dtype.itemsize
        if declared > size:
            raise CheckpointError(
                f"Attribute {key!r} of {name!r} in {path} declares {declared:,} bytes in a file of "
                f"{size:,}: it is damaged, or made to exhaust the memory. Nothing was read."
            )


def _address(entry: Any) -> Any:
    # `h5o.get_info` would also measure what it indexes, and never end in a circle.
    return h5py.h5g.get_objinfo(entry.id).objno


def _dataset(path: Path, name: str, entry: Any) -> tuple[TensorShape, int]:
    if not isinstance(entry, h5py.Dataset) or entry.is_virtual or entry.external:
        raise CheckpointError(f"{name!r} in {path} has its data elsewhere: never followed.")
    if entry.dtype.kind not in "fiubV" or entry.dtype.fields or entry.dtype.hasobject:
        raise CheckpointError(f"{name!r} in {path} holds {entry.dtype}: weights are numbers.")
    stored = entry.id.get_storage_size()
    if entry.chunks is None and stored != entry.nbytes:
        raise CheckpointError(
            f"{name!r} in {path} declares shape {entry.shape}, which is {entry.nbytes:,} bytes, "
            f"but {stored:,} are stored."
        )
    return tuple(entry.shape), entry.nbytes
