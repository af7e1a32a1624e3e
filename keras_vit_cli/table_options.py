"""From the options of a command to the arguments of `keras_vit.data.load` for a table of labels."""

from typing import Any


def table_options(options: Any, task: str | None = None) -> dict[str, Any]:
    """Nothing where no table is given.

    Args:
        options: Of `train` or `evaluate`.
        task: The kind of task where the options do not have one.
    """
    if options.labels is None:
        return {}
    columns = options.label_columns
    return {
        "labels": options.labels,
        "task": options.task or task,
        "file_column": options.file_column,
        "label_columns": None if columns is None else columns.split(","),
        "separator": options.separator,
        "on_bad_row": options.on_bad_row,
    }
