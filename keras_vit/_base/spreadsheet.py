"""Texts in CSV files that no spreadsheet takes for formulas.

A name of a file or class may be anything, and `=HYPERLINK(...)` in a cell is computed when the file
is opened. An apostrophe in front makes it a text, as is usual, and is removed when it is read back.
"""

import re

_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
_NUMBER = re.compile(r"[+-][\d.]+([eE][+-]?\d+)?")


def as_text_cell(text: str) -> str:
    """Return a text with an apostrophe in front where a spreadsheet would compute it.

    >>> [as_text_cell(text) for text in ("=1+1", "-1.5", "a=1", "'@a")]
    ["'=1+1", '-1.5', 'a=1', "''@a"]
    """
    is_formula = _FORMULA.match(text) and not _NUMBER.fullmatch(text)
    return f"'{text}" if is_formula else text


def from_text_cell(cell: str) -> str:
    """Return the text of which `as_text_cell` made a cell; others are returned as they are.

    >>> [from_text_cell(cell) for cell in ("'=1+1", "-1.5", "'quoted'", "''@a")]
    ['=1+1', '-1.5', "'quoted'", "'@a"]
    """
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
