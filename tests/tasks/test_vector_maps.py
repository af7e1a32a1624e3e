"""Three numbers for every pixel, two of them a direction in the image: normals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from keras_vit import data, tasks
from keras_vit.data.sources import load as loading
from keras_vit.data.sources.depth_folder import DepthSplit
from keras_vit.evaluation.windows import Windows
from keras_vit.models.views import mean_of_views
from tests.backend import refused
from tests.evaluation.test_windows import by_pixel


@dataclass(frozen=True)
class Normals(tasks.Depth):
    """Normals to the right, down and away: what of them is no depth's."""

    kind = "normals"
    pixel_shape = (3,)
    turns = True
    most = 3
    names: tuple[str, ...] = ("right", "down", "away")
    form: str = "depth"  # answers are outputs

    def check_targets(self, targets: Any) -> np.ndarray:
        return np.asarray(targets, np.float32)

    def summary(self, targets: Any) -> np.ndarray:
        return self.check_targets(targets).sum(axis=(1, 2))

    def _strata(self, targets: Any, fraction: float) -> np.ndarray:
        return np.zeros(len(targets), int)

    def fitted(self, targets: Any) -> Normals:
        return self

    def answers(self, outputs: Any) -> np.ndarray:
        return np.asarray(outputs, np.float32)

    def decided(self, answers: Any) -> np.ndarray:
        return np.asarray(answers)


class NormalSplit(DepthSplit):
    """Their files."""

    task_class = Normals
    suffixes = (".npy",)

    @staticmethod
    def read_map(source: Path, task: Any, max_pixels: int | None) -> np.ndarray:
        return np.load(source)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tasks.TASKS, "normals", Normals)
    monkeypatch.setattr(loading, "MAPS", (NormalSplit, *loading.MAPS))


def hills(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return heights as pixels `(height, width, 3)`, and the normals of that surface."""
    y, x = np.mgrid[:height, :width] / 9
    levels = 128 + 60 * np.sin(x + y / 2) + 60 * np.cos(y - x / 3)
    normals = np.stack([*np.gradient(levels)[::-1], np.full_like(levels, 5)], axis=-1)
    normals /= np.linalg.norm(normals, axis=-1, keepdims=True)
    return np.repeat(np.rint(levels)[..., None], 3, -1).astype("uint8"), normals.astype("float32")


@pytest.mark.parametrize(
    ("reader", "training"), [("tensorflow", True), ("grain", True), ("grain", False)]
)
def test_normals_turn_as_the_slopes_of_their_images(
    tmp_path: Path, known: None, reader: str, training: bool
) -> None:
    pytest.importorskip(reader)
    for i in range(4):
        image, normals = hills(160, 200 + i)
        for place in (tmp_path / "photos", tmp_path / "maps"):
            place.mkdir(exist_ok=True)
        Image.fromarray(image).save(tmp_path / "photos" / f"{i}.png")
        np.save(tmp_path / "maps" / f"{i}.npy", normals)
    options: dict[str, Any] = {"labels": tmp_path / "maps", "task": "normals", "reader": reader}
    split = data.load(tmp_path / "photos", val_fraction=None, **options)["all"]
    assert (type(split), split.label_shape) == (NormalSplit, (0, 0, 3))
    changes = data.Augmentation(min_area=0.5, rotation=40, shear=0.2)
    options = {"augment": changes, "eval_transform": "stretch"}
    batches = data.pipeline(split, (80, 96), 4, training, **options)
    images, maps = map(np.asarray, next(iter(batches)))
    assert maps.shape == (4, 80, 96, 3)
    inside = maps.any(axis=-1)
    assert inside.mean() > 0.6
    np.testing.assert_allclose(np.linalg.norm(maps[inside], axis=-1), 1, atol=1e-5)
    slopes = np.stack(np.gradient(images[..., 0], axis=(2, 1)), axis=-1)
    steep = np.linalg.norm(slopes, axis=-1)
    flat = np.linalg.norm(maps[..., :2], axis=-1)
    cosine = (slopes * maps[..., :2]).sum(axis=-1) / np.maximum(steep * flat, 1e-6)
    assert np.quantile(cosine[inside & (steep > 4)], 0.1) > 0.98  # the rest is at borders


def test_arrays_and_windows(known: None) -> None:
    images, normals = (x[None] for x in hills(40, 56))
    split = data.ArraySplit("all", Normals(), images, normals)
    assert split.label_shape == (40, 56, 3)
    refused("give one for every pixel", data.ArraySplit, "all", Normals(), images, normals[..., 0])
    model = by_pixel(Normals())
    kernel = model.get_weights()[0][0, 0]
    for size in ((40, 31), (31, 40)):  # rows of windows go along the short side
        pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), "uint8")
        found = Windows(model, "own", batch_size=8).map_of(pixels)
        np.testing.assert_allclose(found, pixels / 255 @ kernel, atol=1e-4)
    # Each pixel answers by itself: mirrored, it should point to the other side, and does not.
    model.classifier_activation = None
    averaged = mean_of_views(model, "flip").predict(pixels[None, :16, :12] * 1.0, verbose=0)[0]
    np.testing.assert_allclose(averaged[..., 0], 0, atol=1e-5)
    np.testing.assert_allclose(averaged[..., 1:], pixels[:16, :12] / 255 @ kernel[:, 1:], atol=1e-4)
    model.set_weights([kernel[None, None] * np.nan, np.zeros(3)])
    assert np.isnan(Windows(model, "own").map_of(pixels)).shape == (1, 1, 3)
