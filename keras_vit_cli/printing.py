"""What commands print: text with printable names, warnings of the data, and the next command."""

import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, ProgressColumn
from rich.table import Table

from keras_vit._base.errors import DataRangeWarning, ReadingWarning, printable
from keras_vit_cli.library_words import in_options

MOST_REASONS = 10  # of files that cannot be read
WHOLE = 1_000_000  # columns: wider than any name


def print_text(text: object) -> None:
    """Prints a text of one or more lines, with `printable` names of files and classes.

    At once: the output of a server or a training is often a file or a pipe.
    """
    print("\n".join(map(printable, str(text).split("\n"))), flush=True)


def print_table(table: Table) -> None:
    """Prints a table, which is cut to the width of a terminal alone: a file or a pipe is whole."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WHOLE)
    console.print(table)


def print_unreadable(unreadable: Mapping[Any, str], listed_in: str = "") -> None:
    """Prints the first files that cannot be read, with the reasons, to standard error."""
    for file, reason in list(unreadable.items())[:MOST_REASONS]:
        print(f"keras-vit: {printable(f'{file} cannot be read: {reason}')}", file=sys.stderr)
    if (more := len(unreadable) - MOST_REASONS) > 0:
        where = f", listed in {listed_in}" if listed_in else ""
        print(f"keras-vit: and {more:,} more{where}", file=sys.stderr)


@contextmanager
def progress_bar(*columns: ProgressColumn, off: bool = False) -> Iterator[Progress]:
    """A bar on standard error, where that is a terminal, that goes when it is done."""
    off, console = off or not sys.stderr.isatty(), Console(stderr=True)
    bar = Progress(*columns, console=console, redirect_stdout=False, transient=True, disable=off)
    with nullcontext() if off else bar:
        yield bar


def print_next(*words: object) -> None:
    """Prints a command that uses what was written; words in capitals are to be filled in."""
    print_text(f"next: {shlex.join(['keras-vit', *map(str, words)])}")


def words_of(options: Any, *names: str) -> list[Any]:
    """Return the options of these names that are given, as words of a command."""
    values = {name: getattr(options, name, None) for name in names}
    return [
        word
        for name, value in values.items()
        if value is not None
        for word in (f"--{name.replace('_', '-')}", *(value if name == "augment" else [value]))
    ]


@contextmanager
def short_warnings(command: str) -> Iterator[None]:
    """Prints warnings in the words of a command; those of the data once, without the code's place.

    The library may raise one at each of several calls.
    """
    usual, show, shown = warnings.formatwarning, warnings.showwarning, set[str]()

    def format_warning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        text = in_options(str(message), command)
        if not is_about_data(category, filename):
            return usual(text, category, filename, lineno, line)
        lines = map(printable, text.split("\n"))
        return "\n".join(["keras-vit: warning: " + next(lines), *lines, ""])

    def show_once(
        message: Warning | str, category: type[Warning], filename: str, *more: Any, **named: Any
    ) -> None:
        if str(message) not in shown or not is_about_data(category, filename):
            show(message, category, filename, *more, **named)
        shown.add(str(message))

    warnings.formatwarning, warnings.showwarning = format_warning, show_once
    try:
        yield
    finally:
        warnings.formatwarning, warnings.showwarning = usual, show


def is_about_data(category: type[Warning], filename: str) -> bool:
    """Return whether a warning is about the user's data, which the library raises at our call."""
    return issubclass(category, DataRangeWarning) or Path(filename).is_relative_to(
        Path(__file__).parent
    )


@contextmanager
def noted(command: str) -> Iterator[list[str]]:
    """Print each warning once; return doubts of the user's data, in the words of a command."""
    texts: list[str] = []
    recorded: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as recorded:
            warnings.simplefilter("always", UserWarning)
            yield texts
    finally:
        # A decoder may say the same of every file.
        for text, each in {str(each.message): each for each in recorded}.items():
            warnings.showwarning(each.message, each.category, each.filename, each.lineno)
            is_note = issubclass(each.category, ReadingWarning)
            if is_about_data(each.category, each.filename) and not is_note:
                texts.append(in_options(text, command))
