"""The nineteen tasks of VTAB as a table: where they lie, how they are cut, what their labels mean.

Zhai et al. 2019, "A Large-scale Study of Representation Learning with the Visual Task Adaptation
Benchmark"; splits, labels and versions as in google-research/task_adaptation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from keras_vit.data._imports import tf
from keras_vit.errors import did_you_mean

Record = dict[str, Any]
GROUPS = ("natural", "specialised", "structured")


@dataclass(frozen=True)
class Label:
    """How a record of TensorFlow Datasets tells its class.

    Attributes:
        key: The one feature to read.
        read: From that feature to the class, a graph function.
    """

    key: str
    read: Callable[[Any], Any]


def plain(key: str = "label") -> Label:
    """The feature itself is the class."""
    return Label(key, lambda value: value)


PLAIN = plain()


def grouped(key: str, original: int, classes: int) -> Label:
    """Neighbouring values are one class: `original` values make `classes`."""
    # value // (original / classes), in whole numbers: 40 orientations make 16 classes of 2.5.
    return Label(key, lambda value: value * classes // original)


def _bin(value: Any, edges: tuple[float, ...]) -> Any:
    """How many inner edges lie below the value; one that is equal to an edge is below it."""
    return tf.reduce_sum(tf.cast(tf.cast(value, tf.float32) > tf.constant(edges), tf.int64))


def _clevr_distance(objects: Record) -> Any:
    # The third pixel coordinate is the distance to the camera.
    return _bin(tf.reduce_min(objects["pixel_coords"][:, 2]), (8.0, 8.5, 9.0, 9.5, 10.0))


def _kitti_distance(objects: Record) -> Any:
    vehicle = objects["type"] < 3  # car, van, truck
    forward = tf.boolean_mask(objects["location"][:, 2], vehicle)
    # Near, middle, far, and a class of its own for a street without vehicles.
    return _bin(tf.reduce_min(tf.concat([forward, [1000.0]], 0)), (8.0, 20.0, 999.0))


CLEVR_COUNT = Label("objects", lambda objects: tf.cast(tf.size(objects["size"]) - 3, tf.int64))
CLEVR_DISTANCE = Label("objects", _clevr_distance)
KITTI_DISTANCE = Label("objects", _kitti_distance)
SPRITES_X = grouped("label_x_position", original=32, classes=16)
TURN = grouped("label_orientation", original=40, classes=16)
AZIMUTH, ELEVATION = plain("label_azimuth"), plain("label_elevation")

Part = tuple[str, int]  # a split of TensorFlow Datasets, from so many per cent on
OWN: Part = ("validation", 0)
TEST: Part = ("test", 0)


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        name: As the benchmark's tables call it.
        group: "natural", "specialised" or "structured".
        dataset: The name in TensorFlow Datasets, with the version that the benchmark takes.
        classes: How many.
        val: Where the 200 validation examples begin.
        test: Where the test examples begin; they go on to the split's end.
        label: How a record tells its class.
        scale: What pixels are multiplied by: dSprites are 0 and 1.
    """

    name: str
    group: str
    dataset: str
    classes: int
    val: Part = OWN
    test: Part = TEST
    label: Label = PLAIN
    scale: int = 1

    def splits(self, sizes: dict[str, int]) -> dict[str, str]:
        """The four splits as TensorFlow Datasets slices them.

        Args:
            sizes: Number of examples in each split of the data set.

        >>> task("cifar100").splits({"train": 50000, "test": 10000})["train800val200"]
        'train[:800]+train[45000:45200]'
        """
        (val, val_percent), (test, test_percent) = self.val, self.test
        start = sizes[val] * val_percent // 100
        test_start = sizes[test] * test_percent // 100
        train800, val200 = "train[:800]", f"{val}[{start}:{start + 200}]"
        return {
            "train800": train800,
            "val200": val200,
            "train800val200": f"{train800}+{val200}",
            "test": f"{test}[{test_start}:]" if test_start else test,
        }


def _task(group: str, name: str, dataset: str, classes: int, **how: Any) -> Task:
    return Task(name, group, dataset, classes, **how)


_NORB: dict[str, Any] = {"val": ("test", 0), "test": ("test", 50)}
_SPRITES: dict[str, Any] = {"val": ("train", 80), "test": ("train", 90), "scale": 255}
_CLEVR: dict[str, Any] = {"val": ("train", 90), "test": ("validation", 0)}
_SATELLITE: dict[str, Any] = {"val": ("train", 60), "test": ("train", 80)}
_LAST_TENTH: dict[str, Any] = {"val": ("train", 90)}

TASKS = (
    _task("natural", "caltech101", "caltech101:3.*.*", 102, **_LAST_TENTH),
    _task("natural", "cifar100", "cifar100:3.*.*", 100, **_LAST_TENTH),
    _task("natural", "dtd", "dtd:3.*.*", 47),
    _task("natural", "flowers102", "oxford_flowers102:2.*.*", 102),
    # The benchmark took version 3, which TensorFlow Datasets no longer prepares.
    _task("natural", "pets", "oxford_iiit_pet", 37, val=("train", 80)),
    _task("natural", "sun397", "sun397/tfds:4.*.*", 397),
    _task("natural", "svhn", "svhn_cropped:3.*.*", 10, **_LAST_TENTH),
    _task("specialised", "camelyon", "patch_camelyon:2.*.*", 2),
    _task("specialised", "eurosat", "eurosat/rgb:2.*.*", 10, **_SATELLITE),
    _task("specialised", "resisc45", "resisc45:3.*.*", 45, **_SATELLITE),
    _task("specialised", "retinopathy", "diabetic_retinopathy_detection/btgraham-300:3.*.*", 5),
    _task("structured", "clevr_count", "clevr:3.*.*", 8, label=CLEVR_COUNT, **_CLEVR),
    _task("structured", "clevr_distance", "clevr:3.*.*", 6, label=CLEVR_DISTANCE, **_CLEVR),
    _task("structured", "dmlab", "dmlab:2.0.1", 6),
    _task("structured", "kitti_distance", "kitti:3.*.*", 4, label=KITTI_DISTANCE),
    _task("structured", "dsprites_location", "dsprites:2.*.*", 16, label=SPRITES_X, **_SPRITES),
    _task("structured", "dsprites_orientation", "dsprites:2.*.*", 16, label=TURN, **_SPRITES),
    _task("structured", "norb_azimuth", "smallnorb:2.*.*", 18, label=AZIMUTH, **_NORB),
    _task("structured", "norb_elevation", "smallnorb:2.*.*", 9, label=ELEVATION, **_NORB),
)


def task(name: str) -> Task:
    """The task of that name.

    Raises:
        ValueError: The name is unknown; the message proposes the nearest ones.

    >>> task("svhn").classes
    10
    """
    known = {row.name: row for row in TASKS}
    if name not in known:
        raise ValueError(f"VTAB has no task {name!r}. {did_you_mean(name, known)}")
    return known[name]
