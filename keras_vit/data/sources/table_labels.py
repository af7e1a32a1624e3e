"""What the labels of a table mean, and from their cells to targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from keras_vit import tasks
from keras_vit._base.errors import check_choice, counted, listed, printable
from keras_vit.data.sources.table_files import MOST_COLUMNS, Cell
from keras_vit.tasks import TASKS, Task

FEW = 20  # distinct integers that are taken as classes
SEPARATORS = "|;,"

Columns = Mapping[str, Sequence[Cell]]


class Labels(NamedTuple):
    """The labels of a table's rows.

    Attributes:
        task: What they mean; not fitted yet.
        reason: Why they mean that, a sentence.
        targets: As `task.check_targets` takes them, a row per row; zeros where there is a reason in
            `bad`.
        bad: From the number of a row to why its labels cannot be used.
    """

    task: Task
    reason: str
    targets: np.ndarray
    bad: dict[int, str]


def read_labels(
    columns: Columns, task: str | Task | None, separator: str | None, trained: Sequence[bool]
) -> Labels:
    """Guesses the task, where it is not given, and reads the labels.

    Args:
        columns: From the names of the label columns to their cells.
        task: A task, whose names are then the only ones; its kind; or None.
        separator: Between several labels in a cell; None for a guess.
        trained: Whether a row is one to train on: names are those of these rows.

    Raises:
        ValueError: The columns do not suit the task, or do not show what it is.
    """
    kind, reason = _kind(columns, task, separator)
    names = task.names if isinstance(task, Task) else ()
    bad = {
        row: f"the cell of {name!r} is empty"
        for name, cells in columns.items()
        for row, cell in enumerate(cells)
        if cell == ""
    }
    flags = kind == "multilabel" and separator is None and all(map(_are_flags, columns.values()))
    if kind == "regression" or flags:
        if names and set(names) != set(columns):
            raise ValueError(
                f"The task is {kind} of {_quoted(names)}, and the label columns are "
                f"{_quoted(columns)}: give label_columns (--label-columns)."
            )
        names = names or tuple(columns)
        columns = {name: columns[name] for name in names}
        parse, accepted = (flag, "0 or 1") if flags else (number, "a finite number")
        targets = _numbers(columns, parse, accepted, bad)
    elif len(columns) > 1:
        raise ValueError(
            f"The labels of {kind} are texts of one column, and these are {_quoted(columns)}: give "
            "one of them as label_columns (--label-columns)."
        )
    else:
        ((name, cells),) = columns.items()
        if kind == "multilabel":
            separator = separator or _separator(cells)
            sets = [split_cell(cell, separator) for cell in cells]
        else:
            sets = [(cell,) if isinstance(cell, str) else cell for cell in cells]
            several = (row for row, cell in enumerate(sets) if len(cell) != 1)
            bad |= {row: f"{kind} has one label, not {shown(cells[row])}" for row in several}
        used = {x for row, cell in enumerate(sets) if trained[row] and row not in bad for x in cell}
        names = names or _sorted_names(used)
        targets = _members(sets, names, name, bad, kind == "multilabel")
    if len(names) < TASKS[kind].fewest:
        raise ValueError(
            f"{_quoted(columns)} has {counted(len(names), 'label')} to train on, {_quoted(names)}: "
            f"{kind} needs at least {TASKS[kind].fewest}."
        )
    if kind == "ordinal" and not isinstance(task, Task):
        are_numbers = all(number(name) is not None for name in names)
        how = "numbers" if are_numbers else "texts; write '1 low', '2 high' for another order"
        reason = f"{reason}, in the order of their {how}: {listed(names)}"
    if isinstance(task, Task):
        return Labels(task if task.names else task.with_names(names), reason, targets, bad)
    return Labels(tasks.get(kind, names=names), reason, targets, bad)


def _kind(columns: Columns, task: str | Task | None, separator: str | None) -> tuple[str, str]:
    """The kind of task that is given, or that the columns show, and the reason."""
    if separator == "":
        raise ValueError("separator='' does not separate labels: give a text such as '|'.")
    kind, reason = task.kind if isinstance(task, Task) else task, "as given"
    if kind is None:
        kind, reason = _guess(columns, separator)
    check_choice(kind, "task", TASKS)
    if separator is not None and (kind != "multilabel" or len(columns) > 1):
        raise ValueError(
            f"separator={separator!r} is for several labels in the cells of one column, and these "
            f"are {kind} of {_quoted(columns)}: leave one of them out."
        )
    return kind, reason


def _guess(columns: Columns, separator: str | None) -> tuple[str, str]:
    """The kind of task that the columns show, and the reason."""
    settle = "give label_columns (--label-columns) or the task (--task)"
    if len(columns) > 1:
        if all(map(_are_flags, columns.values())):
            return "multilabel", f"the columns {_quoted(columns)} hold 0 and 1"
        if all(_are(cells, number) for cells in columns.values()):
            return "regression", f"the columns {_quoted(columns)} hold numbers"
        raise ValueError(
            f"The columns {_quoted(columns)} are neither all numbers nor all of 0 and 1: {settle}."
        )
    ((name, cells),) = columns.items()
    filled = [cell for cell in cells if cell != ""]
    if any(isinstance(cell, tuple) for cell in filled):
        return "multilabel", f"cells of {name!r} are lists"
    texts = [str(cell) for cell in filled]
    if separator is not None:
        return "multilabel", f"labels in {name!r} are separated by {separator!r}"
    if _are(texts, number):
        numbers = [n for text in texts if (n := number(text)) is not None]
        distinct = set(numbers)
        are_few = len(distinct) <= FEW and 2 * len(distinct) <= len(numbers)
        if are_few and all(n == int(n) for n in distinct):
            return "classification", (
                f"{name!r} holds {counted(len(distinct), 'distinct integer')}; the task ordinal is "
                "for grades, and regression for amounts"
            )
        return "regression", f"{name!r} holds {counted(len(distinct), 'distinct number')}"
    if _are([text.replace(",", ".") for text in texts], number):
        raise ValueError(
            f"{name!r} holds texts such as {shown(texts[0])}: write decimals with points; if these "
            "are labels, give separator=',' (--separator ,)."
        )
    if (between := _separator(texts)) is not None:
        several = sum(len(split_cell(text, between)) > 1 for text in texts)
        return "multilabel", (
            f"{several:,} of {counted(len(texts), 'cell')} of {name!r} hold several labels, "
            f"separated by {between!r}"
        )
    if len(texts) > 1 and len(set(texts)) == len(texts):
        raise ValueError(f"{name!r} holds another text in each row, not classes: {settle}.")
    return "classification", f"{name!r} holds {counted(len(set(texts)), 'distinct text')}"


def _separator(cells: Iterable[Cell]) -> str | None:
    """What separates several labels in a cell; None where cells have one label."""
    texts = {cell for cell in cells if isinstance(cell, str)}
    for separator in SEPARATORS:
        labels = {label for text in texts for label in split_cell(text, separator)}
        # Names of classes have commas, as "retriever, golden" has: labels occur again.
        if any(separator in text for text in texts) and (
            separator != "," or len(labels) < len(texts)
        ):
            return separator
    return None


def split_cell(cell: Cell, separator: str | None) -> tuple[str, ...]:
    """The labels of a cell.

    >>> split_cell("beach | people", "|"), split_cell("|", "|")
    (('beach', 'people'), ())
    """
    if isinstance(cell, tuple) or separator is None:
        return (cell,) if isinstance(cell, str) else cell
    return tuple(label for part in cell.split(separator) if (label := part.strip()))


def number(cell: Cell) -> float | None:
    """A finite number; None for what is not one."""
    try:
        value = float(cell) if isinstance(cell, str) and "_" not in cell else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def flag(cell: Cell) -> float | None:
    """0 or 1, also as true and false; None for what is neither."""
    text = {"true": "1", "false": "0"}.get(str(cell).lower(), cell)
    return value if (value := number(text)) in (0, 1) else None


def _are(cells: Sequence[Cell], parse: Callable[[Cell], float | None]) -> bool:
    """Whether most cells are of a kind: the others are mistakes, to be reported."""
    filled = [cell for cell in cells if cell != ""]
    return 2 * sum(parse(cell) is not None for cell in filled) > len(filled)


def _are_flags(cells: Sequence[Cell]) -> bool:
    return _are(cells, flag) and all(number(cell) in (None, 0, 1) for cell in cells)


def _numbers(
    columns: Columns, parse: Callable[[Cell], float | None], accepted: str, bad: dict[int, str]
) -> np.ndarray:
    values = np.zeros((len(next(iter(columns.values()))), len(columns)))
    for column, (name, cells) in enumerate(columns.items()):
        for row, cell in enumerate(cells):
            value = parse(cell)
            if value is None:
                bad.setdefault(row, f"{shown(cell)} in {name!r} is not {accepted}")
            else:
                values[row, column] = value
    return values


def _members(
    sets: Sequence[tuple[str, ...]],
    names: tuple[str, ...],
    column: str,
    bad: dict[int, str],
    are_several: bool,
) -> np.ndarray:
    """Indices of the names `(rows,)`; where they are several, rows of 0 and 1 `(rows, names)`."""
    index = {name: i for i, name in enumerate(names)}
    shape = (len(sets), len(names)) if are_several else (len(sets),)
    targets = np.zeros(shape, np.float32 if are_several else np.int32)
    for row, labels in enumerate(sets):
        for label in labels:
            if label not in index:
                why = "is not a label of the task or of a row to train on"
                bad.setdefault(row, f"{shown(label)} in {column!r} {why}")
            elif are_several:
                targets[row, index[label]] = 1
            else:
                targets[row] = index[label]
    return targets


def _sorted_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names in the order of their numbers, where all are numbers, else of their texts."""
    texts = sorted(names)
    if len(texts) > MOST_COLUMNS:
        raise ValueError(f"There are {len(texts):,} labels, and at most {MOST_COLUMNS:,} are read.")
    numbers = {text: n for text in texts if (n := number(text)) is not None}
    if len(numbers) < len(texts):
        return tuple(texts)
    texts.sort(key=lambda text: numbers[text])
    for one, other in pairwise(texts):
        if numbers[one] == numbers[other]:
            raise ValueError(f"{one!r} and {other!r} are the same number: write it in one way.")
    return tuple(texts)


def shown(cell: Cell) -> str:
    """A cell as an error shows it, of a long one the beginning."""
    text = printable(cell if isinstance(cell, str) else ", ".join(cell))
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _quoted(names: Iterable[str]) -> str:
    return printable(listed([repr(name) for name in names]))
