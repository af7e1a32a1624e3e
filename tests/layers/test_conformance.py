"""Keras's own test of a layer, for every public layer, and images and batches of any size."""

import dataclasses
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops
from keras.src.testing import TestCase

from keras_vit import layers
from tests.layers.cases import CASES, TOKEN_INDEX, TOKENS, arrays


class Harness(TestCase):
    """Keras's harness, outside of unittest."""

    def runTest(self) -> None: ...


def shapes_and_types(inputs: dict[str, Any]) -> tuple[Any, Any]:
    """What Keras's harness takes: the shape of one argument, or one `..._shape` for each."""
    shapes = {f"{name}_shape": np.shape(x) for name, x in arrays(inputs).items()}
    dtypes = {f"{name}_shape": x.dtype.name for name, x in arrays(inputs).items()}
    if len(inputs) > 1:
        return shapes, dtypes
    return next(iter(shapes.values())), next(iter(dtypes.values()))


# Their outputs are for all images alike.
WITHOUT_BATCH = ("grid_position_bias", "rotary_positions")


@pytest.mark.parametrize("name", CASES)
def test_keras_conformance(name: str) -> None:
    """Config, build, symbolic, eager, compiled training, mixed precision."""
    cls, arguments, inputs = CASES[name]
    shape, dtype = shapes_and_types(inputs)
    Harness().run_layer_test(
        cls,
        init_kwargs=arguments,
        input_shape=shape,
        input_dtype=dtype,
        supports_masking=issubclass(cls, keras.layers.Dense | keras.layers.Dropout),
        # Keras trains on one argument alone; the others train below.
        run_training_check=len(inputs) == 1 and name not in WITHOUT_BATCH,
    )


@pytest.mark.parametrize("name", ["attention_pooling", "mean_pooling", "merging_block"])
def test_keras_conformance_without_merging_before(name: str) -> None:
    """The second argument is optional."""
    cls, arguments, inputs = CASES[name]
    Harness().run_layer_test(
        cls,
        init_kwargs=arguments,
        input_shape=inputs["tokens"],
        run_training_check=name != "merging_block",  # Keras sums one output
    )


# Per argument a shape with None, and two that fit it.
DYNAMIC: dict[str, tuple[dict[str, Any], ...]] = {
    "tokens": ({"tokens": (None, None, 32)}, {"tokens": (3, 17, 32)}, {"tokens": (1, 11, 32)}),
    "images": (
        {"images": (None, None, None, 3)},
        {"images": (3, 32, 24, 3)},
        {"images": (1, 48, 40, 3)},
    ),
    "images_first": (
        {"images": (None, 3, None, None)},
        {"images": (3, 3, 32, 24)},
        {"images": (1, 3, 48, 40)},
    ),
    "with_patches": (
        {"tokens": (None, None, 32), "patches": (None, None, None, 5)},
        {"tokens": (3, 18, 32), "patches": (3, 4, 4, 5)},
        {"tokens": (1, 12, 32), "patches": (1, 5, 2, 5)},
    ),
    "with_token_index": (
        {"tokens": (None, None, 32), "token_index": (None, None)},
        {"tokens": (2, 17, 32), "token_index": TOKEN_INDEX},
        {"tokens": (1, 10, 32), "token_index": TOKEN_INDEX[:1, :20]},
    ),
    "queries": (
        {"queries": (None, None, 4, 8)},
        {"queries": (3, 17, 4, 8)},
        {"queries": (1, 9, 4, 8)},
    ),
    "feature_maps": (
        {"images": (None, None, None, 64)},
        {"images": (3, 7, 6, 64)},
        {"images": (1, 4, 9, 64)},
    ),
}
SHAPES: dict[str, str] = {
    "attention_pooling": "with_token_index",
    "mean_pooling": "with_token_index",
    "merging_block": "with_token_index",
    "patch_embedding": "images_first",
    "patches": "images_first",
    "position_embedding": "with_patches",
    "relative_position_bias": "queries",
    "residual_unit": "feature_maps",
    "conv_stem_stage": "images",
    "resnet_stem": "images",
    "standardized_conv": "images",
    "tokens_to_grid": "with_patches",
    "unmerge_tokens": "with_token_index",
}


@pytest.mark.parametrize("name", CASES)
def test_batches_and_images_of_any_size(name: str) -> None:
    """One compiled model takes any number of examples, tokens and pixels, as the layer does."""
    cls, arguments, _ = CASES[name]
    if cls is layers.MixerBlock:
        pytest.skip("MLP-Mixer learns a weight for every pair of tokens: their number is fixed")
    if getattr(arguments.get("config"), "relative_grid", arguments.get("relative_grid")):
        pytest.skip("BEiT's table is for one number of tokens")
    dynamic, *fitting = DYNAMIC[SHAPES.get(name, "tokens")]
    layer = cls(**arguments)
    tensors = {
        argument: keras.Input(shape[1:], dtype="int32" if argument == "token_index" else "float32")
        for argument, shape in dynamic.items()
    }
    model = keras.Model(list(tensors.values()), layer(*tensors.values()))
    for given in fitting:
        inputs = list(arrays(given).values())
        expected = keras.tree.flatten(layer(*inputs))
        found = keras.tree.flatten(model.predict(inputs, verbose=0))
        promised = layer.compute_output_shape(*(x.shape for x in inputs))
        promised = promised if isinstance(promised[0], int) else promised[0]
        assert tuple(promised) == found[0].shape
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, ops.convert_to_numpy(other), atol=2e-5)


def test_a_mixer_refuses_tokens_of_any_number() -> None:
    cls, arguments, _ = CASES["mixer_block"]
    with pytest.raises(ValueError, match="not have a fixed length"):
        cls(**arguments)(keras.Input((None, 32)))
    assert tuple(cls(**arguments)(np.ones(TOKENS, "float32")).shape) == TOKENS


@pytest.mark.parametrize("name", CASES)
def test_keras_set_to_channels_first(name: str) -> None:
    """What takes images or returns a grid follows Keras's configuration; all else is as it was."""
    cls, arguments, given = CASES[name]
    inputs = arrays(given)
    arguments = {key: value for key, value in arguments.items() if key != "remat"}
    if "config" in arguments:
        arguments["config"] = dataclasses.replace(arguments["config"], remat=False)
    layer = cls(**arguments)
    expected = keras.tree.flatten(layer(**inputs))
    keras.config.set_image_data_format("channels_first")
    same = cls(**{key: value for key, value in arguments.items() if key != "data_format"})
    same(**inputs)
    assert getattr(same, "data_format", None) == getattr(layer, "data_format", None)
    same.set_weights(layer.get_weights())
    found = keras.tree.flatten(same(**inputs))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(*map(ops.convert_to_numpy, (one, other)))
