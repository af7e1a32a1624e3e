"""Operators that a backend has fused: attention, a product with its bias, GELU."""

from typing import Any

import keras

from keras_vit.backend.platform import jax_is_accelerated


def has_fused_attention() -> bool:
    """Whether `fused_attention` works here: on torch, and on JAX's GPUs and TPUs."""
    return keras.backend.backend() == "torch" or (
        keras.backend.backend() == "jax" and jax_is_accelerated()
    )


def fused_attention(query: Any, key: Any, value: Any, bias: Any, dropout: float) -> Any:
    """Scaled dot-product attention by the backend's operator.

    Queries, keys, values and the result are `(batch, length, heads, head_dim)`, the bias can be
    broadcast to `(batch, heads, queries, keys)`. torch's operator is called without the copies that
    Keras makes for it.

    Args:
        dropout: Rate on the probabilities; 0 unless `dropout_strategy` is `KERNEL`.
    """
    if keras.backend.backend() != "torch":
        return keras.ops.dot_product_attention(query, key, value, bias=bias)
    import torch

    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    operator = torch.nn.functional.scaled_dot_product_attention
    return operator(query, key, value, bias, dropout).transpose(1, 2)


def multiply_in_float32(x: Any, y: Any) -> Any:
    """The product of matrices in float32, not rounded to theirs where the backend allows it."""
    if keras.backend.backend() != "jax":
        return keras.ops.cast(keras.ops.matmul(x, y), "float32")
    import jax.numpy as jnp

    return jnp.matmul(x, y, preferred_element_type="float32")


def multiply_add(inputs: Any, kernel: Any, bias: Any = None) -> Any:
    """Rows `(..., features)` times a matrix, plus a row or None: torch has one operator for it."""
    if keras.backend.backend() != "torch":
        outputs = keras.ops.matmul(inputs, kernel)
        return outputs if bias is None else keras.ops.add(outputs, bias)
    import torch

    kernel = keras.ops.convert_to_tensor(kernel).mT
    bias = None if bias is None else keras.ops.convert_to_tensor(bias)
    return torch.nn.functional.linear(keras.ops.convert_to_tensor(inputs), kernel, bias)


def has_gelu_kernel() -> bool:
    """Whether GELU is one kernel (torch); elsewhere, a compiler fuses its formula."""
    return keras.backend.backend() == "torch"
