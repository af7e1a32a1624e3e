"""Photographs larger than a model: windows give what the whole gives, in bounded memory."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import confusion_matrix

import keras_vit
from keras_vit import data, tasks
from keras_vit.evaluation.prediction import predict_files, predict_outcomes
from keras_vit.evaluation.windows import Windows, window_places
from tests import bank, processes
from tests.backend import refused
from tests.tasks.test_segmentation import TASK, scenes


def by_pixel(task: tasks.Task, size: tuple[int, int] = (16, 12)) -> Any:
    """A model whose outputs in each pixel depend on that pixel alone."""
    images = keras.Input((*size, 3), name="images")
    outputs = keras.layers.Conv2D(task.outputs, 1)(images / 255.0)
    model = keras.Model(images, outputs, name="by_pixel")
    kernel = np.random.default_rng(3).normal(0, 3, (1, 1, 3, task.outputs))
    model.set_weights([kernel, np.zeros(task.outputs)])
    model.num_classes, model.include_preprocessing = task.outputs, True
    model.task, model.image_size, model.eval_transform = task, size, data.EvalTransform("stretch")
    return model


def smooth(size: tuple[int, int]) -> np.ndarray:
    small = np.random.default_rng(0).integers(0, 255, (4, 5, 3)).astype(np.uint8)
    return np.asarray(Image.fromarray(small).resize(size[::-1], Image.Resampling.BICUBIC))


@pytest.mark.every_backend
@pytest.mark.parametrize("task", [TASK, tasks.Depth(unit="m")], ids=lambda task: task.kind)
@pytest.mark.parametrize("size", [(45, 31), (20, 70), (9, 70), (9, 8)])
def test_windows_of_single_pixels_give_the_whole(task: Any, size: Any, tmp_path: Path) -> None:
    model, pixels = by_pixel(task), smooth(size)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    for side in ("own", 20, 64, "model"):
        windows = Windows(model, side, batch_size=3)
        seen = np.asarray(data.evaluation_image(pixels, windows.seen_size(size), "stretch"))
        weights = [np.asarray(w) for w in model.get_weights()]
        answers = task.answers((seen / 255 @ weights[0][0, 0] + weights[1])[None])[0]
        expected = task.answer_map(answers, size)
        ((_, found),) = predict_files(model, [tmp_path / "a.png"], windows=side)
        assert found.shape == size
        if isinstance(task, tasks.Depth):
            np.testing.assert_allclose(found, expected, rtol=1e-4)
        else:
            assert (found == expected).mean() > 0.999


@pytest.mark.parametrize("views", [None, "flip"])
def test_the_mean_of_windows_is_a_plain_loop(views: str | None) -> None:
    model = bank.fresh(task=tasks.Depth())
    model.eval_transform = data.EvalTransform("stretch", views=views)
    pixels = smooth((75, 118))
    sums, counts = np.zeros((75, 118, 1)), np.zeros((75, 118, 1))
    for y in window_places(75, 32):
        for x in window_places(118, 32):
            cut = (slice(y, y + 32), slice(x, x + 32))
            both = model if views is None else model.with_views("flip")
            sums[cut] += bank.outputs(both, pixels[cut][None].astype("float32"))[0]
            counts[cut] += 1
    assert (counts.min(), counts.max()) == (1, 6)
    found = Windows(model, "own", batch_size=2).map_of(pixels)
    np.testing.assert_allclose(found, np.exp(sums / counts)[..., 0], rtol=1e-4)


@pytest.mark.parametrize("task", [tasks.Depth(), tasks.RelativeDepth()])
def test_whole_is_a_model_of_the_photographs_ratio(task: tasks.Depth, tmp_path: Path) -> None:
    head = {"width": 8, "activation": task.activations[-1]}
    model, pixels = bank.fresh(task=task, map_head=head, depth=4), smooth((90, 61))
    Image.fromarray(pixels).save(tmp_path / "a.png")
    ((_, found),) = predict_files(model, [tmp_path / "a.png"], windows="whole")
    larger = model.with_input_shape((48, 32, 3))  # 47.2 rows, and patches of 8
    seen = np.asarray(data.evaluation_image(pixels, (48, 32), "stretch"))
    (answer,) = model.task.answers(bank.outputs(larger, seen[None]))
    np.testing.assert_allclose(found, model.task.answer_map(answer, (90, 61)), rtol=1e-4)
    if isinstance(task, tasks.RelativeDepth):
        refused(r"two windows have neither one zero.*'whole'", Windows, model, "own")


def test_scores_are_those_of_the_photographs_own_pixels(tmp_path: Path) -> None:
    folder, model = scenes(tmp_path, 4), by_pixel(TASK)
    split = data.load(folder / "photos", labels=folder / "masks", val_fraction=None)["all"]
    outcomes, _ = predict_outcomes(model, split, windows="own")
    labels = np.concatenate([split.label_map(i).ravel() for i in range(4)])
    found = [one.ravel() for _, one in predict_files(model, split.files, windows="own")]
    matrix = confusion_matrix(labels[labels != 255], np.concatenate(found)[labels != 255])
    iou = np.diag(matrix) / (matrix.sum(0) + matrix.sum(1) - np.diag(matrix))
    assert TASK.scores_of(outcomes.tally)["mean_iou"].value == pytest.approx(iou.mean())
    rows = keras_vit.predict(bank.fresh(task=TASK), str(split.files[0]), windows="own")
    assert sum(row["part"] for row in rows[0]["predictions"]) == pytest.approx(1)


def test_what_windows_refuse(tmp_path: Path) -> None:
    model, row = bank.fresh(task=TASK), bank.small(num_classes=3)
    pixels, thin = bank.pixels(2, 32, 32, 3), tmp_path / "thin.png"
    Image.new("RGB", (2, 600)).save(thin)
    arrays = data.ArraySplit("all", TASK, pixels.astype("uint8"), np.zeros((2, 32, 32), int))
    row.task = "classification"
    for call, match in (
        (lambda: Windows(model, 0), "windows=0 is not the short side.*from 1 to 32,768"),
        (lambda: Windows(row), "the task of .* is classification: leave windows out"),
        # When it is called, and not with the first answer.
        (lambda: predict_files(row, [], windows="own"), "the task of .* is classification"),
        (lambda: keras_vit.predict(model, pixels, windows="own"), r"map_of\(pixels\)"),
        (lambda: predict_outcomes(model, arrays, windows="own"), "something else"),
    ):
        refused(match, call)
    ((_, reason),) = predict_files(model, [thin], max_pixels=100_000, windows="own")
    assert reason == "32 x 9600 pixels once windows fit into it"
    model.set_weights([np.full_like(w, np.nan) for w in model.get_weights()])
    Image.fromarray(smooth((40, 50))).save(thin)
    assert "predicts nan" in keras_vit.predict(model, str(thin), windows="own")[0]["error"]
    model.eval_transform = "crop"
    refused("crops the border", Windows, model)


PEAK = """
import resource, sys
import keras_vit
from keras_vit.evaluation.prediction import predict_files
model = keras_vit.VisionTransformer(
    patch_size=32, hidden_dim=16, depth=1, num_heads=2, input_shape=(512, 512, 3),
    task=keras_vit.tasks.Segmentation(size=64))
((_, found),) = predict_files(model, [sys.argv[1]], windows="own")
assert found.shape == (4000, 4000), found
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, "GiB")
"""


def test_a_photograph_of_16_million_pixels_stays_below_4_gib(tmp_path: Path) -> None:
    """The outputs of 64 classes alone would take 4.1 GiB."""
    Image.fromarray(smooth((4000, 4000))).save(tmp_path / "a.jpg")
    process = processes.start(PEAK, str(tmp_path / "a.jpg"), printed=tmp_path / "printed")
    assert process.wait() == 0, process.output()
    peak = float(process.output().partition("peak ")[2].split()[0])
    assert 0.2 < peak < 4, process.output()
