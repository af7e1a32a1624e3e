"""NumPy's `.npz`, read without trust: nothing is unpickled, no declared size is believed."""

import math
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
from numpy.lib import format as npy

from keras_vit.weights.checkpoint_error import CheckpointError, reason
from keras_vit.weights.containers.sums import SEAL_KEY, UNSET_SEAL
from keras_vit.weights.containers.tensors import (
    Array,
    Container,
    Tensor,
    check_declared_size,
    check_shape,
    checked_float32,
    largest_header,
    pack_metadata,
    unpack_metadata,
)

LONGEST_COMMENT = 2**16 - 1  # of a zip archive
HEADER_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


@contextmanager
def open_npz(path: Path) -> Iterator[Container]:
    """Yield the arrays of a `.npz` file, checked by their headers and read on demand.

    Refuses what is truncated or damaged (checksums are compared when an array is read), pickled,
    has two arrays of one name, or sizes that the file cannot hold.
    """
    check_zip(path)
    with zipfile.ZipFile(path) as archive:
        tensors = [_tensor(archive, entry) for entry in archive.infolist()]
        check_declared_size(path, (tensor.shape for tensor in tensors))
        metadata = unpack_metadata(archive.comment).get("keras_vit")
        metadata = metadata if isinstance(metadata, dict) else {}
        yield Container(path, {t.name: t for t in tensors}, metadata)


def save_npz(path: Path, tensors: Iterable[tuple[str, Array]], metadata: dict[str, Any]) -> None:
    """Writes a `.npz` file with `metadata` in the archive's comment, which NumPy ignores."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, values in tensors:
            # ZipInfo has a fixed date: the same model makes the same bytes, unlike np.savez.
            entry = zipfile.ZipInfo(f"{name}.npy")
            with archive.open(entry, "w", force_zip64=True) as stream:
                npy.write_array(stream, values, allow_pickle=False)
        seal = f'"{SEAL_KEY}": "{UNSET_SEAL}"'
        packed = pack_metadata(metadata, LONGEST_COMMENT - len(seal) - 20)
        archive.comment = f'{{"keras_vit": {packed}, {seal}}}'.encode()


def check_zip(path: Path) -> None:
    """Refuses an archive that is broken, or would exhaust the memory when listed or unpacked."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            # zipfile does not make public the size of the directory, which it reads at once.
            end_record = zipfile._EndRecData(file)  # type: ignore[attr-defined]
        directory_size = end_record[zipfile._ECD_SIZE] if end_record else 0  # type: ignore[attr-defined]
        if directory_size <= largest_header(size):
            with zipfile.ZipFile(path) as archive:
                entries = archive.infolist()
    except Exception as error:  # whatever a hostile directory provokes, it has one meaning
        raise CheckpointError(
            f"{path} ({size:,} bytes) is not a whole zip archive: {reason(error)}. "
            "Download it again."
        ) from error
    if directory_size > largest_header(size):
        raise CheckpointError(
            f"The zip directory of {path} fills {directory_size:,} of its {size:,} bytes; one of "
            f"weights needs less than {largest_header(size):,}."
        )
    counts = Counter(entry.filename for entry in entries)
    for name, count in counts.most_common(1):
        if count > 1:
            raise CheckpointError(f"{path} holds {count} arrays named {name!r}.")
    check_declared_size(path, ((entry.file_size,) for entry in entries), 1)


def _tensor(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Tensor:
    name = entry.filename.removesuffix(".npy")
    try:
        with archive.open(entry) as stream:
            shape, _, dtype = HEADER_READERS[npy.read_magic(stream)](stream)
            stored = entry.file_size - stream.tell()
    except Exception as error:
        raise CheckpointError(
            f"Tensor {name!r} does not have a readable array header: {error}"
        ) from error
    check_shape(name, shape)
    if dtype.hasobject or dtype.kind not in "fiubV" or dtype.fields:
        raise CheckpointError(
            f"Tensor {name!r} holds {dtype}: only numbers are read, Python objects (pickles) and "
            "text never."
        )
    size = math.prod(shape) * dtype.itemsize
    if size != stored:
        raise CheckpointError(
            f"Tensor {name!r} declares shape {shape} of {dtype}, which is {size:,} bytes, but "
            f"{stored:,} are stored."
        )
    # NumPy does not have a type for bfloat16 and writes it as raw bytes.
    is_bfloat16 = dtype.str == "|V2"

    def read() -> Array:
        try:
            with archive.open(entry) as stream:
                values = npy.read_array(stream, allow_pickle=False)
                stream.read(1)  # at the end zipfile compares the checksum
        except Exception as error:
            raise CheckpointError(
                f"Tensor {name!r} (byte {entry.header_offset:,} of the file) is damaged: {error}"
            ) from error
        return checked_float32(name, values.view(ml_dtypes.bfloat16) if is_bfloat16 else values)

    return Tensor(name, shape, "bfloat16" if is_bfloat16 else dtype.name, read)
