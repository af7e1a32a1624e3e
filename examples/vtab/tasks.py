"""The nineteen tasks of VTAB as a table, and their splits, read from prepared TFDS data sets.

Zhai et al. 2019, "A Large-scale Study of Representation Learning with the Visual Task Adaptation
Benchmark"; splits, labels and versions as in google-research/task_adaptation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit._base.errors import did_you_mean
from keras_vit.data import DatasetUnavailableError, Split, decode_image
from keras_vit.data._imports import tensorflow_datasets as tfds
from keras_vit.data._imports import tf
from keras_vit.tasks.classification import as_task

if TYPE_CHECKING:
    from keras_vit.data.decode.decoder import Crop

Record = dict[str, Any]
VTAB_GROUPS = ("natural", "specialized", "structured")


@dataclass(frozen=True)
class Label:
    """How to read the class of a TFDS record.

    Attributes:
        key: The feature to read.
        read: A graph function from that feature to the class; the feature itself by default.
    """

    key: str = "label"
    read: Callable[[Any], Any] = lambda feature: feature


def grouped(key: str, original: int, classes: int) -> Label:
    """Adjacent values share a class: `original` values make `classes`."""
    # value // (original / classes), in integers: 40 orientations make 16 classes of 2.5.
    return Label(key, lambda value: value * classes // original)


def _bin(value: Any, edges: tuple[float, ...]) -> Any:
    """The number of edges below the value; a value equal to an edge belongs to the lower bin."""
    return tf.reduce_sum(tf.cast(tf.cast(value, tf.float32) > tf.constant(edges), tf.int64))


def _clevr_distance(objects: Record) -> Any:
    # The third pixel coordinate is the distance to the camera.
    return _bin(tf.reduce_min(objects["pixel_coords"][:, 2]), (8.0, 8.5, 9.0, 9.5, 10.0))


def _kitti_distance(objects: Record) -> Any:
    vehicle = objects["type"] < 3  # car, van, truck
    forward = tf.boolean_mask(objects["location"][:, 2], vehicle)
    # Near, middle, far, and a separate class for a street without vehicles.
    return _bin(tf.reduce_min(tf.concat([forward, [1000.0]], 0)), (8.0, 20.0, 999.0))


CLEVR_COUNT = Label("objects", lambda objects: tf.cast(tf.size(objects["size"]) - 3, tf.int64))
CLEVR_DISTANCE = Label("objects", _clevr_distance)
KITTI_DISTANCE = Label("objects", _kitti_distance)
SPRITES_X = grouped("label_x_position", original=32, classes=16)
TURN = grouped("label_orientation", original=40, classes=16)
AZIMUTH, ELEVATION = Label("label_azimuth"), Label("label_elevation")

Part = tuple[str, int]  # a TFDS split, and the per cent of it at which the part begins


@dataclass(frozen=True)
class VtabTask:
    """One task.

    Attributes:
        name: The name in the benchmark's tables.
        group: "natural", "specialized" or "structured".
        dataset: The name in TensorFlow Datasets, with the version that the benchmark uses.
        classes: Number of classes.
        val: Where the 200 validation examples begin.
        test: Where the test examples begin; they extend to the split's end.
        label: How to read the class of a record.
        scale: Factor of the pixels: those of dSprites are 0 and 1.
    """

    name: str
    group: str
    dataset: str
    classes: int
    val: Part = ("validation", 0)
    test: Part = ("test", 0)
    label: Label = Label()
    scale: int = 1

    def splits(self, sizes: dict[str, int]) -> dict[str, str]:
        """The four splits in the slicing syntax of TensorFlow Datasets.

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


_NORB: dict[str, Any] = {"val": ("test", 0), "test": ("test", 50)}
_SPRITES: dict[str, Any] = {"val": ("train", 80), "test": ("train", 90), "scale": 255}
_CLEVR: dict[str, Any] = {"val": ("train", 90), "test": ("validation", 0)}
_SATELLITE: dict[str, Any] = {"val": ("train", 60), "test": ("train", 80)}
_LAST_TENTH: dict[str, Any] = {"val": ("train", 90)}

VTAB_TASKS = (
    VtabTask("caltech101", "natural", "caltech101:3.*.*", 102, **_LAST_TENTH),
    VtabTask("cifar100", "natural", "cifar100:3.*.*", 100, **_LAST_TENTH),
    VtabTask("dtd", "natural", "dtd:3.*.*", 47),
    VtabTask("flowers102", "natural", "oxford_flowers102:2.*.*", 102),
    # The benchmark uses version 3, which TensorFlow Datasets no longer prepares.
    VtabTask("pets", "natural", "oxford_iiit_pet", 37, val=("train", 80)),
    VtabTask("sun397", "natural", "sun397/tfds:4.*.*", 397),
    VtabTask("svhn", "natural", "svhn_cropped:3.*.*", 10, **_LAST_TENTH),
    VtabTask("camelyon", "specialized", "patch_camelyon:2.*.*", 2),
    VtabTask("eurosat", "specialized", "eurosat/rgb:2.*.*", 10, **_SATELLITE),
    VtabTask("resisc45", "specialized", "resisc45:3.*.*", 45, **_SATELLITE),
    VtabTask("retinopathy", "specialized", "diabetic_retinopathy_detection/btgraham-300:3.*.*", 5),
    VtabTask("clevr_count", "structured", "clevr:3.*.*", 8, label=CLEVR_COUNT, **_CLEVR),
    VtabTask("clevr_distance", "structured", "clevr:3.*.*", 6, label=CLEVR_DISTANCE, **_CLEVR),
    VtabTask("dmlab", "structured", "dmlab:2.0.1", 6),
    VtabTask("kitti_distance", "structured", "kitti:3.*.*", 4, label=KITTI_DISTANCE),
    VtabTask("dsprites_location", "structured", "dsprites:2.*.*", 16, label=SPRITES_X, **_SPRITES),
    VtabTask("dsprites_orientation", "structured", "dsprites:2.*.*", 16, label=TURN, **_SPRITES),
    VtabTask("norb_azimuth", "structured", "smallnorb:2.*.*", 18, label=AZIMUTH, **_NORB),
    VtabTask("norb_elevation", "structured", "smallnorb:2.*.*", 9, label=ELEVATION, **_NORB),
)


def task(name: str) -> VtabTask:
    """The task of that name.

    Raises:
        ValueError: The name is unknown; the message proposes the nearest ones.

    >>> task("svhn").classes
    10
    """
    known = {row.name: row for row in VTAB_TASKS}
    if name not in known:
        raise ValueError(f"VTAB does not have a task {name!r}. {did_you_mean(name, known)}")
    return known[name]


_SHUFFLE_WINDOW = 10_000  # encoded images; those that are trained on are a thousand


class TaskSplit(Split):
    """A split of a VTAB task, read from its beginning in every pass.

    Images are prepared as in the benchmark: resized to the model's size whatever their aspect ratio
    (`eval_transform="stretch"`), without augmentation.
    """

    augment = "none"

    def __init__(self, name: str, task: VtabTask, builder: Any, tfds_split: str, size: int):
        self.name, self.vtab_task, self.tfds_split = name, task, tfds_split
        self._builder, self._size = builder, size
        names = getattr(builder.info.features[task.label.key], "names", None) or ()
        numbers = map(str, range(task.classes))
        self.task = as_task(tuple(names if len(names) == task.classes else numbers))

    @property
    def num_examples(self) -> int:
        return self._size

    def labels(self) -> np.ndarray:
        labels = self._read({}).map(lambda r: self._label(r))
        return np.fromiter(labels.as_numpy_iterator(), np.int32)

    def dataset(
        self,
        shuffle_seed: int | None = None,
        epoch: int | tf.Tensor = 0,
        start: int | tf.Tensor = 0,
    ) -> tf.data.Dataset:
        epoch = tf.cast(epoch, tf.int64)
        records, window = self._records, min(len(self), _SHUFFLE_WINDOW)

        def shuffled(epoch: tf.Tensor) -> tf.data.Dataset:
            # Without a seed for this function's graph, or tf.data would mix the global seed into
            # the order.
            tf.compat.v1.set_random_seed(None)
            key = tf.stack([tf.constant(shuffle_seed, tf.int64), epoch])
            seed = tf.random.stateless_uniform((), key, maxval=tf.int32.max, dtype=tf.int32)
            return records.shuffle(window, tf.cast(seed, tf.int64), reshuffle_each_iteration=False)

        one_pass = records
        if shuffle_seed is not None:
            one_pass = tf.data.Dataset.from_tensors(epoch).flat_map(shuffled)
        return one_pass.skip(start)

    @cached_property
    def _records(self) -> tf.data.Dataset:
        with tf.init_scope():
            records = self._read({"image": tfds.decode.SkipDecoding()}, image=True)
            return records.map(lambda record: (record["image"], self._label(record)))

    def decode(self, example: tf.Tensor, channels: int = 3, crop: Crop | None = None) -> tf.Tensor:
        return decode_image(example, channels, crop) * tf.constant(self.vtab_task.scale, tf.uint8)

    def _read(self, decoders: dict[str, Any], **features: Any) -> tf.data.Dataset:
        """Records with the label's feature and `features`; nothing else is decoded."""
        label = self._builder.info.features[self.vtab_task.label.key]
        label = getattr(label, "feature", label)  # a sequence of records
        parts = isinstance(label, tfds.features.FeaturesDict)
        features[self.vtab_task.label.key] = dict.fromkeys(label, True) if parts else True
        return self._builder.as_dataset(
            split=self.tfds_split,
            shuffle_files=False,
            decoders=tfds.decode.PartialDecoding(features, decoders=decoders),
        )

    def _label(self, record: dict[str, Any]) -> tf.Tensor:
        return tf.cast(self.vtab_task.label.read(record[self.vtab_task.label.key]), tf.int32)


def task_splits(
    task: VtabTask, data_dir: str | PathLike[str] | None = None
) -> dict[str, TaskSplit]:
    """The splits `train800`, `val200`, `train800val200` and `test` of a task.

    Nothing is downloaded: the nineteen tasks together take several hundred gigabytes.

    Raises:
        DatasetUnavailableError: The data set is not prepared; the message explains how to do it.
    """
    try:
        builder = tfds.builder(task.dataset, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        raise DatasetUnavailableError(
            f"{task.name}: this version of TensorFlow Datasets does not have {task.dataset!r}: "
            f"{error}"
        ) from error
    sizes = {name: int(split.num_examples) for name, split in builder.info.splits.items()}
    if not sizes:
        raise DatasetUnavailableError(_how_to_prepare(task, builder))
    return {
        name: TaskSplit(name, task, builder, part, builder.info.splits[part].num_examples)
        for name, part in task.splits(sizes).items()
    }


def _how_to_prepare(task: VtabTask, builder: Any) -> str:
    name = builder.info.full_name.rsplit("/", 1)[0]
    root = builder.data_dir.removesuffix(f"/{builder.info.full_name}")
    instructions = " ".join((builder.MANUAL_DOWNLOAD_INSTRUCTIONS or "").split())
    return (
        f"{task.name}: the data set {builder.info.full_name} is not prepared in {root}. "
        f"Run `tfds build {name} --data_dir {root}` on a machine with a network, or copy "
        f"the folder {builder.info.full_name} there."
        + (f" Download it into {root}/downloads/manual first: {instructions}" * bool(instructions))
    )
