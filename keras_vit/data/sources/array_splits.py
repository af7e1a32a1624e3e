"""Splits in memory: of arrays, and of another split's images, decoded once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from keras_vit.data._imports import tf
from keras_vit.data.augment.boxes import crop_to_box
from keras_vit.data.decode.decoder import Crop, to_channels
from keras_vit.data.decode.pillow import array_to_channels
from keras_vit.data.image_readers import resolve_reader
from keras_vit.data.sources.splits import IndexedSplit, Split
from keras_vit.tasks import Task
from keras_vit.tasks.classification import as_task

MEMORY_BYTES = 2 * 2**30  # of decoded images, up to which they are kept without being asked


class ArraySplit(IndexedSplit):
    """Images and labels in memory.

    Args:
        name: "train", "val", "test" or "all".
        class_names: the name of each label; or the `Task` that says what labels mean.
        images: uint8 array of shape `(n, height, width, channels)`, 1 or 3 channels.
        labels: what the `check_targets` of the task takes: integers or names `(n,)` of classes,
            maps `(n, height, width)` among others.
        augment: a name in `AUGMENTATIONS`.
        reader: a name in `keras_vit.data.image_readers.READERS`; None for the default.

    Raises:
        ValueError: arrays of another type or shape, or a label without a name or that the task
            does not accept.

    Example:
        >>> split = ArraySplit("train", ("a", "b"), np.zeros((4, 8, 8, 1), np.uint8), [0, 1, 0, 1])
        >>> split
        ArraySplit('train', 4 images, 2 classes)
    """

    def __init__(
        self,
        name: str,
        class_names: Sequence[str] | Task,
        images: np.ndarray,
        labels: Any,
        augment: str = "inception",
        reader: str | None = None,
    ):
        images = np.asarray(images)
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3):
            raise ValueError(
                f"images are {images.dtype} of shape {images.shape}: give uint8 pixels of shape "
                "(n, height, width, 1 or 3)"
            )
        self.task = as_task(class_names)
        labels = self.task.check_targets(labels)
        if len(labels) != len(images):
            raise ValueError(
                f"{len(labels)} labels for {len(images)} images: give one for each image"
            )
        self.per_pixel = self.task.per_pixel
        if self.per_pixel and labels.shape != (*images.shape[:3], *self.task.pixel_shape):
            raise ValueError(
                f"labels of shape {labels.shape} do not fit images of {images.shape}: give "
                "one for every pixel"
            )
        self.name, self.augment = name, augment
        self.channels = images.shape[-1]
        self._images, self._labels = images, labels
        self.reader = resolve_reader(reader)

    _per_example = ("_labels", "_digests", "_looks", "_images")
    _cached = ("_label_tensor", "_image_tensor")

    def as_arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the uint8 images `(n, height, width, channels)` and `labels()`."""
        return self._images, self._labels

    @cached_property
    def _image_tensor(self) -> tf.Tensor:
        with tf.device("CPU"), tf.init_scope():
            return tf.constant(self._images)

    def decode(self, example: tf.Tensor, channels: int = 3, crop: Crop | None = None) -> tf.Tensor:
        return to_channels(crop_to_box(self._image_tensor[example], crop), channels)

    def label_map(self, index: int) -> np.ndarray:
        return self._labels[index]

    def pixels(self, index: int, channels: int = 3, crop: Crop | None = None) -> np.ndarray:
        return array_to_channels(crop_to_box(self._images[index], crop), channels)


class DecodedSplit(IndexedSplit):
    """Every image of another split as it is decoded, one after another in a single tensor.

    Unlike the cache of tf.data it can be read in any order, so that a shuffled pass can start
    anywhere, and it is complete before the first pass.

    Args:
        split: where the images come from; those that it skips are left out.
        channels: 3, or 1 for gray.
        indices: which images, by their place in `labels()`; None for all.
    """

    def __init__(self, split: Split, channels: int, indices: np.ndarray | None = None):
        self.name, self.task, self.augment = split.name, split.task, split.augment
        self.sampling_rates, self.reader = split.sampling_rates, split.reader
        self.bands, self.channels = split.bands, split.channels
        self._channels = channels
        images, labels = zip(*split.decoded(channels, indices), strict=True)
        self._labels = np.array(labels)
        ends = np.cumsum([image.size for image in images], dtype=np.int64)
        self._pixels = np.concatenate([image.ravel() for image in images])
        self._places = np.stack([np.append(0, ends[:-1]), ends], axis=1)
        self._shapes = np.array([image.shape for image in images], np.int32)
        if self.reader == "tensorflow":
            with tf.device("CPU"):
                self._pixels = tf.constant(self._pixels)
                self._places, self._shapes = tf.constant(self._places), tf.constant(self._shapes)

    def decode(self, example: tf.Tensor, channels: int = 3, crop: Crop | None = None) -> tf.Tensor:
        begin, end = tf.unstack(self._places[example])
        image = tf.reshape(self._pixels[begin:end], self._shapes[example])
        image.set_shape((None, None, self._channels))
        return to_channels(crop_to_box(image, crop), channels)

    def pixels(self, index: int, channels: int = 3, crop: Crop | None = None) -> np.ndarray:
        begin, end = self._places[index]
        image = self._pixels[begin:end].reshape(self._shapes[index])
        return array_to_channels(crop_to_box(image, crop), channels)
