"""Every public layer, with every argument, in anyone's model: clone, save, quantize, freeze."""

import inspect
import json
import re
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras.dtype_policies import DTypePolicyMap

from keras_vit import layers
from keras_vit.layers._dense import Dense
from keras_vit.layers._dropout import Dropout
from keras_vit.layers.composite import CompositeLayer
from tests.layers.cases import CASES, TOKENS, Case, arrays

COMPOSITES = [name for name, case in CASES.items() if issubclass(case.cls, CompositeLayer)]
BFLOAT16 = keras.DTypePolicy("mixed_bfloat16")


def numpy(outputs: Any) -> list[np.ndarray]:
    flat = keras.tree.flatten(outputs)
    return [keras.ops.convert_to_numpy(keras.ops.cast(x, "float32")) for x in flat]


def functional(layer: keras.layers.Layer, inputs: dict[str, np.ndarray]) -> keras.Model:
    """A Functional model of one layer, whose weights are all random."""
    tensors = {
        name: keras.Input(x.shape[1:], dtype=x.dtype.name, name=name) for name, x in inputs.items()
    }
    model = keras.Model(tensors, layer(**tensors))
    random = np.random.default_rng(2)
    for weight in layer.weights:
        weight.assign(0.3 * random.normal(size=weight.shape))
    return model


def assert_same(one: keras.Model, other: keras.Model, inputs: dict[str, np.ndarray]) -> None:
    for found, expected in zip(numpy(other(inputs)), numpy(one(inputs)), strict=True):
        assert np.isfinite(expected).all()
        np.testing.assert_array_equal(found, expected)


def only_layer(model: keras.Model) -> Any:
    (layer,) = (one for one in model.layers if not isinstance(one, keras.layers.InputLayer))
    return layer


def check_copies(model: keras.Model, inputs: dict[str, np.ndarray], path: Path) -> keras.Model:
    """JSON, `clone_model` and `.keras`: the same configuration, the same outputs."""
    config = keras.saving.serialize_keras_object(only_layer(model))
    again = keras.saving.deserialize_keras_object(json.loads(json.dumps(config)))
    assert json.dumps(keras.saving.serialize_keras_object(again)["config"]) == json.dumps(
        config["config"]
    )
    clone = keras.models.clone_model(model)
    assert [v.path for v in clone.weights] == [v.path for v in model.weights]
    assert [v.trainable for v in clone.weights] == [v.trainable for v in model.weights]
    clone.set_weights(model.get_weights())
    assert_same(model, clone, inputs)
    model.save(path / "model.keras")
    loaded = keras.saving.load_model(path / "model.keras")
    assert_same(model, loaded, inputs)
    return loaded


def test_every_layer_has_a_row_of_all_its_arguments() -> None:
    every = {getattr(layers, name) for name in layers.__all__} | {Dense, Dropout}
    assert {case.cls for case in CASES.values()} == every - {layers.BlockConfig}
    given: dict[type, dict[str, Any]] = {}
    for case in CASES.values():
        given.setdefault(case.cls, {}).update(case.arguments)
        if "config" in case.arguments:
            block = given.setdefault(layers.BlockConfig, {})
            plain = layers.BlockConfig(num_heads=1, mlp_dim=1)
            block |= dict(asdict(case.arguments["config"]).items() - asdict(plain).items())
    # What every layer has, and what quantizing gives: tested below.
    of_all = inspect.signature(keras.layers.Layer.__init__).parameters
    elsewhere = {*of_all, "quantization_config"}
    for cls, arguments in given.items():
        own: Any = cls.__init__  # type: ignore[misc]
        for name, parameter in inspect.signature(own).parameters.items():
            if parameter.default is not inspect.Parameter.empty and name not in elsewhere:
                assert name in arguments, f"{cls.__name__}: no row gives {name}"
                assert arguments[name] != parameter.default, f"{cls.__name__}: {name}"


@pytest.mark.parametrize("name", CASES)
def test_a_layer_is_cloned_and_saved(name: str, tmp_path: Path) -> None:
    """The dtype is a policy object, without which Keras derives a configuration by itself."""
    case = CASES[name]
    # Saving merges LoRA's matrices in float32, which bfloat16 rounds elsewhere.
    policy = BFLOAT16 if name != "dense_lora" else keras.DTypePolicy("float32")
    inputs = arrays(case.inputs)
    layer = case.cls(**case.arguments, dtype=policy, trainable=False, name="one")
    loaded = only_layer(check_copies(functional(layer, inputs), inputs, tmp_path))
    config = loaded.get_config()
    assert config["name"] == "one"
    assert config["trainable"] is False
    assert loaded.compute_dtype == policy.compute_dtype
    arguments = dict(case.arguments)
    if "config" in arguments:  # its fields stand side by side
        arguments |= {k: v for k, v in asdict(arguments.pop("config")).items() if v is not None}
    for argument, value in arguments.items():
        kept = config[argument]
        assert (kept["config"] if isinstance(kept, dict) else kept) is not None
        if isinstance(value, bool | int | float | tuple):
            assert np.array_equal(kept, value) or np.array_equal(kept, (value, value)), argument


@pytest.mark.parametrize("which", ["last", "all"])
@pytest.mark.parametrize("name", COMPOSITES)
def test_a_policy_map_reaches_sublayers(name: str, which: str, tmp_path: Path) -> None:
    case, inputs = CASES[name], arrays(CASES[name].inputs)
    plain = functional(case.cls(**case.arguments, name="one"), inputs)
    parts = [one.path for one in only_layer(plain)._flatten_layers() if one._trainable_variables]
    pattern = {"last": parts[-1], "all": "one/.*"}[which]
    policies = DTypePolicyMap("float32", {pattern: keras.DTypePolicy("mixed_bfloat16")})
    layer = case.cls(**case.arguments, name="one", dtype=policies)
    model = functional(layer, inputs)
    loaded = only_layer(check_copies(model, inputs, tmp_path))
    for one in loaded._flatten_layers():
        if one.path is None:
            continue  # Dropout: nothing to build, so that Keras gives it no path
        assert one.compute_dtype == ("bfloat16" if re.fullmatch(pattern, one.path) else "float32")
    for tensor, symbolic in zip(
        keras.tree.flatten(model(inputs)), keras.tree.flatten(model.output), strict=True
    ):
        assert keras.backend.standardize_dtype(tensor.dtype) == symbolic.dtype


QUANTIZED = [
    "attention",
    "attention_pooling",
    "dense",
    "encoder_block",
    "merging_block",
    "mixer_block",
    "mlp",
]


def quantizer(name: str, **arguments: Any) -> Any:
    """A configuration of `keras.quantizers`, or a skip where Keras is older than it."""
    if not hasattr(keras.quantizers, name):
        pytest.skip(f"Keras {keras.__version__} has no {name}")
    return getattr(keras.quantizers, name)(**arguments)


WEIGHTS_ONLY = partial(quantizer, "Int8QuantizationConfig", activation_quantizer=None)
BLOCKS_OF_8 = partial(quantizer, "Int4QuantizationConfig", block_size=8)


@pytest.mark.parametrize(
    ("name", "mode", "config", "error"),
    [
        *((name, "int8", None, 0.05) for name in QUANTIZED),
        *((name, "int4", None, 0.4) for name in ("dense", "encoder_block")),
        *((name, "float8", None, 0.4) for name in ("dense", "encoder_block")),
        ("encoder_block", "int8", WEIGHTS_ONLY, 0.05),
        ("encoder_block", "int4", BLOCKS_OF_8, 0.4),
    ],
)
def test_a_quantized_layer_is_cloned_and_saved(
    name: str, mode: str, config: Any, error: float, tmp_path: Path
) -> None:
    case: Case = CASES[name]
    inputs = arrays(case.inputs)
    layer = case.cls(**case.arguments, dtype=DTypePolicyMap("float32"), name="one")
    model = functional(layer, inputs)
    exact = numpy(model(inputs))
    layer.quantize(mode, **({"config": config()} if config else {}))
    outputs = numpy(model(inputs))
    assert 0 < np.abs(outputs[0] - exact[0]).max() < error * np.abs(exact[0]).max()
    dense = [one for one in layer._flatten_layers() if isinstance(one, Dense)]
    assert {one.quantization_mode for one in dense} == {mode}
    model.save(tmp_path / "quantized.keras")
    loaded = keras.saving.load_model(tmp_path / "quantized.keras")
    assert_same(model, loaded, inputs)
    assert {v.path: v.dtype for v in loaded.weights} == {v.path: v.dtype for v in model.weights}
    with pytest.raises(ValueError, match="already quantized"):
        only_layer(loaded).quantize(mode)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *((name, "int8") for name in QUANTIZED if name != "dense"),
        ("encoder_block", "int4"),
        ("encoder_block", "float8"),
    ],
)
def test_a_quantized_policy_holds_for_dense_sublayers(name: str, mode: str, tmp_path: Path) -> None:
    case, inputs = CASES[name], arrays(CASES[name].inputs)
    layer = case.cls(**case.arguments, dtype=f"{mode}_from_mixed_bfloat16", name="one")
    tensors = {n: keras.Input(x.shape[1:], dtype=x.dtype.name, name=n) for n, x in inputs.items()}
    model = keras.Model(tensors, layer(**tensors))
    leaves = [one for one in layer._flatten_layers() if not isinstance(one, CompositeLayer)]
    for leaf in leaves:
        assert leaf.quantization_mode == (mode if isinstance(leaf, Dense) else None)
        assert leaf.compute_dtype == "bfloat16"
    model.save(tmp_path / "quantized.keras")
    assert_same(model, keras.saving.load_model(tmp_path / "quantized.keras"), inputs)


@pytest.mark.parametrize(
    ("name", "mode", "words"),
    [
        (
            "residual_unit",
            "int8",
            ["ResidualUnit", "does not have a dense sublayer", "model.quantize"],
        ),
        ("class_token", "int8", ["ClassToken", "quantize"]),
        ("encoder_block", "gptq", ["EncoderBlock", "'gptq'", "calibrated", "model.quantize"]),
    ],
)
def test_what_cannot_be_quantized_says_why(name: str, mode: str, words: list[str]) -> None:
    case = CASES[name]
    layer = case.cls(**case.arguments)
    layer(**arrays(case.inputs))
    given = {}
    if mode == "gptq":
        given["config"] = quantizer("GPTQConfig", dataset=None, tokenizer=None)
    with pytest.raises(NotImplementedError) as error:
        layer.quantize(mode, **given)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("name", "path", "before_build"),
    [
        ("encoder_block", "mlp", False),
        ("encoder_block", "attention", True),
        ("encoder_block", "scale_0", False),
        ("mixer_block", "token_mixing", True),
        ("merging_block", "norm_1", False),
        ("attention_pooling", "mlp", True),
        ("residual_unit", "conv_2", False),
    ],
)
def test_a_frozen_sublayer_stays_frozen(
    name: str, path: str, before_build: bool, tmp_path: Path
) -> None:
    case, inputs = CASES[name], arrays(CASES[name].inputs)
    layer = case.cls(**case.arguments, name="one")
    if before_build:
        getattr(layer, path).trainable = False
    model = functional(layer, inputs)
    getattr(layer, path).trainable = False
    assert 0 < len(model.trainable_variables) < len(layer.weights)
    loaded = check_copies(model, inputs, tmp_path)
    assert not getattr(only_layer(loaded), path).trainable
    only_layer(loaded).trainable = False  # TensorFlow's layers set nothing that is set already
    only_layer(loaded).trainable = True
    assert len(loaded.trainable_variables) == len(layer.weights)


def test_a_part_of_a_sublayer_stays_frozen_and_quantized(tmp_path: Path) -> None:
    inputs = {"tokens": np.ones(TOKENS, "float32")}
    block = layers.EncoderBlock(layers.BlockConfig(num_heads=4, mlp_dim=24), name="one")
    model = functional(block, inputs)
    block.attention.output_projection.trainable = False
    block.mlp.dense_0.quantize("int8")
    loaded = only_layer(check_copies(model, inputs, tmp_path))
    assert not loaded.attention.output_projection.trainable
    assert loaded.attention.query_key_value.trainable
    modes = [one.quantization_mode for one in (loaded.mlp.dense_0, loaded.mlp.dense_1)]
    assert modes == ["int8", None]


def test_sublayers_have_the_same_names_in_every_block() -> None:
    """Policies, freezing and optimizers find variables by path."""
    tokens = np.ones(TOKENS, "float32")
    paths = []
    for name in ("first", "second"):
        config = layers.BlockConfig(num_heads=4, mlp_dim=24, relative_length=17)
        block = layers.EncoderBlock(config, name=name)
        block(tokens)
        paths.append([variable.path.removeprefix(f"{name}/") for variable in block.weights])
    assert paths[0] == paths[1]
