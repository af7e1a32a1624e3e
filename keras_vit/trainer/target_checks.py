"""What class weights and the first batch's targets show of another task than is trained.

A loss takes numbers of any scale, rows with any number of ones, and weights of names that no label
has: the model trains, and answers something else than was meant.

Unnecessary from Keras: none yet. It does not know what outputs mean.
"""

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

from keras_vit._base.errors import listed, printable
from keras_vit.tasks import Task
from keras_vit.tasks.target import Seen
from keras_vit.trainer.pixel_ranges import warn_once

# The sum of a row of labels from which they are several classes at once: two of them, smoothed.
SEVERAL = 1.5
# Values that are kept of numbers, in the model's configuration.
MOST_SEEN = 256


def check_numbers(targets: np.ndarray, task: Task | None, warned: set[str]) -> Seen:
    """Warns of numbers that the task scales and that are not scaled; returns what was seen.

    Raises:
        ValueError: A number is NaN or infinite.
    """
    if targets.dtype.kind not in "biuf" or not targets.size:  # Keras's own error names it
        return ()
    rows = targets.reshape(len(targets), -1).astype("float64")
    if not np.isfinite(rows).all():
        wrong = rows[~np.isfinite(rows)]
        raise ValueError(
            f"The targets hold {wrong[0]}, {len(wrong)} of {rows.size} in the first batch: "
            "training would destroy the weights. Leave such examples out, or replace missing "
            "numbers and give their examples a sample_weight of 0."
        )
    seen = (len(rows), *rows.mean(axis=0).tolist(), *rows.std(axis=0).tolist())
    if task is not None and (wrong_scale := task.not_scaled(seen)):
        warn_once(f"The targets have {wrong_scale}", "scale", warned)
    return seen if len(seen) <= MOST_SEEN else ()


def check_several(rows: np.ndarray, warned: set[str]) -> None:
    """Warns of rows that are several classes at once, to a model that answers one of them."""
    sums = rows.astype("float32").sum(axis=-1) if rows.shape[-1] > 1 else np.ones(1)
    if (sums == 0).any():
        warn_once(
            "A row of labels is all 0, and the loss learns nothing from it: leave such images out, "
            "or give their class. For any of several labels, none among them, build the model with "
            'task="multilabel" and compile it with model.task.loss().',
            "none",
            warned,
        )
    if (most := float(sums.max(initial=0))) > SEVERAL:
        warn_once(
            f"A row of labels sums to {most:.3g}, several classes at once, and the model answers "
            'one of them. For any of several labels, build it with task="multilabel" and compile '
            "it with model.task.loss().",
            "several",
            warned,
        )


def check_class_weight(
    class_weight: Any, task: type[Task] | None, classes: int, names: Any
) -> None:
    """Raises a ValueError for a `class_weight` that Keras ignores, or applies to other images.

    Args:
        task: The kind of task that is trained; None where it may be any.
    """
    is_row = task is not None and not task.is_one_name and classes > 1
    if task is not None and (is_row or task.are_numbers or task.per_pixel):
        labels = 'loss=model.task.balanced(model.task.loss(), "weights", labels), or balance='
        labels += '"weights" of a recipe of keras_vit.fit'
        fix = labels if task.balances else "a sample_weight per image"
        raise ValueError(
            "class_weight weights an image by its one class, and Keras would take the largest "
            f"target of a row of {task.kind} for it. Give {fix}, and leave it out."
        )
    if not isinstance(class_weight, Mapping):
        raise ValueError(
            f"class_weight is a {type(class_weight).__name__}, and Keras looks labels up in a "
            "dictionary. Give class_weight=dict(enumerate(class_weight))."
        )
    if bad := {k: v for k, v in class_weight.items() if not np.isfinite(v)}:
        raise ValueError(f"class_weight holds {bad}: give a finite number for each class.")
    keys, most = list(class_weight), max(classes, 2)  # a single output has 0 and 1
    wrong = [key for key in keys if not isinstance(key, Real) or key not in range(most)]
    if wrong or not keys:
        of_names = {names.index(key): class_weight[key] for key in keys if key in (names or ())}
        example = of_names if len(of_names) == len(keys) > 0 else {0: 1.0, 1: 2.0}
        raise ValueError(
            f"class_weight has the keys {printable(listed(list(map(repr, wrong))))}, and Keras "
            f"looks labels up as integers, here from 0 to {most - 1}: it would ignore the others. "
            f"Give class_weight={example}."
        )
