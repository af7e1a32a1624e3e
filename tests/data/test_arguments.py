"""Arguments of splits, pipelines and augmentations that cannot be right, and what is answered."""

from functools import partial
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


SPLIT, GRADES = split(), split([0, 1, 2, 0], COLOR, Ordinal(("low", "middle", "high")))
ROWS = split(np.eye(4, 3, dtype=int), COLOR, Multilabel(("a", "b", "c")))
NAN, TWO_GRADES = float("nan"), Ordinal(("a", "b"))
MIXUP, CUTMIX = Augmentation(mixup=1.0), Augmentation(cutmix=0.5)
LEAVE_OUT, ONE_HOT = "leave num_classes out", "one-hot labels: give num_classes"


def batches(of: ArraySplit = SPLIT, **options: Any) -> Any:
    return pipeline(of, **{"image_size": 8, "batch_size": 4, **options})


CALLS: dict[str, Any] = {
    "load": lambda **options: load("digits", **options),
    "arrays": split,
    "targets": lambda **options: split(images=COLOR, **options),
    "rates": lambda rates, of=SPLIT: of.resampled(rates),
    "pipeline": batches,
    "mixing": partial(batches, training=True),
    "evaluate": lambda **options: evaluation_image(PIXELS, **{"image_size": 8, **options}),
    "augment": Augmentation,
}
ERRORS: list[tuple[str, dict[str, Any], str]] = [
    ("load", {"val_fraction": 1.0}, "val_fraction=1.0 must lie between 0 and 1"),
    ("load", {"val_fraction": NAN}, "val_fraction=nan must lie between 0 and 1"),
    ("load", {"max_pixels": 0}, "max_pixels=0 must be an integer of at least 1"),
    ("load", {"on_bad_file": "no"}, "on_bad_file='no' is not known. Give one of: 'skip', 'raise'"),
    ("arrays", {"images": np.zeros((2, 8, 8, 1))}, "images are float64 of shape"),
    ("arrays", {"images": GRAY[..., 0]}, r"shape \(2, 8, 8\): give uint8 pixels"),
    ("arrays", {"labels": [0, 2]}, "Target 2 of row 1.*an integer from 0 to 1"),
    ("targets", {"labels": [7] * 4, "task": TWO_GRADES}, "Target 7 of row 0 does not suit ordinal"),
    ("targets", {"labels": [["a"], [], ["b"]], "task": Multilabel(("a", "b"))}, "3 labels for 4"),
    ("rates", {"rates": [[1, 1]]}, "give one per class"),
    ("rates", {"rates": [0, 0]}, "must be at least 0, some of them above"),
    ("rates", {"rates": [1, 1, 1], "of": ROWS}, "for integer labels"),
    ("pipeline", {"seed": -1}, "seed=-1 must be an integer, 0 or more"),
    ("pipeline", {"image_size": -1}, "image_size=-1 is not a size"),
    ("pipeline", {"augment": "strong"}, "augment='strong' is not known. Give one of: 'inception'"),
    ("pipeline", {"eval_transform": "no"}, "eval_transform='no' is not known. Give one of: 'crop'"),
    ("pipeline", {"start_step": 3}, "start_step=3 must be 0 or more, and 0 without repeat=True"),
    ("pipeline", {"views": 0}, "views=0 must be an integer, 1 or more"),
    ("pipeline", {"channels": 4}, "channels=4 must be 3"),
    ("pipeline", {"of": ROWS, "num_classes": 5}, f"rows of 3 numbers already: {LEAVE_OUT}"),
    ("mixing", {"augment": MIXUP}, "num_classes"),
    ("mixing", {"augment": CUTMIX}, rf"cutmix=0\.5 mix {ONE_HOT}"),
    ("mixing", {"augment": keras.layers.MixUp()}, f"MixUp mixes {ONE_HOT}"),
    ("mixing", {"of": GRADES, "augment": MIXUP, "num_classes": 3}, "must stay integers"),
    ("evaluate", {"transform": "no"}, "mode='no' is not known. Give one of: 'crop', 'stretch'"),
    ("evaluate", {"crop_fraction": 0.0}, r"crop_fraction=0.0 must lie in \(0, 1\]"),
    ("evaluate", {"image_size": (8, 8, 3)}, r"image_size=\(8, 8, 3\) is not a size"),
    ("evaluate", {"transform": "timm_squash", "interpolation": "nearest"}, "is not known"),
    ("evaluate", {"transform": "crop", "interpolation": "bicubic"}, "mode beside inter"),
    ("augment", {"crop": "no"}, "crop='no' is not known. Give one of: 'inception', 'random'"),
    ("augment", {"min_area": 0.0}, r"min_area=0.0 must lie in \(0, 1\]"),
    ("augment", {"aspect_ratio": (2.0, 1.0)}, r"aspect_ratio=\(2.0, 1.0\) must be \(low, high\)"),
    ("augment", {"rotation": 181}, r"rotation=181 must lie in \[0, 180\]"),
    ("augment", {"zoom": NAN}, r"zoom=nan must lie in \[0, 1\]"),
    ("augment", {"erasing": 1.5}, r"erasing=1.5 must lie in \[0, 1\]"),
    ("augment", {"rand_augment": (0, 10)}, "number=0 must be an integer"),
    ("augment", {"rand_augment": (2, 31)}, "magnitude=31 must lie between 0 and 30"),
    ("augment", {"rand_augment": (2, 9), "operations": ("no",)}, "operation='no' is not known"),
    ("augment", {"rand_augment": (2, 9), "operations": ()}, r"operations=\(\) is empty"),
    ("augment", {"operations": ("invert",)}, "are for RandAugment: give rand_augment"),
]


def test_errors() -> None:
    for name, arguments, message in ERRORS:
        with pytest.raises(ValueError, match=message):
            CALLS[name](**arguments)
