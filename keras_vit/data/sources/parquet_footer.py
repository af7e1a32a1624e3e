"""The footer of a Parquet file: what it holds of each column chunk, before any of them is read.

pyarrow has the same in `FileMetaData.row_group(g).column(i)`, which ends the process where one bit
of the footer is wrong: an exception of C++ goes through a method that does not expect any.
"""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

_MOST_NESTED = 32
_MOST_VALUES = 2**21  # a chunk has about 40; read in a second or two, and into some 130 MB
# By parquet.thrift: of the file, of a row group, of a column chunk, and of its metadata.
_ROW_GROUPS, _COLUMNS, _METADATA = 4, 1, 3
_ENCODINGS, _VALUES, _UNCOMPRESSED = 2, 5, 6
# Kinds of values in Thrift's compact protocol.
_TRUE, _FALSE, _BYTE, _INTEGERS, _DOUBLE, _BINARY = 1, 2, 3, (4, 5, 6), 7, 8
_LISTS, _MAP, _STRUCT = (9, 10), 11, 12
DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY = 6, 7  # encodings


@dataclass(frozen=True)
class Chunk:
    """A column of a row group.

    Attributes:
        values: Number of values, those that are missing included.
        size: Bytes of its pages, not compressed.
        encodings: Numbers of parquet.thrift.
    """

    values: int
    size: int
    encodings: frozenset[int]


def row_groups(path: Path) -> list[list[Chunk]]:
    """Return the chunks of each row group, in the order of the schema's columns.

    Raises:
        ValueError: The footer is damaged.
    """
    with path.open("rb") as file:
        end = file.seek(-8, 2)
        length = int.from_bytes(file.read(4), "little")
        if file.read() != b"PAR1" or length > end:
            raise ValueError("the footer is damaged")
        file.seek(end - length)
        footer = file.read(length)
    try:
        groups = _Footer(footer).struct(_MOST_NESTED)[_ROW_GROUPS]
        return [[_chunk(column[_METADATA]) for column in group[_COLUMNS]] for group in groups]
    except (LookupError, TypeError) as error:
        raise ValueError("the footer is damaged") from error


def _chunk(metadata: dict[int, Any]) -> Chunk:
    chunk = Chunk(metadata[_VALUES], metadata[_UNCOMPRESSED], frozenset(metadata[_ENCODINGS]))
    if chunk.values < 0 or chunk.size < 0:
        raise ValueError("the footer is damaged: a negative size")
    return chunk


class _Footer(BytesIO):
    """Values in Thrift's compact protocol, of which so many are read."""

    budget = _MOST_VALUES

    def struct(self, depth: int) -> dict[int, Any]:
        """Return the fields of a struct by their numbers."""
        fields: dict[int, Any] = {}
        number = 0
        while head := self.byte():
            number = number + (head >> 4) if head >> 4 else self.integer()
            kind = head & 15
            is_truth = kind in (_TRUE, _FALSE)  # which is in the kind itself
            fields[number] = kind == _TRUE if is_truth else self.value(kind, depth)
        return fields

    def value(self, kind: int, depth: int) -> Any:
        self.budget -= 1
        if not depth or not self.budget:
            raise ValueError(f"the footer has over {_MOST_VALUES:,} values, or is damaged")
        if kind in _INTEGERS:
            return self.integer()
        if kind in (_TRUE, _FALSE, _BYTE):  # in lists, truth is a byte
            return self.byte()
        if kind in (_DOUBLE, _BINARY):
            length = 8 if kind == _DOUBLE else self.number()
            if len(text := self.read(length)) < length:
                raise ValueError("the footer is damaged: it ends too early")
            return text
        if kind in _LISTS:
            head = self.byte()
            count = head >> 4 if head >> 4 < 15 else self.number()
            return [self.value(head & 15, depth - 1) for _ in range(count)]
        if kind == _MAP:
            kinds = self.byte() if (count := self.number()) else 0
            pair = (kinds >> 4, kinds & 15)
            return [[self.value(one, depth - 1) for one in pair] for _ in range(count)]
        if kind == _STRUCT:
            return self.struct(depth - 1)
        raise ValueError("the footer is damaged: an unknown kind of value")

    def byte(self) -> int:
        return self.read(1)[0]

    def number(self) -> int:
        """Return an integer of seven bits per byte, the lowest first."""
        number = shift = 0
        while (byte := self.byte()) & 128:
            number, shift = number | (byte & 127) << shift, shift + 7
            if shift > 63:
                raise ValueError("the footer is damaged: a number of more than 64 bits")
        return number | byte << shift

    def integer(self) -> int:
        """Return a signed integer: the lowest bit is the sign."""
        number = self.number()
        return number >> 1 ^ -(number & 1)
