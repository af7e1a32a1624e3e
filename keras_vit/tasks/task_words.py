"""A task in words, for messages that compare two of them."""

from typing import Any

from keras_vit._base.errors import listed, printable
from keras_vit.tasks.task import Task


def scale_of(task: Task) -> tuple[Any, ...]:
    """Return the offset and scale of numbers; `()` of other tasks."""
    return (*getattr(task, "offset", ()), *getattr(task, "scale", ()))


def form_of(task: Task | type[Task]) -> str | None:
    """Return which form of a number outputs are, such as its logarithm; None of other tasks."""
    return getattr(task, "form", None)


def in_words(task: Task) -> str:
    """Return the kind, size, names and scale of a task.

    >>> from keras_vit.tasks import Classification
    >>> in_words(Classification(("cat", "dog")))
    'classification of 2 (cat, dog)'
    """
    names = f" ({printable(listed(task.names, 5))})" if task.names else ""
    scale = f" with offset and scale {scale_of(task)}" if scale_of(task) else ""
    return f"{task.kind} of {task.size}{names}{scale}"
