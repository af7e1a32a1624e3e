"""Files of the code before it was divided into rooms: models, interrupted runs and exports."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit.export import load_exported
from keras_vit.weights import load_model
from tests.bank import outputs
from tests.conftest import REPOSITORY
from tests.golden.earlier.record import EXPORTS, MODELS, RUNS, TRAIN

FILES = Path(__file__).parent / "golden/earlier"


def answer(name: str) -> np.ndarray:
    with np.load(FILES / "answers.npz") as answers:
        return answers[name]


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    for load in (keras.saving.load_model, load_model):
        logits = outputs(load(FILES / f"{name}.keras"), answer("images"))
        np.testing.assert_allclose(logits, answer(name), rtol=1e-4, atol=1e-5)


def test_layers_are_found_by_their_registered_names() -> None:
    """A user's own model names the module of each layer where it was at the time."""
    for module, name, config in (("dense", "Dense", "units"), ("dropout", "Dropout", "rate")):
        names = {"class_name": name, "registered_name": f"keras_vit>{name}", "config": {config: 1}}
        written = {"module": f"keras_vit.layers.{module}", **names}
        layer = keras.saving.deserialize_keras_object(written)
        assert type(layer).__module__ == f"keras_vit.layers._{module}"


@pytest.mark.parametrize("name", EXPORTS)
def test_exports(name: str, tmp_path: Path) -> None:
    path = FILES / name
    if EXPORTS[name] == "tf_saved_model":
        zipfile.ZipFile(path.with_suffix(".zip")).extractall(path := tmp_path / name)
    model = load_exported(path)
    assert model.class_names == ("green", "red", "other")
    probabilities = model.predict_on_batch(answer("images"))
    np.testing.assert_allclose(probabilities, answer("exports"), atol=1e-5)


@pytest.mark.slow
@pytest.mark.backends("jax")  # the runs are JAX's
@pytest.mark.parametrize("name", RUNS)
def test_runs_are_continued(name: str, tmp_path: Path) -> None:
    """From a checkpoint after the first of 60 steps to the weights of the uninterrupted run."""
    for part in ("photos", name):
        folder = tmp_path / ("run.partial" if part == name else part)
        zipfile.ZipFile(FILES / f"{part}.zip").extractall(folder)
    for model in ("start.keras", "teacher.keras"):
        shutil.copy(FILES / model, tmp_path)
    command = [sys.executable, "-m", "keras_vit_cli", *TRAIN, *RUNS[name], "--resume"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    del environment["XLA_FLAGS"]  # with which the tests compile faster, and round otherwise
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=600)
    model = load_model(tmp_path / "run")
    weights, images = model.get_weights(), answer("images")
    logits = model.predict(images, verbose=0)
    recorded = [answer(f"{name}/{i}") for i in range(len(weights))]
    # Other processors round otherwise, and of the keys' biases, on which no logit depends, Adam
    # makes steps of that size: what can be compared everywhere is what the weights compute.
    model.set_weights(recorded)
    np.testing.assert_allclose(logits, model.predict(images, verbose=0), atol=1e-3)
