"""On JAX, places each batch on the devices of `keras.distribution`, in place of Keras.

Keras refuses a batch whose rows the devices do not divide, mostly the last one. Such a batch is
copied whole to every device. Inside the step, the model repeats its last row until they divide it,
cuts it, and drops the repeated rows of its outputs: loss and metrics see the rows that are there.

In several processes a batch has the images of all rows or of this process's, and labels of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import keras
import numpy as np

from keras_vit.ops.current_distribution import batches_on_host, current_distribution
from keras_vit.ops.processes import check_same_batch, rows_in
from keras_vit.ops.step import on_all_processes

# The axis of a mesh of devices that cuts the products of each block.
MODEL = "model"


def layout_of(variable: keras.Variable) -> Any:
    """How a variable is cut over devices; None where no distribution was set."""
    return getattr(variable, "_layout", None)


def check_placement(model: keras.Model) -> None:
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


def batches_on_devices(x: Any, y: Any = None, sample_weight: Any = None, **options: Any) -> Any:
    """What `fit`, `evaluate` and `predict` take as `x`: the data, in batches on the devices.

    Args:
        x: Data as these methods take them.
        y: Labels, likewise.
        sample_weight: Weights, likewise.
        **options: `batch_size`, `shuffle`, `class_weight` and `steps_per_epoch`.
    """
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
    """One array of a batch: cut by rows if the devices divide them, else whole on each device."""
    import jax

    if leaf is None or (isinstance(leaf, jax.Array) and len(leaf.devices()) > 1):
        return leaf
    shape = (rows, *leaf.shape[1:])
    layout = distribution.get_data_layout(shape)
    if rows % replica_count(distribution):
        layout = keras.distribution.TensorLayout([None] * leaf.ndim, distribution.device_mesh)
    return jax.make_array_from_process_local_data(layout.backend_layout, np.asarray(leaf), shape)


def _mesh(placed: Any) -> Any:
    """The mesh of a distribution or a layout; Keras 3.11 keeps JAX's own sharding of a variable."""
    return placed.device_mesh if hasattr(placed, "device_mesh") else placed.mesh


def _devices(mesh: Any) -> tuple[Any, ...]:
    """Shape and devices of a mesh."""
    names = (d if isinstance(d, str) else f"{d.platform}:{d.id}" for d in mesh.devices.flat)
    return mesh.devices.shape, *names


def replica_count(distribution: Any) -> int:
    """Into how many parts the rows of a batch are cut."""
    mesh = distribution.device_mesh
    return int(mesh.shape[mesh.axis_names.index(distribution.batch_dim_name)])


def on_all_devices(function: Callable[[Any], Any], images: Any) -> Any:
    """Calls a function of a batch, within a step on devices that do not divide its rows.

    In several processes on torch, each computes its rows, and gets the outputs of all.

    Args:
        function: From a batch to outputs with a row for each of its rows, which depends on no
            other row.
        images: The batch.
    """
    distribution = current_distribution()
    if distribution is None:
        return on_all_processes(function, images)
    import jax

    rows, replicas = images.shape[0], replica_count(distribution)
    if not isinstance(images, jax.core.Tracer) or not rows % replicas:
        return function(images)
    index = keras.ops.minimum(keras.ops.arange(-(-rows // replicas) * replicas), rows - 1)
    images = keras.ops.take(images, index, axis=0)
    images = keras.distribution.distribute_tensor(
        images, distribution.get_data_layout(images.shape)
    )
    return keras.tree.map_structure(lambda outputs: outputs[:rows], function(images))


def is_cut_by_heads() -> bool:
    """Whether the devices share the heads of each block: tensor parallel."""
    distribution = current_distribution()
    return distribution is not None and MODEL in distribution.device_mesh.axis_names


def cut_last_axis(weights: Any) -> Any:
    """A weight whose last axis is cut for tensor parallel, as attention uses it."""
    mesh = current_distribution().device_mesh
    axes = [None] * (len(weights.shape) - 1) + [MODEL]
    return keras.distribution.distribute_tensor(
        weights, keras.distribution.TensorLayout(axes, mesh)
    )
