"""A table of results on disk that grows by whole rows."""

import csv
import errno
import io
import os
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

Value = str | int | float
Row = dict[str, Value]


class ResultsTable:
    """A CSV file that grows by whole rows, also when several processes append to it.

    The last column is `identity`, twelve characters: a row that was cut off has another length
    there, and is passed over with a warning.

    Args:
        path: The file; the first row makes it.

    Example:

    >>> import tempfile
    >>> from pathlib import Path
    >>> from keras_vit.training.results_table import ResultsTable
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = ResultsTable(Path(folder) / "results.csv")
    ...     table.append({"name": "ViT", "accuracy": 0.5, "identity": "0123456789ab"})
    ...     table.rows()
    [{'name': 'ViT', 'accuracy': 0.5, 'identity': '0123456789ab'}]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def rows(self) -> list[Row]:
        """The rows in the order in which they were finished; numbers are numbers again."""
        if not self.path.exists():
            return []
        header, *lines = csv.reader(self.path.read_text("utf-8").splitlines())
        whole = [line for line in lines if len(line) == len(header) and len(line[-1]) == 12]
        if len(whole) < len(lines):
            warnings.warn(
                f"{self.path}: {len(lines) - len(whole)} rows are cut off and passed over.",
                stacklevel=2,
            )
        return [
            # The identity may look like a number and is none.
            {name: text if name == "identity" else _value(text) for name, text in named}
            for named in (list(zip(header, line, strict=True)) for line in whole)
        ]

    def append(self, row: Mapping[str, Value]) -> None:
        """Adds a row; the columns are those of the first one.

        Raises:
            ValueError: The file has other columns.
            OSError: The row could not be written.
        """
        header = _line(row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.exists():
            self._begin(header)
        text = self.path.read_text("utf-8")
        there = text.split("\n", 1)[0] + "\n"
        if there != header:
            raise ValueError(
                f"{self.path} has the columns {there.strip()}, and the new row {header.strip()}. "
                "Give another folder."
            )
        line = (("" if text.endswith("\n") else "\n") + _line(row.values())).encode()
        # One write to a file opened to append: whole, and behind those of others.
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            if os.write(file, line) < len(line):  # what was written will be passed over
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file)
        except OSError as error:
            raise type(error)(error.errno, os.strerror(error.errno or 0), str(self.path)) from error
        finally:
            os.close(file)

    def _begin(self, header: str) -> None:
        """Makes the file with its header in it, unless another process was faster."""
        with tempfile.NamedTemporaryFile("w", dir=self.path.parent, encoding="utf-8") as part:
            part.write(header)
            part.flush()
            try:
                os.link(part.name, self.path)
            except FileExistsError:
                return


def _line(values: Iterable[Value]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()


def _value(text: str) -> Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
