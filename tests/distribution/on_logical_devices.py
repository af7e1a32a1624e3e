"""TensorFlow's strategy over two CPUs equals one device for batches that the replicas divide."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.training.optimizers import MomentumSGD
from tests.backend import refused
from tests.distribution import helpers
from tests.distribution.helpers import assert_same, compiled

pytestmark = pytest.mark.backends("tensorflow")
IMAGES, LABELS = helpers.images_and_labels(16, 16)
keras_sgd = partial(keras.optimizers.SGD, 0.02, momentum=0.9)


@pytest.fixture(scope="module")
def strategy() -> tf.distribute.Strategy:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, 2 * [tf.config.LogicalDeviceConfiguration()])
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def vit(**arguments: Any) -> keras.Model:
    return helpers.with_head(helpers.vit(**arguments))


EQUAL: dict[str, tuple[Callable[[], keras.Model], Callable[[], Any]]] = {
    "ours": (vit, lambda: MomentumSGD(0.02, state_dtype="float32", weight_decay=0.1, use_ema=True)),
    "keras": (vit, lambda: keras_sgd(weight_decay=0.1)),
    "scaled": (vit, lambda: keras.optimizers.LossScaleOptimizer(keras_sgd())),
    "distilled": (
        lambda: keras_vit.training.Distillation(vit(), vit(hidden_dim=32), weight=0.9),
        keras_sgd,
    ),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_to_one_device(name: str, strategy: tf.distribute.Strategy) -> None:
    make, optimizer = EQUAL[name]

    def job() -> Any:
        keras.utils.set_random_seed(1)
        model = compiled(make(), optimizer())
        options = {"epochs": 2, "shuffle": False, "validation_data": (IMAGES, LABELS)}
        history = model.fit(IMAGES, LABELS, batch_size=8, verbose=0, **options).history
        return model, history, model.predict(IMAGES, batch_size=8, verbose=0)

    with strategy.scope(), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # nothing to warn of
        two, *its = job()
    one, *expected = job()
    assert_same(its, expected, 1e-5)
    helpers.assert_same_weights(two, one, 2e-6)


def test_a_data_set_outside_of_the_scope(strategy: tf.distribute.Strategy) -> None:
    """`fit` follows the strategy that the model was built for, also for a long run, without XLA."""
    with strategy.scope():
        model = compiled(vit(), keras_sgd())
    batches = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(8).repeat(35)
    assert np.isfinite(model.fit(batches, epochs=1, verbose=0).history["loss"]).all()
    assert not model.jit_compile


def test_what_is_refused_or_warned_of(strategy: tf.distribute.Strategy) -> None:
    twice = r"MirroredStrategy with 2 replicas.*_[a-z]+=2 does"
    with strategy.scope():
        accumulating = compiled(vit(), keras_sgd(gradient_accumulation_steps=2))
        overwriting = compiled(vit(), MomentumSGD(0.02, use_ema=True, ema_overwrite_frequency=2))
        sharpness_aware = compiled(vit(), keras_sgd())
        keras_vit.training.sharpness_aware(sharpness_aware, rho=0.05)
        for model, message in (
            (accumulating, twice),
            (overwriting, twice),
            (sharpness_aware, "Sharpness-aware steps do not work in the scope"),
        ):
            before = model.get_weights()
            refused(message, model.fit, IMAGES, LABELS, batch_size=8, verbose=0)
            assert_same(model.get_weights(), before, 0)
        clipping = compiled(vit(), MomentumSGD(0.02, global_clipnorm=1.0))
        with pytest.warns(UserWarning, match=r"each clips its own part.*global_clipnorm=1\.0"):
            clipping.fit(IMAGES, LABELS, batch_size=8, verbose=0)


@pytest.mark.parametrize("kind", keras_vit.distribution.KINDS)
def test_create_names_the_scope(kind: str) -> None:
    reason = rf"{kind!r} works on JAX.*, and Keras runs on .*MirroredStrategy\(\)\.scope\(\)"
    refused(reason, getattr(keras_vit.distribution, kind), error=RuntimeError)
