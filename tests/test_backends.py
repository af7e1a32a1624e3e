"""The three backends agree: numbers, gradients, files; and each does without the others."""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit._base.version import install_command
from tests.backends import BACKENDS
from tests.bank import outputs, pixels, small_kind
from tests.models.test_common import EVERY_LAYER, WITHOUT_GRADIENT, gradients_of

# A process of another backend: loads both files, computes, saves what it found.
ELSEWHERE = """
import sys, numpy as np, keras, keras_vit
from tests.backend import gradients
folder = sys.argv[1]
images = np.load(folder + "/images.npy")
for kind in sys.argv[2:]:
    model = keras.saving.load_model(f"{folder}/{kind}.keras")
    logits = keras.ops.convert_to_numpy(model(images))
    np.savez(f"{folder}/{kind}.gradients.npz", **gradients(model, images))
    for variable in model.trainable_variables:
        variable.assign(variable * 2)
    model.load_weights(f"{folder}/{kind}.weights.h5")
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(model(images)), logits)
    np.save(f"{folder}/{kind}.logits.npy", logits)
    model.save(f"{folder}/{kind}.back.keras")
"""


def others() -> list[str]:
    """The other backends that are installed, whose modules are called as they are."""
    return [n for n in BACKENDS if n != keras.backend.backend() and importlib.util.find_spec(n)]


def test_files_give_the_same_elsewhere(tmp_path: Path, run_python: Callable[..., str]) -> None:
    """Logits to 1e-5, gradients to 1e-4 of the largest of each variable; there and back."""
    images = pixels(2, 32, 32, 3)
    np.save(tmp_path / "images.npy", images)
    models = {kind: small_kind(kind) for kind in EVERY_LAYER}
    assert len(others()) == 2 or "CI" not in os.environ
    for kind, model in models.items():
        model.save(tmp_path / f"{kind}.keras")
        model.save_weights(tmp_path / f"{kind}.weights.h5")
    for backend in others():
        run_python(ELSEWHERE, backend, str(tmp_path), *models)
        for kind, model in models.items():
            expected = outputs(model, images)
            logits = np.load(tmp_path / f"{kind}.logits.npy")
            np.testing.assert_allclose(logits, expected, atol=1e-5, err_msg=kind)
            back = keras.saving.load_model(tmp_path / f"{kind}.back.keras")
            np.testing.assert_array_equal(outputs(back, images), expected)
            theirs = np.load(tmp_path / f"{kind}.gradients.npz")
            for path, ours in gradients_of(kind).items():
                if not path.endswith(WITHOUT_GRADIENT):
                    tolerance = 1e-4 * np.abs(ours).max()
                    assert np.abs(theirs[path] - ours).max() <= tolerance, (backend, kind, path)


WITHOUT_TENSORFLOW = """
import sys, numpy as np
from importlib.machinery import PathFinder
find = PathFinder.find_spec  # as on a machine where it is not installed: nobody finds it
PathFinder.find_spec = classmethod(
    lambda cls, name, *rest: None if name.split(".")[0] == "tensorflow" else find(name, *rest)
)
import keras
before = set(sys.modules)
import keras_vit
heavy = {"matplotlib", "sklearn", "safetensors", "PIL", "rich.table"}
assert not heavy & (set(sys.modules) - before)
model = keras_vit.VisionTransformer(num_classes=2, patch_size=8, hidden_dim=16, depth=1,
                                    num_heads=2, input_shape=(16, 16, 3))
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
images = np.zeros((4, 16, 16, 3), "uint8")
model.fit(images, np.array([0, 1, 0, 1]), verbose=0)
model.save_weights(sys.argv[1] + "/m.weights.h5")
model.load_weights(sys.argv[1] + "/m.weights.h5")
model.with_input_shape((24, 16, 3)).predict(images.repeat(2, 1)[:, :24], verbose=0)
def loaded():
    return [name for name in sys.modules if name.split(".")[0] == "tensorflow"]
model.save(sys.argv[1] + '/m.keras')
again = keras.saving.load_model(sys.argv[1] + '/m.keras')
np.testing.assert_array_equal(again.predict(images), model.predict(images))
digits = keras_vit.data.load('digits')
batches = keras_vit.data.pipeline(digits.val, (16, 16), 90)
assert model.predict(batches, verbose=0).shape == (360, 2)
try: keras_vit.data.load('tfds:mnist')
except ImportError as error: print(error)
from dataclasses import replace
from keras_vit.training import recipes
from keras_vit_cli import commands
small = {**recipes.get('digits').model, 'hidden_dim': 16, 'depth': 1, 'mlp_dim': 16}
recipes.RECIPES['digits'] = replace(recipes.get('digits'), model=small, steps=2, epochs=0)
for words in ('train --data digits --out', 'evaluate'):
    assert commands.main([*words.split(), sys.argv[1] + '/run']) == 0, words
assert not loaded(), loaded()[:5]
"""


@pytest.mark.backends("jax", "torch")
def test_without_tensorflow(run_python: Callable[..., str], tmp_path: Path) -> None:
    printed = run_python(WITHOUT_TENSORFLOW, None, str(tmp_path), new=True)
    assert install_command("tensorflow") in printed
