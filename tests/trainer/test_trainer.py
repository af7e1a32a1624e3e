"""What our trainer adds to Keras's: the choice of XLA, one model in many threads, its overrides."""

import pickle
import re
import threading
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import trainer
from keras_vit.trainer import xla
from keras_vit.trainer.compiled_model import CompiledModel
from tests.backend import refused, reloaded
from tests.bank import TINY, fresh, outputs, pixels

OF = {"patch_size": 8, "hidden_dim": 8, "depth": 1, "input_shape": (16, 16, 3), "num_classes": 3}
VIT = {**OF, "num_heads": 1}
HYBRID = {**VIT, "patch_size": 1, "resnet": (), "resnet_width": 32}
BIT = {"depths": (1,), "width": 32, "input_shape": (16, 16, 3), "num_classes": 3}
MODELS = {
    "ViT": lambda: keras_vit.VisionTransformer(**VIT),
    "Mixer": lambda: keras_vit.models.MLPMixer(**OF),
    "hybrid": lambda: keras_vit.VisionTransformer(**HYBRID),
    "BiT": lambda: keras_vit.models.BiTResNet(**BIT),
    "any size": lambda: keras_vit.VisionTransformer(**{**VIT, "input_shape": (None, None, 3)}),
}
X, Y = np.zeros((3, 16, 16, 3)), np.zeros((3, 3))
on_tensorflow = pytest.mark.backends("tensorflow")  # JAX always compiles, torch never does


def vit_for(**options: Any) -> Any:
    model = MODELS["ViT"]()
    model.compile("sgd", "mse", **options)
    return model


def recorded(make: Callable[..., Any], seen: list[bool]) -> Callable[..., Any]:
    def make_and_record(model: Any, force: bool = False) -> Any:
        seen.append(bool(chosen := model.jit_compile))
        model.jit_compile = False  # to compile takes half a minute, and is TensorFlow's own
        function = make(model, force)
        model.jit_compile = chosen
        return function

    return make_and_record


@pytest.fixture
def compilers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What Keras makes each step function with from now on; XLA pays from 4 steps on."""
    monkeypatch.setattr(xla, "MIN_STEPS", 4)
    monkeypatch.setattr(xla, "MIN_WORK", 0)
    seen: list[bool] = []
    for name in ("make_train_function", "make_test_function", "make_predict_function"):
        monkeypatch.setattr(keras.Model, name, recorded(getattr(keras.Model, name), seen))
    return seen


@pytest.mark.every_backend
def test_compile_leaves_the_choice_to_keras() -> None:
    for name, make in MODELS.items():
        model = make()
        model.compile("sgd", "mse")
        assert model.jit_compile == (keras.backend.backend() == "jax"), name
    assert not vit_for(run_eagerly=True).jit_compile  # which excludes XLA


@on_tensorflow
@pytest.mark.parametrize("name", MODELS)
def test_xla_compiles_long_calls(name: str, compilers: list[bool]) -> None:
    model = MODELS[name]()
    pays = name in ("ViT", "Mixer")  # convolutions train slower, and each image size compiles anew
    model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=2, epochs=1, verbose=0)
    assert compilers == [False]
    model.fit(X, Y, batch_size=2, epochs=2, verbose=0, validation_data=(X, Y))
    assert compilers == ([False, True, False] if pays else [False, False])  # validation is not
    model.fit(X, Y, batch_size=2, epochs=1, verbose=0)
    assert len(compilers) == (3 if pays else 2)  # what is compiled stays
    compilers.clear()
    model.predict(X, batch_size=1, verbose=0)
    model.predict(np.zeros((4, 16, 16, 3)), batch_size=1, verbose=0)
    assert compilers == ([False, True] if pays else [False])
    assert not model.jit_compile


@on_tensorflow
def test_a_resumed_run_is_compiled_unknown_steps_are_not_and_requests_count(compilers: Any) -> None:
    vit_for().fit(X, Y, batch_size=2, initial_epoch=1, epochs=2, verbose=0)
    vit_for().fit(((X, Y) for _ in range(6)), verbose=0)
    assert compilers == [True, False]
    for requested in (True, False):
        model = vit_for(jit_compile=requested)
        for epochs in (1, 2):
            model.fit(X, Y, batch_size=2, epochs=epochs, verbose=0)
    assert compilers == [True, False, True, False]


@on_tensorflow
def test_small_models_need_more_steps() -> None:
    large, small = keras_vit.create("ViT-Ti/16"), MODELS["ViT"]()
    assert [bool(xla.xla_pays(large, steps)) for steps in (20, 100, None)] == [False, True, False]
    assert [bool(xla.xla_pays(small, steps)) for steps in (100, 10**7)] == [False, True]


@on_tensorflow
def test_a_file_remembers_what_was_requested(tmp_path: Path) -> None:
    model = vit_for(metrics=["mae"], jit_compile="auto")
    model.fit(X[:2], Y[:2], epochs=2, verbose=0)
    loaded = reloaded(model, tmp_path)
    assert loaded.get_compile_config()["jit_compile"] == "auto"
    assert loaded.jit_compile == model.jit_compile
    assert int(loaded.optimizer.iterations) == 2  # the optimizer is the one that was saved
    loaded.fit(X[:2], Y[:2], verbose=0)


# Variables and locks are the backend's.
THREADS, CALLS = 8, 60
IMAGES, LABELS = pixels(4, 16, 16, 3), np.arange(4)
IS_JAX = keras.backend.backend() == "jax"


@pytest.fixture
def model() -> Any:
    model = fresh(**{**TINY, "hidden_dim": 8, "num_classes": 5})
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"], jit_compile=IS_JAX)
    return model


@pytest.mark.every_backend
def test_threads_call_a_model_and_its_feature_model(model: Any, tmp_path: Path) -> None:
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


@pytest.mark.every_backend
def test_threads_beside_fit_are_safe_or_refused_at_once(model: Any) -> None:
    features, before = model.feature_model("pre_logits"), model.get_weights()
    is_in_fit, may_go_on = threading.Event(), threading.Event()

    class Hold(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            is_in_fit.set()
            assert may_go_on.wait(120)

    reading = [partial(each.predict, IMAGES, verbose=0) for each in (model, features)]
    reading += [partial(model.predict_on_batch, IMAGES), partial(model, IMAGES), model.get_weights]
    changing = [partial(way, IMAGES, LABELS, verbose=0) for way in (model.evaluate, model.fit)]
    steps = model.test_on_batch, model.train_on_batch
    changing += [partial(step, IMAGES, LABELS) for step in steps]
    changing += [partial(model.set_weights, before)]
    for call in reading:
        call()
    with ThreadPoolExecutor(1) as pool:
        fit = pool.submit(model.fit, IMAGES, LABELS, epochs=2, verbose=0, callbacks=[Hold()])
        try:
            assert is_in_fit.wait(120)
            for call in changing + reading * IS_JAX:
                refused(r"while `fit` trains.*model\.copy\(\)", call, error=RuntimeError)
            if not IS_JAX:  # where variables stay: with the weights of the moment
                for call in reading:
                    call()
        finally:
            may_go_on.set()
        assert np.isfinite(fit.result().history["loss"]).all()
    for call in reading + changing:
        call()
    assert np.isfinite(np.concatenate([w.ravel() for w in model.get_weights()])).all()


@pytest.mark.every_backend
def test_threads_let_callbacks_use_the_model_that_is_in_fit(model: Any, tmp_path: Path) -> None:
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


ROW = re.compile(r"^(\w+) +.*  (none yet: .+|none yet, as `\w+`|3\.\d+, .+)$", re.M)


def test_the_table_lists_every_override() -> None:
    table = [name for name, _ in ROW.findall(trainer.__doc__)]
    written = [name for name, part in vars(CompiledModel).items() if callable(part)]
    assert all(isinstance(vars(CompiledModel)[name], types.FunctionType) for name in table)
    assert sorted(table) == sorted(name for name in written if hasattr(keras.Model, name))
