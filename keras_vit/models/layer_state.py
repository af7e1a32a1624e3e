"""State of layers besides their arguments: whether they are frozen, dtype policies, weights."""

import hashlib
import re
from collections.abc import Collection, Iterator
from typing import Any, TypeAlias

import keras
import numpy as np
from keras.dtype_policies import DTypePolicyMap

from keras_vit.layers.inside import sublayers

Layer: TypeAlias = keras.layers.Layer
Policy: TypeAlias = keras.DTypePolicy


def layers_beside(model: keras.Model) -> list[Layer]:
    """Layers that are attributes of a model but not part of its graph."""
    names = {layer.name for layer in model.layers}
    return [layer for layer in sublayers(model) if layer.name not in names]


def trainable_changes(
    layer: Layer, trainable: bool = True, prefix: str = ""
) -> Iterator[tuple[str, bool]]:
    """Yield the layers inside whose `trainable` is not that of the layer around them, by path."""
    for inner in sublayers(layer):
        path = prefix + inner.name
        if inner.trainable != trainable:
            yield path, inner.trainable
        yield from trainable_changes(inner, inner.trainable, f"{path}/")


def set_trainable(model: Layer, frozen: Collection[str], thawed: Collection[str]) -> None:
    """Freezes and thaws layers as `trainable_changes` listed them."""

    def walk(layer: Layer, trainable: bool, prefix: str) -> None:
        for inner in sublayers(layer):
            path = prefix + inner.name
            is_trainable = path in thawed or (trainable and path not in frozen)
            if inner.trainable != is_trainable:
                inner.trainable = is_trainable  # and that of all layers inside
            walk(inner, is_trainable, f"{path}/")

    walk(model, True, "")


def copy_weights(source: Layer, target: Layer) -> None:
    """Copies the weights of a layer to one like it; positions are resampled to its grid."""
    for old, new in zip(source._flatten_layers(), target._flatten_layers(), strict=True):
        if hasattr(new, "resample_from"):
            new.resample_from(old)
            continue
        # Not get_weights: quantizing a layer orders them differently from building a quantized one.
        store: dict[str, Any] = {}
        old.save_own_variables(store)
        new.load_own_variables({k: keras.ops.convert_to_numpy(v) for k, v in store.items()})


def weights_digest(model: keras.Model) -> str:
    """SHA-256 of all weights, in Keras's order."""
    digest = hashlib.sha256()
    for values in model.get_weights():
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def settle_policies(model: keras.Model) -> None:
    """Replaces a `DTypePolicyMap` by each layer's entry of it.

    Under a map, Keras 3.15 loses the scales of quantized layers when it saves them.
    """
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer.dtype_policy, DTypePolicyMap) and layer.path is not None:
            layer._dtype_policy = layer.dtype_policy[layer.path]


def policy_map(policy: Policy, changes: dict[str, Policy]) -> Policy:
    """Return a `DTypePolicyMap` of a policy, or of another map, with changes by path."""
    entries: dict[str, Policy] = {}
    if isinstance(policy, DTypePolicyMap):
        policy, entries = policy.default_policy, dict(policy)
    return DTypePolicyMap(policy, {**entries, **changes})


def policy_config(policy: Policy) -> Any:
    """Return what `get_config` holds of a policy; `keras.dtype_policies.get` reads it.

    A name where that is enough: Keras's serializer imports TensorFlow wherever it can.
    """
    plain = type(policy) is keras.DTypePolicy
    return policy.name if plain else keras.dtype_policies.serialize(policy)


def map_names(policy: Policy, path: str) -> bool:
    """Return whether a policy is a map with an entry for this path."""
    return isinstance(policy, DTypePolicyMap) and any(
        re.fullmatch(pattern, path) for pattern in policy
    )
