"""Operators that a backend has fused: attention, a product with its bias, GELU."""

import math
from collections.abc import Callable
from typing import Any

import keras

from keras_vit.ops.platform import jax_is_accelerated, jax_platform

# Up to as many tokens, training in bfloat16 on CPUs attends in float32: the derivative of torch's
# operator is slower in bfloat16, several times with few tokens, and no longer with some hundreds.
SHORT = 256
# Numbers that stay in a core's cache from one pass over them to the next.
_IN_CACHE = 2**17


def has_fused_attention() -> bool:
    """Return whether `fused_attention` works here: on torch, and on JAX's GPUs and TPUs."""
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
        import jax

        # Keras's takes a kernel for TPUs that, without a mask, hides all tokens behind the query's.
        return jax.nn.dot_product_attention(query, key, value, bias=bias, implementation="xla")
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


def multiply_in_float32(x: Any, y: Any) -> Any:
    """Multiply matrices and return float32, without rounding to their dtype where possible."""
    if keras.backend.backend() != "jax":
        return keras.ops.cast(keras.ops.matmul(x, y), "float32")
    import jax.numpy as jnp

    return jnp.matmul(x, y, preferred_element_type="float32")


def multiply_add(inputs: Any, kernel: Any, bias: Any = None) -> Any:
    """Return `inputs @ kernel + bias` for `(..., features)`; torch has one operator for it."""
    if keras.backend.backend() != "torch":
        outputs = keras.ops.matmul(inputs, kernel)
        return outputs if bias is None else keras.ops.add(outputs, bias)
    import torch

    kernel = keras.ops.convert_to_tensor(kernel).t()  # `.mT` is not known to torch's ONNX exporter
    bias = None if bias is None else keras.ops.convert_to_tensor(bias)
    return torch.nn.functional.linear(keras.ops.convert_to_tensor(inputs), kernel, bias)


def joins_rows() -> bool:
    """Return whether a product is best taken over images and tokens as one axis.

    A TPU keeps matrices in tiles of 8 rows: joining axes of, say, 197 tokens copies the array.
    """
    return keras.backend.backend() != "jax" or jax_platform() != "tpu"


def recompute_derivative(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return an elementwise function whose derivative, on TPUs, is computed from its input again.

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

    # A function of one argument: JAX would hand `forward` what others have by default, too.
    recomputing = jax.custom_vjp(lambda x: function(x))
    recomputing.defvjp(lambda x: (function(x), x), backward)
    return recomputing


def writes_in_place() -> bool:
    """Return whether `gelu_kernel(in_place=True)` can write over what it is given."""
    return keras.backend.backend() == "torch"


def gelu_kernel(x: Any, approximate: bool, in_place: bool = False) -> Any:
    """Return GELU, or its tanh form, by torch's kernel; None where a compiler fuses the formula.

    `in_place` allows to write into `x`, which is done in inference: a further array as large as the
    MLP's hidden features costs more by its new pages of memory than by the arithmetic, a twelfth of
    the time of a ViT-S/16 in batches of 8.
    """
    if keras.backend.backend() != "torch":
        return None
    import torch

    is_traced = type(x) is not torch.Tensor or torch.jit.is_tracing()  # type: ignore[attr-defined]
    is_plain = not is_traced and not torch.is_grad_enabled()
    in_place = in_place and is_plain and x.is_contiguous() and not torch.compiler.is_compiling()
    if approximate and is_plain and x.device.type == "cpu" and x.dtype == torch.float32:
        # The tanh of torch's kernel takes three times as long as its erf: 3 % of a ViT-S/16.
        # As (1 + tanh(z)) / 2 = sigmoid(2 z), in one array, it takes half.
        scale = 2 * math.sqrt(2 / math.pi)
        for part in x.view(-1).split(_IN_CACHE) if in_place else (x,):
            z = (part * part).mul_(0.044715 * scale).add_(scale).mul_(part).sigmoid_()
            outputs = part.mul_(z) if in_place else z.mul_(part)
        return x if in_place else outputs
    if in_place:
        return torch.ops.aten.gelu_(x, approximate="tanh" if approximate else "none")
    return keras.activations.gelu(x, approximate=approximate)
