"""What the cells of a table's label columns say: names, lists of names, flags, numbers."""

import ast
import json
import math
import re
import unicodedata
from collections.abc import Sequence

from keras_vit._base.errors import printable
from keras_vit.data.sources.table_files import Cell, Unusable, as_cell

SEPARATORS = "|;,"
_WORDS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
_BRACKETS = {"[": "]", "{": "}", "(": ")"}
_ITEM = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[+-]?(?:\d+(?:\.\d*)?|\.\d+)|True|False|None"""
# As Python prints lists, tuples and sets, and NumPy arrays, which do not have commas.
_PRINTED = re.compile(rf"[\[({{]\s*(?:(?:{_ITEM})(?:\s*,\s*|\s+|(?=\s*[\])}}]$)))*[\])}}]")
_POINTS, _COMMAS = (
    re.compile(rf"[+-]?(?:\d+|[1-9]\d{{0,2}}(?:[{groups}]\d{{3}})+)(?:{point}\d+)?")
    for groups, point in ((r",'\s", r"\."), (r".'\s", ","))
)


def read_cell(cell: Cell) -> Cell:
    """Return the names in a cell, in composed Unicode, without outer blanks and repeated ones.

    A text is a list where it is written as one, as pandas, JSON, Label Studio and NumPy do.

    Raises:
        ValueError: It is neither a label nor a list of labels; the message is what it is.

    >>> read_cell(" golden  retriever"), read_cell("['sea', 'sun']"), read_cell("['sea' 'sun']")
    ('golden retriever', ('sea', 'sun'), ('sea', 'sun'))
    """
    if isinstance(cell, str) and not isinstance(cell, Unusable):
        items = _read_list(cell.strip())
        cell = cell if items is None else items
    if isinstance(cell, Unusable):
        raise ValueError(
            "is not a label: give a text, a list of texts, or a column per number; or the columns "
            "that hold labels as label_columns="
        )
    if isinstance(cell, str):
        return clean_name(cell)
    return tuple(filter(None, map(clean_name, cell)))


def _read_list(text: str) -> Cell | None:
    """Return the items of a list that is written as a text; None for other texts."""
    if text == "set()":
        return ()
    if len(text) < 2 or _BRACKETS.get(text[0]) != text[-1]:
        return None
    try:
        return as_cell(json.loads(text))
    except (ValueError, RecursionError):
        pass
    if text[0] == "(" and text != "()" and "," not in text:
        return None  # such as (unknown)
    try:
        if _PRINTED.fullmatch(text):
            return as_cell([_read_item(item) for item in re.findall(_ITEM, text)])
    except (SyntaxError, ValueError):
        pass  # an escape that does not mean a character
    if text[0] == "{" and ":" in text:
        raise ValueError("looks like a dictionary: write a column per key, or names as sea|sun")
    raise ValueError("looks like a list, and not like one of texts in quotes: write sea|sun")


def _read_item(text: str) -> str:
    if text[0] in "'\"":
        return str(ast.literal_eval(text))
    return {"True": "1", "False": "0", "None": ""}.get(text, text)


def clean_name(text: str) -> str:
    """Return a name in composed Unicode, with one blank between words and none around them."""
    return " ".join((text if text.isascii() else unicodedata.normalize("NFC", text)).split())


def lookalike(name: str) -> str:
    """Return a key that is equal for names that differ only in case or invisible characters."""
    visible = (c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf")
    return clean_name("".join(visible)).lower()


def split_cell(cell: Cell, separator: str | None) -> tuple[str, ...]:
    """Return the labels of a cell.

    >>> split_cell("beach | people", "|"), split_cell("|", "|")
    (('beach', 'people'), ())
    """
    if isinstance(cell, tuple):
        return cell
    if separator is None:
        return (cell,) if cell else ()
    return tuple(label for part in cell.split(separator) if (label := part.strip()))


def rows_of_flags(cells: Sequence[Cell], separator: str | None) -> list[tuple[str, ...]] | None:
    """Return the rows of a column whose cells hold a 0 or 1 per label; None for other columns."""
    for between in (separator,) if separator else f"{SEPARATORS} ":
        rows = []
        for cell in cells:
            rows.append(split_cell(cell, between))
            if not all(flag(item) is not None for item in rows[-1]):
                break  # almost always at the first cell
        else:
            sizes = {len(row) for row in rows if row}
            # Of the names "0" and "1", a set has two at most, and some sets have fewer.
            if sizes == {2} or max(sizes, default=0) > 2:
                return rows
    return None


def number(cell: Cell) -> float | None:
    """Return a finite number; None for what is not one."""
    try:
        value = float(cell) if isinstance(cell, str) and "_" not in cell else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def flag(cell: Cell) -> float | None:
    """0 or 1, also as true and false, or yes and no; None for what is neither."""
    value = _WORDS.get(str(cell).lower(), number(cell))
    return value if value in (0, 1) else None


def plain_numbers(name: str, cells: Sequence[Cell]) -> list[Cell]:
    """Cells in which numbers such as 0,5 or 1.234,5 or 1,234.5 are written as Python does.

    Raises:
        ValueError: They can be read in two ways, as 1,234 can; the message has the first of them.

    >>> plain_numbers("price", ["980", "1.020,5"]), plain_numbers("price", ["1,234,567"])
    (['980', '1020.5'], ['1234567'])
    """
    plain = {cell for cell in cells if number(cell) is not None}
    has_points = any("." in cell for cell in plain)
    ways = [
        {cell: _plain(cell, way) for cell in set(cells) - plain}
        for way in ((_POINTS,) if has_points else (_POINTS, _COMMAS))
    ]
    odd = [cell for cell in cells if any(way.get(cell) for way in ways)]
    fitting = [way for way in ways if all(way[cell] for cell in odd)]
    if not odd or not fitting:
        return list(cells)
    if len(fitting) > 1:
        for cell in odd:
            first, second = (way[cell] for way in fitting)
            if first != second:
                raise ValueError(
                    f"{shown(cell)} in {name!r} is {first} or {second}: write the numbers with "
                    "decimal points, and without separators of thousands."
                )
    return [fitting[0].get(cell) or cell for cell in cells]


def written_number(cell: Cell) -> float | None:
    """Return a number, also one with a decimal comma or separated thousands; None for others."""
    return number(_plain(cell, _POINTS) or _plain(cell, _COMMAS) or cell)


def _plain(cell: Cell, way: re.Pattern[str]) -> str | None:
    if not isinstance(cell, str) or not way.fullmatch(cell):
        return None
    whole, point, fraction = cell.rpartition("." if way is _POINTS else ",")
    digits = re.sub(r"[.,'\s]", "", whole if point else cell)
    return f"{digits}.{fraction}" if point else digits


def shown(cell: Cell) -> str:
    """Return a cell as an error shows it, of a long one the beginning."""
    text = printable(cell if isinstance(cell, str) else ", ".join(cell))
    return repr(text if len(text) <= 80 else text[:77] + "...")
