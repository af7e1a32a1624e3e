"""The page of `keras-vit label`: images that get a class by key, and the table of labels."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from keras_vit._base.errors import counted, printable
from keras_vit.curation import FeatureIndex
from keras_vit.data.sources.label_table import LabeledFiles
from keras_vit_cli.search.result_page import Card, deciding_page, photo, thumbnails, write_parts

PAGE = "label.html"

Chosen = Mapping[int, tuple[tuple[str, ...], str]]


def write_label_page(
    path: Path,
    place: Path,
    index: FeatureIndex,
    chosen: Chosen,
    table: LabeledFiles,
    classes: Sequence[str],
    reason: str,
) -> None:
    """Writes the page from the template `label.html` beside this file.

    Args:
        place: The folder that it will stand in, which links lead from.
        chosen: From the row of each image to label to its row of the table, with an empty label,
            and the class that is predicted, "" without one.
        table: The labels that there are, which the page's table begins with.
        reason: Why these images, as a clause.
    """
    data = {
        "key": f"keras_vit label {index.info['weights'][:12]} {index.photos.absolute()}",
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


def _cards(index: FeatureIndex, place: Path, chosen: Chosen) -> Iterator[str]:
    sources = thumbnails([index.path(row) for row in chosen], index.bands)
    for (row, (_, guess)), source in zip(chosen.items(), sources, strict=True):
        facts = f"predicted: {guess}" if guess else ""
        card = Card(index.files[row], index.path(row), facts)
        yield (
            f"<li class=photo data-row={row} tabindex=-1 "
            f'aria-label="{escape(printable(card.name))}">'
            f"{photo(card, source, place, 'tabindex=-1 ')}<output></output></li>\n"
        )
