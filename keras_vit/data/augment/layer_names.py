"""Layers by their names, such as "keras.layers.RandomRotation(0.05)", without running any code.

The text is parsed, not evaluated: the constructor must be an image preprocessing layer of
`keras.layers` or `keras_cv.layers`, and its arguments Python literals or further such layers.
"""

from __future__ import annotations

import ast
import inspect
from typing import Any

import keras

from keras_vit._base.errors import did_you_mean, printable
from keras_vit._base.version import install_command
from keras_vit.data._imports import require

EXAMPLE = "keras.layers.RandomRotation(0.05)"
# Where the image preprocessing layers of a package are: others read files, or run code.
_MODULES = {"keras": ".preprocessing.image_preprocessing.", "keras_cv": ".layers.preprocessing."}


def layer_from_text(text: str) -> keras.Layer:
    """The layer that a text such as "keras.layers.RandomRotation(0.05)" describes, in float32.

    Args:
        text: the name of a layer with its arguments, which are literals, lists and tuples of them,
            or further layers; without parentheses, the layer has its defaults.

    Raises:
        ValueError: the text is something else, or the layer refuses its arguments.
        ImportError: the package of the layer is not installed.

    Example:
        >>> layer_from_text("keras.layers.RandomRotation(0.05)").factor
        (-0.05, 0.05)
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:  # a null byte, in some versions of Python
        raise _not_a_layer(text) from error
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32")  # KerasCV's inner layers take it alone
    try:
        layer = _value(node, text)
    finally:
        keras.config.set_dtype_policy(policy)
    if not isinstance(layer, keras.Layer):
        raise _not_a_layer(text)
    return layer


def _not_a_layer(text: str) -> ValueError:
    return ValueError(
        f"{printable(text)!r} is not a layer. Give an image layer of keras.layers or "
        f"keras_cv.layers with literal arguments, such as {EXAMPLE!r}."
    )


def _value(node: ast.expr, text: str) -> Any:
    """What a part of the text stands for: a layer, a list or tuple, or a literal."""
    if isinstance(node, (ast.List, ast.Tuple)):
        values = [_value(element, text) for element in node.elts]
        return values if isinstance(node, ast.List) else tuple(values)
    if isinstance(node, (ast.Call, ast.Attribute)):
        return _layer(node, text)
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise _not_a_layer(text) from error


def _layer(node: ast.Call | ast.Attribute, text: str) -> keras.Layer:
    name, call = (node.func, node) if isinstance(node, ast.Call) else (node, None)
    cls = _layer_class(ast.unparse(name), text)
    positional = [_value(argument, text) for argument in call.args] if call else []
    named = {}
    for keyword in call.keywords if call else []:
        if keyword.arg is None:  # **mapping
            raise _not_a_layer(text)
        named[keyword.arg] = _value(keyword.value, text)
    try:
        return cls(*positional, **named)
    except Exception as error:  # each layer raises what it likes
        raise ValueError(f"{printable(text)!r} cannot be made: {error}") from error


def _layer_class(name: str, text: str) -> type[keras.Layer]:
    package, _, rest = name.partition(".")
    namespace, _, class_name = rest.partition(".")
    if package not in _MODULES or namespace != "layers" or not class_name.isidentifier():
        raise _not_a_layer(text)
    known = _image_layers(package)
    if class_name not in known:
        raise ValueError(
            f"{printable(name)!r} is not an image layer of {package}. "
            f"{did_you_mean(class_name, known)}"
        )
    return known[class_name]


def _image_layers(package: str) -> dict[str, type[keras.Layer]]:
    """The image preprocessing layers of `keras` or `keras_cv` by name."""
    if package == "keras_cv":
        require("tensorflow", install_command("cv"))  # first: a GPU is left to the backend
        layers = require("keras_cv", install_command("cv")).layers
    else:
        layers = keras.layers
    return {
        name: cls
        for name, cls in inspect.getmembers(layers, inspect.isclass)
        if issubclass(cls, keras.Layer) and _MODULES[package] in cls.__module__
    }
