"""The optimizers inside `fit`: against NumPy, with what Keras adds, and through a saved file."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit.training.optimizers import OPTIMIZERS, DecoupledAdam, MomentumSGD
from keras_vit.training.parameter_groups import ParameterGroup
from keras_vit.training.schedules import WarmupDecay
from tests.backend import reloaded, rows
from tests.training.common import BACKEND, POLICIES, assert_equal

RNG = np.random.default_rng(0)
X, Y = (RNG.normal(size=size).astype("float32") for size in ((8, 4), (8, 3)))
# The first pattern fits the paths of a Sequential model, and not those after it is loaded.
GROUPS = (
    ParameterGroup(".*/head/kernel", weight_decay=2.0, learning_rate=0.5),
    ParameterGroup(".*kernel"),
    ParameterGroup(".*", weight_decay=0.0),
)


def regression(optimizer: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    hidden = keras.layers.Dense(5, "tanh", name="hidden")
    model = keras.Sequential([keras.Input((4,)), hidden, keras.layers.Dense(3, name="head")])
    # TensorFlow's graphs compile faster without XLA, which the recorded trainings have.
    model.compile(optimizer, "mse", jit_compile=False if BACKEND == "tensorflow" else "auto")
    return model


def fit(model: keras.Model, epochs: int, batch_size: int = 8, initial: int = 0) -> None:
    model.fit(X, Y, batch_size, epochs, shuffle=False, verbose=0, initial_epoch=initial)


def weights(model: keras.Model) -> list[np.ndarray]:
    return [weight.astype("float64") for weight in model.get_weights()]


def gradients(values: list[np.ndarray], x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Of the mean squared error of `regression`, by hand."""
    kernel_0, bias_0, kernel_1, bias_1 = values
    hidden = np.tanh(x @ kernel_0 + bias_0)
    error = 2 * (hidden @ kernel_1 + bias_1 - y) / y.size
    below = error @ kernel_1.T * (1 - hidden**2)
    return [x.T @ below, below.sum(0), hidden.T @ error, error.sum(0)]


def clipped(values: list[np.ndarray], norm: float) -> list[np.ndarray]:
    length = np.sqrt(sum((gradient**2).sum() for gradient in values))
    return [gradient * min(1, norm / length) for gradient in values]


@pytest.mark.every_backend
@pytest.mark.parametrize("peak", [None, 0.2])
def test_adam_with_its_table_is_numpys(peak: float | None) -> None:
    schedule = WarmupDecay(0.2, 6, warmup_steps=2)
    options = {"weight_decay": 0.3, "groups": GROUPS, "global_clipnorm": 0.1}
    model = regression(DecoupledAdam(schedule, schedule_peak=peak, **options))
    expected = weights(model)
    fit(model, 5)
    first, second = ([np.zeros_like(value) for value in expected] for _ in range(2))
    decays, multipliers = (1, 0, 2, 0), (1, 1, 0.5, 1)
    for step in range(5):
        rate = 0.2 * (step / 2 if step < 2 else 1 - (step - 2) / 4)
        for i, gradient in enumerate(clipped(gradients(expected, X, Y), 0.1)):
            first[i] = 0.9 * first[i] + 0.1 * gradient
            second[i] = 0.999 * second[i] + 0.001 * gradient**2
            # optax corrects in float32, where 1 - 0.999 is 0.00099999.
            corrected = first[i] / (1 - np.float32(0.9) ** (step + 1))
            root = np.sqrt(second[i] / (1 - np.float32(0.999) ** (step + 1)))
            move = rate * multipliers[i] * corrected / (root + 1e-8)
            expected[i] = expected[i] - move - 0.3 * decays[i] * rate / (peak or 1) * expected[i]
    assert_equal(weights(model), expected, atol=2e-6)


@pytest.mark.every_backend
def test_accumulation_clips_the_average_and_counts_updates() -> None:
    """Schedule and moving average go by updates, not by the batches of an accumulation."""
    averaged = {"use_ema": True, "ema_momentum": 0.7, "gradient_accumulation_steps": 2}
    options = {"global_clipnorm": 0.1, "state_dtype": "float32", **averaged}
    model = regression(MomentumSGD(WarmupDecay(0.5, 6, warmup_steps=2), **options))
    expected = weights(model)
    fit(model, 5, batch_size=4)
    momentum = [np.zeros_like(value) for value in expected]
    averages: list[np.ndarray] = []
    for step in range(5):
        rate = 0.5 * (step / 2 if step < 2 else 1 - (step - 2) / 4)
        halves = [gradients(expected, X[i : i + 4], Y[i : i + 4]) for i in (0, 4)]
        mean = clipped([(a + b) / 2 for a, b in zip(*halves, strict=True)], 0.1)
        momentum = [g + 0.9 * m for g, m in zip(mean, momentum, strict=True)]
        expected = [w - rate * m for w, m in zip(expected, momentum, strict=True)]
        averages = averages or expected
        averages = [0.7 * a + 0.3 * w for a, w in zip(averages, expected, strict=True)]
    assert_equal(weights(model), averages, atol=2e-6)  # fit ends with the average


@pytest.mark.parametrize("name", rows(OPTIMIZERS, [*OPTIMIZERS][:1]))
def test_a_saved_training_goes_on_as_if_it_had_not_stopped(name: str, tmp_path: Path) -> None:
    options = {"weight_decay": 0.2, "groups": GROUPS, "state_dtype": "bfloat16"}
    options["gradient_accumulation_steps"] = 2
    schedules = [WarmupDecay(0.1, 8, warmup_steps=2) for _ in range(2)]
    whole, part = (regression(OPTIMIZERS[name](schedule, **options)) for schedule in schedules)
    fit(whole, 6, batch_size=4)
    fit(part, 3, batch_size=4)
    again = reloaded(part, tmp_path)
    assert again.optimizer.groups == GROUPS
    assert type(again.optimizer) is OPTIMIZERS[name]
    fit(again, 6, batch_size=4, initial=3)
    assert_equal(again, whole, atol=1e-7)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("policy", rows(POLICIES, ["mixed_bfloat16"]))
def test_mixed_precision(name: str, policy: str) -> None:
    keras.config.set_dtype_policy(policy)
    model = regression(OPTIMIZERS[name](0.05, global_clipnorm=1.0, state_dtype="bfloat16"))
    losses = model.fit(X, Y, epochs=12, verbose=0).history["loss"]
    assert losses[-1] < 0.8 * losses[0]
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    assert (optimizer is model.optimizer) == (policy == "mixed_bfloat16")
    for states in optimizer._states:
        dtypes = [keras.backend.standardize_dtype(state.dtype) for state in states.values()]
        assert dtypes[0] == "bfloat16"
        assert set(dtypes[1:]) <= {"float32"}


def test_errors_say_what_is_accepted() -> None:
    for options, word in (
        ({"state_dtype": "float16"}, "'bfloat16'"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1"),
        ({"schedule_peak": 0.0}, "schedule_peak=0.0"),
    ):
        with pytest.raises(ValueError, match=word):
            DecoupledAdam(0.1, **options)
