"""A folder of images whose labels are in a table.

columns ─► files, splits, labels ─► rows that can be used ─► train, val ─► files that decode
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_vit._base.errors import (
    ReportedWarning,
    check_choice,
    counted,
    did_you_mean,
    listed,
    naming_file,
    printable,
    warn_at_caller,
)
from keras_vit.data.decode.image_kinds import suffixes_of
from keras_vit.data.sources.folder import FileOptions, check_images, checked_split
from keras_vit.data.sources.named_sources import validated
from keras_vit.data.sources.shortcuts import warn_of_contradictions, warn_of_shortcuts
from keras_vit.data.sources.split_names import (
    SHOWN_NAMES,
    split_of,
    splits_by_folders,
    with_validation,
)
from keras_vit.data.sources.split_tables import files_of_splits, read_tables_of_splits
from keras_vit.data.sources.splits import MOST_LINES, FileReport, Splits, reasons
from keras_vit.data.sources.table_cells import number, shown
from keras_vit.data.sources.table_files import Cell, Table, read_table
from keras_vit.data.sources.table_labels import Labels, read_cells, read_labels
from keras_vit.data.sources.table_paths import ImageFolder
from keras_vit.tasks import Multilabel, Task

_SPLITS = ("train", "val", "test", "all")
_SAMPLE = 100  # cells from which the column of files is guessed
_EXAMPLES = "row|image|img|file|photo|sample|record|case|patient|subject|study"
# Names of columns that number the rows.
_INDEX = re.compile(
    r"unnamed: ?\d+(_level_\d+)?|__index_level_\d+__|level_\d+|index|idx|id|uid|uuid|#"
    rf"|({_EXAMPLES})[\W_]?(id|idx|index|no|nr|number)"
)
# Names of columns whose values several images may share: these are alike, and no new ones.
_SHARED = re.compile(
    rf"(.*[\W_])?({_EXAMPLES}|person|lesion|individual|animal|series|scan|session|site|location|scene"
    r"|video|clip|sequence)([\W_]?(id|idx|index|no|nr|number|name))?|id|uid|uuid"
)
# Names of columns that are about the rows, and never labels.
_NOT_LABELS = re.compile(
    r"(k[\W_]?)?folds?|is_?(train|val|valid|validation|test|holdout)|sample_?weights?"
)


class TableOptions(NamedTuple):
    """The arguments of `keras_vit.data.load` that are about a table."""

    labels: str | os.PathLike[str]
    task: str | Task | None
    file_column: str | None
    label_columns: str | Sequence[str] | None
    separator: str | None
    on_bad_row: str


class _Columns(NamedTuple):
    """The names of a table's columns by what they have."""

    file: str
    labels: list[str]
    split: str | None
    group: str | None
    indices: list[str]  # that number the rows
    unused: Sequence[str] = ()  # these, and all others


class _Rows(NamedTuple):
    """The rows of a table, and `usable`: the numbers of those that can be used."""

    files: list[Path]
    splits: list[str]
    labels: Labels
    groups: np.ndarray | None
    usable: list[int]
    ignored: tuple[tuple[Path, str], ...]
    reason: str
    columns: _Columns


def load_table(
    folder: Path,
    options: TableOptions,
    val_fraction: float,
    seed: int,
    reading: FileOptions,
) -> Splits:
    """Reads a table, checks its rows and then the images, and makes the splits."""
    check_choice(options.on_bad_row, "on_bad_row", ("error", "skip"))
    if not folder.is_dir():
        raise NotADirectoryError(
            f"{printable(folder)} is not a folder here: with labels, give that of the images."
        )
    path = Path(options.labels).expanduser()
    if not path.exists() and not (folder / path).exists() and files_of_splits(folder, path):
        table = read_tables_of_splits(folder, path)
    else:
        table = read_table(path if path.exists() else folder / path)
    with naming_file(table.path):
        rows = _read_rows(folder, table, options, reading)
    files, labels, groups = rows.files, rows.labels, rows.groups
    parts = {name: [r for r in rows.usable if rows.splits[r] == name] for name in _SPLITS}
    parts = {name: part for name, part in parts.items() if part}
    if not reading.whole:
        with naming_file(table.path):
            parts, groups = _validated(folder, table, rows, parts, (val_fraction, seed))
            _warn_of_shared(table, rows.columns, parts)
    elif not parts:
        raise ValueError(f"{printable(table.path)} does not have a row that can be used.")
    bands, checked = check_images([files[row] for row in rows.usable], reading)
    broken = {file for file, _ in checked.unreadable}
    parts = {name: [r for r in part if files[r] not in broken] for name, part in parts.items()}
    for name, part in parts.items():
        if not part:
            raise ValueError(f"{printable(table.path)} does not have a {name} image that decodes.")
    with naming_file(table.path):
        task = labels.task if reading.whole else labels.task.fitted(labels.targets[parts["train"]])
    made = {}
    for name, part in parts.items():
        of_part = [files[row] for row in part]
        targets = labels.targets[part]
        made[name] = checked_split(name, task, of_part, targets, bands, checked, reading)
    if groups is not None:
        for name, split in made.items():
            split.groups = groups[parts[name]]
    warn_of_contradictions(made)
    if not reading.whole:
        warn_of_shortcuts(made["train"], checked.shapes)
    report = FileReport(tuple(checked.unreadable), rows.ignored)
    return Splits(str(folder), task.names, made, report, rows.reason)


def _read_rows(folder: Path, table: Table, options: TableOptions, reading: FileOptions) -> _Rows:
    """Interprets a table, and reports the rows that cannot be used."""
    images = ImageFolder(folder, suffixes_of(reading.read_by))
    columns = _choose_columns(table, images, options)
    if [*table.columns][:2] == ["file", "error"] and "error" not in columns.labels:
        warn_at_caller(
            f"{printable(table.path)} has the columns 'file' and 'error' of a model's answers: a "
            "score on these as labels is not how right a model is, but how far it agrees with them"
        )
    bad = dict(table.broken)
    files, note = images.find_all(table.columns[columns.file], columns.file, bad)
    splits = _read_splits(table, columns, bad)
    is_said = columns.split is not None or columns.group is not None
    if not is_said and (tops := splits_by_folders(folder, files, reading.whole)):
        splits = tops
        note = [*note, f"the folders are the splits: {listed(sorted(set(splits)))}"]
    if reading.whole and set(splits) == {"train"}:
        splits = ["all"] * len(files)
    known = set(splits) if reading.whole else {"train"}
    trained = [row not in bad and split in known for row, split in enumerate(splits)]
    if bad and not any(trained):
        _report_bad(table, bad, None)  # without a name, labels would raise another
    cells = {name: table.columns[name] for name in columns.labels}
    try:
        labels = read_labels(cells, options.task, options.separator, trained, table.places)
    except ValueError:
        _report_bad(table, bad, options.on_bad_row)  # rows without a file may be why
        raise
    bad = labels.bad | bad
    repeated = _find_repeated(table, files, splits, labels, bad)
    _report_bad(table, bad, options.on_bad_row)
    left_out = {**repeated, **bad}
    usable = [row for row in range(len(files)) if row not in left_out]
    groups = _group_numbers(table.columns[columns.group]) if columns.group else None
    ignored = ((files[r], f"{table.places[r]}: {why}") for r, why in sorted(left_out.items()))
    notes = _notes(table, columns, labels, usable)
    reason = "; ".join([labels.reason, *notes, *note])
    return _Rows(files, splits, labels, groups, usable, tuple(ignored), reason, columns)


def _notes(table: Table, columns: _Columns, labels: Labels, rows: list[int]) -> Iterator[str]:
    """Yield what else there is to know of the labels, and is easily overlooked."""
    none = (labels.targets[rows] == 0).all(axis=-1)
    if isinstance(labels.task, Multilabel) and none.any():
        yield f"{counted(int(none.sum()), 'image')} without any of the labels"
    if columns.split and columns.split.lower() != "split":
        yield f"{columns.split!r} has the splits"
    if columns.split is None and split_of(table.path.stem) == "train":
        tables = sorted(table.path.parent.glob(f"*{table.path.suffix}"))
        beside = [path.name for path in tables if split_of(path.stem) in ("val", "test")]
        if beside:
            shown = printable(listed(beside))
            yield f"not read, beside it: {shown}; put all rows into one, with a column 'split'"
    shared = [name for name in columns.unused if _is_shared(table, name)]
    others = [*shared, *(name for name in columns.unused if name not in columns.indices)]
    counting = [name for name in columns.indices if name not in shared]
    for what, names in (("as it is empty or numbers the rows", counting), ("and not used", others)):
        if names:
            shown_names = printable(listed(list(map(repr, dict.fromkeys(names))), 5))
            yield f"left out, {what}: {shown_names}"


def read_file_table(
    path: Path, *, only_files: bool = False
) -> list[tuple[str, str | None, str | None]]:
    """Return the images of a table: their names, labels and splits, None where these are not known.

    A file that is missing is among them: whoever reads it says so.

    Args:
        path: A table with a column of files, relative to its folder. Another column has labels
            where it is the only one besides `split` and `group`.
        only_files: Whether labels and splits are not looked at, and all None.

    Raises:
        ValueError: No column, or more than one, has files; or a row does not have a file, has a
            split of another name, or another label or split than the same file before.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.jpg").write_bytes(b"...")
    >>> _ = (folder / "photos.csv").write_text("file,label\\na.jpg,daisy\\n")
    >>> read_file_table(folder / "photos.csv")
    [('a.jpg', 'daisy', None)]
    """
    table, columns, names, labels, bad = _read_files(path, path.parent, only_files)
    is_path = [name != "." and row not in table.broken for row, name in enumerate(names)]
    bad = {r: why for r, why in bad.items() if not is_path[r] or (path.parent / names[r]).is_file()}
    splits: Sequence[str | None] = [None] * len(names)
    if columns.split and not only_files:
        splits = _read_splits(table, columns, bad)
    rows, first = list(zip(names, labels, splits, strict=True)), dict[str, tuple[str | None, ...]]()
    for row, entry in enumerate(rows):
        if row not in bad and first.setdefault(names[row], entry) != entry:
            bad[row] = f"{shown(names[row])} has another label or split before"
    _report_bad(table, bad, None)
    return rows


class LabeledFiles(NamedTuple):
    """A table of one label per image.

    Attributes:
        label: The column of labels; of `read_file_rows`, "label" where none, or several, may be.
        names: The image of each row, relative to the folder.
        labels: Its label; None where the cell is empty.
        cells: Those of each row, in the order of `columns`.
        split: The column of splits, if there is one.
    """

    columns: tuple[str, ...]
    file: str
    label: str
    names: list[str]
    labels: list[str | None]
    cells: list[tuple[str, ...]]
    split: str | None = None


def read_labeled_files(path: Path, folder: Path) -> LabeledFiles:
    """Return the rows of a table of files in `folder` with a label, or an empty cell, per image.

    Raises:
        ValueError: There is not one column of files and one of labels beside `split` and `group`; a
            file is not there, or has two labels.
    """
    table, columns, names, labels, bad = _read_files(path, folder)
    if len(columns.labels) != 1:
        raise ValueError(
            f"{printable(path)} has {counted(len(columns.labels), 'column')} of labels beside its "
            f"files ({_list(table)}): give a table with one, of the class of each image."
        )
    label_cells, first = table.columns[columns.labels[0]], dict[str, str | None]()
    for row, (name, label) in enumerate(zip(names, labels, strict=True)):
        if label is None and label_cells[row]:
            bad.setdefault(row, f"{shown(label_cells[row])} is not one class")
        elif row not in bad and first.setdefault(name, label) != label:
            bad[row] = f"{shown(name)} has another label before"
    _report_bad(table, bad, None)
    return _labeled_files(table, columns, names, labels)


def read_file_rows(path: Path) -> LabeledFiles:
    """Return all rows of a table of files, relative to its folder, those of no use as well.

    Raises:
        ValueError: No column, or more than one, has files.
    """
    return _labeled_files(*_read_files(path, path.parent)[:4])


def _labeled_files(
    table: Table, columns: _Columns, names: list[str], labels: list[str | None]
) -> LabeledFiles:
    texts = ([str(cell) for cell in cells] for cells in table.columns.values())
    rows = list(zip(*texts, strict=True))
    label = columns.labels[0] if len(columns.labels) == 1 else "label"
    return LabeledFiles(
        tuple(table.columns), columns.file, label, names, labels, rows, columns.split
    )


def _read_files(
    path: Path, folder: Path, only_files: bool = False
) -> tuple[Table, _Columns, list[str], list[str | None], dict[int, str]]:
    """Return a table, its columns, files and labels, and the reasons of rows not to be used."""
    table, images = read_table(path), ImageFolder(folder, suffixes_of(FileOptions().read_by))
    split, group = _split_and_group(table, table.columns)
    names = [name for name in table.columns if name not in (split, group)]
    file = _guess_file_column(table, images, names, "have such paths in one of")
    _check_header(table, images, file)
    labels, indices = _label_columns(table, [name for name in names if name != file])
    columns, bad = _Columns(file, labels, split, None, indices), dict(table.broken)
    files, _ = images.find_all(table.columns[file], file, bad)
    cells: Sequence[Cell] = [""] * len(files)
    if len(labels) == 1 and not only_files:
        cells = read_cells(labels[0], table.columns[labels[0]], (), table.places, bad)
    known = [cell if isinstance(cell, str) and cell else None for cell in cells]
    return table, columns, [each.relative_to(folder).as_posix() for each in files], known, bad


def _choose_columns(table: Table, images: ImageFolder, options: TableOptions) -> _Columns:
    names, task = options.label_columns, options.task
    labels = [names] if isinstance(names, str) else list(names or ())
    if not labels and isinstance(task, Task) and set(task.names) <= set(table.columns):
        labels = list(task.names)
    for name in filter(None, (*labels, options.file_column)):
        if name not in table.columns:
            raise ValueError(
                f"{printable(table.path)} does not have a column {name!r}. "
                f"{did_you_mean(name, table.columns, table.columns)}"
            )
    others = [name for name in table.columns if name not in (*labels, options.file_column)]
    split, group = _split_and_group(table, others)
    others = [name for name in others if name not in (split, group)]
    file = options.file_column or _guess_file_column(table, images, others)
    _check_header(table, images, file)
    indices: list[str] = []
    if not labels:
        labels, indices = _label_columns(table, [name for name in others if name != file])
        # A flag, such as `person` of 0 and 1, is a label.
        shared = [n for n in labels if _is_shared(table, n) and len(set(table.columns[n])) > 2]
        odd = [name for name in labels if _NOT_LABELS.fullmatch(name.lower()) or name in shared]
        if odd and len(odd) < len(labels):
            rest = ",".join(name for name in labels if name not in odd)
            raise ValueError(
                f"{printable(listed(list(map(repr, odd))))} does not have labels, by its name: "
                f"give label_columns={rest!r}. To split by it, write train, val or test of each "
                "row in a column 'split'; to keep its images on one side, call it 'group'."
            )
    if not labels:
        hint = ": give label_columns= where what numbers the rows is meant"
        raise ValueError(
            f"{printable(table.path)} does not have a column of labels beside {_list(table)}"
            f"{hint if indices else ''}."
        )
    unused = [name for name in others if name != file and name not in labels]
    return _Columns(file, labels, split, group, indices, unused)


def _split_and_group(table: Table, columns: Iterable[str]) -> tuple[str | None, str | None]:
    """Return the columns of splits, by its name or by its cells alone, and of groups."""
    named = {name.lower(): name for name in columns}
    split, group = named.get("split"), named.get("group")
    if split is None:
        others = (name for name in named.values() if name != group)
        split = next((name for name in others if _names_splits(table.columns[name])), None)
    return split, group


def _names_splits(cells: Sequence[Cell]) -> bool:
    """Return whether all cells are the names of splits, as in a column `subset`."""
    splits = {split_of(str(cell)) for cell in set(cells)}
    return "train" in splits and len(splits) > 1 and None not in splits


def _is_shared(table: Table, name: str) -> bool:
    """Return whether rows share what identifies a patient, a place or the like."""
    cells = table.columns[name]
    return bool(_SHARED.fullmatch(name.lower())) and 1 < len(set(cells)) < len(cells)


def _warn_of_shared(table: Table, columns: _Columns, parts: Mapping[str, Sequence[int]]) -> None:
    """Warn of a patient, a place or the like with images on both sides of the split."""
    for name in () if columns.group else columns.unused:
        if _is_shared(table, name):
            cells = table.columns[name]
            train, val = ({cells[row] for row in parts[part]} for part in ("train", "val"))
            if both := sorted(map(str, train & val - {""})):
                warn_at_caller(
                    f"{len(both):,} of {len(val):,} in the column {name!r} that are validated on "
                    f"are trained on as well, such as {shown(both[0])}: where their images are "
                    "alike, as those of one patient, scores promise too much. Rename the column "
                    "to 'group', and none is on both sides."
                )


def _guess_file_column(
    table: Table, images: ImageFolder, names: Sequence[str], fix: str = "give file_column=, one of"
) -> str:
    """Return the column of which at least half of the cells are files in the folder."""
    step = max(1, len(table.places) // _SAMPLE)
    candidates: list[str] = []
    for means_file in (images.is_file, images.has):
        for name in () if candidates else names:
            cells = table.columns[name][::step]
            different = Counter(cells)  # many columns of few values, such as flags
            count = sum(different[cell] for cell in different if means_file(cell))
            if 2 * count >= len(cells):
                candidates.append(name)
    if len(candidates) != 1:
        what = "More than one column has" if candidates else "No column has"
        columns = sorted(table.columns.values(), key=lambda cells: -len(set(cells)))
        near = ((cells[0], images.near(cells[0])) for cells in columns[:1])
        hints = [f" For {shown(c)} there is {printable(files[0])}." for c, files in near if files]
        if len(table.columns) == 1:
            hints.append(" A table has two: separate its cells by commas, semicolons, tabs or |.")
        raise ValueError(
            f"{what} files in {printable(images.folder)}, to which the paths in "
            f"{printable(table.path)} are relative: {fix} {_list(table)}."
            f"{''.join(hints)}"
        )
    return candidates[0]


def _label_columns(table: Table, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the columns that have labels, and those that number the rows or are empty."""
    filled = [name for name in names if any(table.columns[name])]
    labels = [name for name in filled if not _INDEX.fullmatch(name.lower())]
    if len(labels) > 1:
        others = [name for name in labels if not _counts_up(table.columns[name])]
        labels = others or labels
    are_labels = set(labels)
    return labels, [name for name in names if name not in are_labels]


def _counts_up(cells: Sequence[Cell]) -> bool:
    """Return whether cells are 0, 1, 2, ... or 1, 2, 3, ... in the order of the rows."""
    numbers, count = list(map(number, cells)), len(cells)
    return count > 2 and numbers in (list(range(count)), list(range(1, count + 1)))


def _check_header(table: Table, images: ImageFolder, file: str) -> None:
    """Refuses a table whose first row is taken for the names of its columns."""
    is_image = Path(file).suffix.lower() in images.suffixes
    if is_image or (re.search(r"\d", file) and images.has(file)):
        raise ValueError(
            f"{printable(table.path)} begins with the row of the image {file!r}, where the names "
            "of the columns are expected: add a first line such as 'file,label'."
        )


def _list(table: Table) -> str:
    cells = (f"{name!r} (as {shown(column[0])})" for name, column in table.columns.items())
    return listed(list(map(printable, cells)), MOST_LINES)


def _read_splits(table: Table, columns: _Columns, bad: dict[int, str]) -> list[str]:
    """ "train", "val" or "test" of each row; without such a column all are "train"."""
    splits = ["train"] * len(table.places)
    if columns.split:
        for row, cell in enumerate(table.columns[columns.split]):
            splits[row] = split_of(str(cell)) or ""
            if not splits[row]:
                bad.setdefault(row, f"the split {shown(cell)} is not one of {SHOWN_NAMES}")
    first: dict[Cell, int] = {}
    for row, group in enumerate(table.columns[columns.group] if columns.group else ()):
        if not group:
            bad.setdefault(row, f"the cell of {columns.group!r} is empty")
        elif splits[row] and splits[row] != splits[before := first.setdefault(group, row)]:
            where = f"and in {splits[before]} in {table.places[before]}"
            bad.setdefault(row, f"the group {shown(group)} is in {splits[row]} here, {where}")
    return splits


def _find_repeated(
    table: Table, files: Sequence[Path], splits: Sequence[str], labels: Labels, bad: dict[int, str]
) -> dict[int, str]:
    """Return the rows that repeat an earlier row's file; add those that contradict it to `bad`."""
    first: dict[tuple[int, int], int] = {}
    repeated, wrong = {}, {}
    for row, file in enumerate(files):
        if row in bad:
            continue
        status = os.stat(file)  # a link to an image is the same image
        before = first.setdefault((status.st_dev, status.st_ino), row)
        if before == row:
            continue
        is_same = np.array_equal(labels.targets[before], labels.targets[row])
        if is_same and splits[before] == splits[row]:
            repeated[row] = f"{shown(str(file))} is also in {table.places[before]}"
            continue
        what = "another split" if is_same else "other labels"
        for one, other in ((before, row), (row, before)):
            wrong[one] = f"{shown(str(file))} is also in {table.places[other]}, with {what}"
    bad |= wrong
    return repeated


def _report_bad(table: Table, bad: dict[int, str], on_bad_row: str | None) -> None:
    """Raises a ValueError for rows that cannot be used, or warns that they are left out.

    None is where a caller does not have `on_bad_row`, or leaving them out is of no use.
    """
    if not bad:
        return
    rows = sorted(bad.items())
    lines = reasons([(table.places[row], why) for row, why in rows])
    number = f"{counted(len(rows), 'row')} of {printable(table.path)}"
    if on_bad_row != "skip":
        fix = ", or give on_bad_row='skip'" if on_bad_row else ""
        raise ValueError(f"{number} cannot be used:{lines}\nCorrect or remove them{fix}.")
    warn_at_caller(f"{number} left out, see splits.report.ignored:{lines}", ReportedWarning)


def _group_numbers(cells: Sequence[Cell]) -> np.ndarray:
    """Number the groups: an array of texts would be as wide as the longest one."""
    numbers: dict[Cell, int] = {}
    return np.array([numbers.setdefault(cell, len(numbers)) for cell in cells])


def _validated(
    folder: Path,
    table: Table,
    rows: _Rows,
    parts: dict[str, list[int]],
    part: tuple[float, int],
) -> tuple[dict[str, list[int]], np.ndarray | None]:
    labels, files = rows.labels, rows.files
    if "train" not in parts:
        raise ValueError(f"{printable(table.path)} does not have a row to train on.")
    is_drawn = parts.keys().isdisjoint(("val", "test"))
    parts = with_validation(parts, table.path)
    parts, groups = validated(parts, files, labels.targets, labels.task, part, folder, rows.groups)
    if is_drawn:
        _warn_of_untrained(labels, parts)
    return parts, groups


def _warn_of_untrained(labels: Labels, parts: dict[str, list[int]]) -> None:
    """Warn of classes that are only in held-out groups, and in no image to train on."""
    train, val = (labels.task.counts(labels.targets[parts[name]]) for name in ("train", "val"))
    if train is None or val is None:
        return
    if (missing := np.flatnonzero((val > 0) & (train == 0))).size:
        names = printable(listed([labels.task.names[i] for i in missing]))
        warn_at_caller(
            f"No image to train on has {names}: the groups that do are held out. Give another "
            "seed, or a column split."
        )
