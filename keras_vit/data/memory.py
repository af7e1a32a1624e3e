"""The pictures of a split, decoded once and kept in memory."""

from __future__ import annotations

import numpy as np

from ._imports import tf
from .decoding import Crop, crop_to_box, to_channels
from .splits import Split, pass_order


class DecodedSplit(Split):
    """Every picture of another split as uint8 pixels, in one stretch of memory.

    Unlike the cache of tf.data it can be read in any order, so that a shuffled pass over it can
    start anywhere, and it is there before the first pass.

    Args:
        split: where the pictures come from; those that cannot be decoded are left out here, where
            the split leaves them out.
        channels: 3 for RGB, 1 for grey.
        indices: which pictures, by their place in `labels()`; None for all.

    Example:
        >>> from keras_vit.data import load
        >>> DecodedSplit(load("digits").val, channels=1)
        DecodedSplit('val', 360 images, 10 classes)
    """

    def __init__(self, split: Split, channels: int, indices: np.ndarray | None = None):
        self.name, self.class_names, self.augment = split.name, split.class_names, split.augment
        self._channels = channels
        pixels, shapes, labels = [], [], []
        examples = split.dataset()
        if indices is not None:
            wanted = tf.constant(indices, tf.int64)
            examples = examples.filter(lambda *example: tf.reduce_any(example[-1] == wanted))
        for image, label, _ in split.images(examples, channels).as_numpy_iterator():
            pixels.append(image.ravel())
            shapes.append(image.shape)
            labels.append(label)
        self._labels = np.array(labels, np.int32)
        ends = np.cumsum([len(p) for p in pixels], dtype=np.int64)
        with tf.device("CPU"):
            self._pixels = tf.constant(np.concatenate(pixels))
            self._places = tf.constant(np.stack([np.append(0, ends[:-1]), ends], axis=1))
            self._shapes = tf.constant(np.array(shapes, np.int32))
            self._label_tensor = tf.constant(self._labels)

    @property
    def num_examples(self) -> int:
        return len(self._labels)

    def labels(self) -> np.ndarray:
        return self._labels

    def dataset(
        self,
        shuffle_seed: int | None = None,
        epoch: int | tf.Tensor = 0,
        start: int | tf.Tensor = 0,
    ) -> tf.data.Dataset:
        order, numbers = pass_order(len(self), shuffle_seed, epoch, start)
        labels = tf.gather(self._label_tensor, order)
        return tf.data.Dataset.from_tensor_slices((order, labels, numbers))

    def decode(self, example: tf.Tensor, channels: int = 3, crop: Crop | None = None) -> tf.Tensor:
        begin, end = tf.unstack(self._places[example])
        image = tf.reshape(self._pixels[begin:end], self._shapes[example])
        image.set_shape((None, None, self._channels))
        if crop is not None:
            image = crop_to_box(image, crop(tf.shape(image)[:2]))
        return to_channels(image, channels)
