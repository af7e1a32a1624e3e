"""Arguments of splits, pipelines and augmentations that cannot be right, and what is answered."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit.data import ArraySplit, Augmentation, evaluation_image, load, pipeline
from keras_vit.tasks import Multilabel, Ordinal
from tests.data.image_fixtures import PIXELS

pytest.importorskip("tensorflow")
GRAY, COLOR = np.zeros((2, 8, 8, 1), np.uint8), np.zeros((4, 8, 8, 3), np.uint8)


def split(labels: Any = (0, 1), images: np.ndarray = GRAY, task: Any = ("a", "b")) -> ArraySplit:
    return ArraySplit("train", task, images, np.array(labels) if task == ("a", "b") else labels)


SPLIT = split()
GRADES = split([0, 1, 2, 0], COLOR, Ordinal(("low", "middle", "high")))
ROWS = split(np.eye(4, 3, dtype=int), COLOR, Multilabel(("a", "b", "c")))
NAN = float("nan")


def batches(of: ArraySplit = SPLIT, **options: Any) -> Any:
    return pipeline(of, **{"image_size": 8, "batch_size": 4, **options})


def trained(augment: Any, of: ArraySplit = SPLIT, **options: Any) -> Any:
    return batches(of, training=True, augment=augment, **options)


Rows = list[tuple[dict[str, Any], str]]
TABLES: dict[str, tuple[Callable[..., Any], Rows]] = {
    "load": (
        lambda **options: load("digits", **options),
        [
            ({"val_fraction": 0.0}, "val_fraction=0.0 must lie between 0 and 1"),
            ({"val_fraction": 1.0}, "val_fraction=1.0 must lie between 0 and 1"),
            ({"val_fraction": NAN}, "val_fraction=nan must lie between 0 and 1"),
            ({"seed": -1}, "seed=-1 must be an integer, 0 or more"),
            ({"max_pixels": 0}, "max_pixels=0 must be an integer of at least 1"),
            ({"on_bad_file": "no"}, "on_bad_file='no' is not known. Give one of: 'skip', 'raise'"),
        ],
    ),
    "arrays": (
        split,
        [
            ({"images": np.zeros((2, 8, 8, 1))}, "images are float64 of shape"),
            ({"images": GRAY[..., 0]}, r"shape \(2, 8, 8\): give uint8 pixels"),
            ({"labels": [0]}, r"labels are int64 of shape \(1,\)"),
            ({"labels": [0, 2]}, "labels run from 0 to 2, but the 2 class"),
        ],
    ),
    "targets": (
        lambda **options: split(images=COLOR, **options),
        [
            (
                {"labels": [7] * 4, "task": Ordinal(("a", "b"))},
                "Target 7 of row 0 does not suit",
            ),
            ({"labels": [["a"], [], ["b"]], "task": Multilabel(("a", "b"))}, "3 labels for 4"),
        ],
    ),
    "rates": (
        lambda rates, of=SPLIT: of.resampled(rates),
        [
            ({"rates": [1]}, "give one per class"),
            ({"rates": [[1, 1]]}, "give one per class"),
            ({"rates": [1, -1]}, "must be at least 0, some of them above"),
            ({"rates": [0, 0]}, "must be at least 0, some of them above"),
            ({"rates": [1, np.inf]}, "must be at least 0, some of them above"),
            ({"rates": [1, 1, 1], "of": ROWS}, "for integer labels"),
        ],
    ),
    "pipeline": (
        batches,
        [
            ({"batch_size": 0}, "batch_size=0 must be an integer, 1 or more"),
            ({"batch_size": 2.5}, "batch_size=2.5 must be an integer, 1 or more"),
            ({"seed": -1}, "seed=-1 must be an integer, 0 or more"),
            ({"image_size": -1}, "image_size=-1 is not a size"),
            ({"augment": "strong"}, "augment='strong' is not known. Give one of: 'inception'"),
            ({"eval_transform": "no"}, "eval_transform='no' is not known. Give one of: 'crop'"),
            ({"start_step": 3}, "start_step=3 must be 0 or more, and 0 without repeat=True"),
            ({"channels": 4}, "channels=4 must be 3"),
            ({"of": ROWS, "num_classes": 5}, "rows of 3 numbers already: leave num_classes out"),
        ],
    ),
    "mixing": (
        trained,
        [
            ({"augment": Augmentation(mixup=1.0)}, "num_classes"),
            ({"augment": Augmentation(cutmix=0.5)}, r"cutmix=0\.5 mix one-hot labels: give num_cl"),
            ({"augment": keras.layers.MixUp()}, "MixUp mixes one-hot labels: give num_classes"),
            (
                {"of": GRADES, "augment": Augmentation(mixup=1.0), "num_classes": 3},
                "must stay integers: leave num_classes out",
            ),
        ],
    ),
    "evaluation_image": (
        lambda **options: evaluation_image(PIXELS, **{"image_size": 8, **options}),
        [
            ({"transform": "no"}, "mode='no' is not known. Give one of: 'crop', 'stretch'"),
            ({"crop_fraction": 0.0}, r"crop_fraction=0.0 must lie in \(0, 1\]"),
            ({"image_size": 0}, "image_size=0 is not a size"),
            ({"image_size": (8, 8, 3)}, r"image_size=\(8, 8, 3\) is not a size"),
            (
                {"transform": "timm_squash", "interpolation": "nearest"},
                "interpolation='nearest' is not known",
            ),
            (
                {"transform": "crop", "interpolation": "bicubic"},
                "mode beside interpolation='crop' is not known",
            ),
        ],
    ),
    "Augmentation": (
        Augmentation,
        [
            ({"crop": "no"}, "crop='no' is not known. Give one of: 'inception', 'random'"),
            ({"min_area": 0.0}, r"min_area=0.0 must lie in \(0, 1\]"),
            ({"aspect_ratio": (2.0, 1.0)}, r"aspect_ratio=\(2.0, 1.0\) must be \(low, high\)"),
            ({"shift": -1}, "shift=-1 must be"),
            ({"rotation": 181}, r"rotation=181 must lie in \[0, 180\]"),
            ({"zoom": NAN}, r"zoom=nan must lie in \[0, 1\]"),
            ({"shear": -0.1}, r"shear=-0.1 must lie in \[0, 1\]"),
            ({"mixup": -1}, "mixup=-1 must be at least 0"),
            ({"cutmix": -1}, "cutmix=-1 must be at least 0"),
            ({"erasing": 1.5}, r"erasing=1.5 must lie in \[0, 1\]"),
            ({"rand_augment": (0, 10)}, "number=0 must be an integer"),
            ({"rand_augment": (2, 31)}, "magnitude=31 must lie between 0 and 30"),
            ({"rand_augment": (2, 9), "operations": ("no",)}, "operation='no' is not known"),
            ({"rand_augment": (2, 9), "operations": ()}, r"operations=\(\) is empty"),
            ({"operations": ("invert",)}, "are for RandAugment: give rand_augment"),
        ],
    ),
}


@pytest.mark.parametrize("table", TABLES)
def test_errors(table: str) -> None:
    call, rows = TABLES[table]
    for arguments, message in rows:
        with pytest.raises(ValueError, match=message):
            call(**arguments)
