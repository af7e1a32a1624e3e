"""`model.fit` takes what Keras users have, with what they use around it."""

from typing import Any

import keras
import numpy as np
import pytest

from tests.bank import fresh, pixels
from tests.training.common import JIT, SOURCES, Source, assert_equal

IMAGES = pixels(16, 32, 32, 3)
LABELS = np.arange(16) % 4


def compiled(optimizer: Any = "sgd", **changes: Any) -> Any:
    model = fresh(filled=False, num_classes=4, depth=1, **changes)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=JIT)
    return model


@pytest.fixture(scope="module")
def loss_of_arrays() -> list[float]:
    return compiled().fit(IMAGES, LABELS, batch_size=4, shuffle=False, verbose=0).history["loss"]


@pytest.mark.every_backend
@pytest.mark.parametrize("source", SOURCES[1:])
def test_every_source_of_batches_trains_alike(source: Source, loss_of_arrays: list[float]) -> None:
    """All feed the same batches in the same order, so all end with the same loss."""
    loss = compiled().fit(**source(IMAGES, LABELS), shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(loss, loss_of_arrays, rtol=1e-5)


@pytest.mark.every_backend
def test_it_learns_by_heart() -> None:
    schedule = keras.optimizers.schedules.CosineDecay(0.0, 60, warmup_target=3e-3, warmup_steps=10)
    model = compiled(keras.optimizers.AdamW(schedule, global_clipnorm=1.0))
    history = model.fit(IMAGES, LABELS, batch_size=8, epochs=35, verbose=0).history
    assert history["accuracy"][-1] == 1
    assert model.evaluate(IMAGES, LABELS, verbose=0)[1] == 1


@pytest.mark.every_backend
def test_gradient_accumulation_equals_the_big_batch() -> None:
    finals = []
    for size, accumulate in ((16, None), (4, 4)):
        sgd = keras.optimizers.SGD(0.1, gradient_accumulation_steps=accumulate)
        model = compiled(sgd, dtype="float32")
        model.fit(IMAGES, LABELS, batch_size=size, epochs=2, shuffle=False, verbose=0)
        finals.append(model.get_weights())
    assert_equal(finals[1], finals[0], atol=2e-6)
