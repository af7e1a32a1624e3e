"""The splits of VTAB's tasks, read from TensorFlow data sets prepared on this machine."""

from __future__ import annotations

from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.data import DatasetUnavailableError, TFDSSplit
from keras_vit.data._imports import tensorflow_datasets as tfds
from keras_vit.data._imports import tf
from keras_vit.evaluation.vtab_tasks import Task

if TYPE_CHECKING:
    from keras_vit.data.decoder import Crop


class TaskSplit(TFDSSplit):
    """A split of a VTAB task: its label is read from whatever the record has.

    Images are prepared as the benchmark publishes it: resized to the model's size whatever their
    shape (`eval_transform="stretch"`), without augmentation.
    """

    augment = "none"

    def __init__(self, name: str, task: Task, builder: Any, tfds_split: str, size: int):
        self.name, self.task, self.tfds_split = name, task, tfds_split
        self._builder, self._size = builder, size
        names = getattr(_feature(builder, task.label.key), "names", None) or ()
        numbers = map(str, range(task.classes))
        self.class_names = tuple(names if len(names) == task.classes else numbers)

    @property
    def num_examples(self) -> int:
        return self._size

    def labels(self) -> np.ndarray:
        labels = self._read({}).map(lambda r: self._label(r))
        return np.fromiter(labels.as_numpy_iterator(), np.int32)

    @cached_property
    def _records(self) -> tf.data.Dataset:
        with tf.init_scope():
            records = self._read({"image": tfds.decode.SkipDecoding()}, image=True)
            return records.enumerate().map(lambda i, r: (r["image"], self._label(r), i))

    def decode(self, example: tf.Tensor, channels: int = 3, crop: Crop | None = None) -> tf.Tensor:
        return super().decode(example, channels, crop) * tf.constant(self.task.scale, tf.uint8)

    def _read(self, decoders: dict[str, Any], **wanted: bool) -> tf.data.Dataset:
        """Records with what the label needs and `wanted`, and nothing else decoded."""
        key = self.task.label.key
        needed = {**wanted, key: _specification(_feature(self._builder, key))}
        return self._builder.as_dataset(
            split=self.tfds_split,
            shuffle_files=False,
            decoders=tfds.decode.PartialDecoding(needed, decoders=decoders),
        )

    def _label(self, record: dict[str, Any]) -> tf.Tensor:
        return tf.cast(self.task.label.read(record[self.task.label.key]), tf.int32)


def task_splits(task: Task, data_dir: str | PathLike[str] | None = None) -> dict[str, TaskSplit]:
    """The splits `train800`, `val200`, `train800val200` and `test` of a task.

    Nothing is downloaded: the nineteen tasks together take some hundred gigabytes.

    Raises:
        DatasetUnavailableError: The data set is not prepared; the message says how to prepare it.
    """
    builder = _builder(task, data_dir)
    sizes = {name: int(split.num_examples) for name, split in builder.info.splits.items()}
    if not sizes:
        raise DatasetUnavailableError(_how_to_prepare(task, builder))
    slices = task.splits(sizes)
    lengths = {
        "train800": 800,
        "val200": 200,
        "train800val200": 1000,
        "test": sizes[task.test[0]] - sizes[task.test[0]] * task.test[1] // 100,
    }
    return {name: TaskSplit(name, task, builder, slices[name], lengths[name]) for name in slices}


def _builder(task: Task, data_dir: str | PathLike[str] | None) -> Any:
    try:
        return tfds.builder(task.dataset, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        raise DatasetUnavailableError(
            f"{task.name}: this version of TensorFlow Datasets has no {task.dataset!r}: {error}"
        ) from error


def _how_to_prepare(task: Task, builder: Any) -> str:
    name = builder.info.full_name.rsplit("/", 1)[0]
    root = builder.data_dir.removesuffix(f"/{builder.info.full_name}")
    lines = [
        f"{task.name}: the data set {builder.info.full_name} is not prepared in {root}. "
        f"Run `tfds build {name} --data_dir {root}` where there is a network, or copy the folder "
        f"{builder.info.full_name} there."
    ]
    if builder.MANUAL_DOWNLOAD_INSTRUCTIONS:
        words = " ".join(builder.MANUAL_DOWNLOAD_INSTRUCTIONS.split())
        lines.append(f"It has to be fetched by hand first, into {root}/downloads/manual: {words}")
    return " ".join(lines)


def _feature(builder: Any, key: str) -> Any:
    return builder.info.features[key]


def _specification(feature: Any) -> Any:
    """What `PartialDecoding` takes for a feature: True, or a dictionary for one with parts."""
    inner = getattr(feature, "feature", feature)  # a sequence of records
    return dict.fromkeys(inner, True) if isinstance(inner, tfds.features.FeaturesDict) else True
