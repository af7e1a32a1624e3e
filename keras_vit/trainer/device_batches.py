"""`fit`, `evaluate` and `predict` on the devices or in the processes that are set.

Unnecessary from Keras: none yet on JAX, where it refuses batches that the devices do not divide,
and expects as many images as labels of each process; 3.16 on torch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import keras

from keras_vit.ops import (
    batches_on_devices,
    batches_on_host,
    check_placement,
    current_distribution,
    current_processes,
    only_first_shows_progress,
    rows_in,
    start_from_first_process,
)


@contextmanager
def on_devices_that_are_set(
    model: keras.Model, function: str, arguments: dict[str, Any]
) -> Iterator[None]:
    """Meanwhile a method runs on the devices of `keras.distribution`, from equal starts.

    Args:
        model: The model.
        function: The step function that the method runs, such as `"train_function"`.
        arguments: Those of the method by name; changed in place.
    """
    with batches_on_host():
        only_first_shows_progress(arguments)
        if current_distribution() is not None:
            check_placement(model)
            _distribute(arguments, function)
        start_from_first_process(model)
        yield


def _distribute(data: dict[str, Any], function: str) -> None:
    """Lays the batches of a call on the devices: changes its arguments in place."""
    images = [data.pop(name, None) for name in ("x", "y", "sample_weight")]
    options = {"steps_per_epoch": data.get("steps_per_epoch", data.get("steps"))}
    options["batch_size"] = data.pop("batch_size", None)
    held_out = data.get("validation_data")
    if held_out is None and (split := data.pop("validation_split", None)):
        at = int(len(keras.tree.flatten(images[0])[0]) * (1 - split))
        images, held_out = _rows(images, slice(at)), tuple(_rows(images, slice(at, None)))
    if held_out is not None:
        data["validation_data"] = batches_on_devices(
            *keras.utils.unpack_x_y_sample_weight(held_out),
            batch_size=data.pop("validation_batch_size", None) or options["batch_size"],
            steps_per_epoch=data.get("validation_steps"),
        )
    if function == "train_function":
        options["shuffle"] = data.pop("shuffle", True)
        options["class_weight"] = data.pop("class_weight", None)
    data["x"] = batches_on_devices(*images, **options)


def global_batch(iterator: Any) -> Any:
    """Shapes and dtypes of a batch with the rows of all processes; None without a distribution.

    Keras would cut the batch that it reads within `on_devices`, and would not expect fewer images
    than labels.

    Args:
        iterator: Keras's, of which a batch is taken.
    """
    if current_distribution() is None and current_processes() is None:
        return None
    batches = next(iter(iterator))[2]
    batch = batches[0] if isinstance(batches, list | tuple) else next(batches)
    return keras.tree.map_structure(partial(_with_rows, rows=rows_in(batch)), batch)


def _with_rows(array: Any, rows: int) -> keras.KerasTensor | None:
    """An array's shape and dtype, with the number of rows of its batch."""
    if array is None:
        return None
    dtype = keras.backend.standardize_dtype(array.dtype)
    return keras.KerasTensor((rows, *array.shape[1:]), dtype)


def _rows(arrays: Any, rows: slice) -> Any:
    return keras.tree.map_structure(lambda a: None if a is None else a[rows], arrays)
