"""`.weights.h5`: the canonical name of each array, from the names that Keras gives its groups.

A group of the file is a layer, and has its name: `layers/encoder_block_1/vars` is `block_1`. The
groups in it are the layer's attributes, and the arrays `vars/0`, `vars/1` its variables in order.
Of these files, Keras's own reader takes those of a model of the very same sizes alone.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import keras
import ml_dtypes
import numpy as np

from keras_vit.weights.canonical_names import TOP
from keras_vit.weights.checkpoint_error import CheckpointError, reason
from keras_vit.weights.containers.tensors import (
    Array,
    Tensor,
    TensorShape,
    checked_float32,
    parts_of,
)
from keras_vit.weights.variables import bindings


def named_tensors(
    path: Path, shapes: dict[str, TensorShape], model: keras.Model
) -> dict[str, Tensor] | None:
    """Return the arrays of a file by canonical name, read on demand.

    Args:
        shapes: Of its arrays, by their paths in it.

    Returns:
        None where the file, of a former Keras, does not have the names of its layers.
    """
    layer_names = _layer_names(path)
    names_of = {id(binding.variable): binding.names for binding in bindings(model)}
    layers = {layer.name: layer for layer in model.layers}
    tensors: dict[str, Tensor] = {}
    for dataset, shape in shapes.items():
        *groups, _, index = ["", "", *dataset.split("/")]  # .../vars/index
        first, group, *attributes = groups[2:] if len(groups) > 3 else groups[-2:]
        if "optimizer" in (first, group) or "seed_generator" in attributes:
            continue
        if (name := layer_names.get(f"{first}/{group}")) is None:
            return None
        _check_order(path, dataset, shapes)
        variable = _variable(layers.get(name), attributes, index)
        names = names_of.get(id(variable)) or _names_without_model(name, attributes, index)
        whole = Tensor(dataset, shape, "float32", partial(_read, path, dataset))
        tensors |= {n: replace(part, name=n) for n, part in parts_of(whole, names).items()}
    return tensors


def _check_order(path: Path, dataset: str, shapes: dict[str, TensorShape]) -> None:
    """Refuses `vars/1` without `vars/0`: what Keras writes is complete."""
    group, _, index = dataset.rpartition("/")
    if index.isdecimal() and int(index) and f"{group}/{int(index) - 1}" not in shapes:
        raise CheckpointError(
            f"{path} holds {dataset!r}, and not the array before it: it is damaged. Take an "
            "earlier checkpoint."
        )


def _layer_names(path: Path) -> dict[str, str]:
    """Return the name of the layer in each group, such as `layers/dense_1`."""
    names = {}
    with h5py.File(path, "r") as file:
        for first in file:
            for group in file[first] if isinstance(file[first], h5py.Group) else ():
                layer = file[first][group]
                if not isinstance(layer, h5py.Group) or "vars" not in layer:
                    continue
                if isinstance(name := layer["vars"].attrs.get("name"), str):
                    names[f"{first}/{group}"] = name
    return names


def _variable(layer: Any, attributes: list[str], index: str) -> Any:
    """Return the variable at `vars/index` of a layer's (nested) attribute, or None."""
    for attribute in attributes:
        layer = getattr(layer, attribute, None) if attribute.isidentifier() else None
        if not isinstance(layer, keras.layers.Layer):
            return None
    store: dict[str, Any] = {}
    if layer is not None:
        layer.save_own_variables(store)
    return store.get(index)


def _names_without_model(layer: str, attributes: list[str], index: str) -> tuple[str, ...]:
    """Canonical names of an array whose layer the model does not have, such as a class token."""
    owner = ".".join([layer, *attributes])
    of_layer = [names for path, names in TOP.items() if path.rpartition(".")[0] == owner]
    if index.isdecimal() and int(index) < len(of_layer):
        return of_layer[int(index)]
    return ("/".join([layer, *attributes, index]),)


def _read(path: Path, dataset: str) -> Array:
    try:
        with h5py.File(path, "r") as file:
            values = np.asarray(file[dataset])
            is_bfloat16 = file[dataset].attrs.get("dtype") == "bfloat16"
    except Exception as error:  # HDF5 fails in many ways, all with one meaning
        raise CheckpointError(f"{dataset!r} in {path} is damaged: {reason(error)}") from error
    return checked_float32(dataset, values.view(ml_dtypes.bfloat16) if is_bfloat16 else values)
