"""Lines of CSV, for programs and for spreadsheets."""

import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_vit._base.errors import counted, printable
from keras_vit._base.spreadsheet import as_text_cell


class CsvLines:
    """Makes lines of CSV: UTF-8, texts in quotes, so that names may hold anything.

    A text that a spreadsheet would compute has an apostrophe in front: see `as_text_cell`.

    >>> lines = CsvLines()
    >>> lines.line(["=1+1", -1.5])
    '"\\'=1+1",-1.5\\n'
    >>> lines.marked
    1
    """

    def __init__(self) -> None:
        self.marked = 0

    def line(self, cells: Sequence[Any]) -> str:
        """Return one line with its end; cells are texts and numbers."""
        marked = [as_text_cell(cell) if isinstance(cell, str) else cell for cell in cells]
        self.marked += sum(a != b for a, b in zip(cells, marked, strict=True))
        line = io.StringIO()
        # Unquoted, a carriage return in a name would end the row.
        csv.writer(line, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n").writerow(marked)
        return line.getvalue()

    def tell(self, file: Path | str) -> None:
        """Says on standard error, at the end of a file, that texts in it have an apostrophe."""
        if self.marked:
            verb = "begins" if self.marked == 1 else "begin"
            print(
                f"keras-vit: {counted(self.marked, 'text')} of {printable(file)} {verb} with =, +, "
                "- or @, which a spreadsheet would compute, and got an apostrophe in front; "
                "keras-vit removes it when it reads the file",
                file=sys.stderr,
            )
