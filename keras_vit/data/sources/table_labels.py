"""What the labels of a table mean, and from their cells to targets."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_vit import tasks
from keras_vit._base.errors import check_choice, counted, listed, printable, warn_of_data
from keras_vit.data.sources.table_cells import (
    SEPARATORS,
    clean_name,
    flag,
    lookalike,
    number,
    plain_numbers,
    read_cell,
    rows_of_flags,
    shown,
    split_cell,
    written_number,
)
from keras_vit.data.sources.table_files import MOST_COLUMNS, Cell
from keras_vit.tasks import TASKS, Task
from keras_vit.tasks.ordinal import grade_order, known_order

_MARKS = (-99, -999, -9999, -99999, -32768)  # what stands for a number that nobody knows
_DOUBTFUL = (-1, 999, 9999, 99999)  # what may stand for one
FEW = 20  # distinct integers that are taken as classes
# Names of columns whose integers may be classes, however many there are.
_OF_CLASSES = re.compile(
    r"(.*[\W_])?(labels?|class(es)?|categor(y|ies)|species|target|y)([\W_]?(id|idx|index|no))?"
)
_LABEL = re.compile(r"(labels?|class(es)?|category|species)([\W_]?(id|idx|index|no))?")  # no amount
_PARTS = " /+&"  # may separate labels, and may be in their names
# Dates, times, and numbers with a unit, which repeat as names of classes do.
_MEASURED = re.compile(
    r"\d{1,4}([-/.])\d\d?\1\d{1,4}([ T].*)?|\d\d?:\d\d.*|(19|20)\d\d(0[1-9]|1[0-2])([0-2]\d|3[01])"
    r"|[$€£¥] ?\d[\d.,]*|[+-]?\d[\d.,]* ?([$€£¥%]|°[CF]?|[kmµ]?g|[kcmµ]?m[²³]?|[cm]?l|lbs?|oz|in|ft"
    r"|eur|usd|kcal|kw|s|sec|min|h|hours?|days?|weeks?|months?|y|yrs?|years?)",
    re.IGNORECASE,
)

# What tools write where there is no label, and spreadsheets where a formula failed.
_MISSING = (
    "nan <na> na n/a n.a. #n/a null nil none - ? #ref! #value! #name? #div/0! #num! #null! -99 -999"
)

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
    columns: Columns,
    task: str | Task | None,
    separator: str | None,
    trained: Sequence[bool],
    places: Sequence[str],
) -> Labels:
    """Guesses the task, where it is not given, and reads the labels.

    Args:
        task: A task, whose names are then the only ones; its kind; or None.
        separator: Between several labels in a cell; None for a guess.
        trained: Whether a row is one to train on: names are those of these rows.

    Raises:
        ValueError: The columns do not suit the task, or do not show what it is.
    """
    names = task.names if isinstance(task, Task) else ()
    bad: dict[int, str] = {}
    columns = {n: read_cells(n, cells, names, places, bad) for n, cells in columns.items()}
    if len(columns) > 1:
        columns = {name: plain_numbers(name, cells) for name, cells in columns.items()}
    if len(columns) > 1 and (task.kind if isinstance(task, Task) else task) == "classification":
        columns = _one_of(columns, bad) or columns
    kind, reason = _kind(columns, task, separator)
    numbers: Columns | None = None
    if kind == "regression":
        numbers = {name: plain_numbers(name, cells) for name, cells in columns.items()}
    elif kind == "multilabel":
        numbers = _flag_columns(columns, names, separator, places, bad)
    if numbers is not None:
        if names and set(names) != set(numbers):
            raise ValueError(
                f"The task is {kind} of {_quoted(names)}, and the label columns are "
                f"{_quoted(numbers)}: rename them in the table, or give label_columns=."
            )
        names = names or tuple(numbers)
        targets = _numbers({name: numbers[name] for name in names}, kind, bad)
    elif len(columns) > 1:
        raise ValueError(
            f"The labels of {kind} are texts of one column, and these are {_quoted(columns)}: give "
            "one of them as label_columns=."
        )
    else:
        ((name, cells),) = columns.items()
        if kind == "multilabel":
            separator = separator or _separator(cells, names)
        sets = _sets(name, cells, kind, separator, bad)
        if not names:
            if kind == "multilabel" and not separator:
                _check_parts(name, cells)
            reason += _check_lookalikes(name, sets, bad)
            rows = (row for row in range(len(sets)) if trained[row] and row not in bad)
            names = _in_order({label for row in rows for label in sets[row]}, kind)
            marks = [*_MISSING.split(), *(("-1",) if len(names) > 3 else ())]
            if missing := [name for name in names if name.lower() in marks]:
                note = f"{_quoted(missing)} is a label here: leave a cell without one empty"
                reason += f"; {note}"
                warn_of_data(f"{name!r}: {note}.")
        targets = _members(sets, names, name, bad, kind == "multilabel")
    if len(names) < TASKS[kind].fewest:
        raise ValueError(
            f"{_quoted(columns)} has {counted(len(names), 'label')} to train on, {_quoted(names)}: "
            f"{kind} needs at least {TASKS[kind].fewest}."
        )
    if kind == "ordinal":
        reason = f"{reason}, in the order {listed(names)}"
    if isinstance(task, Task):
        return Labels(task if task.names else task.with_names(names), reason, targets, bad)
    return Labels(tasks.get(kind, names=names), reason, targets, bad)


def read_cells(
    name: str,
    cells: Sequence[Cell],
    known: Sequence[str],
    places: Sequence[str],
    bad: dict[int, str],
) -> list[Cell]:
    """Return the cells of a column as names or lists of names; empty where they are neither."""
    read: dict[Cell, Cell] = {cell: cell for cell in known}
    reasons: dict[Cell, str] = {}
    for cell in set(cells) - set(known):
        try:
            read[cell] = read_cell(cell)
        except ValueError as error:
            read[cell], reasons[cell] = "", f"{shown(cell)} in {name!r} {error}"
    wrong = [row for row, cell in enumerate(cells) if cell in reasons] if reasons else []
    bad |= {row: reasons[cells[row]] for row in wrong if row not in bad}
    if 2 * len(wrong) > len(cells):
        raise ValueError(f"{places[wrong[0]]}: {bad[wrong[0]]} ({counted(len(wrong), 'row')}).")
    return [read[cell] for cell in cells]


def _kind(columns: Columns, task: str | Task | None, separator: str | None) -> tuple[str, str]:
    """Return the kind of task that is given, or that the columns show, and the reason."""
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


def are_classes(cells: Sequence[str], column: str = "label") -> bool:
    """Return whether labels of images are taken for a class each, or may be."""
    try:
        return _guess({column: cells}, None)[0] == "classification"
    except ValueError:  # they may be, or something else
        return True


def _guess(columns: Columns, separator: str | None) -> tuple[str, str]:
    """Return the kind of task that the columns show, and the reason."""
    settle = "give label_columns= or task="
    if len(columns) > 1:
        return _guess_of_several(columns, settle)
    ((name, cells),) = columns.items()
    filled = [cell for cell in cells if cell != ""]
    if any(isinstance(cell, tuple) for cell in filled):
        pairs = {tuple(map(number, cell)) for cell in filled if isinstance(cell, tuple)}
        if all(len(x) == 2 and None not in x and x[0] < x[1] for x in pairs):  # type: ignore[operator]
            raise ValueError(
                f"{name!r} holds pairs of rising numbers, such as {shown(filled[0])}: are they "
                "ranges? Then write 0-2 for (0, 2); if they are labels, give task='multilabel'."
            )
        return "multilabel", f"cells of {name!r} are lists"
    if rows_of_flags(filled, separator) is not None:
        return "multilabel", f"cells of {name!r} hold 0 and 1"
    texts = [str(cell) for cell in filled]
    if separator is not None:
        return "multilabel", f"labels in {name!r} are separated by {separator!r}"
    if 2 * len(measured := [text for text in texts if _MEASURED.fullmatch(text)]) > len(texts):
        raise ValueError(
            f"{name!r} holds dates, times or numbers with a unit, such as {shown(measured[0])}, "
            "not names of classes: for task='regression', write the numbers alone; if each is a "
            "class, give task='classification'; if another column has the labels, label_columns=."
        )
    if _are(texts, number):
        return _guess_of_numbers(name, [n for text in texts if (n := number(text)) is not None])
    if _are(texts, written_number):
        odd = next(x for x in texts if number(x) is None and written_number(x) is not None)
        raise ValueError(
            f"{name!r} holds texts such as {shown(odd)}: if these are numbers, give "
            "task='regression', or write decimals with points; if they are labels, give "
            "separator=','."
        )
    if (between := _separator(texts)) is not None:
        several = sum(len(split_cell(text, between)) > 1 for text in texts)
        return "multilabel", (
            f"{several:,} of {counted(len(texts), 'cell')} of {name!r} hold several labels, "
            f"separated by {between!r}"
        )
    _check_parts(name, texts)
    distinct = set(texts)
    if len(texts) > 1 and len(distinct) == len(texts):
        raise ValueError(
            f"{name!r} holds another text in each row, such as {shown(texts[0])}, not classes: "
            f"{settle}."
        )
    is_scale = len(distinct) > 2 and known_order(distinct)
    hint = "; the task ordinal is for grades" if is_scale else ""
    return "classification", f"{name!r} holds {counted(len(distinct), 'distinct text')}{hint}"


def _guess_of_several(columns: Columns, settle: str) -> tuple[str, str]:
    quoted = _quoted(columns)
    if all(map(_are_flags, columns.values())):
        hint = "; each row has one 1: if labels exclude each other, give task='classification'"
        return "multilabel", f"the columns {quoted} hold 0 and 1{hint if _one_of(columns) else ''}"
    if not all(_are(cells, number) for cells in columns.values()):
        if len(named := [name for name in columns if _LABEL.fullmatch(name.lower())]) == 1:
            settle = f"give label_columns={printable(named[0])!r}, or other ones, or task="
        raise ValueError(
            f"The columns {quoted} are neither all numbers nor all of 0 and 1: {settle}."
        )
    classes = [n for n in columns if _are_flags(columns[n]) or _LABEL.fullmatch(n.lower())]
    if 0 < len(classes) < len(columns):
        raise ValueError(
            f"Of {quoted}, {_quoted(classes)} may be classes: then give "
            f"label_columns={printable(','.join(classes))!r}; or task='regression' if all are "
            "amounts."
        )
    if _values(columns) <= {-1, 0, 1}:
        raise ValueError(
            f"The columns {quoted} hold -1 and 1: give task='multilabel', for which 1 is yes and "
            "-1 no where there is not a 0; or task='regression'."
        )
    return "regression", f"the columns {quoted} hold numbers"


def _one_of(columns: Columns, bad: dict[int, str] | None = None) -> Columns | None:
    """Return columns of flags as one of their names; None where a row does not have one 1.

    With `bad`, which takes the reasons of such rows, None where most do not.
    """
    names, cells = tuple(columns), zip(*columns.values(), strict=True)
    rows = [list(map(flag, row)) for row in cells]
    right = [row.count(1) == 1 and row.count(0) == len(row) - 1 for row in rows]
    if not all(right) and (bad is None or 2 * sum(right) <= len(rows)):
        return None
    of_rows = [names[row.index(1)] if ok else "" for row, ok in zip(rows, right, strict=True)]
    reason = f"one column of {_quoted(names)} has to be 1, and all others 0"
    if bad is not None:
        bad |= {row: reason for row, ok in enumerate(right) if not ok and row not in bad}
    return {", ".join(names): of_rows}


def _guess_of_numbers(name: str, numbers: list[float]) -> tuple[str, str]:
    distinct = set(numbers)
    if all(n == int(n) for n in distinct):
        count = counted(len(distinct), "distinct integer")
        if len(distinct) <= FEW and 2 * len(distinct) <= len(numbers):
            return "classification", (
                f"{name!r} holds {count}; the task ordinal is for grades, and regression for "
                "amounts"
            )
        if len(distinct) < len(numbers) and _OF_CLASSES.fullmatch(name.lower()):
            raise ValueError(
                f"{name!r} holds {count}, which may be classes or amounts: give "
                "task='classification' or task='regression'."
            )
    return "regression", f"{name!r} holds {counted(len(distinct), 'distinct number')}"


def _separator(cells: Iterable[Cell], names: Sequence[str] = ()) -> str | None:
    """Return the separator of several labels in a cell; None where cells have one label.

    Of labels that are known, it is the one by which most cells have these.
    """
    texts = {cell for cell in cells if isinstance(cell, str)}
    if names:
        known, ways = {*names, ""}, (None, *SEPARATORS)
        return max(ways, key=lambda way: sum(known >= {*split_cell(x, way)} for x in texts))
    for separator in SEPARATORS:
        labels = {label for text in texts for label in split_cell(text, separator)}
        # Names of classes have commas, as "retriever, golden" has: labels occur again.
        if any(separator in text for text in texts) and (
            separator != "," or len(labels) < len(texts)
        ):
            return separator
    return None


def _check_parts(name: str, cells: Iterable[Cell]) -> None:
    """Refuses a column that can have labels of several words, or several labels of one word."""
    texts = {cell for cell in cells if isinstance(cell, str)}
    for mark in _PARTS:
        words = {word for text in texts for word in split_cell(text, mark)}
        # "hot dog" and "dog" are two classes; with "hot", too, and both, words are by themselves.
        if len(words) < len(texts - {""}) and len(words & texts) > 1:
            several = next(text for text in sorted(texts) if mark in text)
            raise ValueError(
                f"{name!r} holds texts such as {shown(several)}, whose words occur again by "
                f"themselves: if each word is a label, give separator={mark!r}; if not, give "
                "separator='|', or task='classification'."
            )


def _are(cells: Sequence[Cell], parse: Callable[[Cell], float | None]) -> bool:
    """Return whether most cells are of a kind: the others are mistakes, to be reported."""
    filled = [cell for cell in cells if cell != ""]
    return 2 * sum(parse(cell) is not None for cell in filled) > len(filled)


def _are_flags(cells: Sequence[Cell]) -> bool:
    return _are(cells, flag) and all(number(cell) in (None, 0, 1) for cell in cells)


def _values(columns: Columns) -> set[float]:
    cells = {cell for column in columns.values() for cell in column}
    return {value for cell in cells if (value := number(cell)) is not None}


def _flag_columns(
    columns: Columns,
    names: Sequence[str],
    separator: str | None,
    places: Sequence[str],
    bad: dict[int, str],
) -> Columns | None:
    """Return columns of 0 and 1, one per label; None where a single column has label names."""
    if _values(columns) == {-1, 1}:
        columns = {n: ["0" if number(c) == -1 else c for c in x] for n, x in columns.items()}
    if len(columns) > 1:
        return columns if all(_are(cells, flag) for cells in columns.values()) else None
    ((name, cells),) = columns.items()
    rows = rows_of_flags(cells, separator)
    if rows is None:
        return columns if separator is None and _are_flags(cells) else None
    row = next(row for row, flags in enumerate(rows) if flags)
    if not names:
        raise ValueError(
            f"{places[row]}: {shown(cells[row])} in {name!r} is 0 or 1 for each of "
            f"{len(rows[row])} labels, of which the table does not have the names. Give a column "
            "of 0 and 1 per label, with its name; or lists of names; or, in Python, "
            "task=keras_vit.tasks.Multilabel(names)."
        )
    size = len(names)
    for row, flags in enumerate(rows):
        if len(flags) != size:
            what = f"has {len(flags)} numbers, and the task {counted(size, 'label')}"
            bad.setdefault(row, f"{shown(cells[row])} in {name!r} {what}")
    return {n: [x[i] if len(x) == size else "" for x in rows] for i, n in enumerate(names)}


def _numbers(columns: Columns, kind: str, bad: dict[int, str]) -> np.ndarray:
    """Return the numbers of columns `(rows, columns)`."""
    parse, accepted = (number, "a finite number") if kind == "regression" else (flag, "0 or 1")
    values = np.zeros((len(next(iter(columns.values()))), len(columns)))
    for column, (name, cells) in enumerate(columns.items()):
        for row, cell in enumerate(cells):
            value = parse(cell)
            if value is not None:
                values[row, column] = value
            elif cell == "":
                bad.setdefault(row, f"the cell of {name!r} is empty, and not {accepted}")
            else:
                bad.setdefault(row, f"{shown(cell)} in {name!r} is not {accepted}")
        of_column, is_mark = values[:, column], np.isin(values[:, column], _MARKS)
        for mark in _DOUBTFUL if kind == "regression" else ():
            others, count = of_column[of_column != mark], int((of_column == mark).sum())
            is_far = (others >= 0).all() if mark < 0 else (others < mark / 5).all()
            if count > 1 and others.size and is_far:
                warn_of_data(
                    f"{name!r} is {mark} in {count:,} rows, and "
                    f"{'0 or above' if mark < 0 else 'far below'} in all others: if it stands for "
                    "a missing number, leave these rows out."
                )
        if kind == "regression" and is_mark.any() and (of_column[~is_mark] >= 0).all():
            for row in np.flatnonzero(is_mark).tolist():
                what = "stands for a missing number, as all others are 0 or above"
                bad.setdefault(row, f"{shown(cells[row])} in {name!r} {what}")
    return values


def _sets(
    name: str, cells: Sequence[Cell], kind: str, separator: str | None, bad: dict[int, str]
) -> list[tuple[str, ...]]:
    """Return the labels of each cell: any number of several labels, otherwise one."""
    if kind == "multilabel":
        return [split_cell(cell, separator) for cell in cells]
    sets = [split_cell(cell, None) for cell in cells]
    for row, labels in enumerate(sets):
        if cells[row] == "":
            bad.setdefault(row, f"the cell of {name!r} is empty")
        elif len(labels) != 1:
            bad.setdefault(row, f"{kind} has one label, not {shown(cells[row])}")
    return sets


def _check_lookalikes(name: str, sets: Sequence[tuple[str, ...]], bad: dict[int, str]) -> str:
    """Refuses labels that say the same, as 1 and 1.0; but "A" and "a" are letters."""
    counts = Counter(x for row, labels in enumerate(sets) if row not in bad for x in labels)
    first: dict[Any, str] = {}
    letters, value = "", flag if all(flag(x) is not None for x in counts) else number
    for label in counts:
        same = value(label)
        other = first.setdefault(lookalike(label) if same is None else same, label)
        if other == label:
            continue
        if len(other) == len(label) == 1:
            letters = letters or f"; labels of one letter differ in case: {other!r} and {label!r}"
            continue
        pair = " and ".join(f"{x!r} ({counted(counts[x], 'row')})" for x in (other, label))
        how = "say the same" if same is not None else "differ in case, or in what cannot be seen"
        raise ValueError(
            f"Labels of {name!r} {how}: {pair}. Write one of them in all rows; if both are meant, "
            "give a task with all names, such as task=keras_vit.tasks.Classification(names)."
        )
    return letters


def _in_order(names: Iterable[str], kind: str) -> tuple[str, ...]:
    """Sort names as numbers where all are numbers, else as texts or, for "ordinal", as grades."""
    texts = sorted(names)
    if len(texts) > MOST_COLUMNS:
        raise ValueError(f"There are {len(texts):,} labels, and at most {MOST_COLUMNS:,} are read.")
    numbers = {text: n for text in texts if (n := number(text)) is not None}
    if len(numbers) < len(texts):
        return grade_order(texts) if kind == "ordinal" else tuple(texts)
    return tuple(sorted(texts, key=lambda text: numbers[text]))


def _members(
    sets: Sequence[tuple[str, ...]],
    names: tuple[str, ...],
    column: str,
    bad: dict[int, str],
    are_several: bool,
) -> np.ndarray:
    """Return label indices `(rows,)`, or 0 and 1 per name `(rows, names)` if `are_several`."""
    index = {clean_name(name): i for i, name in enumerate(names)}
    index |= {name: i for i, name in enumerate(names)}
    alike: dict[Any, str] = {lookalike(name): name for name in names}
    alike |= {value: name for name in names if (value := number(name)) is not None}
    in_cells = dict.fromkeys(label for labels in sets for label in labels)
    if in_cells and not any(
        x in index or lookalike(x) in alike or number(x) in alike for x in in_cells
    ):
        raise ValueError(
            f"{column!r} does not hold any of the labels {printable(listed(names, 5))}, and "
            f"others, such as {shown(next(iter(in_cells)))}: is it a table of another task? Give "
            "one with these labels, or the column that has them as label_columns=."
        )
    twice = {name for name, count in Counter(names).items() if count > 1}
    shape = (len(sets), len(names)) if are_several else (len(sets),)
    targets = np.zeros(shape, np.float32 if are_several else np.int32)
    for row, labels in enumerate(sets):
        for label in labels:
            if label not in index:
                near = alike.get(lookalike(label)) or alike.get(number(label))
                why = "is not a label of the task or of a row to train on"
                why += f", as {near!r} is" if near else ""
                bad.setdefault(row, f"{shown(label)} in {column!r} {why}")
            elif names[index[label]] in twice:
                bad.setdefault(row, f"{shown(label)} in {column!r} is the name of several classes")
            elif are_several:
                targets[row, index[label]] = 1
            else:
                targets[row] = index[label]
    return targets


def _quoted(names: Iterable[str]) -> str:
    return printable(listed([repr(name) for name in names]))
