"""Sharpness-aware steps: against NumPy, at the price of two gradients, with all that `fit` has."""

from typing import Any

import keras
import numpy as np
import pytest

from keras_vit.training.sam import gsam_rho, sharpness_aware
from tests.training.common import BACKEND, JIT, assert_equal
from tests.training.test_optimizers import X, Y, clipped, gradients, regression, weights


def unit(values: list[np.ndarray]) -> list[np.ndarray]:
    length = np.sqrt(sum((gradient**2).sum() for gradient in values))
    return [gradient / length for gradient in values]


def sam_gradient(values: Any, x: np.ndarray, y: np.ndarray, rho: float, alpha: float) -> Any:
    """Foret et al., equation 3; Zhuang et al., algorithm 1."""
    clean = gradients(values, x, y)
    perturbed = [value + rho * u for value, u in zip(values, unit(clean), strict=True)]
    robust = gradients(perturbed, x, y)
    along = unit(robust)
    projection = sum((c * u).sum() for c, u in zip(clean, along, strict=True))
    residual = [c - projection * u for c, u in zip(clean, along, strict=True)]
    return [r - alpha * o for r, o in zip(robust, residual, strict=True)]


@pytest.mark.every_backend
@pytest.mark.parametrize(("alpha", "accumulate"), [(0.0, None), (0.6, 2)])
def test_any_optimizer_steps_from_beside(alpha: float, accumulate: int | None) -> None:
    sgd = keras.optimizers.SGD(0.5, global_clipnorm=0.2, gradient_accumulation_steps=accumulate)
    model, size = regression(sgd), 8 // (accumulate or 1)
    sharpness_aware(model, rho=0.3, alpha=alpha)
    expected = weights(model)
    loss = model.fit(X, Y, size, epochs=4, shuffle=False, verbose=0).history["loss"]
    for step in range(4):
        slices = [slice(i, i + size) for i in range(0, 8, size)]
        parts = [sam_gradient(expected, X[part], Y[part], 0.3, alpha) for part in slices]
        mean = clipped([np.mean(part, axis=0) for part in zip(*parts, strict=True)], 0.2)
        here = np.tanh(X @ expected[0] + expected[1]) @ expected[2] + expected[3]
        # What fit shows is the loss of the weights themselves.
        np.testing.assert_allclose(loss[step], ((here - Y) ** 2).mean(), rtol=1e-5)
        expected = [value - 0.5 * g for value, g in zip(expected, mean, strict=True)]
    assert_equal(weights(model), expected, atol=1e-6)


def test_rho_falls_with_the_learning_rate() -> None:
    schedule = keras.optimizers.schedules.PolynomialDecay(0.5, 4, 0.0)
    model = regression(keras.optimizers.SGD(schedule))
    sharpness_aware(model, gsam_rho(schedule, 0.4, 0.1, 0.5))
    expected = weights(model)
    model.fit(X, Y, 8, epochs=3, verbose=0)
    for step in range(3):
        rate, next_rate = 0.5 * (1 - step / 4), 0.5 * (1 - (step + 1) / 4)
        actual = sam_gradient(expected, X, Y, 0.1 + 0.3 * next_rate / 0.5, 0.0)
        expected = [value - rate * g for value, g in zip(expected, actual, strict=True)]
    assert_equal(weights(model), expected, atol=1e-6)
    for rho, alpha, word in ((0.0, 0.0, "rho=0.0"), (0.1, -1.0, "alpha=-1")):
        with pytest.raises(ValueError, match=word):
            sharpness_aware(regression("sgd"), rho, alpha)
    with pytest.raises(ValueError, match="rate_max"):
        gsam_rho(lambda step: 0.1, 0.5, 0.1, 0.1, 0.1)


@pytest.mark.every_backend
def test_both_passes_see_one_mask_and_the_state_moves_once() -> None:
    """Batch norm counts a batch once; dropout has one mask, of which both gradients know."""

    def train(rho: float | None) -> keras.Model:
        keras.utils.set_random_seed(3)
        norm = keras.layers.BatchNormalization(momentum=0.5)
        layers = [norm, keras.layers.Dropout(0.5, seed=5), keras.layers.Dense(3)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        options = {"metrics": ["mae"], "jit_compile": JIT}
        model.compile(keras.optimizers.SGD(0.5), "mse", **options)
        sharpness_aware(model, rho)
        model.fit(X, Y, 8, epochs=2, shuffle=False, verbose=0)
        return model

    plain, tiny, far = train(None), train(1e-6), train(0.5)
    # Looking no distance ahead is the plain step, were it not for other masks or statistics.
    for a, b, c in zip(plain.variables, tiny.variables, far.variables, strict=True):
        np.testing.assert_allclose(np.array(a), np.array(b), atol=1e-5, err_msg=a.path)
        if not a.trainable:
            np.testing.assert_array_equal(np.array(a), np.array(c), err_msg=a.path)
    pairs = zip(plain.trainable_variables, far.trainable_variables, strict=True)
    assert max(np.abs(np.array(a) - np.array(b)).max() for a, b in pairs) > 1e-3


@pytest.mark.every_backend
def test_the_switch_goes_both_ways() -> None:
    def after(*switches: float | None) -> keras.Model:
        model = regression(keras.optimizers.SGD(0.5))
        for rho in switches:
            sharpness_aware(model, rho)
        model.fit(X, Y, 8, epochs=1, verbose=0)
        return model

    model = after()
    assert_equal(after(0.3, None), model)
    for a, b in zip(weights(model), weights(after(0.3)), strict=True):
        assert not np.array_equal(a, b)
    sharpness_aware(model, 0.3)  # with its step compiled
    before = weights(model)
    model.fit(X, Y, 8, epochs=1, verbose=0)
    pairs = zip(before, sam_gradient(before, X, Y, 0.3, 0.0), strict=True)
    assert_equal(weights(model), [value - 0.5 * gradient for value, gradient in pairs], atol=1e-6)


def matrix_products(rho: float | None) -> int:
    """Matrix products in one training step, as the compiler was given it; torch's operations."""
    model = regression(keras.optimizers.SGD(0.5))
    sharpness_aware(model, rho)
    model.fit(X, Y, 8, verbose=0)  # builds model and optimizer by a forward pass
    if BACKEND == "torch":
        flop_counter = pytest.importorskip("torch.utils.flop_counter")
        with flop_counter.FlopCounterMode(display=False) as counter:
            model.fit(X, Y, 8, verbose=0)
        return counter.get_total_flops()
    if BACKEND == "jax":
        jax = pytest.importorskip("jax")
        kinds = ("trainable", "non_trainable", "optimizer", "metrics")
        state = model._get_jax_state(**{f"{kind}_variables": True for kind in kinds})
        return jax.jit(model.train_step).lower(state, (X, Y)).as_text().count("dot_general")
    tf = pytest.importorskip("tensorflow")
    step = tf.function(lambda x, y: model.train_step((x, y)), jit_compile=True)
    compiled = step.experimental_get_compiler_ir(tf.constant(X), tf.constant(Y))
    return compiled(stage="hlo").count(" dot(")


@pytest.mark.every_backend
def test_it_costs_two_gradients_and_no_more() -> None:
    plain = matrix_products(None)
    assert plain > 0
    assert matrix_products(0.3) == 2 * plain
