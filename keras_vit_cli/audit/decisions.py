"""What a person decided on each photograph, and the lists that follow from it."""

import csv
import io
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from keras_vit._base.errors import check_choice, counted, did_you_mean, listed, printable
from keras_vit._base.files import write_text
from keras_vit._base.manifest import sha256
from keras_vit._base.spreadsheet import from_text_cell
from keras_vit.curation import FeatureIndex
from keras_vit.curation.feature_index import modified_times
from keras_vit.data.sources.label_table import LabeledFiles, read_file_rows
from keras_vit.data.sources.listings import read_text
from keras_vit.data.sources.split_names import split_of
from keras_vit.data.sources.table_files import numbered_rows
from keras_vit.evaluation.answer_row import name_of
from keras_vit_cli.audit.findings import has_classes
from keras_vit_cli.predict.image_paths import image_paths
from keras_vit_cli.search.result_table import label_of, write_csv

KEEP, RELABEL, DROP = DECISIONS = ("keep", "relabel", "drop")
COLUMNS = ("file", "decision", "label")
DIGEST = "sha256"  # of the image that was decided on; files of other programs may lack it
TABLE, LISTINGS = "cleaned.csv", ("train.txt", "val.txt", "test.txt")
_SHOWN = 200  # characters of an unknown name
# Of two copies the one that models are evaluated on stays: figures remain comparable.
_FIRST = ("test", "val", "train", None)


@dataclass(frozen=True)
class Decision:
    """`decision` is one of `DECISIONS`; `label` the new class of `"relabel"`, else ""."""

    decision: str
    label: str = ""


def read_decisions(path: Path, index: FeatureIndex) -> dict[int, Decision]:
    """Return the decision on each row of an index, from a CSV file with the columns of the page's.

    Raises:
        ValueError: A column is missing, a file or class is unknown, a word is not a decision, a
            file has two decisions, or its name is that of another image in the index.
    """
    lines = csv.reader(io.StringIO(read_text(path, "the decisions"), newline=""))
    rows_of_file = numbered_rows(path, lines)
    _, header = next(rows_of_file, (1, []))
    if missing := [name for name in COLUMNS if name not in header]:
        raise ValueError(
            f"{printable(path)} does not have a column {missing[0]!r}: give the file that the page "
            f"of keras-vit audit downloads, with {', '.join(COLUMNS)}."
        )
    names = [name_of(file) for file in index.files]
    rows, counts = {name: row for row, name in enumerate(names)}, Counter(names)
    decisions: dict[int, Decision] = {}
    for line, values in rows_of_file:
        place = f"{printable(path)}, line {line}"
        cells = dict(zip(header, values, strict=False))
        name, word, label = (from_text_cell(cells.get(column, "")) for column in COLUMNS)
        if counts[name] != 1:
            two = "is the name of two files"
            reason = two if name in rows else did_you_mean(name[:_SHOWN], rows, [])
            raise ValueError(
                f"{place}: {printable(name[:_SHOWN])!r} is not a file of the index. {reason}"
            )
        if (cells.get(DIGEST) or index.sums[rows[name]]) != index.sums[rows[name]]:
            raise ValueError(
                f"{place}: {printable(name)!r} in {printable(index.folder)} is another image than "
                "the one that was decided on. Give the decisions of the page that was made of this "
                "index, or remove the line."
            )
        try:
            check_choice(word, "decision", DECISIONS)
            if word == RELABEL:
                check_choice(label, "label", index.class_names)
        except ValueError as error:
            raise ValueError(f"{place}: {printable(str(error))}") from None
        decision = Decision(word, label if word == RELABEL else "")
        if decisions.setdefault(rows[name], decision) != decision:
            raise ValueError(f"{place}: {printable(name)!r} has another decision before. Keep one.")
    return decisions


@dataclass(frozen=True)
class CleanedList:
    """The photographs that stay.

    Attributes:
        rows: Of the index, with the class of each as decided, "" where none is known.
        relabeled: How many have another class.
        copies: How many were left out as another file has the same bytes and class.
        unused: How many were in no split, or lack a class, while others do.
    """

    rows: Mapping[int, str]
    dropped: int
    relabeled: int
    copies: int
    unused: int


@dataclass(frozen=True)
class Changes:
    """What has become of the images of an index since it was made."""

    gone: tuple[int, ...]
    changed: tuple[int, ...]
    new: tuple[str, ...]

    def remarks(self, index: FeatureIndex) -> Iterator[str]:
        """Yield a sentence on those that are in no list, and what to do about them."""
        if self.gone:
            yield f"{_files([index.files[row] for row in self.gone])} gone since the index was made"
        if unseen := [*(index.files[row] for row in self.changed), *self.new]:
            yield (
                f"{_files(unseen)} new or changed since the index was made, and in no list: run "
                f"keras-vit audit {index.photos} --model MODEL again, and decide on them"
            )


def _files(names: Sequence[str]) -> str:
    verb = "is" if len(names) == 1 else "are"
    return f"{counted(len(names), 'file')} ({listed(sorted(names), 3)}) {verb}"


def find_changes(index: FeatureIndex) -> Changes:
    """Compares an index with the files; those of its size and time of change are not read.

    Raises:
        FileNotFoundError: The folder of the images is gone.
    """
    if not index.photos.is_dir():
        raise FileNotFoundError(
            f"The images of {printable(index.folder)} are not in {printable(index.photos)} any "
            "more: move them back, or make another index of them."
        )
    gone, changed, times = [], [], modified_times(index)
    for row, digest in enumerate(index.sums):
        path = index.path(row)
        try:
            status = path.stat()
            same = (status.st_size, status.st_mtime_ns) == (index.sizes[row], times[row])
            if not same and sha256(path) != digest:
                changed.append(row)
        except OSError:
            gone.append(row)
    new: list[str] = []
    known = {*index.files, *index.unreadable}
    with suppress(ValueError):  # there is no image any more
        if index.info.get("is_folder", True):  # and not a table, or a list of files
            photos = image_paths([index.photos])
            names = (photo.relative_to(index.photos).as_posix() for photo in photos)
            new += (name for name in names if name not in known)
    return Changes(tuple(gone), tuple(changed), tuple(new))


def clean(
    index: FeatureIndex, decisions: Mapping[int, Decision], absent: Container[int] = ()
) -> CleanedList:
    """Applies decisions. Without one, of files with the same bytes and class one stays.

    Everything else that an audit found is a person's to decide. Rows in `absent` are in no list.
    """
    labels = {
        row: decisions[row].label
        if row in decisions and decisions[row].decision == RELABEL
        else label_of(index, row)
        for row in range(len(index))
        if row not in absent and (row not in decisions or decisions[row].decision != DROP)
    }
    has_splits = any(index.splits)
    needs_label = any(labels.values()) and has_classes(index)  # one of several
    used = {
        row: label
        for row, label in labels.items()
        if (index.splits[row] or not has_splits) and (label or not needs_label)
    }
    same: dict[tuple[str, str], list[int]] = {}
    for row, label in used.items():
        same.setdefault((index.sums[row], label), []).append(row)
    conflicting = Counter(key[0] for key in same)
    # A new label is not a decision to keep this one of the copies that have it.
    to_keep = {row for row, each in decisions.items() if each.decision == KEEP}
    copies = set()
    for (digest, _), rows in same.items():
        if conflicting[digest] > 1:  # two labels of one image: both stay until a person decides
            continue
        first = min(rows, key=lambda row: (row not in to_keep, _FIRST.index(index.splits[row])))
        copies |= {row for row in rows if row != first and row not in to_keep}
    return CleanedList(
        {row: label for row, label in used.items() if row not in copies},
        sum(each.decision == DROP for each in decisions.values()),
        sum(label_of(index, row) != label for row, label in labels.items()),
        len(copies),
        len(labels) - len(used),
    )


def write_lists(folder: Path, index: FeatureIndex, cleaned: CleanedList) -> Iterator[str]:
    """Writes `cleaned.csv`, and `train.txt` and others where they can say it; yields remarks.

    Of images that a table lists, `cleaned.csv` has all of its columns: `group` keeps a patient on
    one side of a split.

    A list of `<class>/1.jpg` cannot give a file another class than its folder's: those are in the
    table alone.
    """
    has_splits = any(index.splits)
    has_labels = any(cleaned.rows.values())
    table = LabeledFiles(("file",), "file", "label", [], [], [])
    name = Path(index.info.get("table") or "").name  # whoever made the index chose it
    try:
        table = read_file_rows(index.photos / name) if name else table
    except (OSError, ValueError) as error:
        yield (
            f"columns of {index.photos / name}, such as a group, are not in {TABLE}, as it cannot "
            f"be read any more: {error}"
        )
    pairs = zip(table.labels, table.cells, strict=True)
    row_of = dict(zip(table.names, pairs, strict=True))
    split = table.split or "split"
    known = [*([table.label] if has_labels else []), *([split] if has_splits else [])]
    columns = list(dict.fromkeys([*table.columns, *known]))

    def cells(row: int, label: str) -> list[str]:
        file, part = index.files[row], index.splits[row]
        before, texts = row_of.get(file, (None, ()))
        values = dict(zip(table.columns, texts, strict=False))
        if label and label != before:  # else the cell says it in its own way
            values[table.label] = label
        if part and part != split_of(values.get(split, "")):
            values[split] = part
        values[table.file] = file
        return [values.get(column, "") for column in columns]

    write_csv(folder / TABLE, columns, (cells(*item) for item in cleaned.rows.items()))
    odd = [row for row in cleaned.rows if name_of(index.files[row]) != index.files[row]]
    if odd:
        yield (
            f"{counted(len(odd), 'file')} of {TABLE} cannot be found by that table, as the name is "
            "not UTF-8: rename it"
        )
    if not has_splits or not _by_class_folders(index):
        return
    elsewhere = 0
    for name in LISTINGS:
        lines = []
        for row, label in cleaned.rows.items():
            if index.splits[row] != name.removesuffix(".txt"):
                continue
            file = index.files[row]
            is_line = name_of(file) == file == file.strip() and len(file.splitlines()) == 1
            if file.startswith(f"{label}/") and is_line:
                lines.append(f"{file}\n")
            else:
                elsewhere += 1
        if lines:
            write_text(folder / name, "".join(lines))
    if elsewhere:
        yield (
            f"{counted(elsewhere, 'file')} cannot stand in {', '.join(LISTINGS)}, as the folder is "
            f"of another class: {TABLE} has all"
        )


def _by_class_folders(index: FeatureIndex) -> bool:
    """Return whether names are `<class>/1.jpg`, as lists of `keras_vit.data.load` need."""
    known = np.flatnonzero(index.labels >= 0)
    return len(known) > 0 and all(
        index.files[row].startswith(f"{label_of(index, row)}/") for row in known.tolist()
    )
