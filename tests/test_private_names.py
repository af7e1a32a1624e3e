"""The private names of Keras that the package uses: each is in this version of Keras.

The suite runs this on the newest Keras, `.ci/oldest` on the oldest that pyproject.toml allows, and
`.ci/nightly` on the next one.
"""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

from tests.conftest import REPOSITORY

# Names for which Keras does not have a public one, and what they are.
PRIVATE = {
    "_flatten_layers": "all layers inside a layer, at any depth",
    "_dtype_policy": "the policy of a layer that is already built",
    "_track_variables": "torch: registers a layer's variables as parameters",
    "_jax_state_synced": "JAX: whether the variables are up to date",
    "_symbolic_build": "builds the metrics of a compiled model before its first batch",
    "_get_seed_generator": "where an image layer takes its random numbers from",
    "_layout": "JAX: how a variable is cut over devices",
    "_value": "the array of a variable, to put another kind of array in its place",
    # Of optimizers.
    "_get_current_learning_rate": "the learning rate at this step",
    "_learning_rate": "the schedule itself, where the public name is its value",
    "_iterations": "micro-steps where gradients accumulate; the public name counts updates",
    "_get_variable_index": "the place of a variable among those of an optimizer",
    "_update_model_variables_moving_average": "the exponential moving average",
    "_model_variables_moving_average": "what it averages",
    "_apply_weight_decay": "what follows an update",
}
OF_ONE_BACKEND = {
    "_track_variables": "torch",
    "_jax_state_synced": "jax",
    "_layout": "jax",
}

# What is imported from within Keras, and what for.
IMPORTED = {
    "keras.src.trainers.data_adapters.get_data_adapter": "wraps data for several devices",
}

# What Keras's `fit` passes to `evaluate`, which tells one that it calls from one that a user calls.
OPTION_OF_EVALUATE = "_use_cached_eval_dataset"


def objects_of_keras() -> list[Any]:
    """A model, layers, optimizers, a callback, a loss, a metric and a variable."""
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
    model.compile("sgd", "mse")
    others = (keras.callbacks.Callback(), keras.losses.MeanSquaredError(), keras.metrics.Mean())
    without_decay = keras.optimizers.SGD(use_ema=True)
    without_decay.exclude_from_weight_decay(var_names=["bias"])
    without_decay.weight_decay = 0.1
    without_decay.apply([keras.ops.ones(2)], [keras.Variable([1.0, 1.0], name="kernel")])
    scaled = keras.optimizers.LossScaleOptimizer(without_decay)
    layers = [model.layers[-1], keras.layers.RandomFlip()]
    optimizers = [model.optimizer, without_decay, scaled]
    return [model, *layers, *optimizers, keras.Variable(1.0), *others]


def private_names() -> set[str]:
    """Those of Keras's objects, without what torch's modules have besides."""
    names = {name for each in objects_of_keras() for name in dir(each)}
    if keras.backend.backend() == "torch":
        import torch

        names -= {*dir(torch.nn.Module())}
    return {name for name in names if re.match("_[a-z]", name)}


def names_in_code(tree: ast.AST) -> Iterator[str]:
    """Attributes, methods, imports from within Keras, and strings, which `getattr` may take."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            node.values.clear()  # parts of texts are not names
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ClassDef):
            yield from (part.name for part in node.body if isinstance(part, ast.FunctionDef))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("keras.src"):
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.startswith("keras.src"))


@pytest.mark.parametrize("name", PRIVATE)
def test_keras_has_it(name: str) -> None:
    if OF_ONE_BACKEND.get(name, keras.backend.backend()) != keras.backend.backend():
        pytest.skip("a name of another backend")
    assert name in private_names()


@pytest.mark.parametrize("name", IMPORTED)
def test_it_can_be_imported(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert callable(getattr(importlib.import_module(module), attribute))


def test_an_adapter_of_data_can_be_given_as_data() -> None:
    """`ops/devices.py` wraps it."""
    get_data_adapter = importlib.import_module("keras.src.trainers.data_adapters").get_data_adapter
    adapter = get_data_adapter(np.ones((1, 1)))
    assert get_data_adapter(adapter) is adapter
    assert callable(adapter.get_jax_iterator)


def test_fit_says_that_it_calls_evaluate() -> None:
    assert f"{OPTION_OF_EVALUATE}=True" in inspect.getsource(keras.Model.fit)


def test_no_other_private_name_is_used() -> None:
    files = sorted((REPOSITORY / "keras_vit").rglob("*.py"))
    used = {name for file in files for name in names_in_code(ast.parse(file.read_text("utf-8")))}
    of_keras = {name for name in used if name.startswith("keras.src")} | used & private_names()
    allowed = {*PRIVATE, *IMPORTED}
    assert of_keras <= allowed, of_keras - allowed
    unused = allowed - used
    assert not unused, f"{unused} are not used any more: leave them out of the tables"


def test_the_mean_of_the_loss_is_the_first_metric() -> None:
    """`ops/two_pass_step.py` updates it as Keras's own step does."""
    assert objects_of_keras()[0].metrics[0].name == "loss"
