"""Results as a CSV file."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from keras_vit._base.files import atomic_write
from keras_vit.curation import FeatureIndex
from keras_vit_cli.predict.schema import name_of


def label_of(index: FeatureIndex, row: int) -> str:
    """The name of a row's class; "" where it is not known."""
    label = int(index.labels[row])
    return index.class_names[label] if label >= 0 else ""


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes rows as UTF-8 with texts in quotes, as `keras-vit predict` does."""
    with (
        atomic_write(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow(name_of(cell) if isinstance(cell, str) else cell for cell in row)
