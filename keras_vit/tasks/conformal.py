"""Prediction sets: all classes that an image may be of, by split conformal prediction.

Thresholds come from images that the model was not trained on. Of new images like these, the true
class is in the set for at least the chosen part, whatever the model is (Vovk et al. 2005;
Angelopoulos and Bates 2021, "A Gentle Introduction to Conformal Prediction", theorem 1).

An image has the same set each time. Where a method of the literature draws a random number, this
one takes it from the image's own probabilities (`dither`), which keeps the guarantee.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from keras import ops

from keras_vit._base.errors import check_arguments, check_choice, check_non_negative, counted

METHODS = ("lac", "aps", "aps_inclusive", "aps_randomized", "raps")
ALWAYS_BEST = ("aps", "raps")  # whose sets have the most probable class whatever its evidence is
SET_COVERAGE = 0.95
# What RAPS takes off from the second class on. Fixed: to choose it takes images of its own.
PENALTY, FREE_RANKS = 0.1, 1
# The image that sets a threshold stays inside where another engine rounds its probability
# differently: softmax in float32 differs by 1e-5 of a small probability.
SLACK = 1e-4
MOST_COMPARED = 2048  # classes whose pairs a graph compares: 16 MB per image
PERIODS = 5  # of `dither` per unit of log-odds: an error of 1e-5 in these moves it by 1e-4
SMALLEST = 1e-30  # probability of `dither`: float32 has it on every engine


def conformal_rank(examples: int, coverage: float) -> int:
    """Return the rank, from 1, of the calibration score that is the threshold.

    More than `examples` where they are too few.

    >>> conformal_rank(19, 0.95), conformal_rank(18, 0.95)
    (19, 19)
    """
    return _rounded_up((examples + 1) * coverage)


def fewest_examples(coverage: float) -> int:
    """Return how many calibration examples a coverage needs at least.

    >>> [fewest_examples(coverage) for coverage in (0.8, 0.9, 0.95, 0.99)]
    [4, 9, 19, 99]
    """
    return _rounded_up(coverage / (1 - coverage))


def realized_coverage(examples: int, coverage: float) -> tuple[float, float]:
    """Within which limits 95 of 100 calibrations by so many examples cover new ones.

    The coverage that a threshold has is Beta(rank, examples + 1 - rank): Vovk 2012, "Conditional
    validity of inductive conformal predictors", proposition 2a.

    >>> [round(limit, 3) for limit in realized_coverage(60, 0.9)]
    [0.816, 0.962]
    """
    from scipy.special import betaincinv

    rank = min(conformal_rank(examples, coverage), examples)
    low, high = betaincinv(rank, examples + 1 - rank, [0.025, 0.975])
    return float(low), float(high)


def examples_within(points: float, coverage: float) -> int:
    """About how many calibration examples realize a coverage within so many points, as above.

    >>> examples_within(0.05, 0.9), examples_within(0.05, 0.95)
    (139, 73)
    """
    return math.ceil(coverage * (1 - coverage) * (1.96 / points) ** 2)


def calibration_text(examples: int, coverage: float) -> str:
    """Return what a calibration by so many examples promises, for a report."""
    low, high = realized_coverage(examples, coverage)
    return (
        f"95 of 100 calibrations on {counted(examples, 'image')} realize a coverage from "
        f"{low:.1%} to {high:.1%}; within 5 points of {coverage:.4g} takes about "
        f"{examples_within(0.05, coverage):,}."
    )


def check_coverage(coverage: float) -> float:
    """Return the coverage; a ValueError where it is not in (0, 1)."""
    if not 0 < coverage < 1:
        raise ValueError(f"coverage={coverage!r} must lie in (0, 1), such as 0.9.")
    return float(coverage)


@dataclass(frozen=True)
class PredictionSets:
    """Which classes an image may be of: those with enough evidence, a threshold per class.

    The evidence of a class is 1 minus its conformity score:

    | method | evidence | source |
    |---|---|---|
    | `"lac"` | its probability | Sadinle et al. 2019: the smallest sets on average |
    | `"aps"` | the sum of the probabilities below its own | Romano et al. 2020, not randomized |
    | `"aps_randomized"` | that, and a random part of its own | Romano et al. 2020 |
    | `"aps_inclusive"` | that, and all of its own | the class that reaches the sum is inside |
    | `"raps"` | that, less `penalty` per rank after `free_ranks` | Angelopoulos et al. 2021 |

    A set of `"lac"` is empty where no class is probable enough, and one of `"aps_randomized"` where
    the random part leaves out the only class. Sets of `"aps"` and `"raps"` always have the most
    probable class, as in the code of Angelopoulos et al. (`allow_zero_sets=False`): their evidence,
    not randomized, is least where a model is surest, and would leave out its only class. So they
    cover more than is asked for. The thresholds of `"aps_inclusive"` are those of
    `"aps_randomized"`, whose sets its sets contain; they are never empty.

    `"aps_randomized"` is what torchcp computes by default, and `"aps_inclusive"` what MAPIE does,
    up to the random part: see `dither`.

    Attributes:
        method: One of `METHODS`.
        coverage: The part of new images whose class is in the set, in (0, 1).
        thresholds: Per class, the least evidence of a class in the set.
        images: How many images the thresholds come from.
        conditional: The places of classes with a threshold from their own images alone, whose
            coverage holds for each of them. The others share one, and their coverage holds for
            them together.
        penalty: Of `"raps"`.
        free_ranks: Of `"raps"`.

    Raises:
        ValueError: A value is out of range.

    Example:

    >>> import numpy as np
    >>> from keras_vit.tasks import PredictionSets
    >>> probabilities = np.repeat([[0.9, 0.1], [0.4, 0.6]], 10, axis=0)
    >>> labels = np.repeat([0, 1], 10)
    >>> sets = PredictionSets.calibrated(labels, probabilities, coverage=0.9)
    >>> sets.contains([[0.95, 0.05], [0.5, 0.5], [0.62, 0.38]]).tolist()
    [[True, False], [False, False], [False, False]]
    """

    method: str
    coverage: float
    thresholds: tuple[float, ...]
    images: int
    conditional: tuple[int, ...] = ()
    penalty: float = PENALTY
    free_ranks: int = FREE_RANKS

    def __post_init__(self) -> None:
        check_choice(self.method, "method", METHODS)
        check_coverage(self.coverage)
        check_non_negative(images=self.images, free_ranks=self.free_ranks)
        set_field = object.__setattr__  # frozen from here on
        set_field(self, "thresholds", tuple(map(float, self.thresholds)))
        set_field(self, "conditional", tuple(map(int, self.conditional)))
        if not self.thresholds or not np.isfinite(self.thresholds).all():
            raise ValueError(f"thresholds={self.thresholds} must be finite numbers, one per class.")
        if not set(self.conditional) <= set(range(len(self.thresholds))):
            raise ValueError(
                f"conditional={self.conditional} must be places from 0 to "
                f"{len(self.thresholds) - 1}."
            )
        if not (math.isfinite(self.penalty) and self.penalty >= 0):
            raise ValueError(f"penalty={self.penalty!r} must be a number of at least 0.")

    @classmethod
    def calibrated(
        cls,
        labels: Any,
        probabilities: Any,
        coverage: float = SET_COVERAGE,
        method: str = METHODS[0],
        *,
        conditional: bool = True,
        penalty: float = PENALTY,
        free_ranks: int = FREE_RANKS,
    ) -> Self:
        """Return the sets whose thresholds come from images that the model was not trained on.

        Args:
            labels: Integer classes `(images,)`.
            probabilities: `(images, classes)`, as `Classification.answers` returns them.
            coverage: The part of new images whose class is in the set, in (0, 1).
            method: One of `METHODS`.
            conditional: Whether each class that has enough images has a threshold of its own, and
                the coverage for itself. The other classes have one from their images together;
                where these are too few, that of all images, and then nothing is promised for them.
            penalty: Of `"raps"`.
            free_ranks: Of `"raps"`.

        Raises:
            ValueError: There are too few images for the coverage, shapes or labels do not match,
                probabilities are not finite, or an option is out of range.
        """
        labels, rows = np.asarray(labels), np.asarray(probabilities, np.float64)
        least = fewest_examples(check_coverage(coverage))
        if rows.ndim != 2 or labels.shape != rows.shape[:1] or labels.dtype.kind not in "iu":
            raise ValueError(
                f"labels {labels.dtype} {labels.shape} do not go with probabilities {rows.shape}: "
                "give one integer class per row."
            )
        if len(labels) < least:
            raise ValueError(
                f"Prediction sets of {coverage:.4g} coverage need at least {least:,} images that "
                f"were not trained on, and there are {len(labels):,}: give more, or a lower "
                "coverage."
            )
        size = rows.shape[1]
        if not ((labels >= 0) & (labels < size)).all():
            raise ValueError(
                f"labels range from {labels.min()} to {labels.max()}, and there are {size} classes."
            )
        if not np.isfinite(rows).all():
            raise ValueError("probabilities are not finite: the model's weights are damaged.")
        # Sets up to a sum have the thresholds of those that stop at random within the last class.
        scored = "aps_randomized" if method == "aps_inclusive" else method
        draft = cls(scored, coverage, (0.0,) * size, len(labels), (), penalty, free_ranks)
        of_label = draft.evidence(rows)[np.arange(len(labels)), labels]
        counts = np.bincount(labels, minlength=size)
        alone = counts >= least if conditional else np.zeros(size, bool)
        together = of_label[~alone[labels]]
        shared = _threshold(together if len(together) >= least else of_label, coverage)
        thresholds = [
            _threshold(of_label[labels == c], coverage) if alone[c] else shared for c in range(size)
        ]
        places = tuple(np.flatnonzero(alone).tolist())
        return cls(method, coverage, tuple(thresholds), len(labels), places, penalty, free_ranks)

    def evidence(self, probabilities: Any) -> np.ndarray:
        """Return each class's evidence, float64 `(images, classes)`: see the table of this class.

        Args:
            probabilities: `(images, classes)`.
        """
        rows = np.asarray(probabilities, np.float64)
        if self.method == "lac":
            return rows
        order = np.argsort(-rows, axis=1, kind="stable")
        ordered = np.take_along_axis(rows, order, 1)
        # Summed from the smallest one: 1 - cumsum would lose the digits of confident models.
        below = np.cumsum(ordered[:, ::-1], 1)[:, ::-1] - ordered
        evidence = np.empty_like(rows)
        np.put_along_axis(evidence, order, below - self._penalties(rows.shape[1]), 1)
        if self.method == "aps_randomized":
            return evidence + dither(ordered[:, 0], ordered[:, 1], np)[:, None] * rows
        return evidence + rows if self.method == "aps_inclusive" else evidence

    def contains(self, probabilities: Any) -> np.ndarray:
        """Return which classes are in the set of each image, bool `(images, classes)`.

        Args:
            probabilities: `(images, classes)`.
        """
        inside = np.asarray(self.evidence(probabilities) >= np.array(self.thresholds))
        if self.method in ALWAYS_BEST:
            inside[np.arange(len(inside)), np.argmax(probabilities, axis=1)] = True
        return inside

    def contains_in_graph(self, probabilities: Any) -> Any:
        """`contains` by `keras.ops`, for exported graphs."""
        thresholds = ops.convert_to_tensor(np.array(self.thresholds, np.float32))
        if self.method == "lac":
            return probabilities >= thresholds
        if len(self.thresholds) > MOST_COMPARED:
            raise ValueError(
                f"A graph compares each pair of {len(self.thresholds):,} classes for "
                f"method={self.method!r}, and {MOST_COMPARED:,} is the most: calibrate with "
                "method='lac'."
            )
        # In pairs: not every engine sorts back, and torch fixes the batch where indices are sorted.
        first, second = probabilities[:, :, None], probabilities[:, None, :]
        before = np.tri(len(self.thresholds), dtype="float32")  # of equal ones the first counts
        is_equal = ops.cast(ops.equal(first, second), "float32")
        is_below = ops.cast(second < first, "float32") + is_equal * ops.convert_to_tensor(
            1 - before
        )
        is_above = ops.cast(second > first, "float32") + is_equal * ops.convert_to_tensor(
            before - np.eye(len(before), dtype="float32")
        )
        rank = ops.sum(is_above, axis=-1) + 1
        evidence = ops.sum(is_below * second, axis=-1) - self._weight * ops.maximum(
            rank - self.free_ranks, 0.0
        )
        if self.method == "aps_inclusive":
            return evidence + probabilities >= thresholds
        if self.method == "aps_randomized":
            largest = ops.top_k(probabilities, 2)[0]
            part = dither(largest[:, :1], largest[:, 1:], ops)
            return evidence + part * probabilities >= thresholds
        return ops.logical_or(evidence >= thresholds, ops.equal(rank, 1.0))

    def _penalties(self, size: int) -> np.ndarray:
        """Return RAPS's penalty for each rank, the most probable class first."""
        return self._weight * np.maximum(np.arange(1, size + 1) - self.free_ranks, 0)

    @property
    def _weight(self) -> float:
        return self.penalty if self.method == "raps" else 0.0

    def get_config(self) -> dict[str, Any]:
        """JSON values from which `from_config` makes the same sets."""
        values = asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the inverse of `get_config`.

        Raises:
            ValueError: A value is missing, unknown or out of range.
        """
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in config.items()
        }
        check_arguments(cls, values)
        try:
            return cls(**values)
        except TypeError as error:
            raise ValueError(f"{dict(config)} are not prediction sets: {error}") from error


def dither(first: Any, second: Any, xp: Any) -> Any:
    """Return the random part of a set, in [0, 1]: from the two largest probabilities of an image.

    A triangle wave of the logarithm of their ratio. It differs from image to image as a uniform
    random number does, is the same for the same image on every engine, as it does not jump, and is
    a part of the score: the guarantee is that of any score.

    Args:
        first: The largest probabilities, of any shape.
        second: The next ones.
        xp: `numpy` or `keras.ops`, whose arrays they are.
    """
    periods = PERIODS * (xp.log(first) - xp.log(xp.maximum(second, SMALLEST)))
    return xp.abs(2 * (periods - xp.floor(periods)) - 1)


def _threshold(evidence: np.ndarray, coverage: float) -> float:
    """Return the least evidence that the given part of new examples has."""
    rank = conformal_rank(len(evidence), coverage)
    value = float(np.sort(evidence)[len(evidence) - rank])
    return value - SLACK * abs(value)


def _rounded_up(value: float) -> int:
    return math.ceil(round(value, 9))  # 100 * 0.95 is 95, and not a little more
