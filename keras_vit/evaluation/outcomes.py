"""`Outcomes`: what predictions leave behind for their report, whatever the task.

Of 21,843 images and as many classes, probabilities are 1.9 GB, and a report needs four numbers per
image; so a task keeps of each batch what its scores need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_vit.tasks import Task
from keras_vit.tasks.answer import Tally


@dataclass(frozen=True)
class Outcomes:
    """The targets and answers of some images, as far as scores need them.

    Attributes:
        task: What the answers mean.
        tally: What `task.tally` returns: arrays with an entry per image, by name.
        novelty: How far each image is from the training images, in parts of the threshold
            `(images,)`; None for a model without a novelty.
    """

    task: Task
    tally: Tally
    novelty: np.ndarray | None = None

    def __len__(self) -> int:
        return len(next(iter(self.tally.values())))

    @classmethod
    def of(
        cls, task: Task, targets: Any, answers: Any, novelty: np.ndarray | None = None
    ) -> Outcomes:
        """Return the outcomes of answers.

        Args:
            task: What they mean.
            targets: As `task.check_targets` takes them.
            answers: As `task.answers` returns them.
            novelty: `(images,)`, or None.

        Raises:
            ValueError: There is not a finite answer per target.
        """
        return cls(task, task.tally(targets, np.asarray(answers)), novelty)

    @classmethod
    def joined(cls, parts: Sequence[Outcomes]) -> Outcomes:
        """Return all images of some parts, in order."""
        first = parts[0]
        tally = {name: np.concatenate([part.tally[name] for part in parts]) for name in first.tally}
        novelties = [part.novelty for part in parts if part.novelty is not None]
        return cls(first.task, tally, np.concatenate(novelties) if novelties else None)

    def worst(self, count: int = 24) -> list[int]:
        """Return the places of the answers farthest from their truth, the worst first."""
        distance = self.task.distance(self.tally)
        order = np.argsort(-distance, kind="stable")[:count]
        return [int(i) for i in order if distance[i] > 0]
