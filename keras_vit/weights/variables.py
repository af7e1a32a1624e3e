"""The variables of a model, each with the canonical tensors that it holds."""

import itertools
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import keras
import numpy as np

from keras_vit.weights.canonical_names import REPEATED, TOP
from keras_vit.weights.checkpoint_error import CheckpointError
from keras_vit.weights.containers.tensors import Array, TensorShape
from keras_vit.weights.tables.conventions import stored_family


@dataclass(frozen=True)
class Binding:
    """A variable and the canonical tensors that are concatenated in it, along its last axis."""

    variable: Any
    names: tuple[str, ...]

    def shapes(self) -> dict[str, TensorShape]:
        """Return the shape of each canonical tensor."""
        shape = tuple(self.variable.shape)
        return dict.fromkeys(self.names, (*shape[:-1], shape[-1] // len(self.names)))

    def values(self) -> dict[str, Array]:
        """Return the canonical tensors, from the variable."""
        whole = np.asarray(keras.ops.convert_to_numpy(self.variable), "float32")
        return dict(zip(self.names, np.split(whole, len(self.names), axis=-1), strict=True))


def bindings(model: keras.Model) -> list[Binding]:
    """Return all weights of a model with canonical names; a CheckpointError if one lacks them."""
    stored_family(model)
    layers = {layer.name: layer for layer in model.layers}
    bound = []
    for path, names in TOP.items():
        layer, _, attribute = path.partition(".")
        bound += _bind(layers.get(layer), attribute, names)
    for name, layer in layers.items():
        for pattern, template, table in REPEATED:
            if match := pattern.fullmatch(name):
                prefix = template.format(*match.groups())
                for attribute, names in table.items():
                    bound += _bind(layer, attribute, tuple(prefix + n for n in names))
    known = {id(binding.variable) for binding in bound}
    # The novelty is not of the network: other packages do not have it, nor does a file of theirs.
    novelty = getattr(model, "novelty", None)
    known |= {id(weight) for weight in (novelty.weights if novelty is not None else ())}
    for weight in model.weights:
        is_seed = "int" in weight.dtype and "seed" in weight.path
        if not is_seed and (id(weight) not in known or not weight.dtype.startswith(("fl", "bf"))):
            raise CheckpointError(
                f"Weight {weight.path!r} ({weight.dtype}) of the model does not have a name that "
                "other packages share: it is quantized, or was changed. Save it with model.save."
            )
    return bound


def canonical_values(model: keras.Model) -> dict[str, Array]:
    """Return all weights of a model by canonical name, as float32."""
    return dict(itertools.chain.from_iterable(b.values().items() for b in bindings(model)))


def _bind(layer: Any, attribute: str, names: tuple[str, ...]) -> list[Binding]:
    """Return the variable of a layer, if the model's options give it one."""
    try:
        variable = attrgetter(attribute)(layer)
    except AttributeError:
        return []
    return [Binding(variable, names)] if isinstance(variable, keras.Variable) else []
