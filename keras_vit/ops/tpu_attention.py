"""Self-attention of a whole image in one kernel for TPUs: JAX, by Pallas.

    queries, keys, values (batch, length, 3 * width) ──► a program per image ──► heads joined

Off unless `KERAS_VIT_TPU_ATTENTION=1` is set, until somebody has run it on a TPU.

XLA writes the logits and the probabilities of all heads to the TPU's memory and reads them again,
most of what a training step moves. A ViT's sequences are short: here an image's queries, keys and
values lie in the vector memory, and so do one head's probabilities, which the backward pass
computes again. The kernels that JAX ships (flash and splash attention) are made for long sequences:
they take lengths in multiples of 128, heads apart, each padded to a width of 128, and 128 copies of
every row's sum. Source of the gradients: Dao et al. 2022, "FlashAttention", appendix B.
"""

from __future__ import annotations

import functools
import math
from typing import Any

# What a kernel may take of the vector memory: 16 MiB up to TPU v4, of at least 64 in later ones,
# where larger kernels take minutes to compile.
SMALL, LARGE = 14 * 2**20, 24 * 2**20
SMALL_CHIPS = ("TPU v2", "TPU v3", "TPU v4")


def vector_memory(length: int, width: int) -> int:
    """Bytes of an image with its gradients, in bfloat16; `width` is that of all heads.

    The copies between the memories overlap with the computation, so every array is there twice.
    """
    rows = -(-length // 16) * 16
    arrays = 2 * 2 * rows * (3 * width + width + 3 * width)  # projections, gradients of both
    scores = 4 * 4 * rows * (-(-length // 128) * 128)  # of one head: four arrays in float32
    return arrays + scores


def fits_vector_memory(length: int, width: int, chip: str) -> bool:
    """Whether a kernel can take images of so many tokens.

    Args:
        length: Tokens of an image.
        width: Of all heads together.
        chip: JAX's `device_kind`, such as `"TPU v5 lite"`.
    """
    return vector_memory(length, width) <= (SMALL if chip.startswith(SMALL_CHIPS) else LARGE)


def self_attention(projected: Any, heads: int, interpret: bool = False) -> Any:
    """Scaled dot-product attention of every image; the softmax in float32.

    Args:
        projected: Queries, keys and values of all heads `(batch, length, 3 * width)`.
        heads: How many.
        interpret: Computes without a TPU, slowly: for tests.

    Returns:
        `(batch, length, width)`.
    """
    import jax

    forward = functools.partial(_call, _forward, heads=heads, parts=1, interpret=interpret)
    backward = functools.partial(_call, _backward, heads=heads, parts=3, interpret=interpret)
    function = jax.custom_vjp(forward)
    function.defvjp(
        lambda projected: (forward(projected), projected),
        lambda projected, gradient: (backward(projected, gradient),),
    )
    return function(projected)


def _call(kernel: Any, *arrays: Any, heads: int, parts: int, interpret: bool) -> Any:
    """Runs a kernel for each image, whose result is `parts` times the width of the model wide."""
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    batch, length, columns = arrays[0].shape
    width = columns // 3
    shapes = [array.shape for array in arrays] + [(batch, length, parts * width)]
    specs = [pallas.BlockSpec((1, *shape[1:]), lambda image: (image, 0, 0)) for shape in shapes]
    products = 2 if parts == 1 else 5
    cost = pallas.CostEstimate(
        flops=products * 2 * batch * length**2 * width,
        transcendentals=batch * heads * length**2,
        bytes_accessed=sum(map(math.prod, shapes)) * arrays[0].dtype.itemsize,
    )
    return pallas.pallas_call(
        functools.partial(kernel, heads=heads),
        out_shape=jax.ShapeDtypeStruct(shapes[-1], arrays[0].dtype),
        grid=(batch,),
        in_specs=specs[:-1],
        out_specs=specs[-1],
        cost_estimate=cost,
        compiler_params=tpu.CompilerParams(
            dimension_semantics=("parallel",),
            vmem_limit_bytes=2 * LARGE if vector_memory(length, width) > SMALL else None,
        ),
        interpret=interpret,
        name=f"attention{kernel.__name__}",
    )(*arrays)


def _dot(x: Any, y: Any, x_axis: int, y_axis: int) -> Any:
    """The product of two matrices over an axis of each, in float32."""
    import jax

    return jax.lax.dot_general(
        x, y, (((x_axis,), (y_axis,)), ((), ())), preferred_element_type="float32"
    )


def _columns(part: int, head: int, heads: int, width: int) -> slice:
    """Where queries (part 0), keys (1) or values (2) of a head are."""
    start = (part * heads + head) * width
    return slice(start, start + width)


def _probabilities(query: Any, key: Any) -> Any:
    import jax.numpy as jnp

    logits = _dot(query, key, 1, 1) * (1 / math.sqrt(query.shape[-1]))
    powers = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    return powers / jnp.sum(powers, axis=-1, keepdims=True)


def _forward(projected: Any, output: Any, *, heads: int) -> None:
    width = output.shape[-1] // heads
    for head in range(heads):
        query, key, value = (
            projected[0, :, _columns(part, head, heads, width)] for part in range(3)
        )
        probabilities = _probabilities(query, key).astype(value.dtype)
        output[0, :, _columns(0, head, heads, width)] = _dot(probabilities, value, 1, 0).astype(
            output.dtype
        )


def _backward(projected: Any, gradient: Any, output: Any, *, heads: int) -> None:
    import jax.numpy as jnp

    width = gradient.shape[-1] // heads
    for head in range(heads):
        columns = [_columns(part, head, heads, width) for part in range(3)]
        query, key, value = (projected[0, :, part] for part in columns)
        of_output = gradient[0, :, columns[0]]
        probabilities = _probabilities(query, key)
        of_value = _dot(probabilities.astype(value.dtype), of_output, 0, 0)
        of_probabilities = _dot(of_output, value, 1, 1)
        mean = jnp.sum(probabilities * of_probabilities, axis=-1, keepdims=True)
        of_logits = probabilities * (of_probabilities - mean) * (1 / math.sqrt(width))
        of_logits = of_logits.astype(query.dtype)
        of_query, of_key = _dot(of_logits, key, 1, 0), _dot(of_logits, query, 0, 0)
        for part, values in zip(columns, (of_query, of_key, of_value), strict=True):
            output[0, :, part] = values.astype(output.dtype)
