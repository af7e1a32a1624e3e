"""Reads CSV, TSV, JSON lines and Parquet files into columns of texts."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_vit._base.errors import listed, printable
from keras_vit._base.spreadsheet import from_text_cell
from keras_vit.data._imports import require
from keras_vit.data.decode.image_files import irregular
from keras_vit.data.sources.listings import read_text

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
# Beyond these a file is damaged, or not a table of labels.
MOST_COLUMNS = 30_000
MOST_CHARACTERS = 131_072  # of a cell; as many as Python's reader of CSV files takes
_SHOWN = 100  # characters of what cannot be used

Cell = str | tuple[str, ...]  # a tuple where the file has a list


class Unusable(str):
    """A value of JSON or Parquet that is neither a text, a number nor a list of them, as a text."""


@dataclass(frozen=True)
class Table:
    """The columns of a table, and where its rows stand.

    Attributes:
        path: Of the file.
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
        ValueError: The file does not have a suffix of `SUFFIXES`, is not a table, or is damaged;
            the message has the line.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(
            f"{printable(path)} is not a table that is read here: give one of {listed(SUFFIXES)}."
        )
    if not path.exists():
        raise FileNotFoundError(f"There is no table {printable(path)}.")
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
    first = text.partition("\n")[0]
    # Spreadsheets of countries that write 0,5 separate cells by semicolons.
    delimiter = "\t" if suffix == ".tsv" else max(",;\t", key=first.count)
    if excel := re.match(r"\"?sep=([,;|\t])\"?\r?\n", text, re.IGNORECASE):
        delimiter, text = excel[1], f"\n{text[excel.end() :]}"
    lines = csv.reader(
        io.StringIO(text, newline=""), delimiter=delimiter, strict=True, skipinitialspace=True
    )
    rows: list[list[str]] = []
    places: list[str] = []
    broken: dict[int, str] = {}
    for number, cells in _numbered(path, lines):
        if not rows:
            header = [name.strip() for name in cells]
            _check_width(path, len(header))
            if repeated := [name for name in header if name and header.count(name) > 1]:
                message = f"the column {repeated[0]!r} twice: rename one, or add the line of names"
                raise _error(path, f"line {number}", message)
        elif len(cells) != len(header):
            shown = printable(listed(cells, 5)[:_SHOWN])
            reason = f"the row has {len(cells)} cells, and the header {len(header)}: {shown}"
            broken[len(rows) - 1] = reason
            cells = (cells + [""] * len(header))[: len(header)]
        rows.append(cells)
        places.append(f"line {number}")
    columns: dict[str, list[Cell]] = {
        name: [from_text_cell(cell.strip()) for cell in column]
        for name, (_, *column) in zip(header if rows else (), zip(*rows, strict=True), strict=True)
        if name
    }
    return Table(path, columns, places[1:], broken)


def _numbered(path: Path, lines: Any) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not empty, and the lines that they begin in."""
    number = 1
    try:
        for cells in lines:
            if cells:
                yield number, cells
            number = lines.line_num + 1
    except csv.Error as error:
        # An open quote takes in all that follows: where it begins is what helps.
        message = f"what is not CSV ({error}): is there a quote that does not end?"
        raise _error(path, f"line {number}", message) from None


def _read_json_lines(path: Path) -> Table:
    rows, places = [], []
    names: dict[str, None] = {}
    for number, line in enumerate(read_text(path, "the table").split("\n"), start=1):
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
        columns = {
            name: [as_cell(value) for value in column.to_pylist()]
            for name, column in zip(names, file.read(columns=names).columns, strict=True)
        }
    except (arrow.ArrowException, OSError, OverflowError, ValueError) as error:
        raise ValueError(f"{printable(path)} cannot be read as Parquet: {error}") from None
    rows = file.metadata.num_rows
    return Table(path, columns, [f"row {row}" for row in range(1, rows + 1)], {})


def as_cell(value: Any) -> Cell:
    """A value of JSON or Parquet as the text, or the texts, that it has in a CSV file."""
    if value is None or value != value:  # pandas writes NaN for what is missing
        return ""
    if isinstance(value, dict) and set(value) <= {"choices"}:  # as Label Studio writes labels
        value = value.get("choices", [])
    if isinstance(value, list):
        if all(map(_is_label, value)):
            return tuple(str(as_cell(item)) for item in value)
        return Unusable(str(value)[:_SHOWN])
    if isinstance(value, dict | bytes):
        return Unusable(str(value)[:_SHOWN])
    text = str(int(value)) if isinstance(value, bool) else str(value).strip()
    text.encode()  # half of a surrogate pair could not be written to a report
    return text


def _is_label(item: Any) -> bool:
    """Whether an item of a list is a name or a class; embeddings and boxes are not."""
    is_fraction = isinstance(item, float) and not item.is_integer()
    return not isinstance(item, dict | list | tuple | bytes) and not is_fraction


def _check_width(path: Path, columns: int, place: str = "line 1") -> None:
    if columns > MOST_COLUMNS:
        raise _error(path, place, f"{columns:,} columns, and at most {MOST_COLUMNS:,} are read")


def _error(path: Path, place: str, message: str) -> ValueError:
    return ValueError(f"{printable(path)}, {place} has {printable(message)}.")
