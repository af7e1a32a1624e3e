"""Classes and numbers that a mirror image changes are not trained on mirrored."""

from pathlib import Path

import numpy as np
import pytest

import keras_vit
from keras_vit import tasks
from tests import bank

CASES = {
    "sides": (tasks.Classification(("turn left", "turn right")), "without mirror images: they"),
    "others": (tasks.Classification(("cat", "dog")), ""),
    "places": (tasks.Regression(("eye_x", "eye_y")), "without mirror images and random crops"),
    "an angle": (tasks.Regression(("steering angle", "speed")), "show another 'steering angle'"),
}


@pytest.mark.parametrize("case", CASES)
def test_images_are_not_mirrored_where_names_say_so(case: str, tmp_path: Path) -> None:
    task, expected = CASES[case]
    images = np.random.default_rng(0).integers(0, 255, (8, 16, 16, 3), np.uint8)
    labels = np.arange(16).reshape(8, 2) * 1.0 if task.are_numbers else np.arange(8) % 2
    recipe = keras_vit.recipes.get("finetune_small").scaled(steps=1, batch_size=4)
    lines: list[str] = []
    model = bank.fresh(task=task.fitted(labels), input_shape=(16, 16, 3))
    keras_vit.fit(model, recipe, (images, labels), tmp_path, print_fn=lines.append)
    assert any("without mirror" in line for line in lines) == bool(expected)
    assert expected in " ".join(lines)
