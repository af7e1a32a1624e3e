"""Computing on the devices of `keras.distribution`: JAX.

A batch whose rows the devices do not divide lies whole on each device: the trainer placed it there.
Inside the step, the model repeats its last row until they divide it, cuts it, and drops the
repeated rows of its outputs: loss and metrics see the rows that are there.
"""

from collections.abc import Callable
from typing import Any

import keras

from keras_vit.ops.current_distribution import current_distribution
from keras_vit.ops.step import on_all_processes

# The axis of a mesh of devices that cuts the products of each block.
MODEL = "model"


def layout_of(variable: keras.Variable) -> Any:
    """Return how a variable is cut over devices; None where no distribution was set."""
    return getattr(variable, "_layout", None)


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
    """Return whether the devices share the heads of each block: tensor parallel."""
    distribution = current_distribution()
    return distribution is not None and MODEL in distribution.device_mesh.axis_names


def cut_last_axis(weights: Any) -> Any:
    """Return a weight whose last axis is cut for tensor parallel, as attention uses it."""
    mesh = current_distribution().device_mesh
    axes = [None] * (len(weights.shape) - 1) + [MODEL]
    return keras.distribution.distribute_tensor(
        weights, keras.distribution.TensorLayout(axes, mesh)
    )
