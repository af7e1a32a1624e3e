"""Layers whose configuration is their constructor's arguments."""

import inspect
from dataclasses import fields
from typing import Any

import keras

from keras_vit._base.errors import accepted_arguments
from keras_vit.layers.observation import current_observer

Shape = tuple[int | None, ...]

# `name`, `dtype` and so on, which Keras writes itself, and what a `CompositeLayer` adds.
_WRITTEN_ELSEWHERE = {*accepted_arguments(keras.layers.Layer), "sublayers"}


class ConfiguredLayer(keras.layers.Layer):
    """A layer that keeps every argument of its constructor in an attribute of the same name.

    `get_config` returns these. Keras derives a configuration only from arguments that are numbers
    and strings, not where `dtype` is an object. Each call is reported to the observer, if any.

    Attributes:
        config_class: The dataclass of the argument `config`, whose fields stand beside the other
            arguments in `get_config`; None without such an argument.
    """

    config_class: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().__call__(*args, **kwargs)
        observer = current_observer()
        if observer is None:
            return outputs
        names = inspect.signature(self.call).parameters
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        return observer.called(self, arguments, outputs)

    def get_config(self) -> dict[str, Any]:
        names = [n for n in accepted_arguments(type(self)) if n not in _WRITTEN_ELSEWHERE]
        arguments = {name: getattr(self, name) for name in names}
        if self.config_class is not None:
            config = arguments.pop("config")
            arguments |= {f.name: getattr(config, f.name) for f in fields(self.config_class)}
        return {**super().get_config(), **arguments}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        if cls.config_class is not None:
            config = dict(config)
            names = [f.name for f in fields(cls.config_class) if f.name in config]
            config["config"] = cls.config_class(**{name: config.pop(name) for name in names})
        return super().from_config(config)
