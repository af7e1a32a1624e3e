"""Hooks of torch, by which anyone may read what a layer computes."""

from collections.abc import Iterable

import keras

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_hooks(layers: Iterable[keras.layers.Layer]) -> bool:
    """Return whether a torch hook is registered on one of these layers, or on a layer inside."""
    if keras.backend.backend() != "torch":
        return False
    return any(
        getattr(module, hooks) for layer in layers for module in layer.modules() for hooks in _HOOKS
    )
