"""Tasks whose targets and answers are a row of numbers per image, or one name of several."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from keras import ops

from keras_vit._base.errors import listed, printable
from keras_vit.tasks.answer import Columns, Tally, check_finite_answers
from keras_vit.tasks.scores import f1_scores, shares
from keras_vit.tasks.target import as_array
from keras_vit.tasks.task import Task


class RowTask(Task):
    """A task of `(examples,)` or `(examples, size)`: what the four tasks of images share."""

    def tally(self, targets: Any, answers: Any) -> Tally:
        checked, rows = self._pairs(targets, answers)
        return {"targets": checked, "answers": rows}

    def distance(self, tally: Tally) -> np.ndarray:
        """Return the sum over names, in probability, or in standard deviations of numbers."""
        answers = np.asarray(tally["answers"], np.float64)
        ideal = np.asarray(self.to_targets(tally["targets"]), np.float64).reshape(answers.shape)
        return (np.abs(answers - ideal) / self.answer_scale.astype(np.float64)).sum(axis=1)

    def texts(self, tally: Tally, index: int) -> tuple[str, str]:
        return self.to_text(tally["answers"][index], 1), self._truth(tally["targets"][index])

    def _truth(self, target: np.ndarray) -> str:
        """Return a checked target in words."""
        raise NotImplementedError

    def _most_probable(self, key: str, answer: Any, top: int) -> list[dict[str, Any]]:
        """Return names and probabilities, the most probable and the first of equal ones first."""
        row, names = np.asarray(answer), self.shown_names
        order = np.argsort(-row, kind="stable")[:top]
        return [{key: names[i], "probability": float(row[i])} for i in order]

    def evidence(self, outputs: Any, which: Any) -> Any:
        return ops.sum(outputs * ops.one_hot(which, self.outputs, dtype="float32"), axis=1)

    def evidence_text(self, which: int) -> str:
        return self.shown_names[which]

    def _indices(self, targets: np.ndarray) -> np.ndarray:
        """Return names or integers `(examples,)` as indices, int32.

        Raises:
            ValueError: A row is neither a name nor an index.
        """
        if targets.dtype.kind in "biuf":
            indices = targets.astype(np.float64)
        else:
            index = {name: i for i, name in enumerate(self.names)}
            index |= dict.fromkeys(self._repeated, -1)
            numbers = [t if isinstance(t, Integral) else index.get(str(t), -1) for t in targets]
            indices = np.array(numbers, np.float64)
        accepted = f"an integer from 0 to {self.size - 1}"
        if self.names:
            accepted += f", or a name that stands for one of them: {listed(self.names)}"
        inside = (indices >= 0) & (indices < self.size) & (indices == np.trunc(indices))
        self._refuse(~inside, targets, accepted)
        return indices.astype(np.int32)

    def _refuse(self, wrong: Any, targets: Any, accepted: str) -> None:
        """Raise a ValueError for the first of the wrong rows `(examples,)`."""
        rows = np.flatnonzero(wrong)
        if rows.size:
            raise ValueError(
                f"Target {_shown(targets[rows[0]])} of row {rows[0]} does not suit {self.kind} "
                f"({rows.size:,} of {len(targets):,} rows are not accepted): give {accepted}."
            )

    def _rows(self, values: Any, columns: int, what: str) -> np.ndarray:
        """Return values as an array `(examples, columns)`.

        Raises:
            ValueError: They have another shape.
        """
        rows = np.asarray(values)
        if rows.ndim == 1 and columns == 1:
            rows = rows[:, None]
        if rows.ndim != 2 or rows.shape[1] != columns:
            raise ValueError(
                f"{what} {rows.shape} do not fit {self.kind} of {self.size}: give "
                f"(examples, {columns})."
            )
        return rows

    def _number_rows(self, targets: Any) -> np.ndarray:
        """Return targets as numbers `(examples, size)`, float64.

        Raises:
            ValueError: They are not numbers, or have another shape.
        """
        try:
            return self._rows(as_array(targets), self.size, "Targets").astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"Targets are not rows of {self.size} numbers: {error}") from error

    def _pairs(self, targets: Any, answers: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return checked targets, and as many rows of answers.

        Raises:
            ValueError: Their numbers differ, or an answer is not finite.
        """
        checked, rows = self.check_targets(targets), self._rows(answers, self.size, "Answers")
        if len(checked) != len(rows):
            raise ValueError(f"{len(checked):,} targets do not match {len(rows):,} answers.")
        check_finite_answers(rows)
        return checked, rows


class NameTask(RowTask):
    """A row task whose truth is one of the names: classes, or grades."""

    is_one_name = True

    def predicted_names(self, answers: np.ndarray) -> np.ndarray:
        """Return the place of the name that each row of answers predicts, int `(examples,)`."""
        raise NotImplementedError

    def _labels(self, checked: np.ndarray) -> np.ndarray:
        """Return the place of the name that each checked target is, int `(examples,)`."""
        return checked

    def tally(self, targets: Any, answers: Any) -> Tally:
        checked, rows = self._pairs(targets, answers)
        labels, predictions = self._labels(checked), self.predicted_names(rows)
        at = np.arange(len(rows))
        return {
            "labels": labels,
            "predictions": predictions,
            "probability": rows[at, predictions].astype(np.float64),
            "label_probability": rows[at, labels].astype(np.float64),
        }

    def name_scores(self, tally: Tally) -> Columns:
        """Return precision, recall, F1 and images of each name; 0 where one is not defined."""
        labels, predictions = tally["labels"], tally["predictions"]
        right = labels == predictions
        both, present, answered = (
            np.bincount(places, minlength=self.size)
            for places in (labels[right], labels, predictions)
        )
        return {
            "precision": shares(both, answered),
            "recall": shares(both, present),
            "F1": f1_scores(both, present, answered),
            "images": present,
        }

    def distance(self, tally: Tally) -> np.ndarray:
        """Return the probability of a wrong prediction, so that confident mistakes come first."""
        return np.where(tally["predictions"] == tally["labels"], 0.0, tally["probability"])

    def texts(self, tally: Tally, index: int) -> tuple[str, str]:
        predicted, true = (self.shown_names[tally[key][index]] for key in ("predictions", "labels"))
        return f"{predicted} ({tally['probability'][index]:.0%})", true


def percentages(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows of `_most_probable` in one line."""
    cells = (f"{next(iter(row.values()))} {row['probability']:.2%}" for row in rows)
    return printable(", ".join(cells))


def _shown(value: Any) -> str:
    text = repr(value.tolist() if isinstance(value, np.ndarray | np.generic) else value)
    return text if len(text) <= 80 else text[:77] + "..."
