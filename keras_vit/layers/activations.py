"""The activations of the models: three forms of GELU, and SwiGLU."""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit.ops import gelu_kernel, writes_in_place


def gelu(x: Any, in_place: bool = False) -> Any:
    """`x` times the standard normal distribution function of `x` (GELU paper, section 2)."""
    if (outputs := gelu_kernel(x, approximate=False, in_place=in_place)) is not None:
        return outputs
    # Keras's form divides on TensorFlow and uses the slower erfc on JAX: 2 to 5 % of inference.
    return 0.5 * x * (1.0 + ops.erf(math.sqrt(0.5) * x))


def gelu_tanh(x: Any, in_place: bool = False) -> Any:
    """GELU in its tanh form, the default of flax and so of the released code."""
    if (outputs := gelu_kernel(x, approximate=True, in_place=in_place)) is not None:
        return outputs
    # (1 + tanh(z)) / 2 is sigmoid(2 z), whose gradient is shorter: 1 to 3 % of a training step.
    scale = 2 * math.sqrt(2 / math.pi)
    return x * ops.sigmoid(x * (scale + 0.044715 * scale * x * x))


def quick_gelu(x: Any) -> Any:
    """GELU as `x * sigmoid(1.702 x)`, in which OpenAI trained CLIP (GELU paper, section 2)."""
    return x * ops.sigmoid(1.702 * x)


def swiglu(x: Any) -> Any:
    """Half of the width gates the other: `silu(gate) * value`; returns half the width."""
    gate, value = ops.split(x, 2, axis=-1)
    return ops.silu(gate) * value


OWN_ACTIVATIONS = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "swiglu": swiglu,
}


def activation_function(name: str) -> Callable[[Any], Any]:
    """Return an activation of `OWN_ACTIVATIONS`, or any of Keras (`"gelu"` is exact)."""
    return OWN_ACTIVATIONS.get(name) or keras.activations.get(name)


def dense_activation(name: str) -> Callable[[Any], Any] | None:
    """Return an activation that writes over a dense layer's own outputs; None where none does."""
    function: Any = activation_function(name)

    def activate(x: Any) -> Any:
        return function(x, in_place=True)

    return activate if writes_in_place() and function in (gelu, gelu_tanh) else None
