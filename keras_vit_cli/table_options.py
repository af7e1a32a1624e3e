"""From the options of a command to the arguments of `keras_vit.data.load` for a table of labels."""

from typing import Any


def band_numbers(text: str | None) -> tuple[int, ...] | str | None:
    """The value of `--bands` as `keras_vit.data.load` takes it.

    >>> band_numbers("4,3,2")
    (4, 3, 2)
    """
    return text if text in (None, "all") else tuple(map(int, text.split(",")))


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
