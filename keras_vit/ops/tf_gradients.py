"""On TensorFlow, sums gradients over the replicas of `tf.distribute` before they are clipped.

    gradients of the replicas ──► all-reduce ──► clipping, accumulation, update, EMA in each replica

Keras sums them last: each replica clips its own part by the norm of that part, and accumulation
would need an exchange between replicas within a branch, which TensorFlow refuses. Here all replicas
have the sum, and each updates its own copies of weights and states, to the same values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras

# Whether the gradients that an optimizer gets now are sums over replicas already.
_are_summed: ContextVar[bool] = ContextVar("are_summed", default=False)

# Methods of Keras's optimizers for TensorFlow that leave a replica to update the copies of all.
_EXCHANGING = (
    "_apply_weight_decay",
    "_backend_update_step",
    "_backend_increment_gradient_accumulators",
    "_backend_maybe_overwrite_model_variables",  # from Keras 3.16 on
    "_overwrite_model_variables_with_average_value",
)


def in_one_of_several_replicas() -> bool:
    """Whether TensorFlow runs, or traces, one of several replicas of a step."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    return context is not None and context.strategy.extended._num_replicas_in_sync > 1


def sum_over_replicas(gradients: Sequence[Any]) -> list[Any]:
    """Gradients summed over the replicas of a step; as they are outside of one, or where summed.

    Gradients may be None: they stay None.
    """
    if _are_summed.get() or not in_one_of_several_replicas():
        return list(gradients)
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    present = [gradient for gradient in gradients if gradient is not None]
    sums = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, present))
    return [None if gradient is None else next(sums) for gradient in gradients]


@contextmanager
def summed_gradients() -> Iterator[None]:
    """Gradients that optimizers get meanwhile are sums over replicas already."""
    token = _are_summed.set(True)
    try:
        yield
    finally:
        _are_summed.reset(token)


def sum_gradients_first(optimizer: keras.optimizers.Optimizer | None) -> None:
    """Makes an optimizer sum gradients over replicas first; does nothing on other backends.

    Args:
        optimizer: Any of Keras's, or of this package; or None.
    """
    if keras.backend.backend() != "tensorflow" or optimizer is None:
        return
    if hasattr(optimizer, "_sums_gradients_first"):
        return
    from keras.src.backend.tensorflow.optimizer import TFOptimizer

    optimizer._sums_gradients_first = True
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        sum_gradients_first(optimizer.inner_optimizer)
        apply = optimizer._tf_apply

        def apply_scaled(gradients: Any, variables: Any = None) -> None:
            if not in_one_of_several_replicas():
                apply(gradients, variables)
                return
            gradients = sum_over_replicas(gradients)  # so that all agree on what is finite
            with summed_gradients():
                optimizer._common_apply(gradients, variables)

        optimizer._tf_apply = apply_scaled
        return

    for name in _EXCHANGING:
        method = getattr(TFOptimizer, name, None)
        if method is not None and getattr(type(optimizer), name) is method:
            setattr(optimizer, name, getattr(super(TFOptimizer, optimizer), name))
    apply_sums = optimizer._backend_apply_gradients
    optimizer._backend_apply_gradients = lambda gradients, variables: apply_sums(
        sum_over_replicas(gradients), variables
    )
