"""The rows of answers: one schema for JSON lines, Parquet and, flattened, CSV."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from keras_vit.evaluation.answer_row import Row, answer_row, row_of_heads
from keras_vit.models.answers import task_of
from keras_vit.models.scoring import has_novelty
from keras_vit.tasks import Task
from keras_vit_cli.library_words import in_options

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
        top: How many rows `predictions` has at most, where they are ranked.
        novelty: Whether answers have one more number, the novelty: rows have `novel`, whether it is
            above 1, and `novelty`.

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
        return answer_row(self.task, file, _in_options(answer), self.top, self.novelty)

    @cached_property
    def example_answer(self) -> np.ndarray:
        """An answer that `row` takes."""
        *maps, size = self.task.answer_shape((1, 1))
        return np.ones((*maps, size + self.novelty), "float32")

    @cached_property
    def example(self) -> Row:
        """A row with every key that rows have."""
        return self.row(Path("example.jpg"), self.example_answer)

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


@dataclass(frozen=True)
class SchemaOfHeads:
    """How the answers of several heads stand in one row: `Schema`, with an entry for each head.

    Flattened, the columns of a head begin with its name: `photos_class_1`.
    """

    heads: Mapping[str, Schema]
    top: int

    def row(self, file: Path | str, answer: Any) -> Row:
        """Return the row of a file, from the answers or the reason why there are none."""
        tasks = {name: schema.task for name, schema in self.heads.items()}
        return row_of_heads(tasks, file, _in_options(answer), self.top)

    @cached_property
    def example(self) -> Row:
        """A row with every key that rows have."""
        answers = tuple(schema.example_answer for schema in self.heads.values())
        return self.row(Path("example.jpg"), answers)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns of a flat row."""
        named = [f"{name}_{c}" for name, each in self.heads.items() for c in each.columns[2:]]
        return ("file", "error", *named)

    def flat(self, row: Row) -> list[Any]:
        """Return a row with a cell per column."""
        rows = [schema.flat(row_of_head(row, name)) for name, schema in self.heads.items()]
        return [*rows[0][:2], *(cell for cells in rows for cell in cells[2:])]

    def nested(self, cells: list[str]) -> Row:
        """Return a row from the cells that `flat` made of it, with values as texts."""
        first, rest = cells[:2], cells[2:]
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells")
        row: Row = {"file": first[0], "error": first[1] or None}
        for name, schema in self.heads.items() if not first[1] else ():
            width = len(schema.columns) - 2
            row[name] = schema.nested([*first, *rest[:width]])
            del row[name]["file"], row[name]["error"]
            rest = rest[width:]
        return row

    def check_cells(self) -> None:
        """Raise a ValueError for names that cannot stand in one cell."""
        for schema in self.heads.values():
            schema.check_cells()

    def agrees(self, row: Row, answer: Any) -> bool:
        """Return whether a row was made of these answers, but for the rounding of another batch."""
        parts = zip(self.heads.items(), answer, strict=True)
        return all(schema.agrees(row[name], part) for (name, schema), part in parts)


AnySchema: TypeAlias = Schema | SchemaOfHeads


def row_of_head(row: Row, name: str) -> Row:
    """Return the answer of a head in a row, as a row of its schema; without a name, the row."""
    if not name:
        return row
    return {"file": row["file"], "error": row["error"], **row.get(name, {})}


def schema_of(model: Any, top: int) -> AnySchema:
    """Return how the answers of a model, perhaps with several heads, stand in rows."""
    if heads := getattr(model, "heads", ()):
        return SchemaOfHeads({head.name: Schema(head.task, top) for head in heads}, top)
    return Schema(task_of(model), top, has_novelty(model))


def _in_options(answer: Any) -> Any:
    """Return a reason why there is no answer in the words of the command; other answers as is."""
    return in_options(answer, "predict") if isinstance(answer, str) else answer


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
