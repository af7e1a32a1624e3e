"""The rows of answers: one schema for JSON lines, Parquet and, flattened, CSV."""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.evaluation.answer_row import Row, answer_row
from keras_vit.tasks import Task

# Between several labels in one cell of a CSV file.
SEPARATOR = ";"
# Numbers of two computations of one answer differ less, those of two models more.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Schema:
    """How answers of a task stand in rows.

    Rows are those of `keras_vit.evaluation.answer_row`.

    Flattened, predictions that are ranked are numbered, `class_1`, `probability_1`, `class_2`, and
    those in a fixed order have the name in their column: `value_weight`. Several labels stand in
    one cell, separated by semicolons.

    Attributes:
        task: What the answers mean.
        top: How many rows `predictions` has at most, where they are ranked.
        novelty: Whether answers have one more number, the novelty: rows have `novel`, whether it is
            above 1, and `novelty`.

    Example:

    >>> from keras_vit.tasks import Classification
    >>> schema = Schema(Classification(("cat", "dog")), top=1)
    >>> schema.columns
    ('file', 'error', 'class_1', 'probability_1')
    >>> schema.flat(schema.row(Path("a.jpg"), np.array([0.25, 0.75])))
    ['a.jpg', '', 'dog', 0.75]
    """

    task: Task
    top: int
    novelty: bool = False

    def row(self, file: Path | str, answer: np.ndarray | str) -> Row:
        """Return the row of a file, from its answer or the reason why there is none."""
        return answer_row(self.task, file, answer, self.top, self.novelty)

    @cached_property
    def example(self) -> Row:
        """A row with every key that rows have."""
        *maps, size = self.task.answer_shape((1, 1))
        return self.row(Path("example.jpg"), np.ones((*maps, size + self.novelty), "float32"))

    @cached_property
    def decided(self) -> tuple[str, ...]:
        """The keys besides the predictions: `labels`, `grade`."""
        return tuple(k for k in self.example if k not in ("file", "error", "predictions"))

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns of a flat row."""
        cells = self._prediction_cells(self.example["predictions"])
        return ("file", "error", *self.decided, *cells)

    def flat(self, row: Row) -> list[Any]:
        """Return a row with a cell per column."""
        cells = {"file": row["file"], "error": row["error"] or ""}
        if row["error"] is None:
            cells |= {key: _cell(row[key]) for key in self.decided}
            cells |= self._prediction_cells(row["predictions"])
        return [cells.get(column, "") for column in self.columns]

    def nested(self, cells: list[str]) -> Row:
        """Return a row from the cells that `flat` made of it, with values as texts."""
        values = dict(zip(self.columns, cells, strict=True))
        if values["error"]:
            return {"file": values["file"], "error": values["error"]}
        row: Row = {"file": values["file"], "error": None}
        for key in self.decided:
            is_list = isinstance(self.example[key], list)
            row[key] = values[key].split(SEPARATOR) if is_list and values[key] else values[key]
            if is_list and not values[key]:
                row[key] = []
        row["predictions"] = []
        for i, example in enumerate(self.example["predictions"], 1):
            named = {"name": example["name"]} if "name" in example else {}
            parts = {
                key: type(value)(values[self._column(key, i, example)])
                for key, value in example.items()
                if key not in named
            }
            row["predictions"].append(named | parts)
        return row

    def check_cells(self) -> None:
        """Raises a ValueError for names that cannot stand in one cell, separated by semicolons."""
        if not any(isinstance(self.example[key], list) for key in self.decided):
            return
        for name in self.task.shown_names:
            if SEPARATOR in name or not name:
                raise ValueError(
                    f"The name {name!r} cannot stand in a cell of CSV that separates names by "
                    f"{SEPARATOR!r}: give --format jsonl or parquet."
                )

    def agrees(self, row: Row, answer: np.ndarray) -> bool:
        """Return whether a row was made of this answer, but for the rounding of another batch."""
        answer = answer[:-1] if self.novelty else answer
        rows = self.task.describe(answer, self.task.size)["predictions"]
        return all(any(_agree(old, new) for new in rows) for old in row["predictions"])

    def _prediction_cells(self, predictions: list[Row]) -> dict[str, Any]:
        return {
            self._column(key, i, row): value
            for i, row in enumerate(predictions, 1)
            for key, value in row.items()
            if key != "name"
        }

    def _column(self, key: str, rank: int, row: Row) -> str:
        return f"{key}_{row.get('name', rank)}"


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()  # as in JSON
    return SEPARATOR.join(value) if isinstance(value, list) else value


def _agree(old: Row, new: Row) -> bool:
    return old.keys() == new.keys() and all(
        math.isclose(value, new[key], rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        if isinstance(value, float)
        else value == new[key]
        for key, value in old.items()
    )
