"""What a model's outputs mean: classes, labels, numbers, grades; classes or depths of pixels."""

from collections.abc import Mapping
from typing import Any

from keras_vit._base.errors import did_you_mean
from keras_vit.tasks.classification import Classification
from keras_vit.tasks.conformal import PredictionSets
from keras_vit.tasks.depth import Depth
from keras_vit.tasks.multilabel import Multilabel
from keras_vit.tasks.ordinal import Ordinal
from keras_vit.tasks.regression import Regression
from keras_vit.tasks.relative_depth import RelativeDepth
from keras_vit.tasks.segmentation import Segmentation
from keras_vit.tasks.task import Task

__all__ = [
    "TASKS",
    "Classification",
    "Depth",
    "Multilabel",
    "Ordinal",
    "PredictionSets",
    "Regression",
    "RelativeDepth",
    "Segmentation",
    "Task",
    "get",
]

_OF_IMAGES = (Classification, Multilabel, Regression, Ordinal)
_OF_PIXELS = (Segmentation, Depth, RelativeDepth)
TASKS: dict[str, type[Task]] = {cls.kind: cls for cls in (*_OF_IMAGES, *_OF_PIXELS)}


def get(task: Any, **arguments: Any) -> Task:
    """Return a task from a `Task`, a kind with the arguments of its class, or a configuration.

    Args:
        task: A `Task`, which is returned as it is; a key of `TASKS`; or what `Task.get_config`
            returned.
        **arguments: Of the class of that kind, such as `names` or `size`.

    Raises:
        ValueError: The kind is unknown, or an argument is not accepted.

    Example:

    >>> from keras_vit import tasks
    >>> task = tasks.get("multilabel", names=["beach", "people"])
    >>> tasks.get(task.get_config()) == task
    True
    """
    if isinstance(task, str):
        task = {"kind": task}
    if isinstance(task, Mapping) and task.get("kind") in TASKS:
        config = {**task, **arguments}
        return TASKS[config["kind"]].from_config(config)
    if isinstance(task, Task) and not arguments:
        return task
    if isinstance(task, Task):
        raise ValueError(f"{task!r} has its arguments: give a kind, {task.kind!r}, with others.")
    kind = task.get("kind") if isinstance(task, Mapping) else task
    raise ValueError(
        f"{kind!r} is not a task. {did_you_mean(str(kind), TASKS)} Give a Task, one of "
        f"{', '.join(map(repr, TASKS))}, or a configuration of Task.get_config()."
    )


def of_head(outputs: int, activation: Any) -> Task | None:
    """Return the task of a head whose meaning is not stated; None where there are several.

    >>> of_head(5, None), of_head(1, None), of_head(5, "sigmoid")
    (Classification(names=(), size=5, sets=None), None, None)
    """
    is_known = outputs > 1 and activation in (None, "linear", "softmax")
    return Classification(size=outputs) if is_known else None
