"""Photographs of three classes, and weights to start from, for runs of the command."""

from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each class is a pattern of 16 colors, and its ten images that pattern under noise."""
    image, folder = pytest.importorskip("PIL.Image"), tmp_path_factory.mktemp("photographs") / "p"
    random = np.random.default_rng(0)
    for c in range(3):
        (folder / f"{c:03}").mkdir(parents=True)
        pattern = np.kron(random.integers(40, 216, (4, 4, 3)), np.ones((8, 8, 1)))
        for i in range(10):
            pixels = (pattern + 30 * random.normal(size=pattern.shape)).clip(0, 255)
            image.fromarray(pixels.astype("uint8")).save(folder / f"{c:03}" / f"{i}.png")
    return folder


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keras.utils.set_random_seed(0)
    sizes = {"patch_size": 8, "hidden_dim": 24, "depth": 1, "num_heads": 2}
    model = keras_vit.VisionTransformer(**sizes, input_shape=(32, 32, 3), num_classes=2)
    model.save(path := tmp_path_factory.mktemp("weights") / "start.keras")
    return path
