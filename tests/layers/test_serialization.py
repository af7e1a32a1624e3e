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

from keras_vit import layers
from keras_vit.layers._dense import Dense
from keras_vit.layers._dropout import Dropout
from keras_vit.layers.composite import CompositeLayer
from tests.backend import refused, reloaded, rows
from tests.layers.cases import CASES, arrays, quantizer

COMPOSITES = [name for name, case in CASES.items() if issubclass(case.cls, CompositeLayer)]
DTYPE_MAP = keras.dtype_policies.DTypePolicyMap


def one(name: str, /, **options: Any) -> tuple[Any, dict[str, np.ndarray]]:
    case = CASES[name]
    return case.cls(**case.arguments, **{"name": "one", **options}), arrays(case.inputs)


def numpy(outputs: Any) -> list[np.ndarray]:
    flat = keras.tree.flatten(outputs)
    return [keras.ops.convert_to_numpy(keras.ops.cast(x, "float32")) for x in flat]


def functional(layer: Any, inputs: dict[str, np.ndarray], filled: bool = True) -> keras.Model:
    tensors = {n: keras.Input(x.shape[1:], dtype=x.dtype.name, name=n) for n, x in inputs.items()}
    model, random = keras.Model(tensors, layer(**tensors)), np.random.default_rng(2)
    for weight in layer.weights if filled else []:
        values = 0.3 * random.normal(size=weight.shape)
        weight.assign(abs(values) if weight.path.endswith("variance") else values)
    return model


def assert_same(one: keras.Model, other: keras.Model, inputs: dict[str, np.ndarray]) -> None:
    for found, expected in zip(numpy(other(inputs)), numpy(one(inputs)), strict=True):
        assert np.isfinite(expected).all()
        np.testing.assert_array_equal(found, expected)


def only_layer(model: keras.Model) -> Any:
    (layer,) = (one for one in model.layers if not isinstance(one, keras.layers.InputLayer))
    return layer


def check_copies(model: keras.Model, inputs: dict[str, np.ndarray], folder: Path) -> Any:
    """JSON, `clone_model` and `.keras`: the same configuration, the same outputs; its layer."""
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(only_layer(model))))
    again = keras.saving.serialize_keras_object(keras.saving.deserialize_keras_object(config))
    assert json.dumps(again["config"]) == json.dumps(config["config"])
    clone = keras.models.clone_model(model)
    paths = [[(v.path, v.trainable) for v in each.weights] for each in (clone, model)]
    assert paths[0] == paths[1]
    clone.set_weights(model.get_weights())
    loaded = reloaded(model, folder)
    for other in (clone, loaded):
        assert_same(model, other, inputs)
    return only_layer(loaded)


def test_every_layer_has_a_row_of_all_its_arguments() -> None:
    every = {getattr(layers, name) for name in layers.__all__} | {Dense, Dropout}
    configurations = {layers.AttentionConfig, layers.BlockConfig}
    assert {case.cls for case in CASES.values()} == every - configurations
    given: dict[type, dict[str, Any]] = {layers.BlockConfig: {}}
    plain = asdict(layers.BlockConfig(num_heads=1, mlp_dim=1)).items()
    for case in CASES.values():
        given.setdefault(case.cls, {}).update(case.arguments)
        if "config" in case.arguments:
            given[layers.BlockConfig] |= dict(asdict(case.arguments["config"]).items() - plain)
    # What every layer has, and what quantizing gives: tested below.
    elsewhere = {*inspect.signature(keras.layers.Layer.__init__).parameters, "quantization_config"}
    for cls, arguments in given.items():
        own: Any = cls.__init__  # type: ignore[misc]
        for name, parameter in inspect.signature(own).parameters.items():
            if parameter.default is not inspect.Parameter.empty and name not in elsewhere:
                assert name in arguments, f"{cls.__name__}: no row gives {name}"
                assert arguments[name] != parameter.default, f"{cls.__name__}: {name}"


SAVED_EVERYWHERE = ("encoder_block", "merging_block", "residual_unit", "dense_lora")


@pytest.mark.parametrize("name", rows(CASES, SAVED_EVERYWHERE))
def test_a_layer_is_cloned_and_saved(name: str, tmp_path: Path) -> None:
    """The dtype is a policy object, without which Keras derives a configuration by itself."""
    # Saving merges LoRA's matrices in float32, which bfloat16 rounds elsewhere.
    policy = keras.DTypePolicy("float32" if name == "dense_lora" else "mixed_bfloat16")
    layer, inputs = one(name, dtype=policy, trainable=False)
    loaded = check_copies(functional(layer, inputs), inputs, tmp_path)
    config = loaded.get_config()
    assert (config["name"], config["trainable"]) == ("one", False)
    assert loaded.compute_dtype == policy.compute_dtype
    arguments = dict(CASES[name].arguments)
    if "config" in arguments:  # its fields stand side by side
        arguments |= {k: v for k, v in asdict(arguments.pop("config")).items() if v is not None}
    for argument, value in arguments.items():
        kept = config[argument]
        assert (kept["config"] if isinstance(kept, dict) else kept) is not None
        if isinstance(value, bool | int | float | tuple):
            assert np.array_equal(kept, value) or np.array_equal(kept, (value, value)), argument


@pytest.mark.parametrize("name", COMPOSITES)
def test_a_policy_map_reaches_sublayers(name: str, tmp_path: Path) -> None:
    layer, inputs = one(name)
    functional(layer, inputs)
    pattern = [each.path for each in layer._flatten_layers() if each._trainable_variables][-1]
    policies = DTYPE_MAP("float32", {pattern: keras.DTypePolicy("mixed_bfloat16")})
    model = functional(one(name, dtype=policies)[0], inputs)
    for each in check_copies(model, inputs, tmp_path)._flatten_layers():
        if each.path is not None:  # Dropout: nothing to build, so that Keras gives it no path
            dtype = "bfloat16" if re.fullmatch(pattern, each.path) else "float32"
            assert each.compute_dtype == dtype
    found, promised = map(keras.tree.flatten, (model(inputs), model.output))
    dtypes = [keras.backend.standardize_dtype(tensor.dtype) for tensor in found]
    assert dtypes == [tensor.dtype for tensor in promised]


QUANTIZED = ["attention", "attention_pooling", "encoder_block", "merging_block", "mixer_block"]
QUANTIZED += ["mlp"]
FEWER_BITS = [(name, mode) for name in ("dense", "encoder_block") for mode in ("int4", "float8")]
WEIGHTS_ONLY = partial(quantizer, "Int8QuantizationConfig", activation_quantizer=None)
BLOCKS_OF_8 = partial(quantizer, "Int4QuantizationConfig", block_size=8)
MODES: list[tuple[Any, ...]] = [(name, "int8", None) for name in (*QUANTIZED, "dense")]
MODES += [(*pair, None) for pair in FEWER_BITS]
MODES += [("encoder_block", "int8", WEIGHTS_ONLY), ("encoder_block", "int4", BLOCKS_OF_8)]
EVERYWHERE = [("encoder_block", mode, None) for mode in ("int8", "int4", "float8")]


@pytest.mark.parametrize(("name", "mode", "config"), rows(MODES, EVERYWHERE))
def test_a_quantized_layer_is_saved(name: str, mode: str, config: Any, tmp_path: Path) -> None:
    layer, inputs = one(name, dtype=DTYPE_MAP("float32"))
    model = functional(layer, inputs)
    exact = numpy(model(inputs))[0]
    layer.quantize(mode, **({"config": config()} if config else {}))
    error = np.abs(numpy(model(inputs))[0] - exact).max() / np.abs(exact).max()
    assert 0 < error < (0.05 if mode == "int8" else 0.4)
    dense = [each for each in layer._flatten_layers() if isinstance(each, Dense)]
    assert {each.quantization_mode for each in dense} == {mode}
    loaded = reloaded(model, tmp_path)
    assert_same(model, loaded, inputs)
    assert {v.path: v.dtype for v in loaded.weights} == {v.path: v.dtype for v in model.weights}
    refused("already quantized", only_layer(loaded).quantize, mode)


@pytest.mark.parametrize(("name", "mode"), [*((n, "int8") for n in QUANTIZED), *FEWER_BITS[2:]])
def test_a_quantized_policy_holds_for_dense_sublayers(name: str, mode: str, tmp_path: Path) -> None:
    layer, inputs = one(name, dtype=f"{mode}_from_mixed_bfloat16")
    model = functional(layer, inputs, filled=False)
    for leaf in layer._flatten_layers():
        if not isinstance(leaf, CompositeLayer):
            assert leaf.quantization_mode == (mode if isinstance(leaf, Dense) else None)
            assert leaf.compute_dtype == "bfloat16"
    assert_same(model, reloaded(model, tmp_path), inputs)


def test_what_cannot_be_quantized_says_why() -> None:
    for name, mode, words in (
        ("residual_unit", "int8", "ResidualUnit does not have a dense sublayer.*model.quantize"),
        ("class_token", "int8", "ClassToken.*quantize"),
        ("encoder_block", "gptq", "EncoderBlock.*'gptq'.*calibrated.*model.quantize"),
    ):
        layer, inputs = one(name)
        layer(**inputs)
        given = quantizer("GPTQConfig", dataset=None, tokenizer=None) if mode == "gptq" else None
        with pytest.raises(NotImplementedError, match=words):
            layer.quantize(mode, **({"config": given} if given else {}))
