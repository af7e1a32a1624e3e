"""`keras-vit label`: the images to label next, on a page and in a table that train reads.

index, labels ──► next_to_label ──► label.html   labels by key, and labels.csv from it
                               └──► label.csv    the same images, with an empty cell each
"""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_vit._base.errors import counted, printable
from keras_vit._base.output_folder import OutputFolder
from keras_vit.curation import FeatureIndex, ToLabel, next_to_label
from keras_vit.data.sources.label_table import LabeledFiles, read_labeled_files
from keras_vit.data.sources.split_names import split_of
from keras_vit.evaluation.answer_row import name_of
from keras_vit.evaluation.unseen_images import run_options
from keras_vit_cli.embed_command import index_from, is_index
from keras_vit_cli.options.photo_options import LabelOptions
from keras_vit_cli.printing import print_next, print_text
from keras_vit_cli.search.result_page import Card, deciding_page, photo, thumbnails, write_parts
from keras_vit_cli.search.result_table import write_csv

PAGE, TABLE, DOWNLOAD = "label.html", "label.csv", "labels.csv"
# From the row of each image to its row of the table, with an empty label, and the class that is
# predicted, "" without one.
_Chosen = Mapping[int, tuple[tuple[str, ...], str]]


class Labels(NamedTuple):
    """What is labeled, and the table that it is in.

    Attributes:
        table: Its cells are of rows with a label alone.
        known: int `(n,)`, the class of each image of the index, -1 without one. An image has the
            label of another file with the same bytes.
        unlabeled: The cells of the table's rows without a label, by the image.
    """

    table: LabeledFiles
    classes: tuple[str, ...]
    known: np.ndarray
    unlabeled: Mapping[str, tuple[str, ...]]


def label(options: LabelOptions) -> int:
    """Writes the page and the table; the exit status is 1 where files are unreadable.

    Raises:
        DamagedIndexError, IndexMismatchError: See `keras_vit.curation.embed`.
        FileExistsError: See `OutputFolder.check`.
        ImportError: scikit-learn is not installed.
        ValueError: There is no model, a table cannot be used, or every image has a label.
    """
    photos = [options.photos] if options.photos.is_dir() else []
    output = OutputFolder(options.out, "label", results=(PAGE, TABLE), protected=photos)
    output.check(overwrite=options.overwrite)
    has_index = is_index(options.photos)
    index = index_from(options.photos, options.model, options.index, options.out)
    labels = _read_labels(options, index)
    usable = _usable(index, labels)
    if not len(usable):
        raise ValueError(
            f"No image of {printable(index.photos)} can be labeled for training: each is in a "
            "validation or test split, or has a name that a table cannot have."
        )
    chosen = next_to_label(
        index if len(usable) == len(index) else index.features[usable],
        labels.known[usable],
        options.count,
        seed=options.seed,
    )
    rows = usable[chosen.rows].tolist()
    cells = [_cells(labels, index.files[row]) for row in rows]
    predicted = [labels.classes[number] if number >= 0 else "" for number in chosen.predicted]
    with output.opened(overwrite=options.overwrite) as workspace:
        write_csv(workspace / TABLE, labels.table.columns, [*labels.table.cells, *cells])
        _write_page(
            workspace / PAGE,
            output.place,
            index,
            dict(zip(rows, zip(cells, predicted, strict=True), strict=True)),
            labels.table,
            labels.classes,
            _reason(chosen),
        )
        output.finish()
    output.publish(print_text)
    _print(options, index, labels, f"{counted(len(rows), 'image')} to label: {_reason(chosen)}")
    if others := len(index) - len(usable):
        images = counted(others, "image")
        print_text(f"left out: {images} of other splits, or with names that a table cannot have")
    groups = [i for i, name in enumerate(labels.table.columns) if name.lower() == "group"]
    if any(not row[i] for row in cells for i in groups):
        print_text("note: fill in the group of images that were not in the table: train needs it")
    absent = labels.unlabeled.keys() - {index.files[row] for row in rows}
    if options.labels is not None and absent:
        print_text(
            f"note: {counted(len(absent), 'row')} of {printable(options.labels)} without a label "
            "are not in the new table, as train needs labels: copy the new labels to yours, so "
            "that the next choice knows their group and split"
        )
    return 1 if index.unreadable and not has_index else 0


def _read_labels(options: LabelOptions, index: FeatureIndex) -> Labels:
    names = list(dict.fromkeys(name.strip() for name in options.classes))
    if "" in names:
        raise ValueError("--classes has an empty name: give names such as cat dog.")
    if options.labels is None:
        table = LabeledFiles(("file", "label"), "file", "label", [], [], [])
        return Labels(table, tuple(names), np.full(len(index), -1), {})
    table = read_labeled_files(options.labels, index.photos)
    rows = list(zip(table.names, table.labels, table.cells, strict=True))
    labeled = {name: label for name, label, _ in rows if label}
    unlabeled = {name: cells for name, label, cells in rows if not label}
    table = table._replace(cells=[cells for _, label, cells in rows if label])
    classes = tuple(dict.fromkeys([*names, *sorted(set(labeled.values()))]))
    number = {name: i for i, name in enumerate(classes)}
    digests = dict(zip(index.files, index.sums, strict=True))
    of_digest = {digests[n]: number[c] for n, c in labeled.items() if n in digests}
    known = np.array([of_digest.get(each, -1) for each in index.sums])
    return Labels(table, classes, known, unlabeled)


def _usable(index: FeatureIndex, labels: Labels) -> np.ndarray:
    """Return the rows that may be trained on, and whose name a table can have."""
    held_out: set[str] = set()
    if (split := labels.table.split) is not None:
        place = labels.table.columns.index(split)
        of_others = {n: split_of(cells[place] or "train") for n, cells in labels.unlabeled.items()}
        held_out = {name for name, part in of_others.items() if part != "train"}
    pairs = zip(index.files, index.splits, strict=True)
    return np.flatnonzero(
        [
            part in (None, "train") and name not in held_out and name == name_of(name).strip()
            for name, part in pairs
        ]
    )


def _cells(labels: Labels, name: str) -> tuple[str, ...]:
    """Return a row of the table for an image without a label: its own one, where it has one."""
    columns = labels.table.columns
    texts = labels.unlabeled.get(name, ("",) * len(columns))
    usual = {labels.table.file: name, labels.table.split: "train"}
    return tuple(cell or usual.get(column, "") for column, cell in zip(columns, texts, strict=True))


def _reason(chosen: ToLabel) -> str:
    images = f"{counted(chosen.considered, 'image')} without a label"
    if chosen.flipped is None:
        return f"of {images}, the nearest to the center of each cluster of alike ones"
    return f"of {images}, {chosen.flipped:,} change their class when features are left out"


def _print(options: LabelOptions, index: FeatureIndex, labels: Labels, line: str) -> None:
    print_text(f"{line}\nwritten to {options.out}: {PAGE}, {TABLE}")
    if options.labels is None and index.class_names:
        print_text("note: names of folders are not taken for labels here: --labels has those")
    page = shlex.quote(str(options.out / PAGE))
    print_text(f"next: open {page} in a browser, label, download {DOWNLOAD}, and")
    weights: tuple[object, ...] = ()
    again: tuple[object, ...] = ()
    source = options.model or _source(index)
    if source is not None:
        # A run's weights have learned from the labels of before: its first ones start anew.
        weights = ("--weights", run_options(source).get("weights") or source)
    if options.model is not None:
        again = ("--model", options.model, "--index", options.index or index.folder)
    print_next(
        "train", "--data", index.photos, "--labels", DOWNLOAD, "--task", "classification", *weights
    )
    out = f"{options.out}_2"
    print_next("label", options.photos, *again, "--labels", DOWNLOAD, "--out", out)


def _source(index: FeatureIndex) -> Path | str | None:
    """Return the file or the released weights that an index was made with, if it notes them."""
    source = index.info.get("source")
    path = Path(os.path.normpath(index.folder / (source or "")))
    return path if source and path.exists() else source


def _write_page(
    path: Path,
    place: Path,
    index: FeatureIndex,
    chosen: _Chosen,
    table: LabeledFiles,
    classes: Sequence[str],
    reason: str,
) -> None:
    """Writes the page from the template `label.html` beside this file; links lead from `place`."""
    data = {
        "key": f"keras_vit label {index.info['weights'][:12]} {index.photos.absolute()}"
        f" {table.label} {sorted(classes)}",  # labels of another task do not come here
        "columns": table.columns,
        "at": table.columns.index(table.label),
        "earlier": table.cells,
        "classes": list(classes),
        "photos": {
            row: {
                "name": index.files[row],
                "digest": index.sums[row],
                "cells": cells,
                "predicted": predicted,
            }
            for row, (cells, predicted) in chosen.items()
        },
    }
    facts = f"{counted(len(chosen), 'image')} to label: {reason}."
    if table.cells:
        facts += f" {counted(len(table.cells), 'row')} with a label before."
    page = deciding_page("label", f"Labels of {index.photos.name}", facts, data)
    write_parts(path, page, _cards(index, place, chosen))


def _cards(index: FeatureIndex, place: Path, chosen: _Chosen) -> Iterator[str]:
    sources = thumbnails([index.path(row) for row in chosen], index.bands)
    for (row, (_, guess)), source in zip(chosen.items(), sources, strict=True):
        facts = f"predicted: {guess}" if guess else ""
        card = Card(index.files[row], index.path(row), facts)
        yield (
            f"<li class=photo data-row={row} tabindex=-1 "
            f'aria-label="{escape(printable(card.name))}">'
            f"{photo(card, source, place, 'tabindex=-1 ')}<output></output></li>\n"
        )
