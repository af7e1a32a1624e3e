"""How good answers are, for any task: named scores with intervals, beside the best constant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_vit import tasks
from keras_vit._base.errors import counted, printable
from keras_vit.evaluation.markdown import table
from keras_vit.evaluation.report import MOST_ROWS, SHOWN_ROWS
from keras_vit.tasks import Multilabel, Task
from keras_vit.tasks.scores import AveragePrecision, Score, f1_scores

Row = tuple[str, ...]


@dataclass(frozen=True)
class TaskReport:
    """The scores of a model's answers by its task; prints as a table.

    Attributes:
        task: What the answers mean.
        examples: How many images they are of.
        scores: By name, with 95 % intervals.
        constant: The same scores of one answer for all images: the mean of the targets, which
            needs no model.
        names: A row per name of the task, after a heading; empty where the scores say it all.
    """

    task: Task
    examples: int
    scores: Mapping[str, Score]
    constant: Mapping[str, Score]
    names: tuple[Row, ...] = ()

    def rows(self) -> list[Row]:
        """Score, value, interval, and that of the best constant."""
        return score_rows(self.scores, self.constant)

    @property
    def shown_names(self) -> tuple[Row, ...]:
        """The rows of `names` that tables have. Of very many, those with the lowest F1."""
        if len(self.names) <= 1 + MOST_ROWS:
            return self.names
        tested = [row for row in self.names[1:] if row[-1] != "0"]
        return (self.names[0], *sorted(tested, key=lambda row: float(row[2]))[:SHOWN_ROWS])

    def __str__(self) -> str:
        lines = [f"{self.task.kind} on {counted(self.examples, 'validation image')}"]
        for rows in ([HEADING, *self.rows()], self.shown_names):
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            for first, *others in rows:
                cells = [f"{c:>{w}}" for c, w in zip(others, widths[1:], strict=True)]
                lines.append("  ".join([f"{printable(first):{widths[0]}}", *cells]).rstrip())
            lines.append("")
        return "\n".join(lines).strip()

    def to_markdown(self) -> str:
        """A table of the task's names; empty where the scores say it all."""
        if not self.names:
            return ""
        heading, *rows = self.shown_names
        cells = table(heading, rows, "l" + "r" * (len(heading) - 1))
        if len(self.shown_names) == len(self.names):
            return cells
        title = f"Shown: the {len(rows)} with the lowest F1 of {len(self.names) - 1:,}"
        return f"{title}; `report.json` has all.\n\n{cells}"

    def to_dict(self) -> dict[str, Any]:
        """The values as JSON accepts them; what is not a number is null."""
        return {
            "task": self.task.get_config(),
            "examples": self.examples,
            "scores": {name: _numbers(score) for name, score in self.scores.items()},
            "constant": {name: _numbers(score) for name, score in self.constant.items()},
            "names": [list(row) for row in self.names],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TaskReport:
        """The inverse of `to_dict`."""

        def scores(name: str) -> dict[str, Score]:
            known = values[name].items()
            return {k: Score(*(np.nan if n is None else n for n in v)) for k, v in known}

        names = tuple(tuple(row) for row in values["names"])
        task = tasks.get(values["task"])
        return cls(task, values["examples"], scores("scores"), scores("constant"), names)


HEADING = ("score", "value", "95 % interval", "best constant")


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


def task_report(task: Task, targets: Any, answers: Any) -> TaskReport:
    """Scores answers by their task.

    Args:
        task: What they mean.
        targets: As `task.check_targets` takes them, `(examples,)` or `(examples, size)`.
        answers: `(examples, size)`, as `task.answers` returns them.

    Raises:
        ValueError: There is not a row of finite answers per target.

    Example:

    >>> import numpy as np
    >>> from keras_vit.evaluation import task_report
    >>> from keras_vit.tasks import Regression
    >>> report = task_report(Regression(("age",)), [1.0, 2.0, 4.0], np.array([[1.0], [2.0], [3.0]]))
    >>> round(report.scores["mae"].value, 3), round(report.constant["mae"].value, 3)
    (0.333, 1.111)
    """
    answers = np.asarray(answers)
    bias = task.initial_bias(targets)
    outputs = np.zeros(task.outputs, np.float32) if bias is None else bias
    constant = np.broadcast_to(task.answers(outputs[None]), answers.shape)
    names = _of_labels(task, targets, answers) if isinstance(task, Multilabel) else ()
    return TaskReport(
        task,
        len(answers),
        task.scores(targets, answers),
        task.scores(targets, constant, resamples=0),
        names,
    )


def _of_labels(task: Multilabel, targets: Any, answers: np.ndarray) -> tuple[Row, ...]:
    """Average precision, F1 at the threshold, and how many images have the label."""
    present = task.check_targets(targets) >= 0.5
    predicted = answers >= np.array(task.thresholds, np.float32)
    f1 = f1_scores((present & predicted).sum(0), present.sum(0), predicted.sum(0))
    precision = AveragePrecision(present, answers)(np.ones(len(answers)))
    rows: list[Row] = [("label", "average precision", "F1", "threshold", "images")]
    for i, name in enumerate(task.shown_names):
        numbers = (f"{precision[i]:.3f}", f"{f1[i]:.3f}", f"{task.thresholds[i]:.3f}")
        rows.append((name, *numbers, str(int(present[:, i].sum()))))
    return tuple(rows)


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
