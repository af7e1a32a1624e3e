"""`measures.bin` in an index: what was measured of photographs, so that it is measured once.

A record per image, after a first one that begins with `HEADER`; they are appended, so that a call
that was killed loses the last few. An image is found by the SHA-256 of its file, whatever the name.
Each record has a checksum: what was cut off or changed is measured again.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._base.files import append, check_place, open_to_append, write_bytes

MEASURES = "measures.bin"
_MARK = b"keras_vit measures "
HEADER = _MARK + b"1\n"  # another number where measures are computed otherwise
RECORD = np.dtype(
    [
        ("sum", "S32"),
        ("height", "<i4"),
        ("width", "<i4"),
        ("brightness", "<f4"),
        ("sharpness", "<f4"),
        ("hash", "<u8"),
        ("mirrored", "<u8"),
        ("check", "<u4"),  # zlib.crc32 of the bytes before
    ]
)


class KeptMeasures:
    """The records in a folder, to find and to add to.

    Raises:
        FileExistsError: What stands in their place was not written by this package, or is a link.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / MEASURES
        check_place(path)
        content = path.read_bytes() if path.exists() else b""
        if not content.startswith(_MARK[: len(content)]):
            raise FileExistsError(
                f"{path} was not written by keras_vit, and is not replaced: move it away."
            )
        records = _whole_records(content)
        # Adds to a file that ends with a whole record.
        if not content or len(content) != RECORD.itemsize * (1 + len(records)):
            write_bytes(path, HEADER.ljust(RECORD.itemsize, b"\0") + records.tobytes())
        self._records = np.sort(records, order="sum")
        self._file = open_to_append(path, new=False)

    def __enter__(self) -> KeptMeasures:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def find(self, digest: bytes) -> tuple[Any, ...] | None:
        """Return the measures of the file with this SHA-256; None where there are none."""
        sums = self._records["sum"]
        place = int(np.searchsorted(sums, np.bytes_(digest)))
        if place == len(sums) or sums[place] != np.bytes_(digest):
            return None
        return self._records[place].item()[1:-1]

    def add(self, measures: Sequence[tuple[bytes, tuple[Any, ...]]]) -> None:
        """Appends the measures of files, each after the SHA-256 of its file."""
        records = np.array([(digest, *each, 0) for digest, each in measures], RECORD)
        records["check"] = [_check(record) for record in records]
        append(self._file, records.tobytes())


def _whole_records(content: bytes) -> np.ndarray:
    """Return the records of a file that have their checksums; none of another version's."""
    if not content.startswith(HEADER):
        return np.zeros(0, RECORD)
    records = np.frombuffer(content, RECORD, len(content) // RECORD.itemsize)[1:]
    is_whole = (record["check"] == _check(record) for record in records)
    return records[np.fromiter(is_whole, bool, len(records))]


def _check(record: Any) -> int:
    return zlib.crc32(record.tobytes()[:-4])
