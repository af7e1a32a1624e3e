"""What every source of labelled images has in common, and the kind that lies in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from ._imports import tf
from .decoding import Crop, crop_to_box, to_channels


class Split(ABC):
    """A part of a data set, such as "train": labelled images that can be read again and again.

    Attributes:
        name: "train", "val" or "test".
        class_names: the name of each label.
        num_examples: how many images; also `len(split)`.
        channels: 1 where all images are grey, else 3.
        files: the path of each image in the order of `labels()`, or None without files.
        augment: the name in `AUGMENTATIONS` that suits these images when nothing else is said.
        can_fail: whether `decode` can fail, as it can where files may have changed.
        skips: whether examples that cannot be decoded are left out, so that how many there are is
            known only afterwards.
    """

    name: str
    class_names: tuple[str, ...]
    channels: int = 3
    files: tuple[Path, ...] | None = None
    augment: str = "inception"
    can_fail: bool = False
    skips: bool = False

    @property
    @abstractmethod
    def num_examples(self) -> int: ...

    @abstractmethod
    def labels(self) -> np.ndarray:
        """int32 labels of shape `(num_examples,)`, in the order of an unshuffled `dataset()`."""

    @abstractmethod
    def dataset(
        self,
        shuffle_seed: int | None = None,
        epoch: int | tf.Tensor = 0,
        start: int | tf.Tensor = 0,
    ) -> tf.data.Dataset:
        """One pass, from position `start` on: a tf.data.Dataset of `(example, label, number)`.

        An example is whatever this kind of split has: a number, the path of a file, or the encoded
        image; it is not decoded yet. `number` is `epoch * len(split) + index`, where the index is
        its place in `labels()`: no picture of any other pass has the same. With a seed, the order
        is a permutation that follows from the seed and the number of the pass, and from nothing
        else.
        """

    @abstractmethod
    def decode(self, example: tf.Tensor, channels: int = 3, crop: Crop | None = None) -> tf.Tensor:
        """One example of `dataset()` as uint8 pixels of shape `(height, width, channels)`.

        Args:
            example: of `dataset()`.
            channels: 3 for RGB, 1 for grey.
            crop: which part of the picture, see `decode_image`; None for the whole.
        """

    def decode_or_replace(
        self, example: tf.Tensor, channels: int = 3, crop: Crop | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """What `decode` returns and True; or, where it fails, a picture in its place and False.

        For splits that `can_fail`; the others have no such place.
        """
        return self.decode(example, channels, crop), tf.constant(True)

    def images(self, examples: tf.data.Dataset, channels: int = 3) -> tf.data.Dataset:
        """Decodes the first component of every element, in parallel and in order."""

        def decode(example: tf.Tensor, *rest: tf.Tensor) -> tuple[tf.Tensor, ...]:
            image, good = self.decode_or_replace(example, channels)
            return good, image, *rest

        decoded = examples.map(decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        if self.skips:
            decoded = decoded.filter(lambda good, *_: good)
        return decoded.map(lambda _, *rest: rest)

    def __len__(self) -> int:
        return self.num_examples

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name!r}, {self.num_examples} images, "
            f"{len(self.class_names)} classes)"
        )


class ArraySplit(Split):
    """Images and labels in memory.

    Args:
        name: "train", "val" or "test".
        class_names: the name of each label.
        images: uint8 array of shape `(n, height, width, channels)`, 1 or 3 channels.
        labels: integer array of shape `(n,)`.
        augment: a name in `AUGMENTATIONS`.

    Raises:
        ValueError: arrays of another type or shape, or a label without a name.

    Example:
        >>> split = ArraySplit("train", ("a", "b"), np.zeros((4, 8, 8, 1), np.uint8), [0, 1, 0, 1])
        >>> split
        ArraySplit('train', 4 images, 2 classes)
    """

    def __init__(
        self,
        name: str,
        class_names: tuple[str, ...],
        images: np.ndarray,
        labels: np.ndarray,
        augment: str = "inception",
    ):
        images, labels = np.asarray(images), np.asarray(labels)
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3):
            raise ValueError(
                f"images are {images.dtype} of shape {images.shape}: give uint8 pixels of shape "
                "(n, height, width, 1 or 3)"
            )
        if labels.shape != images.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
            raise ValueError(
                f"labels are {labels.dtype} of shape {labels.shape}: give integers of shape "
                f"({len(images)},), one for each image"
            )
        if labels.size and not 0 <= labels.min() <= labels.max() < len(class_names):
            raise ValueError(
                f"labels run from {labels.min()} to {labels.max()}, but the {len(class_names)} "
                f"class names stand for 0 to {len(class_names) - 1}"
            )
        self.name, self.class_names, self.augment = name, tuple(class_names), augment
        self.channels = images.shape[-1]
        self._images, self._labels = images, labels.astype(np.int32)

    @property
    def num_examples(self) -> int:
        return len(self._images)

    def labels(self) -> np.ndarray:
        return self._labels

    def as_arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The uint8 images `(n, height, width, channels)` and the int32 labels `(n,)`."""
        return self._images, self._labels

    def dataset(
        self,
        shuffle_seed: int | None = None,
        epoch: int | tf.Tensor = 0,
        start: int | tf.Tensor = 0,
    ) -> tf.data.Dataset:
        order, numbers = pass_order(len(self), shuffle_seed, epoch, start)
        labels = tf.gather(self._tensors[1], order)
        return tf.data.Dataset.from_tensor_slices((order, labels, numbers))

    @cached_property
    def _tensors(self) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.device("CPU"), tf.init_scope():
            return tf.constant(self._images), tf.constant(self._labels)

    def decode(self, example: tf.Tensor, channels: int = 3, crop: Crop | None = None) -> tf.Tensor:
        image = self._tensors[0][example]
        if crop is not None:
            image = crop_to_box(image, crop(tf.shape(image)[:2]))
        return to_channels(image, channels)


def pass_order(
    count: int, seed: int | None, epoch: int | tf.Tensor, start: int | tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The indices 0..count-1 of one pass from position `start` on, and their numbers.

    With a seed they are permuted, by a permutation made at once from (seed, epoch): a run that goes
    on in the middle of a pass need not go through what came before. Both are int64.
    """
    epoch = tf.cast(epoch, tf.int64)
    order = tf.range(count, dtype=tf.int64)
    if seed is not None:
        key = tf.stack([tf.constant(seed, tf.int64), epoch])
        order = tf.random.experimental.stateless_shuffle(order, key)
    order = order[start:]
    return order, epoch * count + order


@dataclass(frozen=True)
class FileReport:
    """What a folder holds that is not used: files that cannot be decoded, and what else lies there.

    Attributes:
        unreadable: `(path, reason)` of every photograph by its name that cannot be decoded.
        ignored: `(path, reason)` of every file that is no photograph by its name, and of every
            class that has no photograph to train on.

    Its length and its elements are those of `unreadable`.
    """

    unreadable: tuple[tuple[Path, str], ...] = ()
    ignored: tuple[tuple[Path, str], ...] = ()

    def __len__(self) -> int:
        return len(self.unreadable)

    def __iter__(self) -> Iterator[tuple[Path, str]]:
        return iter(self.unreadable)

    def __str__(self) -> str:
        lines = [f"{len(self.unreadable)} unreadable, {len(self.ignored)} ignored"]
        lines += [f"unreadable  {path}: {reason}" for path, reason in self.unreadable]
        lines += [f"ignored     {path}: {reason}" for path, reason in self.ignored]
        return "\n".join(lines)


@dataclass(frozen=True, eq=False, repr=False)
class Splits(Mapping[str, Split]):
    """The parts of a data set by name: a mapping that always has "train" and "val".

    Attributes:
        source: what `load` was given.
        class_names: the name of each label.
        splits: the parts; "test" is there when the source has one beside "val".
        report: files that were left out.

    Example:
        >>> from keras_vit.data import load
        >>> splits = load("digits")
        >>> splits["val"], splits.num_classes
        (ArraySplit('val', 360 images, 10 classes), 10)
    """

    source: str
    class_names: tuple[str, ...]
    splits: Mapping[str, Split]
    report: FileReport = field(default_factory=FileReport)

    @property
    def train(self) -> Split:
        return self.splits["train"]

    @property
    def val(self) -> Split:
        return self.splits["val"]

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def __getitem__(self, name: str) -> Split:
        if name not in self.splits:
            raise KeyError(f"{self.source} has no split {name!r}: it has {', '.join(self.splits)}")
        return self.splits[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.splits)

    def __len__(self) -> int:
        return len(self.splits)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {len(split)}" for name, split in self.splits.items())
        return f"Splits({self.source!r}, {self.num_classes} classes: {sizes})"
