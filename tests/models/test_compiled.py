"""When XLA compiles a model that nobody asked it to, and what a file remembers of the choice."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.trainer import xla
from tests.backend import reloaded

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
