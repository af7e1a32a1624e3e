"""A positive number for every pixel: loss, scores, files, readers, colors."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import keras
import matplotlib
import numpy as np
import pytest
from PIL import Image
from sklearn.linear_model import LinearRegression
from sklearn.metrics import mean_absolute_percentage_error, root_mean_squared_error

import keras_vit
from keras_vit import data
from keras_vit.tasks import Depth, RelativeDepth
from keras_vit.tasks.depth_colors import depth_colors
from keras_vit.tasks.depth_losses import AffineInvariant, AlignedCloseShare, CloseShare, SiLog
from keras_vit.training.fitting import augmentation_of
from tests import bank
from tests.backend import refused, warned
from tests.tasks.test_losses import value_and_gradient

SIZE = (20, 30)
RELEASED = [("relu", RelativeDepth()), ("sigmoid", Depth(form="depth"))]


def depth_folders(folder: Path, count: int = 6, size: tuple[int, int] = SIZE) -> Path:
    rng = np.random.default_rng(0)
    for kind in ("photos", "maps"):
        (folder / kind).mkdir(parents=True)
    for i in range(count):
        near, far = rng.uniform(1, 2), rng.uniform(3, 5)
        depth = np.linspace(near, far, size[1], dtype="float32") + np.zeros((size[0], 1), "float32")
        image = np.repeat(np.rint(50 * depth)[..., None], 3, axis=-1).astype("uint8")
        depth[:2, :3], depth[2, :2], depth[3, 0] = np.nan, (np.inf, -1), 0
        Image.fromarray(image).save(folder / "photos" / f"{i}.png")
        if i % 2:
            np.save(folder / "maps" / f"{i}.npy", depth[..., None])
        else:
            Image.fromarray(depth).save(folder / "maps" / f"{i}.tiff")
    return folder


def maps(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    targets = rng.uniform(0.5, 9, (4, 5, 6))
    targets[rng.random(targets.shape) < 0.3] = np.nan
    targets[3] = 0  # nothing is measured
    return targets, rng.normal(1, 0.5, (4, 5, 6, 1)).astype("float32")


def silog_in_torch(x: Any, y: Any, balance: float) -> Any:
    valid = y > 0
    d = y[valid].log() - x[valid]
    return ((d**2).mean() - balance * d.mean() ** 2).sqrt()


def relative_in_torch(x: Any, y: Any, weight: float) -> Any:
    """MiDaS's loss of one image, as its paper has it (equations 5, 6 and 11)."""
    import torch

    valid = torch.isfinite(y) & (y > 0)

    def normalized(maps: Any) -> Any:
        away = maps - maps[valid].median()
        return away / away[valid].abs().mean()

    difference = normalized(x) - normalized(1 / torch.where(valid, y, 1.0))
    loss = difference[valid].abs().mean()
    for scale in range(4):
        r, m = (v[:: 2**scale, :: 2**scale] for v in (difference, valid))
        across = (r[:, 1:] - r[:, :-1]).abs()[m[:, 1:] & m[:, :-1]].sum()
        down = (r[1:] - r[:-1]).abs()[m[1:] & m[:-1]].sum()
        loss = loss + weight * (across + down) / m.sum().clamp(min=1)
    return loss


LOSSES = [(SiLog, silog_in_torch, 0, 1e-5), (AffineInvariant, relative_in_torch, 2, 1e-4)]


@pytest.mark.every_backend
@pytest.mark.parametrize(("kind", "in_torch", "seed", "rtol"), LOSSES)
def test_losses_and_gradients_are_those_of_torch(kind, in_torch, seed, rtol: float) -> None:
    torch = pytest.importorskip("torch")
    targets, outputs = maps(np.random.default_rng(seed))
    for weight in (0.0, 0.5):
        values, gradients = np.zeros(4), np.zeros_like(outputs)
        for i in range(3):
            x = torch.tensor(outputs[i, ..., 0], dtype=torch.float64, requires_grad=True)
            value = in_torch(x, torch.tensor(targets[i]), weight)
            value.backward()
            values[i], gradients[i, ..., 0] = value.item(), x.grad.numpy()
        ours, loss = (kind(weight, reduction=reduction) for reduction in ("none", "sum"))
        scales = [(1, 0), (3, 70)] if kind is AffineInvariant else [(1, 0)]  # which change nothing
        for scale, shift in scales:
            got = keras.ops.convert_to_numpy(ours(targets, scale * outputs + shift))
            np.testing.assert_allclose(got, values, rtol=rtol)
        of_loss = partial(loss, targets)
        _, gradient = value_and_gradient(of_loss, outputs)
        np.testing.assert_allclose(gradient, gradients, rtol=10 * rtol, atol=rtol / 100)
        _, gradient = value_and_gradient(of_loss, 0 * outputs)
        assert np.isfinite(gradient).all()
        assert np.abs(gradient[:3]).max() > 0  # a new head's, which are all the same


def test_relative_scores_are_those_of_aligned_depths() -> None:
    rng = np.random.default_rng(3)
    targets, _ = maps(rng)
    task, valid = RelativeDepth(), targets > 0
    answers = (3 / np.where(valid, targets, 1) + rng.normal(0, 0.3, targets.shape))[..., None] + 9
    shares, errors = [], []
    for y, x, m in zip(targets[:3], answers[:3, ..., 0], valid[:3], strict=True):
        line = LinearRegression().fit(x[m][:, None], 1 / y[m]).predict(x[m][:, None])
        found = 1 / np.maximum(line, (1 / y[m]).min())
        shares.append(np.mean(np.maximum(found / y[m], y[m] / found) < 1.25))
        errors.append(mean_absolute_percentage_error(y[m], found))
    scores = task.scores(targets, answers, resamples=20)
    assert scores["aligned_delta1"].value == pytest.approx(np.mean(shares), rel=1e-5)
    assert scores["aligned_abs_rel"].value == pytest.approx(np.mean(errors), rel=1e-5)
    assert scores["aligned_abs_rel"].low < np.mean(errors) < scores["aligned_abs_rel"].high
    metric = AlignedCloseShare()
    metric.update_state(task.check_targets(targets), answers)
    assert float(metric.result()) == pytest.approx(np.mean(shares), abs=0.02)
    with pytest.warns(UserWarning, match='upside down.*depth_scale="inverse"'):
        task.scores(np.divide(1, targets, where=valid, out=np.zeros_like(targets)), answers)


def test_scores_are_those_of_scikit_learn() -> None:
    targets, outputs = maps(np.random.default_rng(1))
    task = Depth()
    answers = task.answers(outputs)
    pairs = [(y[y > 0], x[y > 0]) for y, x in zip(targets[:3], answers[:3, ..., 0], strict=True)]
    expected = {
        "delta1": np.mean([np.mean(np.maximum(y / x, x / y) < 1.25) for y, x in pairs]),
        "abs_rel": np.mean([mean_absolute_percentage_error(y, x) for y, x in pairs]),
        "rmse": np.mean([root_mean_squared_error(y, x) for y, x in pairs]),
    }
    scores = task.scores(targets, answers, resamples=20)
    for name, value in expected.items():
        assert scores[name].value == pytest.approx(value, rel=1e-5)
        assert scores[name].low < value < scores[name].high
    metric = CloseShare()
    metric.update_state(task.check_targets(targets), outputs)
    assert float(metric.result()) == pytest.approx(expected["delta1"], rel=1e-5)
    # The best constant, by a search over the measured numbers.
    report = keras_vit.evaluation.report(task, targets, answers)
    every = np.concatenate([y for y, _ in pairs])
    best = min(np.mean([np.mean(np.abs(c - y) / y) for y, _ in pairs]) for c in every)
    assert report.constant["abs_rel"].value == pytest.approx(best, rel=0.03)


def test_files_of_three_formats_are_one_map(tmp_path: Path) -> None:
    folder = depth_folders(tmp_path)
    load = partial(data.load, folder / "photos", labels="../maps", reader="grain")
    assert load().task == Depth()
    split = load(val_fraction=None)["all"]
    expected = [split.label_map(i) for i in range(len(split))]
    assert (expected[0] == 0).sum() == 9
    assert split.labels()[0, 0] == 20 * 30 - 9
    for depth, source in zip(expected, split.sources, strict=True):
        source.unlink()
        millimeters = Image.fromarray(np.rint(1000 * depth).astype(np.uint16))
        millimeters.save(source.with_suffix(".png"))
    split = load(task=Depth(("distance",), depth_scale=0.001))["train"]
    assert split.task.names == ("distance",)
    inverse = load(task=RelativeDepth(depth_scale="inverse"))["train"]
    for i, path in enumerate(split.sources):
        depth = expected[int(path.stem)]
        np.testing.assert_allclose(split.label_map(i), depth, atol=6e-4)
        tenths = np.where(depth > 0, 1e-3 / np.maximum(depth, 1e-9), 0)
        np.testing.assert_allclose(inverse.label_map(i), tenths, rtol=1e-3)  # of millimeters


def test_maps_that_do_not_fit_are_named(tmp_path: Path) -> None:
    folder = depth_folders(tmp_path)
    place = folder / "maps"
    load = partial(data.load, folder / "photos", labels=place, reader="grain")
    (place / "0.tiff").rename(place / "0.TIFF")
    (place / "1.npy").rename(tmp_path / "1.npy")
    refused(r"1 photograph of 6 .* has no map in .*1.npy is not there\. Give a map of depth", load)
    np.save(place / "1.npy", np.zeros((20, 30)))
    np.save(place / "3.npy", np.array([{}]), allow_pickle=True)
    np.save(place / "5.npy", np.ones((20, 30, 2)))
    Image.fromarray(np.ones((9, 7), "float32")).save(place / "2.tiff")
    Image.fromarray(np.ones((20, 30), "uint16")).save(place / "4.tiff")
    refused(
        r"(?s)5 maps of 6 cannot be used.*1.npy: not one of its pixels is measured.*2.tiff: has "
        r"7 x 9 pixels, and its photograph 30 x 20.*3.npy: a NumPy file of object.*4.tiff: "
        r"integers, whose unit is not known: give depth_.*classes, write PNG.*5.npy: 2 bands",
        load,
    )
    np.save(place / "1.npy", np.linspace(-1, 1, 600).reshape(20, 30))
    refused(
        "1.npy: inverse depths below 0, down to -1, wh", load, task=Depth(depth_scale="inverse")
    )
    refused("0.npy is not there, and .*maps.0.TIFF is", load, labels=folder, task="depth")
    for i in range(6):
        np.save(place / f"{i}.npy", np.full((20, 30), 1.0 + i % 2))
    warned("have the numbers 1, 2 alone: if these are classes, write PNG", load)
    (folder / "coco.json").write_text("{}")
    refused("is a file, not a folder of maps", load, labels=folder / "coco.json", task="depth")


@pytest.mark.parametrize(("reader", "training"), [("tensorflow", True), ("grain", False)])
def test_depths_move_as_their_images(tmp_path: Path, reader: str, training: bool) -> None:
    pytest.importorskip(reader)
    folder = depth_folders(tmp_path, 4)
    options: dict[str, Any] = {"labels": folder / "maps", "val_fraction": None, "reader": reader}
    split = data.load(folder / "photos", **options)["all"]
    turned = data.Augmentation(min_area=0.3, rotation=30, zoom=0.2)
    batches = data.pipeline(split, (16, 24), 4, training, augment=turned, eval_transform="stretch")
    images, depths = map(np.asarray, next(iter(batches)))
    measured = depths > 0
    assert 0.5 < measured.mean() < 1
    assert depths[measured].min() >= 1  # no hole is mixed into a number
    assert np.quantile(np.abs(images[..., 0] / 50 - depths)[measured], 0.9) < 0.15


def test_what_it_refuses_and_how_it_is_shown() -> None:
    scores = Depth(form="depth").scores(np.full((1, 2, 2), 5.0), np.full((1, 2, 2, 1), -5.0))
    assert (scores["delta1"].value, scores["abs_rel"].value) == (0, 2)  # not one is close
    task = Depth(unit="m")
    levels = depth_colors(np.linspace(1e-6, 1, 256)[None], 0, 1)
    viridis = np.rint(255 * matplotlib.colormaps["viridis"](np.arange(256))[None, :, :3])
    assert np.abs(levels.astype(int) - viridis).max() <= 6
    answer = task.answers(np.log(np.full((1, 4, 4, 1), 2.0)))[0]
    assert task.answer_files(answer, (7, 9)).keys() == {".tiff", ".color.png"}
    recipe, lines = keras_vit.recipes.get("linear_pixels"), []
    settings, _ = augmentation_of(None, recipe, task, lines.append)
    assert (settings.crop, settings.flip) == ("resize", True)
    assert "without random crops: what is enlarged has another depth" in lines
    model = bank.fresh(task=task)
    model.compile(loss=task.loss())
    with pytest.raises(ValueError, match="class_weight weights an image by its one class"):
        model.fit(bank.pixels(2, 32, 32, 3), np.ones((2, 32, 32)), class_weight={0: 1.0}, verbose=0)


@pytest.mark.parametrize(("activation", "task"), RELEASED)
def test_released_models_answer(activation: str, task: Depth, tmp_path: Path) -> None:
    head = {"width": 8, "activation": activation, "scale": 20.0}
    changes: dict[str, Any] = {"layer_scale": 1.0, "activation": "gelu", "depth": 4, "mlp_dim": 128}
    model = bank.fresh(num_classes=1, map_head=head, normalization="imagenet", **changes)
    keras_vit.save_weights(model, tmp_path / "folder", "huggingface")
    model, same = (keras_vit.load(tmp_path / "folder", **x) for x in ({}, {"task": task}))
    assert (model.task, model.map_head) == (task, same.map_head)
    assert "head/kernel" in same.load_report.loaded
    assert "head/kernel" in keras_vit.load(tmp_path / "folder", task=Depth()).load_report.fresh
    outputs = bank.outputs(model, bank.pixels(2, 32, 32, 3))
    np.testing.assert_array_equal(task.answers(outputs), outputs)
    np.testing.assert_array_equal(task.outputs_in_graph(task.answers_in_graph(outputs)), outputs)
    depths = np.linspace(1, 9, 2048, dtype="float32").reshape(2, 32, 32)
    assert 0 <= task.scores(depths, outputs)[task.main_score(depths)].value <= 1
    if activation == "sigmoid":
        refused("outputs are 'depth', as released ones, answers", task.loss)
    else:
        model.compile(keras.optimizers.SGD(0.0), loss=task.loss(), metrics=task.metrics())
        before = model.evaluate(bank.pixels(2, 32, 32, 3), depths, verbose=0)
        model.fit(bank.pixels(2, 32, 32, 3), depths, verbose=0)
        assert np.isfinite(before).all()
    refused(f"ends with activation='{activation}'", setattr, model, "task", Depth())
    new = model.with_classifier(task=Depth())
    assert (new.task, new.map_head.activation) == (Depth(), "linear")
