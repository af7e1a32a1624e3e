"""An answer as a row of names and values, as JSON holds them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.tasks import Task

# So begins the reason for an answer that is not finite, and no reason for a file.
NOT_FINITE = "the model predicts "

Row = dict[str, Any]


def is_finite(answer: np.ndarray | tuple[np.ndarray, ...]) -> bool:
    """Return whether an answer, or that of each head, is one: without NaN and infinity."""
    return all(bool(np.isfinite(each).all()) for each in as_parts(answer))


def as_parts(answer: Any) -> tuple[Any, ...]:
    """Return the answers of the heads; of a model with one head, its answer alone."""
    return answer if isinstance(answer, tuple) else (answer,)


def name_of(path: Path | str) -> str:
    """Return a path as every format can hold it: with escapes for bytes that are not UTF-8.

    >>> name_of(Path("Blüte.jpg"))
    'Blüte.jpg'
    """
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def answer_row(
    task: Task,
    file: Path | str | int,
    answer: np.ndarray | str,
    top: int = 5,
    novelty: bool = False,
) -> Row:
    """Put the answer to an image into words.

    Args:
        task: What the answer means.
        file: Of the image; or its number in an array.
        answer: `(size,)`, with a novelty `(size + 1,)`; or the reason why there is none.
        top: How many rows `predictions` has at most, where they are ranked.
        novelty: Whether the last number of the answer is how novel the image is.

    Returns:
        `file`, `error`, which is None or the reason why there is no answer, and what
        `task.describe` returns: `predictions`, a list with a dictionary per name, and for some
        tasks what is decided, such as `labels`. With a novelty also `novel`, whether it is above 1,
        and `novelty`. An answer that is not finite is a reason, too.

    Example:

    >>> from keras_vit.evaluation.answer_row import answer_row
    >>> from keras_vit.tasks import Classification
    >>> answer_row(Classification(("cat", "dog")), "a.jpg", np.array([0.25, 0.75]), top=1)
    {'file': 'a.jpg', 'error': None, 'predictions': [{'class': 'dog', 'probability': 0.75}]}
    """
    name = file if isinstance(file, int) else name_of(file)
    if not isinstance(answer, str) and not is_finite(answer):
        answer = f"{NOT_FINITE}{answer[~np.isfinite(answer)][0]}, which is not an answer"
    if isinstance(answer, str):
        return {"file": name, "error": answer}
    row: Row = {"file": name, "error": None}
    if novelty:
        answer, score = answer[:-1], float(answer[-1])
        row |= {"novel": score > 1, "novelty": score}
    return {**row, **task.describe(answer, top)}


def row_of_heads(
    tasks: Mapping[str, Task], file: Path | str | int, answer: Any, top: int = 5
) -> Row:
    """Put the answers of several heads to an image into words.

    Returns:
        `file`, `error`, and by the name of each head what `answer_row` has besides these.

    >>> from keras_vit.tasks import Regression
    >>> row_of_heads({"size": Regression(("cm",))}, "a.jpg", (np.array([2.5]),))["size"]
    {'predictions': [{'name': 'cm', 'value': 2.5}]}
    """
    if isinstance(answer, str):
        return {"file": name_of(file) if not isinstance(file, int) else file, "error": answer}
    row: Row = {"file": None, "error": None}
    for (name, task), each in zip(tasks.items(), answer, strict=True):
        of_head = answer_row(task, file, each, top)
        row["file"], error = of_head.pop("file"), of_head.pop("error")
        if error is not None:
            return {"file": row["file"], "error": f"{error} ({name})"}
        row[name] = of_head
    return row
