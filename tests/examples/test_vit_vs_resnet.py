"""The comparison of a ViT and a ResNet: its tables, with seeds and spread."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from tests.examples import load_example

pytest.importorskip("tensorflow")


def folder_of_images(path: Path) -> Path:
    """Two classes, dark and bright, four images each."""
    random = np.random.default_rng(0)
    for name, level in (("dark", 0), ("bright", 200)):
        (path / name).mkdir(parents=True)
        for i in range(4):
            pixels = random.integers(level, level + 50, (32, 32, 3)).astype("uint8")
            Image.fromarray(pixels).save(path / name / f"{i}.png")
    return path


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """A tiny ViT to start from."""
    model = keras_vit.VisionTransformer(
        patch_size=16, hidden_dim=16, depth=1, num_heads=2, mlp_dim=16, num_classes=0
    )
    model.save(tmp_path / "start.keras")
    return tmp_path / "start.keras"


def test_the_table_has_the_mean_and_spread_of_the_seeds(
    start: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = load_example("flowers_vit_vs_resnet")
    images = keras.Input((32, 32, 3))
    outputs = keras.layers.Dense(2)(keras.layers.GlobalAveragePooling2D()(images))
    monkeypatch.setattr(script, "resnet", lambda *_: keras.Model(images, outputs, name="resnet"))
    calls: list[tuple[str, int, Any]] = []
    # Each of the two seeds gets another number of the two validation images right.
    levels = iter([[1, 1], [0, 0], [0, 1], [0, 1]])

    def fit(model: Any, recipe: Any, splits: Any, folder: Path, seed: int) -> None:
        folder.mkdir(parents=True)
        calls.append((folder.name, seed, recipe.epochs))

    def predict(model: Any, split: Any) -> tuple[np.ndarray, np.ndarray]:
        return np.array([0, 1]), np.eye(2)[next(levels)]

    monkeypatch.setattr(script, "fit", fit)
    monkeypatch.setattr(script.evaluation, "predict_split", predict)
    page = tmp_path / "page.md"
    words = ["flowers_vit_vs_resnet.py", "--data", str(folder_of_images(tmp_path / "photos"))]
    words += ["--weights", str(start), "--image-size", "32", "--epochs", "2"]
    words += [
        "--resnet-weights",
        "some",
        "--seeds",
        "2",
        "--out",
        str(tmp_path / "out"),
        "--markdown",
        str(page),
    ]
    monkeypatch.setattr("sys.argv", words)
    script.main()
    assert calls == [("ViT-0", 0, 2), ("ViT-1", 1, 2), ("ResNet-0", 0, 2), ("ResNet-1", 1, 2)]
    text = page.read_text("utf-8")
    # The ViT has one of two right, twice.
    tuned = keras_vit.from_checkpoint(start, num_classes=2, input_shape=(32, 32, 3))
    parameters = f"{tuned.count_params():,}"
    assert f"| ViT | {parameters} | 50.00% ± 0.00 | 0.333 | 1.0 |" in text
    assert "| ResNet | 8 | 100.00% ± 0.00 | 1.000 |" in text
    assert (tmp_path / "out" / "table.md").read_text("utf-8") == text
    assert "2 epochs" in capsys.readouterr().out


@pytest.mark.slow
def test_both_models_are_trained(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = load_example("flowers_vit_vs_resnet")
    words = ["flowers_vit_vs_resnet.py", "--data", str(folder_of_images(tmp_path / "photos"))]
    words += ["--weights", str(start), "--resnet-weights", "none"]
    words += ["--image-size", "32", "--epochs", "1", "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", words)
    script.main()
    text = (tmp_path / "out" / "table.md").read_text("utf-8")
    assert "| ViT from scratch | 5," in text  # like beside like
    assert "| ResNet from scratch | 23," in text
