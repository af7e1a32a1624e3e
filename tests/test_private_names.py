"""Every private name of Keras that the package uses is in this version of Keras.

`.ci/oldest` runs this on the oldest Keras that pyproject.toml allows, the suite on the newest.
"""

import re
from typing import Any

import keras
import numpy as np
import pytest

from tests.conftest import REPOSITORY

# Names for which Keras has no public one, and what they are.
PRIVATE = {
    "_flatten_layers": "all layers inside a layer, at any depth",
    "_dtype_policy": "the policy of a layer that is already built",
    "_track_variables": "torch: registers a layer's variables as parameters",
    "_jax_state_synced": "JAX: whether the variables are up to date",
    "_symbolic_build": "builds the metrics of a compiled model before its first batch",
    "_get_current_learning_rate": "an optimizer's learning rate at this step",
    "_update_model_variables_moving_average": "an optimizer's exponential moving average",
    "_learning_rate": "an optimizer's schedule itself, where the public name is its value",
    "_iterations": "micro-steps of an optimizer that accumulates, where the public name is steps",
    "_get_variable_index": "the place of a variable among an optimizer's",
    "_apply_weight_decay": "what an optimizer does after its update",
    "_maybe_symbolic_build": "TensorFlow: `_symbolic_build`, unless all is built",
    "_distribute_strategy": "TensorFlow: the strategy in whose scope a model was built",
    "_backend_apply_gradients": "TensorFlow: what an optimizer does with gradients, clipping first",
    "_get_seed_generator": "where an image layer takes its random numbers from",
    "_var_key": "TensorFlow: the name by which an optimizer finds a variable's state",
}
OF_ONE_BACKEND = {
    "_track_variables": "torch",
    "_jax_state_synced": "jax",
    "_maybe_symbolic_build": "tensorflow",
    "_distribute_strategy": "tensorflow",
    "_backend_apply_gradients": "tensorflow",
    "_var_key": "tensorflow",
}


def objects_of_keras() -> list[Any]:
    """A model, layers, an optimizer, a callback, a loss and a metric."""
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
    model.compile("sgd", "mse")
    others = (keras.callbacks.Callback(), keras.losses.MeanSquaredError(), keras.metrics.Mean())
    return [model, model.layers[-1], keras.layers.RandomFlip(), model.optimizer, *others]


def private_names() -> set[str]:
    names = {name for each in objects_of_keras() for name in dir(each)}
    return {name for name in names if re.match("_[a-z]", name)}


@pytest.mark.parametrize("name", PRIVATE)
def test_keras_has_it(name: str) -> None:
    if OF_ONE_BACKEND.get(name, keras.backend.backend()) != keras.backend.backend():
        pytest.skip("a name of another backend")
    assert name in private_names()


def test_what_many_devices_need() -> None:
    """`backend/devices.py` wraps adapters of data, and reads how variables are cut."""
    from keras.src.trainers.data_adapters import get_data_adapter

    adapter = get_data_adapter(np.ones((1, 1)))
    assert get_data_adapter(adapter) is adapter
    assert callable(adapter.get_jax_iterator)
    assert hasattr(keras.Variable(1.0), "_layout")


def test_no_other_private_name_is_used() -> None:
    files = sorted((REPOSITORY / "keras_vit").rglob("*.py"))
    code = "\n".join(file.read_text(encoding="utf-8") for file in files)
    used = set(re.findall(r"(?:\.|^ +def )(_[a-z]\w*)", code, re.MULTILINE)) & private_names()
    assert used <= set(PRIVATE), used - set(PRIVATE)


def test_the_mean_of_the_loss_is_the_first_metric() -> None:
    """`backend/two_pass_step.py` updates it as Keras's own step does."""
    assert objects_of_keras()[0].metrics[0].name == "loss"
