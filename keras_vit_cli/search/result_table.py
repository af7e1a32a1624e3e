"""Results as a CSV file."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from keras_vit._base.files import atomic_write, begins_with_mark
from keras_vit.curation import FeatureIndex
from keras_vit.evaluation.answer_row import name_of
from keras_vit_cli.csv_lines import CsvLines

SEARCH_COLUMNS = ("query", "rank", "file", "similarity", "label")
CLUSTER_COLUMNS = ("file", "cluster", "similarity", "label")


def label_of(index: FeatureIndex, row: int) -> str:
    """Return the name of a row's class; "" where it is not known."""
    label = int(index.labels[row])
    return index.class_names[label] if label >= 0 else ""


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes rows as UTF-8 with texts in quotes, as `keras-vit predict` does."""
    lines = CsvLines()
    with (
        atomic_write(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        file.write(lines.line(columns))
        for row in rows:
            file.write(lines.line([name_of(c) if isinstance(c, str) else c for c in row]))
    lines.tell(path.name)


def is_result_table(path: Path) -> bool:
    """Return whether a file begins as those that `search` and `cluster` write."""
    heads = (CsvLines().line(columns) for columns in (SEARCH_COLUMNS, CLUSTER_COLUMNS))
    return any(begins_with_mark(path, head.encode()) for head in heads)
