"""The assignment of least cost, which scipy solves on the host, inside compiled steps too."""

from typing import Any

import keras
import numpy as np


def assigned_rows(costs: Any, is_present: Any) -> Any:
    """Return which row each column is assigned, so that the sum of costs is least (Kuhn 1955).

    On TensorFlow not within XLA, which does not call the host; on JAX in one process.

    Args:
        costs: `(batch, rows, columns)`, float32; no gradient passes.
        is_present: `(batch, columns)`, bool: which columns there are.

    Returns:
        int32 `(batch, columns)`: a row, each at most once; -1 where the column is not present or
        there are no more rows.

    Raises:
        ValueError: There are several JAX processes.

    >>> costs = np.array([[[3.0, 1.0, 0.0], [1.0, 2.0, 0.0]]], "float32")
    >>> rows = assigned_rows(costs, np.array([[True, True, False]]))
    >>> keras.ops.convert_to_numpy(rows).tolist()
    [[1, 0, -1]]
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        rows = tf.numpy_function(_on_host, [costs, is_present], tf.int32, stateful=False)
        return tf.ensure_shape(rows, is_present.shape)
    if backend == "jax":
        import jax

        if jax.process_count() > 1:
            raise ValueError(
                f"Costs of {jax.process_count()} JAX processes are on several hosts, and scipy "
                "assigns on one: train in one process, on all of its devices, or on torch."
            )
        shape = jax.ShapeDtypeStruct(is_present.shape, "int32")
        # A gradient of what is chosen, or its tangent, would be asked of the host, too.
        costs = jax.lax.stop_gradient(costs)
        return jax.pure_callback(_on_host, shape, costs, is_present)
    costs, is_present = (keras.ops.convert_to_numpy(x) for x in (costs, is_present))
    return keras.ops.convert_to_tensor(_on_host(costs, is_present))


def _on_host(costs: Any, is_present: Any) -> np.ndarray:
    from scipy.optimize import linear_sum_assignment

    # What is not finite is chosen where nothing else is left, as transformers does.
    most = float(np.finfo(np.float32).max)
    costs = np.nan_to_num(np.asarray(costs), nan=most, posinf=most, neginf=most)
    is_present = np.asarray(is_present)
    assigned = np.full(is_present.shape, -1, np.int32)
    for image, (matrix, present) in enumerate(zip(costs, is_present, strict=True)):
        columns = np.flatnonzero(present)
        rows, places = linear_sum_assignment(matrix[:, columns])
        assigned[image, columns[places]] = rows
    return assigned
