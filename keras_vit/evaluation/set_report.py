"""How good prediction sets are: how many hold the true class, and what share is answered by one."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_vit._base.errors import counted
from keras_vit.tasks.conformal import (
    PredictionSets,
    calibration_text,
    examples_within,
    fewest_examples,
)
from keras_vit.tasks.scores import wilson_interval


@dataclass(frozen=True)
class SetReport:
    """The scores of prediction sets on labeled images; prints as a sentence or two.

    An image is answered where its set is a single class.

    Attributes:
        coverage: The part of images whose class was promised to be in the set.
        calibrated_on: How many images the thresholds come from.
        images: How many images this is of.
        covered: How many of them have their class in the set.
        mean_size: Classes per set, on average.
        answered: How many images have a set of one class.
        right: How many of those are of that class.
        empty: How many images have an empty set.
        classes: How many classes there are; 0 where that is not known.
        own_thresholds: How many of them have a threshold of their own, from their own images.
    """

    coverage: float
    calibrated_on: int
    images: int
    covered: int
    mean_size: float
    answered: int
    right: int
    empty: int
    classes: int = 0
    own_thresholds: int = 0

    def __str__(self) -> str:
        low, high = wilson_interval(self.covered / self.images, self.images)
        several = self.images - self.answered - self.empty
        right = f", {self.right / self.answered:.2%} of them correctly" if self.answered else ""
        return (
            f"Prediction sets of {self.coverage:.4g} coverage, from "
            f"{counted(self.calibrated_on, 'image')}: {self.covered / self.images:.2%} of "
            f"{counted(self.images, 'image')} have their class in the set (95 % interval "
            f"{low:.2%} to {high:.2%}), which has {self.mean_size:.2f} classes on average. "
            f"Answered with one class: {self.answered / self.images:.2%}{right}; several classes "
            f"{several / self.images:.2%}, none {self.empty / self.images:.2%}. {self._evidence}"
        ).strip()

    @property
    def _evidence(self) -> str:
        """What this number of calibration images guarantees, for all classes and for each one."""
        least = fewest_examples(self.coverage)
        if self.calibrated_on < least:
            return ""
        text = calibration_text(self.calibrated_on, self.coverage)
        if not self.classes:
            return text
        if not self.own_thresholds:
            return f"{text} One threshold for all classes promises nothing of a single one."
        return (
            f"{text} That is of all classes together; {self.own_thresholds} of {self.classes:,} "
            f"have a threshold of their own, which takes {least:,} images of the class or more, "
            f"and {examples_within(0.05, self.coverage):,} for 5 points."
        )


def set_report(sets: PredictionSets, sizes: Any, covered: Any) -> SetReport:
    """Counts what sets hold.

    Args:
        sets: Of the model's task.
        sizes: Classes in the set of each image, int `(images,)`.
        covered: Whether its own class is one of them, bool `(images,)`.

    Raises:
        ValueError: There is no image, or shapes differ.

    Example:

    >>> from keras_vit.evaluation.set_report import set_report
    >>> from keras_vit.tasks import PredictionSets
    >>> sets = PredictionSets("lac", 0.9, (0.4, 0.4), 100)
    >>> report = set_report(sets, [1, 2, 0, 1], [True, True, False, False])
    >>> report.covered, report.answered, report.right, report.empty
    (2, 2, 1, 1)
    """
    sizes, covered = np.asarray(sizes), np.asarray(covered, bool)
    if not len(sizes) or sizes.shape != covered.shape:
        raise ValueError(
            f"sizes {sizes.shape} do not go with covered {covered.shape}: give one each per image, "
            "and at least one image."
        )
    single = sizes == 1
    return SetReport(
        sets.coverage,
        sets.images,
        len(sizes),
        int(covered.sum()),
        float(sizes.mean()),
        int(single.sum()),
        int((single & covered).sum()),
        int((sizes == 0).sum()),
        len(sets.thresholds),
        len(sets.conditional),
    )
