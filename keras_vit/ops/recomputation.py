"""`keras.remat`, and what it needs beside it on TensorFlow and on JAX's CPUs."""

from collections.abc import Callable
from typing import Any

import keras

from keras_vit.ops.platform import is_tensorflow, jax_is_accelerated
from keras_vit.ops.step import recomputed_in_step


def remat(function: Callable[..., Any], *constants: Any) -> Callable[..., Any]:
    """`keras.remat`, and on JAX one that spares memory on CPUs, too.

    XLA's CPU compiler drops the barriers of `jax.checkpoint`: it computes everything again at the
    start of the backward pass, as nothing there depends on a gradient, and fuses the sums along the
    residual stream across blocks. Both keep every block's arrays at once. Here, a block's backward
    pass is the branch of a condition on its gradient, which XLA neither moves nor looks into. (On a
    GPU the host would have to wait for the condition; there, XLA respects the barriers.)

    Args:
        constants: Integers that `function` gets behind its other arguments.
    """
    if is_tensorflow():
        import tensorflow as tf

        # A variable as an argument is counted twice by an eager tape: as that, and as a variable.
        recomputed = keras.remat(lambda *arguments: function(*arguments, *constants))
        return lambda *arguments: recomputed(*map(tf.convert_to_tensor, arguments))
    if keras.backend.backend() != "jax" or jax_is_accelerated():
        return keras.remat(recomputed_in_step(lambda *arguments: function(*arguments, *constants)))
    import jax
    import jax.numpy as jnp

    def backward(saved: tuple[Any, ...], gradients: Any) -> tuple[Any, ...]:
        of = len(saved) - len(constants)
        arguments, rest = saved[:of], saved[of:]

        def again() -> tuple[Any, ...]:
            return jax.vjp(lambda *inputs: function(*inputs, *rest), *arguments)[1](gradients)

        def not_a_number() -> tuple[Any, ...]:
            return tuple(jnp.full_like(argument, jnp.nan) for argument in arguments)

        first = jax.tree.leaves(gradients)[0].ravel()[0]
        return (*jax.lax.cond(first == first, again, not_a_number), *(None for _ in rest))

    checkpointed = jax.custom_vjp(function)
    checkpointed.defvjp(lambda *saved: (function(*saved), saved), backward)
    return lambda *arguments: checkpointed(*arguments, *constants)
