"""What editors and type checkers know of a model: its arguments as attributes of one type each."""

import types
from dataclasses import fields
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from keras_vit import VisionTransformer
from keras_vit.models import BiTResNet, MLPMixer
from keras_vit.models.image_model import OF_KERAS

SMALL = {"patch_size": 8, "hidden_dim": 16, "depth": 1, "input_shape": (32, 32, 3)}
VIT = {**SMALL, "num_heads": 2}
ALL_TOKENS = {**VIT, "pooling": None, "num_classes": 0, "layer_scale": 0.1}
MODELS = {
    VisionTransformer: [VIT, ALL_TOKENS, {**VIT, "conv_stem": ((8, 2),), "token_merging": (4,)}],
    MLPMixer: [SMALL],
    BiTResNet: [{"depths": (1,), "width": 32, "input_shape": (32, 32, 3)}],
}


@pytest.mark.parametrize("cls", MODELS)
def test_every_argument_is_an_attribute_of_the_declared_type(cls: Any) -> None:
    hints = {**get_type_hints(cls.config_class), **get_type_hints(cls)}
    names = {field.name for field in fields(cls.config_class)} - {*OF_KERAS, "dtype"}
    for arguments in MODELS[cls]:
        model = cls(**arguments)
        for name in names:
            value = getattr(model, name)
            assert is_of(value, hints[name]), f"{name}={value!r} is not {hints[name]}"


def is_of(value: Any, hint: Any) -> bool:
    if isinstance(hint, types.UnionType):
        return any(is_of(value, part) for part in get_args(hint))
    if get_origin(hint) is not tuple:
        return isinstance(value, hint)
    parts = get_args(hint)
    parts = parts[:1] * len(value) if isinstance(value, tuple) and parts[-1:] == (...,) else parts
    fits = isinstance(value, tuple) and len(value) == len(parts)
    return fits and all(map(is_of, value, parts))
