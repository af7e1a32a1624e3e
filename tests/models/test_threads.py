"""One model in many threads: equal results, and no weight is lost."""

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tests.bank import TINY, fresh, outputs, pixels

pytestmark = pytest.mark.every_backend  # variables and locks are the backend's
THREADS, CALLS = 8, 60
IMAGES, LABELS = pixels(4, 16, 16, 3), np.arange(4)
IS_JAX = keras.backend.backend() == "jax"


@pytest.fixture
def model() -> Any:
    model = fresh(**{**TINY, "hidden_dim": 8, "num_classes": 5})
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"], jit_compile=IS_JAX)
    return model


def test_eight_threads_call_a_model_and_its_feature_model(model: Any, tmp_path: Path) -> None:
    features, both = model.feature_model("pre_logits"), model.with_views("flip")
    ways: list[Callable[[], Any]] = [
        lambda: model.predict(IMAGES, verbose=0),
        lambda: model.evaluate(IMAGES, LABELS, verbose=0),
        lambda: both.predict(IMAGES, verbose=0),
        lambda: outputs(model, IMAGES),
        lambda: model.predict_on_batch(IMAGES),
        lambda: features.predict_on_batch(IMAGES),
        lambda: np.concatenate([w.ravel() for w in model.get_weights()]),
    ]
    expected = [way() for way in ways]

    def work(thread: int) -> None:
        for number in range(CALLS):
            few = number % 20 == 0  # the first three read data sets, which takes much longer
            which = (thread + number // 20) % 3 if few else 3 + (thread + number) % 4
            # Not bit for bit: matrices are divided by the processors that are free.
            np.testing.assert_allclose(ways[which](), expected[which], rtol=1e-5, atol=1e-6)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
    model.save(tmp_path / "model.keras")
    assert np.isfinite(model.fit(IMAGES, LABELS, verbose=0).history["loss"]).all()


def test_beside_fit_a_call_is_safe_or_refused_at_once(model: Any) -> None:
    features, before = model.feature_model("pre_logits"), model.get_weights()
    is_in_fit, may_go_on = threading.Event(), threading.Event()

    class Hold(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            is_in_fit.set()
            assert may_go_on.wait(120)

    reading = [partial(each.predict, IMAGES, verbose=0) for each in (model, features)]
    reading += [partial(model.predict_on_batch, IMAGES), partial(model, IMAGES), model.get_weights]
    changing = [partial(way, IMAGES, LABELS, verbose=0) for way in (model.evaluate, model.fit)]
    changing += [
        partial(way, IMAGES, LABELS) for way in (model.test_on_batch, model.train_on_batch)
    ]
    changing += [partial(model.set_weights, before)]
    for call in reading:
        call()
    with ThreadPoolExecutor(1) as pool:
        fit = pool.submit(model.fit, IMAGES, LABELS, epochs=2, verbose=0, callbacks=[Hold()])
        try:
            assert is_in_fit.wait(120)
            for call in changing + reading * IS_JAX:
                with pytest.raises(RuntimeError, match=r"while `fit` trains.*model\.copy\(\)"):
                    call()
            if not IS_JAX:  # where variables stay: with the weights of the moment
                for call in reading:
                    call()
        finally:
            may_go_on.set()
        assert np.isfinite(fit.result().history["loss"]).all()
    for call in reading + changing:
        call()
    assert np.isfinite(np.concatenate([w.ravel() for w in model.get_weights()])).all()


def test_callbacks_use_the_model_that_is_in_fit(model: Any, tmp_path: Path) -> None:
    seen: list[Any] = []

    class Looks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            features = model.feature_model("pre_logits")
            seen.extend(each.predict(IMAGES, verbose=0) for each in (model, features))
            seen.append(model.evaluate(IMAGES, LABELS, verbose=0))
            model.save(tmp_path / "model.keras")

    data = {"validation_data": (IMAGES, LABELS), "callbacks": [Looks()], "verbose": 0}
    history = model.fit(IMAGES, LABELS, epochs=2, **data).history
    assert len(seen) == 6
    assert np.isfinite(history["val_loss"]).all()
    np.testing.assert_allclose(seen[3], model.predict(IMAGES, verbose=0), rtol=1e-5)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(outputs(again, IMAGES), outputs(model, IMAGES))
