"""`Compared`: the answers of several models to the same images, each beside the first."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from keras_vit._base.errors import counted
from keras_vit.evaluation.outcomes import Outcomes
from keras_vit.evaluation.unseen_images import Scored
from keras_vit.tasks.scores import LEAST_EXAMPLES, Score

LETTERS = "ABCDEFGH"
MOST_SHOWN = 24


class Compared:
    """The outcomes of several models on the same images; the first is what others are compared to.

    Args:
        outcomes: Of each model, for the same images in the same order.
        main: The score, higher is better, by which one is called better.
        models: The name of each, as it was given.
        images: What they answer to.
    """

    def __init__(
        self, outcomes: Sequence[Outcomes], main: str, models: Sequence[str], images: Scored
    ) -> None:
        self.outcomes, self.main, self.models, self.images = list(outcomes), main, models, images
        self.task, self.letters = outcomes[0].task, LETTERS[: len(models)]

    @cached_property
    def scores(self) -> dict[str, list[Score]]:
        """Each score of every model, with its own interval."""
        rows = [one.task.scores_of(one.tally) for one in self.outcomes]
        return {name: [row[name] for row in rows] for name in rows[0]}

    @cached_property
    def changes(self) -> list[dict[str, Score]]:
        """By how much each model but the first scores more, with paired intervals."""
        first, *others = self.outcomes
        return [first.task.changes_of(first.tally, each.tally, each.task) for each in others]

    @property
    def verdicts(self) -> list[str]:
        """A sentence on each model but the first."""
        return [self._verdict(i, changes) for i, changes in enumerate(self.changes, 1)]

    def _verdict(self, which: int, changes: dict[str, Score]) -> str:
        value, low, high = changes[self.main]
        name, letter = self.main.replace("_", " "), LETTERS[which]
        if not np.isfinite(value):
            return f"The {name} of {letter}, or of A, is not defined on these images."
        if (images := len(self.outcomes[0])) < LEAST_EXAMPLES:
            return (
                f"The {name} of {letter} differs from that of A by {value:+.3g} on "
                f"{counted(images, 'image')}, too few to know which one is better: take "
                f"{LEAST_EXAMPLES} or more."
            )
        interval = f"paired 95 % interval of the difference {changes[self.main].interval('+.3g')}"
        if low > 0 or high < 0:
            side = "above" if low > 0 else "below"
            return f"The {name} of {letter} is {abs(value):.3g} {side} that of A ({interval})."
        return (
            f"The {name} of {letter} differs from that of A by {value:+.3g}, and either of them "
            f"may be the better one: the interval holds 0 ({interval})."
        )

    def differing(self, which: int) -> np.ndarray:
        """Return the places of images that two models answer otherwise, the most different first.

        Where an answer is one name, those with another one; otherwise those whose answers are not
        equally far from the truth.
        """
        first, other = self.outcomes[0], self.outcomes[which]
        gap = np.abs(self.task.distance(first.tally) - self.task.distance(other.tally))
        differ = gap > 1e-5  # answers of float32, perhaps of another offset and scale
        if self.task.is_one_name:
            differ = first.tally["predictions"] != other.tally["predictions"]
        order = np.argsort(-gap, kind="stable")
        return order[differ[order]]

    def right_alone(self, which: int) -> str:
        """Say for how many images one of two models alone names the truth, or how many differ."""
        first, other = self.outcomes[0].tally, self.outcomes[which].tally
        places = self.differing(which)
        images = counted(len(self.outcomes[0]), "image")
        if not self.task.is_one_name:
            return f"Of {images}, {len(places):,} are not equally far from the truth."
        labels, letter = first["labels"][places], LETTERS[which]
        ours = int((first["predictions"][places] == labels).sum())
        theirs = int((other["predictions"][places] == labels).sum())
        neither = len(places) - ours - theirs
        return (
            f"Of {images}, {len(places):,} have another answer: A alone is right for {ours:,}, "
            f"{letter} alone for {theirs:,}, neither for {neither:,}."
        )
