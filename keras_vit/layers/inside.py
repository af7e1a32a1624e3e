"""The layers inside a layer: lists, freezes and thaws them, on every backend."""

import keras


def sublayers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return the layers directly inside a layer or a model."""
    return list(layer._flatten_layers(include_self=False, recursive=False))


def set_trainable_inside(layer: keras.layers.Layer, trainable: bool) -> None:
    """Sets `trainable` of a layer, all layers inside, and their variables.

    On TensorFlow, Keras ignores an assignment of what an attribute is already: after layers were
    frozen one by one, `model.trainable = True` would leave them frozen, since the model itself
    never was.

    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(4)])
    >>> model.layers[0].trainable = False
    >>> set_trainable_inside(model, True)
    >>> len(model.trainable_variables)
    4
    """
    for inner in layer._flatten_layers():
        type(inner).trainable.fset(inner, trainable)
