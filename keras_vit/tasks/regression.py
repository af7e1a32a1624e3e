"""Regression: numbers with names, units and a scale."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import keras
import numpy as np
from keras import ops

from keras_vit._base.errors import check_non_negative, counted, listed, printable, warn_at_caller
from keras_vit.tasks.answer import Columns, Tally
from keras_vit.tasks.conformal import check_coverage, conformal_rank, fewest_examples
from keras_vit.tasks.distillation_losses import number_distillation
from keras_vit.tasks.losses import QuantileLoss, UnitError
from keras_vit.tasks.rows import RowTask
from keras_vit.tasks.scores import NamedScores, NumberScores, wilson_interval
from keras_vit.tasks.splitting import quantile_bins
from keras_vit.tasks.target import Seen
from keras_vit.tasks.task import Task

INTERVAL_COVERAGE = 0.9
MIN_EXAMPLES = 9  # of which the largest error is the interval of that coverage
# How much more probable numbers must be in their units than scaled, as a logarithm, and for how
# many of them it counts: more would betray the smallest difference.
EVIDENCE, MOST_SEEN = 10.0, 32


@keras.saving.register_keras_serializable(package="keras_vit")
@dataclass(frozen=True)
class Regression(RowTask):
    """Numbers; the answers are `outputs * scale + offset`, in the units of the targets.

    Targets are finite numbers `(examples,)` of one number, or rows `(examples, numbers)`.
    `check_targets` scales them, so that losses of numbers in meters and in millimeters are alike.

    Attributes:
        units: Per number, such as `"kg"`; empty texts where there are none.
        offset: Per number, the mean of the training targets; 0 by default. `fitted` computes it.
        scale: Per number, their standard deviation; 1 by default. `fitted` computes it.
        margins: Per number, half the width of its prediction interval, in its unit; empty where
            there are none. `with_intervals` computes them.
        coverage: The part of new images whose number lies in its interval.
        calibrated_on: How many images the margins come from; 0 where that is not known.

    Raises:
        ValueError: There is not a unit, a finite offset and a scale above 0 per number, or margins
            are not as many or negative.

    Example:

    >>> from keras_vit.tasks import Regression
    >>> task = Regression(("weight",), units=("kg",)).fitted([10.0, 30.0])
    >>> task.offset, task.scale
    ((20.0,), (10.0,))
    >>> task.check_targets([30.0]).tolist(), task.answers([[1.0]]).tolist()
    ([[1.0]], [[30.0]])
    """

    kind = "regression"
    nouns = ("number", "numbers")
    calibrates = True
    are_numbers = True
    losses: ClassVar = {
        "squared_error": keras.losses.MeanSquaredError,
        "huber": keras.losses.Huber,
        "quantile": QuantileLoss,
    }
    problem_type = "regression"
    distillation: ClassVar = {"soft": number_distillation}
    tensor_names = ("values",)

    units: tuple[str, ...] = ()
    offset: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    margins: tuple[float, ...] = ()
    coverage: float = INTERVAL_COVERAGE
    calibrated_on: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(
            units=tuple(map(str, self.units)) or ("",) * self.size,
            offset=tuple(map(float, self.offset)) or (0.0,) * self.size,
            scale=tuple(map(float, self.scale)) or (1.0,) * self.size,
            margins=tuple(map(float, self.margins)),
        )
        check_non_negative(calibrated_on=self.calibrated_on)
        fits = all(len(v) == self.size for v in (self.units, self.offset, self.scale))
        numbers = (*self.offset, *self.scale)
        if not fits or not np.isfinite(numbers).all() or min(self.scale) <= 0:
            raise ValueError(
                f"units={self.units}, offset={self.offset} and scale={self.scale} must each have "
                f"{self.size} values, the offsets finite and the scales above 0."
            )
        if self.margins and (len(self.margins) != self.size or not min(self.margins) >= 0):
            raise ValueError(f"margins={self.margins} must be {self.size} numbers of at least 0.")

    def values(self, targets: Any) -> np.ndarray:
        """Targets in their units, `(examples, numbers)` of float64.

        Raises:
            ValueError: The shape is wrong, or a number is missing or not finite.
        """
        rows = self._number_rows(targets)
        missing = ~np.isfinite(rows).all(axis=1)
        self._refuse(missing, rows, f"a finite number for each of {listed(self.shown_names)}")
        return rows

    def check_targets(self, targets: Any) -> np.ndarray:
        """Targets in their units as scaled rows `(examples, numbers)` of float32."""
        return ((self.values(targets) - self.offset) / self.scale).astype(np.float32)

    def _strata(self, targets: Any, fraction: float) -> np.ndarray:
        bins = [quantile_bins(column, fraction) for column in self.values(targets).T]
        if len(bins) == 1:
            return bins[0]
        return np.concatenate([np.eye(column.max() + 1)[column] for column in bins], axis=1)

    def to_targets(self, checked: Any) -> np.ndarray:
        return self.answers(checked)

    def fitted(self, targets: Any) -> Self:
        """Return the task whose offset and scale are the targets' mean and standard deviation.

        Raises:
            ValueError: A number is the same in all targets: there is nothing to learn.
        """
        rows = self.values(targets)
        constant = np.ptp(rows, axis=0) == 0
        if constant.any():
            i = int(constant.argmax())
            raise ValueError(
                f"{self.shown_names[i]} is {rows[0, i]} in all of {len(rows):,} targets: there is "
                "nothing to learn. Leave it out."
            )
        mean, deviation = rows.mean(axis=0), rows.std(axis=0)
        return replace(self, offset=tuple(mean.tolist()), scale=tuple(deviation.tolist()))

    def not_scaled(self, seen: Seen) -> str:
        """Return why numbers look as if they were not scaled, or "" if they look scaled.

        They do where the offset and the scale, as mean and standard deviation, explain them far
        better than 0 and 1, those of scaled numbers.

        >>> task = Regression(("weight",), offset=(70,), scale=(15,))
        >>> task.not_scaled((32, 0.2, 1.1)), task.not_scaled((32, 68.0, 12.0))[:44]
        ('', 'mean 68 and standard deviation 12, as weight')
        """
        if len(seen) != 1 + 2 * self.size:
            return ""
        mean, std = np.reshape(seen[1:], (2, -1))
        offset, scale = np.array(self.offset), np.array(self.scale)
        # The logarithm of how much more probable an example is, on average, in units than scaled.
        gains = (mean**2 + std**2) / 2 - ((mean - offset) ** 2 + std**2) / (2 * scale**2)
        gains -= np.log(scale)
        if min(seen[0], MOST_SEEN) * gains.sum() < EVIDENCE:
            return ""
        i, names = int(gains.argmax()), repr(self.names) if self.names else f"size={self.size}"
        name = printable(self.shown_names[i]) if self.names else f"number {i}"
        return (
            f"mean {mean[i]:.4g} and standard deviation {std[i]:.4g}, as "
            f"{name} in its unit, and the task scales: its answer is the "
            f"output times {scale[i]:.4g} plus {offset[i]:.4g}, so that {mean[i]:.4g} would become "
            f"{mean[i] * scale[i] + offset[i]:.4g}. Train on model.task.check_targets(targets), or "
            f"take a task that does not scale: model.task = keras_vit.tasks.Regression({names})."
        )

    def initial_bias(self, targets: Any) -> np.ndarray | None:
        """Return the mean of the scaled targets, 0 where the task is `fitted` to them."""
        return self.check_targets(targets).mean(axis=0)

    def metrics(self) -> list[keras.metrics.Metric]:
        """Return the mean absolute error in units: `mae`, or `mae_NAME` of each number."""
        if self.size == 1:
            return [UnitError(self.scale[0])]
        names = enumerate(self.shown_names)
        return [UnitError(self.scale[i], i, name=f"mae_{name}") for i, name in names]

    def answers(self, outputs: Any) -> np.ndarray:
        rows = self._rows(outputs, self.outputs, "Outputs").astype(np.float32)
        return rows * np.array(self.scale, np.float32) + np.array(self.offset, np.float32)

    def answers_in_graph(self, outputs: Any) -> Any:
        # Arrays, not tensors: those in a model of views would be inputs of an ONNX graph.
        scale, offset = (np.array(values, np.float32) for values in (self.scale, self.offset))
        return ops.add(ops.multiply(ops.cast(outputs, "float32"), scale), offset)

    def outputs_in_graph(self, answers: Any) -> Any:
        scale, offset = (np.array(values, np.float32) for values in (self.scale, self.offset))
        return ops.divide(ops.subtract(answers, offset), scale)

    def in_units(self, kernel: np.ndarray, bias: np.ndarray) -> tuple[Self, np.ndarray, np.ndarray]:
        scale, offset = np.array(self.scale, np.float32), np.array(self.offset, np.float32)
        return replace(self, scale=(), offset=()), kernel * scale, bias * scale + offset

    def head_of(
        self, other: Self, kernel: np.ndarray, bias: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights of another task's head for the same answers by this one's scale."""
        scale, offset = np.array(self.scale), np.array(self.offset)
        ratio = np.array(other.scale) / scale
        return kernel * ratio, bias * ratio + (np.array(other.offset) - offset) / scale

    def outputs_like(self, other: Task, outputs: Any) -> Any:
        return self.outputs_in_graph(other.answers_in_graph(outputs))

    def graph_answers(self, answers: Any, top_k: int = 5) -> dict[str, Any]:
        return {self.answer_names[0]: answers}

    @property
    def answer_scale(self) -> np.ndarray:
        return np.array(self.scale, np.float32)

    def calibrated(self, targets: Any, answers: Any) -> Self:
        """Return the task with prediction intervals of 90 %: see `with_intervals`.

        Warns, and leaves them out, where there are too few examples.
        """
        if (count := len(np.asarray(answers))) < MIN_EXAMPLES:
            images = counted(count, "held-out image is", "held-out images are")
            warn_at_caller(
                f"{images} too few for prediction intervals of {INTERVAL_COVERAGE:.0%}: hold out "
                f"at least {MIN_EXAMPLES}."
            )
            return self.uncalibrated()
        return self.with_intervals(targets, answers)

    def uncalibrated(self) -> Self:
        return replace(self, margins=(), calibrated_on=0)

    def with_coverage(self, targets: Any, answers: Any, coverage: float) -> Self:
        return self.with_intervals(targets, answers, coverage)

    def with_intervals(
        self, targets: Any, answers: Any, coverage: float = INTERVAL_COVERAGE
    ) -> Self:
        """Return the task with prediction intervals: an answer plus and minus `margins`.

        Of new images like these, the true number lies inside for at least the given part: split
        conformal prediction, Lei et al. 2018, "Distribution-Free Predictive Inference For
        Regression", algorithm 2. Each number has its own interval.

        Args:
            targets: In their units, as `check_targets` takes them.
            answers: `(examples, numbers)`, as `answers` returns them, of images that the model has
                not been trained on.
            coverage: That part, in (0, 1).

        Raises:
            ValueError: The coverage is out of range, or there are too few examples for it.
        """
        check_coverage(coverage)
        _, rows = self._pairs(targets, answers)
        errors = np.sort(np.abs(self.values(targets) - rows), axis=0)
        rank = conformal_rank(len(rows), coverage)
        if rank > len(rows):
            raise ValueError(
                f"Prediction intervals of {coverage:.0%} need at least "
                f"{fewest_examples(coverage)} examples, and there are {len(rows)}."
            )
        margins = tuple(errors[rank - 1].tolist())
        return replace(self, margins=margins, coverage=coverage, calibrated_on=len(rows))

    def tally(self, targets: Any, answers: Any) -> Tally:
        rows = super().tally(targets, answers)["answers"]
        return {"answers": rows, "targets": self.values(targets)}

    def distance(self, tally: Tally) -> np.ndarray:
        errors = np.abs(tally["answers"].astype(np.float64) - tally["targets"])
        return (errors / self.answer_scale.astype(np.float64)).sum(axis=1)

    def name_scores(self, tally: Tally) -> Columns:
        """Return half the width of each number's interval, and what part of images is inside."""
        if not self.margins:
            return {}
        errors, margins = np.abs(tally["targets"] - tally["answers"]), np.array(self.margins)
        inside = (errors <= margins).mean(axis=0)
        low, high = np.transpose([wilson_interval(rate, len(errors)) for rate in inside])
        images = np.full(self.size, len(errors))
        return {"margin": margins, "inside": inside, "low": low, "high": high, "images": images}

    def _truth(self, target: np.ndarray) -> str:
        return ", ".join(f"{value:.4g}" for value in target)

    def _scores(self, tally: Tally) -> NamedScores:
        """MAE and RMSE in units; of several numbers `mae_NAME` and so on, and `r2`, the mean R2."""
        scores = NumberScores(tally["targets"], tally["answers"])
        ends = [f"_{name}" for name in self.shown_names] if self.size > 1 else [""]
        names = [f"{score}{end}" for end in ends for score in NumberScores.names]
        if self.size == 1:
            return names, lambda weights: scores(weights).ravel().tolist()

        def with_mean(weights: np.ndarray) -> list[float]:
            values = scores(weights)
            return [
                *values.ravel().tolist(),
                float(values[:, NumberScores.names.index("r2")].mean()),
            ]

        return [*names, "r2"], with_mean

    def main_score(self, targets: Any) -> str:
        return "r2"

    def best_constants(self, targets: Any) -> dict[str, np.ndarray]:
        """Return the median for MAE, the mean for squared errors; no constant helps rank scores."""
        rows = self.values(targets)
        mean = rows.mean(axis=0)
        return {"mae": np.median(rows, axis=0), "rmse": mean, "r2": mean, "spearman": mean}

    def explained(self, answers: Any) -> np.ndarray:
        if self.size > 1:
            raise ValueError(
                f"There are {self.size} numbers to explain: choose one of "
                f"{listed(self.shown_names)}."
            )
        return np.zeros(len(answers), int)

    def evidence_text(self, which: int) -> str:
        return f"a larger {self.shown_names[which]}" if self.names else "a larger number"

    def describe(self, answer: Any, top: int = 5) -> dict[str, Any]:
        rows = []
        for i, value in enumerate(np.asarray(answer).tolist()):
            row = {"name": self.shown_names[i], "value": value}
            if self.units[i]:
                row["unit"] = self.units[i]
            if self.margins:
                row["low"], row["high"] = value - self.margins[i], value + self.margins[i]
                row["coverage"] = self.coverage
            rows.append(row)
        return {"predictions": rows}

    def to_text(self, answer: Any, top: int = 5) -> str:
        parts = []
        for row in self.describe(answer, top)["predictions"]:
            name = f"{row['name']} " if self.names else ""
            unit = f" {row['unit']}" if "unit" in row else ""
            low_high = f" ({row['low']:.4g} to {row['high']:.4g})" if self.margins else ""
            parts.append(f"{name}{row['value']:.4g}{unit}{low_high}")
        return printable(", ".join(parts))
