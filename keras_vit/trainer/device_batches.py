"""`fit`, `evaluate` and `predict` on the devices or in the processes that are set.

Keras refuses a batch whose rows the devices do not divide, mostly the last one. Such a batch is
copied whole to every device, and cut inside the step (`ops/devices.py`). In several processes a
batch has the images of all rows or of this process's, and labels of all.

Unnecessary from Keras: none yet on JAX, where it refuses batches that the devices do not divide,
and expects as many images as labels of each process; 3.16 on torch.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import keras
import numpy as np

from keras_vit.ops import (
    batches_on_host,
    current_distribution,
    current_processes,
    is_first_process,
    layout_of,
    start_from_first_process,
)
from keras_vit.ops.devices import replica_count
from keras_vit.ops.processes import check_same_batch, rows_in


@contextmanager
def on_devices_that_are_set(
    model: keras.Model, function: str, arguments: dict[str, Any]
) -> Iterator[None]:
    """Meanwhile a method runs on the devices of `keras.distribution`, from equal starts.

    Its arguments are changed in place.
    """
    with batches_on_host():
        _let_first_show_progress(arguments)
        if current_distribution() is not None:
            _check_placement(model)
            _distribute(arguments, function)
        start_from_first_process(model)
        yield


def _let_first_show_progress(arguments: dict[str, Any]) -> None:
    """Leaves the progress bar of a method to the first of several processes."""
    is_other = current_processes() is not None and not is_first_process()
    if is_other and arguments.get("verbose", "auto") == "auto":
        arguments["verbose"] = 0


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
        data["validation_data"] = _batches_on_devices(
            *keras.utils.unpack_x_y_sample_weight(held_out),
            batch_size=data.pop("validation_batch_size", None) or options["batch_size"],
            steps_per_epoch=data.get("validation_steps"),
        )
    if function == "train_function":
        options["shuffle"] = data.pop("shuffle", True)
        options["class_weight"] = data.pop("class_weight", None)
    data["x"] = _batches_on_devices(*images, **options)


def _check_placement(model: keras.Model) -> None:
    """Checks that a model was built for the distribution that is set.

    Raises:
        ValueError: It was built before, or for another one; or the distribution cuts none of it.
    """
    distribution = current_distribution()
    layouts = [layout_of(variable) for variable in model.variables]
    # Nearly always one mesh: its devices are compared once, not for each variable.
    if None in layouts or {*map(_devices, {*map(_mesh, layouts)})} != {
        _devices(_mesh(distribution))
    }:
        raise ValueError(
            f"{model.name} was built before keras.distribution.set_distribution, or for other "
            "devices. Set the distribution first; model.copy() builds the same model anew."
        )
    if hasattr(distribution, "check_model"):
        distribution.check_model(model)


def _batches_on_devices(x: Any, y: Any = None, sample_weight: Any = None, **options: Any) -> Any:
    """Return what `fit`, `evaluate` and `predict` take as `x`: batches on the devices."""
    # The door that Keras leaves open for data of one's own: an adapter in place of `x`.
    from keras.src.trainers.data_adapters import get_data_adapter

    adapter = get_data_adapter(x, y, sample_weight, **options)
    batches = adapter.get_jax_iterator
    adapter.get_jax_iterator = lambda: placed(_checked(batches()))
    return adapter


def _checked(batches: Iterable[Any]) -> Iterator[Any]:
    """Batches, of which the first is compared with those of other processes."""
    for number, batch in enumerate(batches):
        if number == 0:
            check_same_batch(batch)
        yield batch


def placed(batches: Iterator[Any]) -> Iterator[Any]:
    """Batches from the host, or Keras's of one device, on the devices of the distribution."""
    distribution = current_distribution()
    while True:
        with batches_on_host():
            batch = next(batches, None)
        if batch is None:
            return
        place = partial(_place, rows=rows_in(batch), distribution=distribution)
        yield keras.tree.map_structure(place, batch)


def _place(leaf: Any, rows: int, distribution: Any) -> Any:
    """Place one array of a batch: cut by rows if the devices divide them, else whole on each."""
    import jax

    if leaf is None or (isinstance(leaf, jax.Array) and len(leaf.devices()) > 1):
        return leaf
    shape = (rows, *leaf.shape[1:])
    layout = distribution.get_data_layout(shape)
    if rows % replica_count(distribution):
        layout = keras.distribution.TensorLayout([None] * leaf.ndim, distribution.device_mesh)
    return jax.make_array_from_process_local_data(layout.backend_layout, np.asarray(leaf), shape)


def _mesh(placed: Any) -> Any:
    """Return a distribution's or layout's mesh; Keras 3.11 keeps JAX's sharding of a variable."""
    return placed.device_mesh if hasattr(placed, "device_mesh") else placed.mesh


def _devices(mesh: Any) -> tuple[Any, ...]:
    """Shape and devices of a mesh."""
    names = (d if isinstance(d, str) else f"{d.platform}:{d.id}" for d in mesh.devices.flat)
    return mesh.devices.shape, *names


def global_batch(iterator: Any) -> Any:
    """Shapes and dtypes of a batch with the rows of all processes; None without a distribution.

    Keras would cut the batch that it reads within `on_devices`, and would not expect fewer images
    than labels.
    """
    if current_distribution() is None and current_processes() is None:
        return None
    batches = next(iter(iterator))[2]
    batch = batches[0] if isinstance(batches, list | tuple) else next(batches)
    return keras.tree.map_structure(partial(_with_rows, rows=rows_in(batch)), batch)


def _with_rows(array: Any, rows: int) -> keras.KerasTensor | None:
    """Return an array's shape and dtype, with the number of rows of its batch."""
    if array is None:
        return None
    dtype = keras.backend.standardize_dtype(array.dtype)
    return keras.KerasTensor((rows, *array.shape[1:]), dtype)


def _rows(arrays: Any, rows: slice) -> Any:
    return keras.tree.map_structure(lambda a: None if a is None else a[rows], arrays)
