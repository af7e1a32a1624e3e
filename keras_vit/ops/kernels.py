"""Operators that a backend has fused: attention, a product with its bias, GELU."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import keras

from keras_vit.ops.current_distribution import current_distribution
from keras_vit.ops.devices import is_cut_by_heads, replica_count
from keras_vit.ops.platform import jax_device, jax_is_accelerated, jax_platform
from keras_vit.ops.tpu_attention import fits_vector_memory, self_attention

# Set to 1, the variable takes `tpu_attention.py` on TPUs, in place of XLA's attention: its numbers
# are tested without a TPU, and its program was compiled for one; nobody has run it on a TPU yet.
TPU_ATTENTION = "KERAS_VIT_TPU_ATTENTION"

# Up to as many tokens, training in bfloat16 on CPUs attends in float32: the derivative of torch's
# operator is slower in bfloat16, several times with few tokens, and no longer with some hundreds.
SHORT = 256


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
    if keras.backend.backend() == "jax" and jax_platform() == "tpu":
        return _attention_on_tpu(query, key, value, bias)
    if keras.backend.backend() != "torch":
        return keras.ops.dot_product_attention(query, key, value, bias=bias)
    import torch

    dtype = query.dtype
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    is_half, on_cpu = query.element_size() < 4, query.device.type == "cpu"
    if is_half and on_cpu and query.requires_grad and query.shape[2] <= SHORT:
        query, key, value = (x.float() for x in (query, key, value))
        bias = None if bias is None else bias.float()
    operator = torch.nn.functional.scaled_dot_product_attention
    return operator(query, key, value, bias, dropout).transpose(1, 2).to(dtype)


def _attention_on_tpu(query: Any, key: Any, value: Any, bias: Any) -> Any:
    import jax
    import jax.numpy as jnp

    batch, length, heads, width = query.shape
    distribution = current_distribution()
    one_kernel = (
        os.environ.get(TPU_ATTENTION) == "1"
        and bias is None
        and query.shape == key.shape
        and query.dtype == value.dtype == jnp.bfloat16
        and jax.__version_info__ >= (0, 7)  # before, `shard_map` and Pallas had other names
        and (distribution is None or batch % replica_count(distribution) == 0)
        and not is_cut_by_heads()
        and fits_vector_memory(length, heads * width, jax_device().device_kind)
    )
    if not one_kernel:
        # Keras's takes a kernel for TPUs that, without a mask, hides all tokens behind the query's.
        return jax.nn.dot_product_attention(query, key, value, bias=bias, implementation="xla")
    # Where they are parts of one product, XLA joins them without a copy.
    joined = jnp.concatenate([x.reshape(batch, length, -1) for x in (query, key, value)], axis=-1)
    attend = partial(self_attention, heads=heads)
    if distribution is not None:  # XLA does not cut the batch of a kernel by itself
        rows = jax.sharding.PartitionSpec(distribution.batch_dim_name)
        mesh = distribution.device_mesh.backend_mesh
        attend = jax.shard_map(attend, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
    return attend(joined).reshape(query.shape)


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

    kernel = keras.ops.convert_to_tensor(kernel).t()  # `.mT` is not known to torch's ONNX exporter
    bias = None if bias is None else keras.ops.convert_to_tensor(bias)
    return torch.nn.functional.linear(keras.ops.convert_to_tensor(inputs), kernel, bias)


def joins_rows() -> bool:
    """Whether a product is best taken over images and tokens as one axis.

    A TPU keeps matrices in tiles of 8 rows: joining axes of, say, 197 tokens copies the array.
    """
    return keras.backend.backend() != "jax" or jax_platform() != "tpu"


def recompute_derivative(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """An elementwise function whose derivative, on TPUs, is computed from its input again.

    XLA would write what the derivative shares with the function, in GELU two arrays as large as the
    input, and read it in the backward pass. There, memory traffic is dearer than operations.
    """
    if keras.backend.backend() != "jax" or jax_platform() != "tpu":
        return function
    import jax

    def backward(x: Any, gradient: Any) -> tuple[Any]:
        # In float32, or XLA would find the operations of the forward pass, and keep their results.
        _, derivative = jax.vjp(function, x.astype("float32"))
        return (derivative(gradient.astype("float32"))[0].astype(x.dtype),)

    recomputing = jax.custom_vjp(function)
    recomputing.defvjp(lambda x: (function(x), x), backward)
    return recomputing


def has_gelu_kernel() -> bool:
    """Whether GELU is one kernel (torch); elsewhere, a compiler fuses its formula."""
    return keras.backend.backend() == "torch"
