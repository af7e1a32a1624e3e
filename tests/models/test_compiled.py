"""Which models XLA compiles where nothing is said, and what a file remembers of it."""

from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit

ON_CPU = {"input_shape": (16, 16, 3), "num_classes": 3}
VIT = {"patch_size": 8, "hidden_dim": 8, "depth": 1, "num_heads": 1, **ON_CPU}
MODELS = {
    "ViT": lambda: keras_vit.VisionTransformer(**VIT),
    "Mixer": lambda: keras_vit.MLPMixer(patch_size=8, hidden_dim=8, depth=1, **ON_CPU),
    "hybrid": lambda: keras_vit.VisionTransformer(
        **{**VIT, "patch_size": 1, "resnet": (), "resnet_width": 32}
    ),
    "BiT": lambda: keras_vit.BiTResNet(depths=(1,), width=32, **ON_CPU),
}


@pytest.mark.parametrize("name", MODELS)
def test_left_to_choose(name: str) -> None:
    chosen = {
        "jax": True,
        "torch": False,  # Keras's choice: torch.compile takes minutes
        "tensorflow": name in ("ViT", "Mixer"),  # convolutions train slower under XLA
    }
    model = MODELS[name]()
    model.compile("sgd", "mse")
    assert model.jit_compile == chosen[keras.backend.backend()]


@pytest.mark.parametrize("asked", ["auto", False])
def test_a_file_remembers_what_was_asked_for(asked: str | bool, tmp_path: Path) -> None:
    model = MODELS["ViT"]()
    model.compile("adam", "mse", metrics=["mae"], jit_compile=asked)
    model.fit(np.zeros((3, 16, 16, 3)), np.zeros((3, 3)), batch_size=2, verbose=0)
    model.save(tmp_path / "model.keras")

    loaded = keras.saving.load_model(tmp_path / "model.keras")

    assert loaded.get_compile_config()["jit_compile"] == asked
    assert loaded.jit_compile == model.jit_compile
    assert int(loaded.optimizer.iterations) == 2  # the optimizer is the one that was saved
    loaded.fit(np.zeros((3, 16, 16, 3)), np.zeros((3, 3)), batch_size=2, verbose=0)


def test_eagerly_is_eagerly() -> None:
    model = MODELS["ViT"]()
    model.compile("sgd", "mse", run_eagerly=True)
    assert not model.jit_compile
