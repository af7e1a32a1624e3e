"""Reads CSV, TSV, JSON lines and Parquet files into columns of texts."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from datetime import date, time, timedelta
from itertools import accumulate, islice, zip_longest
from pathlib import Path
from typing import Any

from keras_vit._base.errors import listed, printable
from keras_vit._base.spreadsheet import from_text_cell
from keras_vit.data._imports import require
from keras_vit.data.decode.image_files import irregular
from keras_vit.data.sources.listings import MOST_BYTES, read_text
from keras_vit.data.sources.parquet_footer import (
    DELTA_BYTE_ARRAY,
    DELTA_LENGTH_BYTE_ARRAY,
    row_groups,
)

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
# Beyond these a file is damaged, or not a table of labels: a few KB may stand for many GB of cells.
MOST_COLUMNS, MOST_ROWS, MOST_CELLS = 30_000, 10_000_000, 30_000_000
MOST_IN_LINE = 2**24  # characters
MOST_CHARACTERS = 131_072  # of a cell; as many as Python's reader of CSV files takes
_SHOWN = 100  # characters of what cannot be used
_SHOWN_REASON = 300  # of what Arrow says, which may have bytes of the file

Cell = str | tuple[str, ...]  # a tuple where the file has a list
# Not labels; a date might be a class or an amount, and whoever writes the table knows which.
_OTHERS = dict, bytes, date, time, timedelta


class TooLargeError(ValueError):
    """A table with more rows, cells or text than the limits of this module."""


class Unusable(str):
    """A value of JSON or Parquet that is neither a text, a number nor a list of them, as a text."""


@dataclass(frozen=True)
class Table:
    """The columns of a table, and where its rows stand.

    Attributes:
        columns: From the name of each column to its cells; empty texts where a cell is empty. Those
            without a name are left out.
        places: Of each row in the file, such as `"line 2"`.
        broken: From the number of a row that does not have a cell per column to the reason.
    """

    path: Path
    columns: dict[str, list[Cell]]
    places: list[str]
    broken: dict[int, str]


def read_table(path: Path) -> Table:
    """Reads a table by the suffix of its name.

    Raises:
        FileNotFoundError: There is no such file.
        ImportError: Parquet, and pyarrow is not installed.
        ValueError: The file does not have a suffix of `SUFFIXES`, is not a table, is damaged, or is
            larger than the limits above and `MOST_BYTES` of text; the message has the line, or the
            figure.
    """
    suffix = path.suffix.lower()
    if not path.exists():
        what = "table" if suffix in SUFFIXES else "file or folder"
        raise FileNotFoundError(f"There is no {what} {printable(path)}.")
    if suffix not in SUFFIXES:
        raise ValueError(
            f"{printable(path)} is not a table that is read here: give one of {listed(SUFFIXES)}, "
            "such as a spreadsheet saved as CSV."
        )
    if kind := irregular(path):
        raise ValueError(f"{printable(path)} is {kind}: give a table of labels.")
    if suffix == ".parquet":
        table = _read_parquet(path)
    elif suffix in (".csv", ".tsv"):
        table = _read_separated(path, suffix)
    else:
        table = _read_json_lines(path)
    if not table.places or not table.columns:
        raise ValueError(f"{printable(path)} does not have a row of labels.")
    _check_width(path, len(table.columns))
    for name, cells in table.columns.items():
        for row, cell in enumerate(cells):
            size = len(cell) if isinstance(cell, str) else sum(map(len, cell))
            if size > MOST_CHARACTERS:
                raise _error(
                    path,
                    table.places[row],
                    f"a cell of more than {MOST_CHARACTERS:,} characters in column {name!r}",
                )
    return table


def _read_separated(path: Path, suffix: str) -> Table:
    text = read_text(path, "the table")
    # Of one cell, above the names, of which a table of labels has two: what a tool says of itself.
    if comments := re.match(r"(#[^,;\t\n]*\n)+", text):
        text = "\n" * comments[0].count("\n") + text[comments.end() :]
    # Names of columns may have commas, in quotes or not; the cells below them rarely have as many.
    bare = (re.sub(r'"[^"]*"', "", line) for line in text.split("\n", 9)[:9] if line.strip())
    first = list(islice(bare, 2))
    # Spreadsheets of countries that write 0,5 separate cells by semicolons.
    # Cells may have several labels between |: it separates cells only where no other mark does.
    count = {mark: min((line.count(mark) for line in first), default=0) for mark in ",;\t|"}
    usual = max(",;\t", key=count.__getitem__)
    delimiter = "\t" if suffix == ".tsv" else usual if count[usual] or not count["|"] else "|"
    if excel := re.match(r"\"?sep=([,;|\t])\"?\r?\n", text, re.IGNORECASE):
        delimiter, text = excel[1], f"\n{text[excel.end() :]}"
    lines = csv.reader(
        _short(path, io.StringIO(text, newline="")),
        delimiter=delimiter,
        strict=True,
        skipinitialspace=True,
    )
    rows: list[list[str]] = []
    places: list[str] = []
    broken: dict[int, str] = {}
    for number, cells in numbered_rows(path, lines):
        if not rows:
            header = [name.strip() for name in cells]
            _check_width(path, len(header))
            counts = Counter(header)
            if repeated := [name for name in counts if name and counts[name] > 1]:
                message = f"the column {repeated[0]!r} twice: rename one, or add the line of names"
                raise _error(path, f"line {number}", message)
        while len(cells) > len(header) and not cells[-1].strip():
            cells.pop()  # as spreadsheets write columns that were emptied
        if len(cells) != len(header):
            shown = printable(listed(cells, 5)[:_SHOWN])
            reason = f"the row has {len(cells)} cells, and the header {len(header)}: {shown}"
            broken[len(rows) - 1] = reason
            cells = cells[: len(header)]
        rows.append(cells)
        _check_size(path, len(rows) - 1, len(header))
        places.append(f"line {number}")
    columns: dict[str, list[Cell]] = {
        name: [from_text_cell(cell.strip()) for cell in column]
        for name, (_, *column) in zip(
            header if rows else (), zip_longest(*rows, fillvalue=""), strict=True
        )
        if name
    }
    return Table(path, columns, places[1:], broken)


def numbered_rows(path: Path, lines: Any) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a `csv.reader` that are not empty, and the lines that they begin in.

    Raises:
        ValueError: A line is not CSV; the message has its number.
    """
    number = 1
    try:
        for cells in lines:
            if any(cells):
                yield number, cells
            number = lines.line_num + 1
    except csv.Error as error:
        # An open quote takes in all that follows: where it begins is what helps.
        message = f"what is not CSV ({error}): is there a quote that does not end?"
        raise _error(path, f"line {number}", message) from None


def _read_json_lines(path: Path) -> Table:
    rows, places = [], []
    names: dict[str, None] = {}
    items = 0
    lines = _short(path, read_text(path, "the table").split("\n"))
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"it is a {type(row).__name__}")
            rows.append({name.strip(): as_cell(value) for name, value in row.items()})
        except (ValueError, RecursionError) as error:
            message = f'what is not an object such as {{"file": "1.jpg", "label": "a"}} ({error})'
            raise _error(path, place, message) from None
        places.append(place)
        names |= dict.fromkeys(rows[-1])
        _check_width(path, len(names), place)
        items += sum(len(cell) for cell in rows[-1].values() if isinstance(cell, tuple))
        _check_size(path, len(rows), len(names), items)
    columns = {name: [row.get(name, "") for row in rows] for name in names if name}
    return Table(path, columns, places, {})


def _read_parquet(path: Path) -> Table:
    arrow = require("pyarrow", "pip install pyarrow")
    parquet = require("pyarrow.parquet", "pip install pyarrow")
    try:
        file = parquet.ParquetFile(path)
        fields = list(file.schema_arrow)
        _check_width(path, len(fields))
        # Encoded images, as some keep them beside the labels, are not labels.
        binary = (arrow.types.is_binary, arrow.types.is_large_binary, arrow.types.is_struct)
        names = [field.name for field in fields if not any(is_(field.type) for is_ in binary)]
        if len(set(names)) < len(names):
            raise ValueError("a column occurs twice")
        texts = _check_parquet(path, file.metadata, set(names))
        # As they are stored: a text of many rows once, so that its size is known before.
        file = parquet.ParquetFile(path, metadata=file.metadata, read_dictionary=texts)
        table = file.read(columns=names)
        _check_bytes(path, sum(map(_text_bytes, table.columns)))
        columns = {
            name: [as_cell(value) for value in column.to_pylist()]
            for name, column in zip(names, table.columns, strict=True)
        }
    except TooLargeError:
        raise
    except (arrow.ArrowException, OSError, OverflowError, ValueError, LookupError) as error:
        reason = printable(" ".join(str(error).split())[:_SHOWN_REASON])
        raise ValueError(f"{printable(path)} cannot be read as Parquet: {reason}") from None
    rows = file.metadata.num_rows
    return Table(path, columns, [f"row {row}" for row in range(1, rows + 1)], {})


def as_cell(value: Any) -> Cell:
    """Return a value of JSON or Parquet as the text, or the texts, that it has in a CSV file."""
    if value is None or value != value:  # pandas writes NaN for what is missing
        return ""
    if isinstance(value, dict) and set(value) <= {"choices"}:  # as Label Studio writes labels
        value = value.get("choices", [])
    if isinstance(value, list):
        if all(map(_is_label, value)):
            return tuple(str(as_cell(item)) for item in value)
        return Unusable(str(value)[:_SHOWN])
    if isinstance(value, _OTHERS):
        return Unusable(str(value)[:_SHOWN])
    text = str(int(value)) if isinstance(value, bool) else str(value).strip()
    text.encode()  # half of a surrogate pair could not be written to a report
    return text


def _is_label(item: Any) -> bool:
    """Return whether an item of a list is a name or a class; embeddings and boxes are not."""
    is_fraction = isinstance(item, float) and not item.is_integer()
    return not isinstance(item, (*_OTHERS, list, tuple)) and not is_fraction


def _check_parquet(path: Path, metadata: Any, names: Set[str]) -> list[str]:
    """Counts what the columns of these names have before it is decoded; the paths of their texts.

    A column has a path per value in it: `"labels.list.element"`.
    """
    _check_size(path, metadata.num_rows, len(names))
    columns = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    leaves = [
        (
            i,
            column.path,
            column.physical_type == "BYTE_ARRAY" and column.logical_type.type != "DECIMAL",
        )
        for i, column in enumerate(columns)
        if not names.isdisjoint(accumulate(column.path.split("."), "{}.{}".format))
    ]
    texts = {path for _, path, is_text in leaves if is_text}
    values = size = 0
    for group in row_groups(path):
        for i, name, _ in leaves:
            chunk = group[i]
            values += chunk.values
            size += chunk.size
            if DELTA_BYTE_ARRAY in chunk.encodings:  # each value as what the former one has more
                raise ValueError(
                    f"{name!r} has the encoding DELTA_BYTE_ARRAY, whose size is not known before "
                    "it is read: write it as PLAIN or RLE_DICTIONARY, as pandas and pyarrow do"
                )
            if DELTA_LENGTH_BYTE_ARRAY in chunk.encodings:  # not read as a dictionary
                texts.discard(name)
    _check_size(path, 0, 0, values)
    _check_bytes(path, size)
    return sorted(texts)


def _text_bytes(array: Any) -> int:
    """Return the bytes that the texts of an Arrow array have where each is written out."""
    arrow = require("pyarrow", "pip install pyarrow")
    compute = require("pyarrow.compute", "pip install pyarrow")
    types = arrow.types
    if isinstance(array, arrow.ChunkedArray):
        return sum(map(_text_bytes, array.chunks))
    if isinstance(array, arrow.ExtensionArray):
        return _text_bytes(array.storage)
    if types.is_struct(array.type):
        return sum(map(_text_bytes, array.flatten()))
    if types.is_nested(array.type):
        return _text_bytes(array.flatten())
    values = array.dictionary if types.is_dictionary(array.type) else array
    kinds = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    if not any(is_(values.type) for is_ in kinds):
        return 0
    lengths = compute.binary_length(values)
    return compute.sum(lengths if values is array else lengths.take(array.indices)).as_py() or 0


def _short(path: Path, lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines, or an error for one that would take many times its length in memory."""
    for number, line in enumerate(lines, start=1):
        if len(line) > MOST_IN_LINE:
            raise _error(path, f"line {number}", f"more than {MOST_IN_LINE:,} characters")
        yield line


def _check_width(path: Path, columns: int, place: str = "line 1") -> None:
    if columns > MOST_COLUMNS:
        raise _error(path, place, f"{columns:,} columns, and at most {MOST_COLUMNS:,} are read")


def _check_size(path: Path, rows: int, columns: int, others: int = 0) -> None:
    """Refuses too many rows, or cells, each item of a list in a cell one of `others`."""
    if rows > MOST_ROWS or (cells := rows * columns + others) > MOST_CELLS:
        what = f"{rows:,} rows" if rows > MOST_ROWS else f"{cells:,} cells"
        raise TooLargeError(
            f"{printable(path)} has {what} or more, and at most {MOST_ROWS:,} rows and "
            f"{MOST_CELLS:,} cells are read: keep the columns of files and labels alone, or split "
            "the table."
        )


def _check_bytes(path: Path, size: int) -> None:
    if size > MOST_BYTES:
        raise TooLargeError(
            f"{printable(path)} has {size:,} bytes of text, and at most {MOST_BYTES:,} are read: "
            "keep the columns of files and labels alone, or split the table."
        )


def _error(path: Path, place: str, message: str) -> ValueError:
    return ValueError(f"{printable(path)}, {place} has {printable(message)}.")
