"""Parameters, operations and memory of a model, counted on its layers before it has values."""

import math
from dataclasses import dataclass
from typing import Any

import keras

from keras_vit.layers import MLP, ConvStemStage, MultiHeadSelfAttention

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Cost:
    """Size of a model and of its work on one batch.

    Attributes:
        parameters: How many.
        macs: Multiply-accumulates of one image forward; twice that in floating-point operations.
        inference_bytes: Weights and the largest activations of a batch.
        training_bytes: Weights, gradients, Adam's two moments, and the activations stored for the
            backward pass.
    """

    parameters: int
    macs: int
    inference_bytes: int
    training_bytes: int


def cost_of(model: keras.Model, batch_size: int = 1) -> Cost:
    """Return the cost of a model of this package for images of its size, under its dtype policy.

    Parameters and operations are exact for the matrix products and convolutions (norms and softmax,
    below 1 %, are left out of `macs`); memory is an estimate of what the layers must keep. Nothing
    is computed, so that a model without values does as well: see `without_values`.

    Raises:
        ValueError: The model takes images of any size.

    >>> from keras_vit.models import VisionTransformer
    >>> cost_of(VisionTransformer(patch_size=32)).parameters
    88224232
    """
    if None in model.input_shape[1:]:
        raise ValueError(
            f"{model.name} takes images of any size, {model.input_shape[1:]}, so that its work is "
            "not known: give a model of one size, such as model.with_input_shape((224, 224, 3))."
        )
    stored = largest = macs = 0
    for layer in model.layers:
        inside = [layer, *layer._flatten_layers(include_self=False)]
        macs += sum(_macs(each) for each in inside)
        activations = sum(_activations(each) for each in inside)
        largest = max(largest, activations)
        # What is recomputed keeps what it starts from alone.
        begin = keras.tree.flatten(layer.output)[0].shape
        stored += _values(begin) if _recomputes(layer) else activations
    if any(map(_recomputes, model.layers)):
        stored += largest
    parameters = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    per_value = BYTES[keras.dtype_policies.get(model.dtype_policy).compute_dtype]
    return Cost(
        parameters,
        macs,
        parameters * 4 + batch_size * largest * per_value,
        # Weights, gradients and moments stay in float32 under every policy.
        parameters * 4 * 4 + batch_size * stored * per_value,
    )


def _macs(layer: Any) -> int:
    """Multiply-accumulates of one image in a layer itself."""
    shape = _input_shape(layer)
    if isinstance(layer, MultiHeadSelfAttention):
        return 2 * shape[1] ** 2 * shape[2]  # queries by keys, probabilities by values
    if getattr(layer, "kernel", None) is None:
        return 0
    # Whatever its kind: the kernel is multiplied once for each position of the output.
    return math.prod(layer.compute_output_shape(shape)[1:-1]) * math.prod(layer.kernel.shape)


def _activations(layer: Any) -> int:
    """Return how many values per image a layer itself keeps for the backward pass."""
    shape = _input_shape(layer)
    if isinstance(layer, MultiHeadSelfAttention):
        # Queries, keys and values, and the probabilities, which not every fused operator spares.
        return 3 * _values(shape) + layer.config.num_heads * shape[1] ** 2
    if isinstance(layer, MLP):  # what is activated
        return math.prod(shape[1:-1]) * layer.dense_0.units
    if isinstance(layer, ConvStemStage):
        return _values(layer.compute_output_shape(shape))
    norms = keras.layers.LayerNormalization | keras.layers.GroupNormalization
    if isinstance(layer, norms) or getattr(layer, "kernel", None) is not None:
        return _values(shape)  # its input
    return 0


def _input_shape(layer: Any) -> tuple[Any, ...]:
    """Return the shape that a layer was built for; of several inputs, of the first."""
    config = layer.get_build_config() or {}
    shapes = config.get("shapes_dict") or {"input": config.get("input_shape")}
    return tuple(next(iter(shapes.values())) or ())


def _values(shape: Any) -> int:
    return math.prod(shape[1:])


def _recomputes(layer: Any) -> bool:
    return bool(getattr(getattr(layer, "config", layer), "remat", False))
