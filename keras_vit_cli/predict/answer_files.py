"""Answers as CSV, JSON lines or Parquet: files that a killed run leaves readable."""

import csv
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from keras_vit._base.errors import printable
from keras_vit._base.files import append, atomic_write, check_place, open_to_append
from keras_vit._base.spreadsheet import from_text_cell
from keras_vit.evaluation.answer_row import Row
from keras_vit_cli.csv_lines import CsvLines
from keras_vit_cli.predict.schema import AnySchema
from keras_vit_cli.printing import print_text

# Rows of a row group of Parquet: many enough to be compressed well, few enough for memory.
GROUP = 10_000

Write = Callable[[Sequence[Row]], None]


class Csv:
    """Rows as lines of CSV: UTF-8, texts in quotes, so that names may hold anything."""

    def __init__(self, schema: AnySchema) -> None:
        schema.check_cells()
        self.schema, self.lines = schema, CsvLines()
        self.header = self.begin = self.lines.line(schema.columns)

    def text(self, row: Row) -> str:
        return self.lines.line(self.schema.flat(row))

    def row(self, record: bytes) -> Row:
        """Return the row of a record; a ValueError for what is not a row of this schema."""
        (cells,) = csv.reader([record.decode("utf-8")], strict=True)
        return self.schema.nested(list(map(from_text_cell, cells)))

    def tell(self, file: Path | str) -> None:
        """Says what was changed in texts."""
        self.lines.tell(file)

    def records(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield the whole records of a file: line breaks within quotes do not end one."""
        record = b""
        for line in file:
            record += line
            if line.endswith(b"\n") and record.count(b'"') % 2 == 0:
                yield record
                record = b""


class JsonLines:
    """Rows as lines of JSON in ASCII, which no character of a name can break."""

    header, begin = "", '{"file": "'

    def __init__(self, schema: AnySchema) -> None:
        self.schema = schema

    def text(self, row: Row) -> str:
        return json.dumps(row) + "\n"

    def row(self, record: bytes) -> Row:
        """Return the row of a record; a ValueError for what is not a row of this schema."""
        row = json.loads(record)
        example = self.schema.example
        keys = set(row) if isinstance(row, dict) else set()
        if keys != (example.keys() if row["error"] is None else {"file", "error"}):
            raise ValueError("other keys")
        return dict(row)

    def tell(self, file: Path | str) -> None:
        """Texts are as they are."""

    def records(self, file: BinaryIO) -> Iterator[bytes]:
        """Return the whole records of a file."""
        return (line for line in file if line.endswith(b"\n"))


LINES: dict[str, type[Csv] | type[JsonLines]] = {"csv": Csv, "jsonl": JsonLines}


@dataclass
class Answered:
    """What an earlier run has written.

    Attributes:
        end: The bytes of the whole rows; what follows was cut off by a kill.
        last: The last row with an answer, if there is one.
    """

    end: int
    last: Row | None
    digests: set[bytes]

    def __contains__(self, name: str) -> bool:
        return _digest(name) in self.digests

    def __len__(self) -> int:
        return len(self.digests)


def answered(path: Path, format: str, schema: AnySchema) -> Answered:
    """Reads the file that an earlier run wrote, in the memory of 16 bytes per file name.

    Raises:
        FileExistsError: It is a link, or something else that is not a regular file.
        ValueError: It was not written by this command for this task.
    """
    lines = LINES[format](schema)
    earlier = Answered(0, None, set())
    expected = lines.begin.encode()
    check_place(path)
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return earlier
    with file:
        if not expected.startswith(begin := file.read(len(expected))):
            raise ValueError(
                f"{printable(path)} does not begin as this model's answers do, with "
                f"{printable(lines.begin.strip())}: --resume goes on with a file that this "
                "command wrote for the same task and --top. Give another --out."
            )
        if begin != expected:
            return earlier  # killed before the first row
        earlier.end = file.seek(len(lines.header.encode()))
        for number, record in enumerate(lines.records(file), 1):
            try:
                row = lines.row(record)
                earlier.digests.add(_digest(row["file"]))
            except (ValueError, TypeError, KeyError, csv.Error, RecursionError) as error:
                raise ValueError(
                    f"Row {number:,} of {printable(path)} is not one that this command wrote for "
                    f"this model's task: {printable(record[:80].decode(errors='replace'))}. Give "
                    "another --out."
                ) from error
            earlier.end += len(record)
            earlier.last = row if row["error"] is None else earlier.last
    return earlier


@contextmanager
def line_writer(
    path: Path | None, format: str, schema: AnySchema, end: int | None = None
) -> Iterator[Write]:
    """Writes rows to a file, or to standard output, as soon as it gets them.

    Each call is one write that appends to the file, so that a killed run leaves whole rows.

    Args:
        end: Where an earlier run's rows end, which stay; None for a new file.

    Raises:
        FileExistsError: There is a file, and `end` is None.
    """
    lines = LINES[format](schema)

    def encoded(rows: Sequence[Row]) -> str:
        return "".join(map(lines.text, rows))

    if path is None:
        show = _show if sys.stdout.isatty() else sys.stdout.write
        show(lines.header)

        def write_out(rows: Sequence[Row]) -> None:
            show(encoded(rows))
            sys.stdout.flush()

        yield write_out
        lines.tell("the output")
        return

    with open_to_append(path, new=end is None) as file:

        def write(rows: Sequence[Row]) -> None:
            append(file, encoded(rows).encode("utf-8", "backslashreplace"))

        file.truncate(end or 0)
        if not end:
            append(file, lines.header.encode("utf-8", "backslashreplace"))
        yield write
    lines.tell(path)


@contextmanager
def in_groups(write: Write, size: int) -> Iterator[Write]:
    """Collects rows, and writes so many at once; the last ones at the end."""
    waiting: list[Row] = []

    def add(rows: Sequence[Row]) -> None:
        waiting.extend(rows)
        while len(waiting) >= size:
            write(waiting[:size])
            del waiting[:size]

    yield add
    if waiting:
        write(waiting)


@contextmanager
def parquet_writer(path: Path, example: Row) -> Iterator[Write]:
    """Writes rows to a Parquet file, which takes its place when all are there.

    Raises:
        FileExistsError: There is a file, if only since the rows were begun.
        ImportError: pyarrow is not installed.
    """
    try:
        pa, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImportError(
            "--format parquet needs pyarrow, which is not installed: pip install pyarrow. csv and "
            "jsonl need nothing."
        ) from error
    columns = pa.schema([(key, _arrow_type(pa, value)) for key, value in example.items()])
    with (
        atomic_write(path, new=True) as temporary,
        parquet.ParquetWriter(temporary, columns) as writer,
    ):

        def write(rows: Sequence[Row]) -> None:
            writer.write_table(pa.Table.from_pylist(rows, columns))

        with in_groups(write, GROUP) as add:
            yield add


def _arrow_type(pa: Any, value: Any) -> Any:
    """Return a JSON value's or an array's Arrow type; `error`, mostly None, is a text."""
    if isinstance(value, np.ndarray):
        return pa.list_(pa.from_numpy_dtype(value.dtype))
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, list):
        has_rows = value and isinstance(value[0], dict)
        keys = {key: v for row in value for key, v in row.items()} if has_rows else ""
        return pa.list_(_arrow_type(pa, keys))
    if isinstance(value, dict):
        return pa.struct([(key, _arrow_type(pa, each)) for key, each in value.items()])
    return pa.string()


def _show(text: str) -> None:
    if text:
        print_text(text.removesuffix("\n"))


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
