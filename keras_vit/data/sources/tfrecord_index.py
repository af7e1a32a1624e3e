"""Where each record of a TFRecord file begins: the files themselves do not have an index.

A record is its length (8 bytes, little endian), a checksum of the length (4), the data, and a
checksum of the data (4). Going from length to length reads 12 bytes per record, once: the result is
kept in the cache.
"""

from __future__ import annotations

import hashlib
import os
import warnings
import zipfile
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from keras_vit._base.errors import printable
from keras_vit._base.files import atomic_write, cache_folder
from keras_vit.data.errors import DamagedShardError

_HEADER, _CHECKSUM = 12, 4  # bytes before and after the data
_THREADS = 32  # they wait for disks and networks
_COMPRESSED = (b"\x1f\x8b", b"\x78\x01", b"\x78\x9c", b"\x78\xda")  # gzip, and zlib's levels


def record_offsets(files: Sequence[str]) -> list[np.ndarray]:
    """Where the records of TFRecord files begin, and where the last one ends.

    Takes about a minute per ten million records the first time, and as long as so many small reads
    where the files are not in the machine's file cache. The result has 8 bytes per record; it is
    computed anew when the name, size or time of a file differs.

    Args:
        files: paths of uncompressed TFRecord files.

    Returns:
        For each file an int64 array `(records + 1,)` of bytes from its beginning.

    Raises:
        DamagedShardError: a file is truncated, damaged or compressed, or not a TFRecord file.
        OSError: a file cannot be read.

    Example:
        >>> import tempfile, tensorflow as tf
        >>> file = os.path.join(tempfile.mkdtemp(), "two.tfrecord")
        >>> with tf.io.TFRecordWriter(file) as writer:
        ...     writer.write(b"four")
        ...     writer.write(b"seven..")
        >>> record_offsets([file])[0].tolist()
        [0, 20, 43]
    """
    from rich.console import Console
    from rich.progress import track

    cached = cache_folder() / "record_index" / f"{_identity(files)}.npz"
    offsets = _read(cached)
    if offsets is None:
        console = Console(stderr=True)
        with ThreadPoolExecutor(_THREADS) as pool:
            scanned = track(
                pool.map(_scan, files),
                "finding records",
                total=len(files),
                console=console,
                transient=True,
                disable=not console.is_terminal,
            )
            offsets = list(scanned)
        _write(cached, offsets)
    return offsets


def _scan(file: str) -> np.ndarray:
    size, at = os.path.getsize(file), 0
    begins, headers = array("q"), bytearray()
    with open(file, "rb", buffering=0) as stream:  # a buffer would be filled for each header
        while at < size:
            begins.append(at)
            stream.seek(at)
            header = stream.read(_HEADER)
            headers += header
            at += _HEADER + int.from_bytes(header[:8], "little") + _CHECKSUM
    _check_headers(file, bytes(headers), begins)
    if at != size:
        raise DamagedShardError(
            f"{printable(file)} is truncated: the record that begins at byte {begins[-1]} does not "
            f"end within the {size} bytes of the file. Copy or write it again."
        )
    return np.append(np.frombuffer(begins, np.int64), size)


def _check_headers(file: str, headers: bytes, begins: Sequence[int]) -> None:
    """Compares the lengths with their checksums: behind a wrong one, nothing can be found."""
    whole = headers[: len(headers) // _HEADER * _HEADER]
    fields = np.frombuffer(whole, [("length", "8u1"), ("checksum", "<u4")])
    wrong = np.flatnonzero(_masked_crc32c(fields["length"]) != fields["checksum"])
    if not wrong.size:
        return
    if wrong[0] > 0:
        raise DamagedShardError(
            f"{printable(file)} is damaged at byte {begins[wrong[0]]}: the length of record "
            f"{wrong[0]} does not match its checksum. Copy or write it again."
        )
    if headers.startswith(_COMPRESSED):
        raise DamagedShardError(
            f"{printable(file)} is compressed from byte 0 on, and its records cannot be read by "
            "index. Decompress it, or write it without compression."
        )
    raise DamagedShardError(
        f"{printable(file)} is not a TFRecord file, or damaged at byte 0: the length of its first "
        "record does not match its checksum. Give TFRecord or ArrayRecord files."
    )


def _masked_crc32c(data: np.ndarray) -> np.ndarray:
    """TFRecord's checksum of each row of uint8 `(rows, bytes)`.

    CRC-32C with reflected bits, rotated, plus a constant, as in TensorFlow's `lib/hash/crc32c.h`.
    """
    table: np.ndarray = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> 1) ^ ((table & 1) * np.uint32(0x82F63B78))
    crc = np.full(len(data), 0xFFFFFFFF, np.uint32)
    for column in data.T:
        crc = table[(crc ^ column) & 0xFF] ^ (crc >> 8)
    crc = ~crc
    return ((crc >> 15) | (crc << 17)) + np.uint32(0xA282EAD8)


def _identity(files: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for file in files:
        status = os.stat(file)
        entry = (os.path.realpath(file), status.st_size, status.st_mtime_ns)
        digest.update(repr(entry).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32]


def _read(cached: Path) -> list[np.ndarray] | None:
    """The cached offsets; None where the file is missing or damaged."""
    try:
        with np.load(cached, allow_pickle=False) as arrays:
            return np.split(arrays["offsets"], arrays["ends"][:-1])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _write(cached: Path, offsets: list[np.ndarray]) -> None:
    ends = np.cumsum([len(part) for part in offsets])
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(cached) as temporary:
            np.savez(temporary, offsets=np.concatenate(offsets), ends=ends)
    except OSError as error:
        warnings.warn(
            f"The index of the records cannot be kept ({error}), and is computed at every start. "
            "Set KERAS_HOME to a folder that can be written.",
            stacklevel=4,
        )
