"""The variables of a model and their canonical names."""

import itertools
import re
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import keras
import numpy as np

from keras_vit.weights.checkpoint_error import CheckpointError
from keras_vit.weights.containers.tensors import Array, TensorShape
from keras_vit.weights.tables.conventions import stored_family


# A layer's canonical name is its path in the model, unless another is given.
def _dense(layer: str, *names: str) -> dict[str, tuple[str, ...]]:
    names = names or (layer.replace(".", "/"),)
    return {f"{layer}.{part}": tuple(f"{n}/{part}" for n in names) for part in ("kernel", "bias")}


def _mlp(layer: str) -> dict[str, tuple[str, ...]]:
    return {**_dense(f"{layer}.dense_0"), **_dense(f"{layer}.dense_1")}


def _norm(layer: str, name: str = "") -> dict[str, tuple[str, ...]]:
    name = name or layer.replace(".", "/")
    return {f"{layer}.gamma": (f"{name}/scale",), f"{layer}.beta": (f"{name}/bias",)}


# Attribute of a model's layer -> the canonical tensors that are concatenated in it.
TOP = {
    **_dense("patch_embedding"),
    "class_token.embedding": ("class_token",),
    "distillation_token.embedding": ("distillation_token",),
    "register_tokens.embedding": ("register_tokens",),
    "position_embedding.embedding": ("position_embedding",),
    "position_embedding.rows": ("position_embedding/rows",),
    "position_embedding.columns": ("position_embedding/columns",),
    "relative_position_bias.table": ("relative_table",),
    **_norm("pre_norm"),
    **_norm("encoder_norm"),
    **_norm("pooling_norm"),
    "pooling.probe": ("pooling/probe",),
    **_dense("pooling.query"),
    **_dense("pooling.key_value", "pooling/key", "pooling/value"),
    **_dense("pooling.output_projection", "pooling/output"),
    **_norm("pooling.norm"),
    **_mlp("pooling.mlp"),
    **_dense("pre_logits"),
    **_dense("head"),
    **_dense("head_distillation"),
    "stem.conv.kernel": ("stem/conv/kernel",),
    **_norm("stem.norm_layer", "stem/norm"),
    **_norm("norm"),
}
STAGE = {"convolution.kernel": ("kernel",), **_norm("norm")}
UNIT = {
    **{f"conv_{i}.kernel": (f"conv_{i}/kernel",) for i in (1, 2, 3)},
    **_norm("norm_1"),
    **_norm("norm_2"),
    **_norm("norm_3"),
    "projection.kernel": ("projection/kernel",),
    **_norm("projection_norm"),
}
BLOCK = {
    **_norm("norm_0"),
    **_dense("attention.query_key_value", "query", "key", "value"),
    "attention.query_value_bias": ("query/bias", "value/bias"),
    "attention.relative_positions.embedding": ("relative_positions",),
    "attention.relative_positions.table": ("relative_table",),
    **_dense("attention.output_projection", "output"),
    "scale_0.gamma": ("scale_0",),
    **_norm("norm_1"),
    **_mlp("mlp"),
    **_norm("mlp.norm"),
    "scale_1.gamma": ("scale_1",),
    **_mlp("token_mixing"),
    **_mlp("channel_mixing"),
}
# Name of a layer that repeats -> what comes before its canonical names, and its table.
REPEATED = (
    (re.compile(r"conv_stem_(\d+)"), "conv_stem/{}/", STAGE),
    (re.compile(r"block_(\d+)"), "block_{}/", BLOCK),
    (re.compile(r"stage_(\d+)_unit_(\d+)"), "stage_{}/unit_{}/", UNIT),
)


@dataclass(frozen=True)
class Binding:
    """A variable and the canonical tensors that are concatenated in it, along its last axis."""

    variable: Any
    names: tuple[str, ...]

    def shapes(self) -> dict[str, TensorShape]:
        """The shape of each canonical tensor."""
        shape = tuple(self.variable.shape)
        return dict.fromkeys(self.names, (*shape[:-1], shape[-1] // len(self.names)))

    def values(self) -> dict[str, Array]:
        """The canonical tensors, from the variable."""
        whole = np.asarray(keras.ops.convert_to_numpy(self.variable), "float32")
        return dict(zip(self.names, np.split(whole, len(self.names), axis=-1), strict=True))


def bindings(model: keras.Model) -> list[Binding]:
    """Every weight of a model with its canonical names; refuses weights that do not have one."""
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
    for weight in model.weights:
        is_seed = "int" in weight.dtype and "seed" in weight.path
        if not is_seed and (id(weight) not in known or not weight.dtype.startswith(("fl", "bf"))):
            raise CheckpointError(
                f"Weight {weight.path!r} ({weight.dtype}) of the model does not have a name that "
                "other packages share: it is quantized, or was changed. Save it with model.save."
            )
    return bound


def canonical_values(model: keras.Model) -> dict[str, Array]:
    """All weights of a model by canonical name, as float32."""
    return dict(itertools.chain.from_iterable(b.values().items() for b in bindings(model)))


def _bind(layer: Any, attribute: str, names: tuple[str, ...]) -> list[Binding]:
    """The variable of a layer, if the model's options give it one."""
    try:
        variable = attrgetter(attribute)(layer)
    except AttributeError:
        return []
    return [Binding(variable, names)] if isinstance(variable, keras.Variable) else []
