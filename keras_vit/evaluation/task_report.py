"""How good answers are, for any task: named scores with intervals, beside the best constant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from keras_vit import tasks
from keras_vit._base.errors import counted, printable
from keras_vit.evaluation.markdown import table
from keras_vit.evaluation.report import MOST_ROWS, SHOWN_ROWS
from keras_vit.tasks import Multilabel, Regression, Task
from keras_vit.tasks.conformal import calibration_text
from keras_vit.tasks.scores import AveragePrecision, Score, f1_scores, wilson_interval

Row = tuple[str, ...]


@dataclass(frozen=True)
class TaskReport:
    """The scores of a model's answers by its task; prints as a table.

    Attributes:
        task: What the answers mean.
        examples: How many images they are of.
        scores: By name, with 95 % intervals.
        constant: Of each score, what the best single answer for all images is worth, which needs no
            model.
        names: A row per name of the task, after a heading; empty where the scores say it all.
        notes: Sentences on thresholds and intervals; none where there are neither.
        constant_of: Whose labels the best constants are of: "training" or "evaluated" images.
    """

    task: Task
    examples: int
    scores: Mapping[str, Score]
    constant: Mapping[str, Score]
    names: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    constant_of: str = "evaluated"

    def rows(self) -> list[Row]:
        """Score, value, interval, and what the best constant is worth."""
        return score_rows(self.scores, self.constant)

    @property
    def shown_names(self) -> tuple[Row, ...]:
        """The rows of `names` that tables have; of very many, those lowest in the third column."""
        if len(self.names) <= 1 + MOST_ROWS:
            return self.names
        tested = [row for row in self.names[1:] if row[-1] != "0"]
        return (self.names[0], *sorted(tested, key=lambda row: float(row[2]))[:SHOWN_ROWS])

    def __str__(self) -> str:
        lines = [f"{self.task.kind} on {counted(self.examples, 'validation image')}"]
        for rows in filter(None, ([HEADING, *self.rows()], self.shown_names)):
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            for first, *others in rows:
                cells = [f"{c:>{w}}" for c, w in zip(others, widths[1:], strict=True)]
                lines.append("  ".join([f"{printable(first):{widths[0]}}", *cells]).rstrip())
            lines.append("")
        lines += [f"best constant: {constant_text(self.constant_of)}", *map(printable, self.notes)]
        return "\n".join(lines)

    def to_markdown(self) -> str:
        """A table of the task's names; empty where the scores say it all."""
        if not self.names:
            return ""
        heading, *rows = self.shown_names
        cells = table(heading, rows, "l" + "r" * (len(heading) - 1))
        if len(self.shown_names) == len(self.names):
            return cells
        title = f"Shown: the {len(rows)} with the lowest {heading[2]} of {len(self.names) - 1:,}"
        return f"{title}; `report.json` has all.\n\n{cells}"

    def to_dict(self) -> dict[str, Any]:
        """The values as JSON accepts them; what is not a number is null."""
        return {
            "task": self.task.get_config(),
            "examples": self.examples,
            "scores": {name: _numbers(score) for name, score in self.scores.items()},
            "constant": {name: _numbers(score) for name, score in self.constant.items()},
            "names": [list(row) for row in self.names],
            "notes": list(self.notes),
            "constant_of": self.constant_of,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TaskReport:
        """The inverse of `to_dict`."""

        def scores(name: str) -> dict[str, Score]:
            known = values[name].items()
            return {k: Score(*(np.nan if n is None else n for n in v)) for k, v in known}

        rest = {
            "names": tuple(tuple(row) for row in values["names"]),
            "notes": tuple(values.get("notes", ())),
            "constant_of": values.get("constant_of", "evaluated"),
        }
        task = tasks.get(values["task"])
        return cls(task, values["examples"], scores("scores"), scores("constant"), **rest)


HEADING = ("score", "value", "95 % interval", "best constant")
_CHOSEN_BY = (
    "Chosen by: how many of the images that set the thresholds have the label. The fewer, the "
    "nearer a threshold is to 0.5."
)


def constant_text(of: str) -> str:
    """What the column of that name has: for a reader who does not know."""
    return (
        "by each score, the single answer for all images that is best by the labels of the "
        f"{of} images"
    )


def score_rows(scores: Mapping[str, Score], constant: Mapping[str, Score]) -> list[Row]:
    """Rows of score, value, interval, and the value of the best constant."""
    return [
        (
            name,
            _shown(score.value),
            f"{_shown(score.low)} to {_shown(score.high)}",
            _shown(constant[name].value),
        )
        for name, score in scores.items()
    ]


def _shown(value: float) -> str:
    """Four digits; a dash for what is not defined, and 0 for what rounding has left of it."""
    if not np.isfinite(value):
        return "-"
    return f"{value if abs(value) > 1e-12 else 0:.4g}"


def task_report(task: Task, targets: Any, answers: Any, training_targets: Any = None) -> TaskReport:
    """Scores answers by their task.

    Args:
        task: What they mean.
        targets: As `task.check_targets` takes them, `(examples,)` or `(examples, size)`.
        answers: `(examples, size)`, as `task.answers` returns them.
        training_targets: Those by which the best constants are chosen; None for `targets`, which
            makes the constants a little better than they can be.

    Raises:
        ValueError: There is not a row of finite answers per target.

    Example:

    >>> import numpy as np
    >>> from keras_vit.evaluation import task_report
    >>> from keras_vit.tasks import Regression
    >>> report = task_report(Regression(("age",)), [1.0, 2.0, 6.0], np.array([[1.0], [2.0], [3.0]]))
    >>> report.scores["mae"].value, round(report.constant["mae"].value, 3)
    (1.0, 1.667)
    """
    answers = np.asarray(answers)
    names: tuple[Row, ...] = ()
    notes: list[str] = []
    if isinstance(task, Multilabel):
        names, notes = _of_labels(task, targets, answers), _notes_of_labels(task, targets, answers)
    if isinstance(task, Regression) and task.margins:
        names, notes = _of_intervals(task, targets, answers), _notes_of_intervals(task)
    return TaskReport(
        task,
        len(answers),
        task.scores(targets, answers),
        _constants(task, targets, targets if training_targets is None else training_targets),
        names,
        tuple(notes),
        "evaluated" if training_targets is None else "training",
    )


def _constants(task: Task, targets: Any, training_targets: Any) -> dict[str, Score]:
    """Every score of the constant that is best by it, in the order of the scores."""
    constants: dict[str, Score] = {}
    for kind, answer in task.best_constants(training_targets).items():
        rows = np.broadcast_to(answer, (len(targets), task.size))
        scores = task.scores(targets, rows, resamples=0)
        constants = constants or dict(scores)
        constants |= {k: v for k, v in scores.items() if k == kind or k.startswith(f"{kind}_")}
    return constants


def _of_labels(task: Multilabel, targets: Any, answers: np.ndarray) -> tuple[Row, ...]:
    """Per label, its scores, what its threshold stands on, and how many images have it."""
    present = task.check_targets(targets) >= 0.5
    precision = AveragePrecision(present, answers)(np.ones(len(answers)))
    half = replace(task, thresholds=())
    columns = {
        "average precision": [f"{value:.3f}" for value in precision],
        "F1": _f1(task, present, answers),
        "threshold": [f"{value:.3f}" for value in task.thresholds],
        "chosen by": task.positives or ["-"] * task.size,
        "F1 at 0.5": _f1(half, present, answers),
        "images": present.sum(0),
    }
    rows = zip(task.shown_names, *columns.values(), strict=True)
    return (("label", *columns), *(tuple(map(str, row)) for row in rows))


def _f1(task: Multilabel, present: np.ndarray, answers: np.ndarray) -> list[str]:
    predicted = task.predicted(answers)
    f1 = f1_scores((present & predicted).sum(0), present.sum(0), predicted.sum(0))
    return [f"{value:.3f}" for value in f1]


def _notes_of_labels(task: Multilabel, targets: Any, answers: np.ndarray) -> list[str]:
    """What thresholds that were chosen are worth beside 0.5, and how many images they stand on."""
    present, half = task.check_targets(targets) >= 0.5, replace(task, thresholds=())
    if task.thresholds == half.thresholds:
        return [_CHOSEN_BY] if task.positives else []
    at = []
    for each in (task, half):
        f1 = each.scores(targets, answers, resamples=0)["macro_f1"].value
        exact = (each.predicted(answers) == present).all(axis=1).mean()
        at.append(f"macro F1 {f1:.3f} and exactly the labels of {exact:.1%} of images")
    note = f"At its thresholds it reaches {at[0]}; at 0.5 for every label, {at[1]}."
    return [note, _CHOSEN_BY] if task.positives else [note]


def _of_intervals(task: Regression, targets: Any, answers: np.ndarray) -> tuple[Row, ...]:
    """Per number, half the width of its prediction interval, and what part of images is inside."""
    inside, count = np.abs(task.values(targets) - answers) <= task.margins, len(answers)
    rows: list[Row] = [("number", "margin", "inside", "95 % interval", "images")]
    columns = zip(task.shown_names, task.units, task.margins, inside.mean(axis=0), strict=True)
    for name, unit, margin, part in columns:
        low, high = wilson_interval(part, count)
        interval = f"{low:.4f} to {high:.4f}"
        rows.append((name, f"± {margin:.4g} {unit}".strip(), f"{part:.4f}", interval, str(count)))
    return tuple(rows)


def _notes_of_intervals(task: Regression) -> list[str]:
    note = (
        f"An answer plus and minus its margin is to hold {task.coverage:.4g} of new numbers; "
        "`inside` is the part that it holds of these."
    )
    count = task.calibrated_on
    return [note, calibration_text(count, task.coverage)] if count else [note]


def worst(task: Task, targets: Any, answers: Any, count: int = 9) -> list[int]:
    """The places of the answers farthest from their targets, the worst first.

    The distance is that of the answer from a perfect one, summed over names: in standard deviations
    of numbers, in probability otherwise.
    """
    answers = np.asarray(answers, np.float64)
    checked = task.check_targets(targets)
    if checked.ndim == 1:
        distance = 1 - answers[np.arange(len(answers)), checked]
    else:
        ideal = np.asarray(task.to_targets(checked), np.float64).reshape(answers.shape)
        scale = np.asarray(getattr(task, "scale", 1.0), np.float64)
        distance = (np.abs(answers - ideal) / scale).sum(axis=1)
    return np.argsort(-distance, kind="stable")[:count].tolist()


def _numbers(score: Sequence[float]) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in score]
