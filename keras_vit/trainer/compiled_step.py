"""A training step as XLA compiles it for devices that need not be here: JAX.

Unnecessary from Keras: none yet. Its steps compile for the devices that are here, as they run.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import keras

from keras_vit._base.version import DISTRIBUTION
from keras_vit.ops.devices import layout_of


def tpu_devices(topology: str) -> list[Any]:
    """Return the devices of a TPU such as `"v5e:4x4"`, for its compiler alone.

    Raises:
        ImportError: The package `libtpu` is not installed.
        ValueError: There is no such TPU.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise ImportError(
            f"The compiler of TPUs is missing: pip install '{DISTRIBUTION}[tpu]'. Nothing else is "
            "needed, and no TPU."
        )
    from jax.experimental import topologies

    # Without these, the library looks for a TPU in this machine, for minutes.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    try:
        return list(topologies.get_topology_desc(topology, "tpu").devices)
    except Exception as error:  # of libtpu's own kinds
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"{topology!r} is not a TPU that libtpu knows ({reason}). Give one such as 'v5e:2x4'."
        ) from error


def compile_step(
    model: keras.Model, distribution: Any, batch_size: int, training: bool = True
) -> Any:
    """Return the compiled step of an image classifier, in place of `fit`'s or `predict`'s.

    Args:
        model: Built in `keras.StatelessScope(initialize_variables=False)`: without values.
        distribution: A `keras.distribution.Distribution`.
        batch_size: Images of a step, on all devices together: uint8.
        training: A training step with AdamW; else the logits of a batch.

    Returns:
        A `jax.stages.Compiled`.
    """
    import jax

    for variable in model.variables:
        variable._layout = distribution.get_variable_layout(variable)  # its states follow it

    def on_devices(values: Any, layout: Any) -> Any:
        return jax.ShapeDtypeStruct(values.shape, values.dtype, sharding=layout.backend_layout)

    def state_of(*groups: Any) -> tuple[Any, ...]:
        return tuple(
            [on_devices(v, layout_of(v) or distribution.get_variable_layout(v)) for v in group]
            for group in groups
        )

    images = keras.KerasTensor((batch_size, *model.input_shape[1:]), "uint8")
    labels = keras.KerasTensor((batch_size,), "int32")
    data = tuple(on_devices(x, distribution.get_data_layout(x.shape)) for x in (images, labels))
    weights = model.trainable_variables, model.non_trainable_variables
    if not training:
        with distribution.scope():
            step = jax.jit(lambda *arguments: model.stateless_call(*arguments, training=False)[0])
            return step.lower(*state_of(*weights), data[0]).compile()
    model.compile(
        keras.optimizers.AdamW(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    with keras.StatelessScope(initialize_variables=False):
        model.optimizer.build(model.trainable_variables)
        model._symbolic_build(data_batch=(images, labels))
    state = state_of(*weights, model.optimizer.variables, model.metrics_variables)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    with distribution.scope():
        step = jax.jit(model.train_step, donate_argnums=0, out_shardings=(None, shardings))
        return step.lower(state, data).compile()
