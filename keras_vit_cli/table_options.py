"""From the options of a command to the arguments of `keras_vit.data.load` for a table of labels."""

from typing import Any

from keras_vit import tasks
from keras_vit.tasks import Ordinal, Task


def table_options(options: Any, task: Task | None = None) -> dict[str, Any]:
    """Nothing where no table is given.

    Args:
        options: Of a command that reads tables.
        task: Of the model that the table is for, where there is one.

    Raises:
        ValueError: The order of the grades has fewer than two, or one of them twice.
    """
    if options.labels is None:
        return {}
    kind: str | Task | None = options.task or (task and task.kind)
    if options.order is not None:
        kind = Ordinal(tuple(name.strip() for name in options.order.split(",")))
    elif task is not None and task.names and kind == task.kind:
        kind = tasks.get(kind, names=task.names)  # which the table need not show again
    columns = options.label_columns
    return {
        "labels": options.labels,
        "task": kind,
        "file_column": options.file_column,
        "label_columns": None if columns is None else columns.split(","),
        "separator": options.separator,
        "on_bad_row": options.on_bad_row,
    }
