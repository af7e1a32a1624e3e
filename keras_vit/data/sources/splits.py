"""What all sources of labeled images have in common: splits, and the data set they make up."""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from keras_vit._base.errors import check_choice, counted, printable
from keras_vit._base.processors import available_processors
from keras_vit.data._imports import tf
from keras_vit.data.data_errors import BadImageError
from keras_vit.data.decode.decoder import DECODERS, Crop
from keras_vit.data.decode.image_files import unreadable_reason
from keras_vit.data.image_looks import WORDS
from keras_vit.data.random_numbers import generator
from keras_vit.tasks import Task
from keras_vit.tasks.classification import Classification, as_task

GRAY = 127  # what replaces an image that cannot be decoded
DIGEST_DIGITS = 32  # hexadecimal ones of an image's SHA-256: 128 bits, as no two images share
_READ_AHEAD = 64  # images that are decoded at once


class Split(ABC):
    """A part of a data set, such as "train": labeled images that can be read again and again.

    Attributes:
        name: "train", "val", "test" or "all".
        task: what the labels mean; of a folder with one class, a classification of one.
        class_names: the names of the task.
        num_examples: how many images; also `len(split)`.
        channels: 3, of gray files, too; 1 of gray arrays and digits; with bands, their number.
        bands: the bands of raster files, from 1, that are the channels, in the files' own range;
            None for photographs, 0..255.
        files: the path of each image in the order of `labels()`, or None without files.
        augment: the name in `AUGMENTATIONS` that suits these images by default.
        can_fail: whether `decode` can fail, as it can where files may have changed.
        reader: who makes batches of them, a name in `keras_vit.data.image_readers.READERS`.
        decoder: how JPEG files are decoded, a key of `keras_vit.data.decode.decoder.DECODERS`.
        skips: whether examples that cannot be decoded are left out, so that their number is known
            only afterwards.
        per_pixel: whether a label is a map of its image's size, which moves as the image does.
        sampling_rates: how often a shuffled pass draws an image of each label, relative to others;
            None for every image once. See `IndexedSplit.resampled`.
        groups: the group of each image, such as its patient, in the order of `labels()`; or None.
    """

    name: str
    task: Task
    channels: int = 3
    bands: tuple[int, ...] | None = None
    files: tuple[Path, ...] | None = None
    augment: str = "inception"
    can_fail: bool = False
    reader: str = "tensorflow"
    decoder: str = "tensorflow"
    skips: bool = False
    per_pixel: bool = False
    sampling_rates: np.ndarray | None = None
    groups: np.ndarray | None = None

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.task.names

    @property
    def num_classes(self) -> int:
        """How many classes, labels, numbers or grades there are, whether they have names or not."""
        return self.task.size

    @property
    def label_shape(self) -> tuple[int, ...]:
        """`()` of an integer, `(columns,)` of a row of numbers, of maps with height and width."""
        return ()

    @property
    @abstractmethod
    def num_examples(self) -> int: ...

    @abstractmethod
    def labels(self) -> np.ndarray:
        """Return what `task.check_targets` returns, in the order of an unshuffled `dataset()`.

        int32 `(num_examples,)`, or float32 `(num_examples, columns)`.
        """

    @abstractmethod
    def dataset(
        self,
        shuffle_seed: int | None = None,
        epoch: int | tf.Tensor = 0,
        start: int | tf.Tensor = 0,
    ) -> tf.data.Dataset:
        """Return one pass, from position `start` on: a tf.data.Dataset of `(example, label)`.

        An example is not decoded yet: an index, the path of a file, or an encoded image. With a
        seed, the order is a permutation that follows from the seed and the epoch alone.
        """

    def read(self, example: tf.Tensor, label: tf.Tensor, guarded: bool = False) -> tuple[Any, Any]:
        """Return what `decode` takes, and the label, of an example of `dataset()`.

        Splits whose labels are only in their records override it; in `dataset()`, the label is -1
        there, so that examples that are skipped are not read.

        Args:
            example: of `dataset()`.
            label: of `dataset()`.
            guarded: name the record in the error where it cannot be read, which takes more time.
        """
        return example, label

    @abstractmethod
    def decode(self, example: Any, channels: int = 3, crop: Crop | None = None) -> tf.Tensor:
        """Return one image as uint8 pixels of shape `(height, width, channels)`.

        Args:
            example: what `read` returned.
            channels: 3, or 1 for gray.
            crop: which part of the image, see `decode_image`; None for the whole.
        """

    def decode_or_replace(
        self, example: Any, channels: int = 3, crop: Crop | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return what `decode` returns and True; or, where it fails, a placeholder image and False.

        Splits that `can_fail` override it.
        """
        return self.decode(example, channels, crop), tf.constant(True)

    def images(self, examples: tf.data.Dataset, channels: int = 3) -> tf.data.Dataset:
        """Decodes elements `(example, label, ...)` of `dataset()`, in parallel and in order."""

        def decode(example: tf.Tensor, label: tf.Tensor, *rest: tf.Tensor) -> tuple[tf.Tensor, ...]:
            example, label = self.read(example, label, guarded=True)
            image, valid = self.decode_or_replace(example, channels)
            return valid, image, label, *rest

        decoded = examples.map(decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        if self.skips:
            decoded = decoded.filter(lambda valid, *_: valid)
        return decoded.map(lambda _, *rest: rest)

    def decoded(
        self, channels: int = 3, indices: Sequence[int] | np.ndarray | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield images as uint8 pixels and their labels, one after the other, by whoever reads.

        Args:
            channels: 3, or 1 for gray.
            indices: ascending places in `labels()`; None for all. Those that are skipped are left
                out.
        """
        if indices is None:
            examples = self.dataset()
        else:
            chosen = tf.data.Dataset.from_tensor_slices(np.asarray(indices, np.int64))
            examples = chosen.flat_map(lambda index: self.dataset(start=index).take(1))
        for image, label, *_ in self.images(examples, channels).as_numpy_iterator():
            yield image, label

    def typical_side(self, images: int = 9) -> int:
        """Return the smaller side of most images in pixels: the median of the first ones."""
        first = self.decoded(self.channels, range(min(images, len(self))))
        return int(np.median([min(image.shape[:2]) for image, _ in first]))

    def with_decoder(self, decoder: str) -> Split:
        """Return the same images, with JPEG files decoded as by `decode_image(decoder=...)`."""
        changed = copy.copy(self)
        changed.decoder = check_choice(decoder, "decoder", DECODERS)
        return changed

    def __len__(self) -> int:
        return self.num_examples

    def __repr__(self) -> str:
        images = counted(self.num_examples, "image")
        return f"{type(self).__name__}({self.name!r}, {images}, {self.task.kind_and_size})"


class IndexedSplit(Split):
    """A split whose examples can be read in any order; a subclass sets `_labels`."""

    _labels: np.ndarray
    _digests: np.ndarray | None = None
    _looks: np.ndarray | None = None
    # Attributes with an entry per example, and those that are made from them when first asked for.
    _per_example: tuple[str, ...] = ("_labels", "_digests", "_looks")
    _cached: tuple[str, ...] = ("_label_tensor",)

    def take(self, indices: Sequence[int] | np.ndarray) -> Self:
        """Return the split of these examples alone, by their places in `labels()`."""
        taken, indices = self._copy(), np.asarray(indices)
        for name in self._per_example:
            if (values := getattr(self, name)) is None:
                continue
            is_array = isinstance(values, np.ndarray)
            chosen = values[indices] if is_array else tuple(values[i] for i in indices)
            setattr(taken, name, chosen)
        return taken

    def with_classes(self, names: Sequence[str]) -> Self:
        """Return the same images with labels that index `names`, which contain their classes."""
        changed, place = self._copy(), {name: i for i, name in enumerate(names)}
        # A class without an image here may be none of them.
        table = np.array([place.get(name, -1) for name in self.class_names], np.int32)
        changed._labels, changed.task = table[self._labels], as_task(names)
        return changed

    def as_instances(self) -> Self:
        """Return the same images, each of them a class of its own: labels are 0, 1, 2 and so on."""
        changed = self._copy()
        changed._labels, changed.sampling_rates = np.arange(len(self), dtype=np.int32), None
        changed.task, changed.per_pixel = Classification(size=len(self)), False
        return changed

    def _copy(self) -> Self:
        """Return a copy without what was made from the examples."""
        copied = copy.copy(self)
        for name in self._cached:
            vars(copied).pop(name, None)
        return copied

    def resampled(self, rates: Any) -> IndexedSplit:
        """Return the same images, which shuffled passes repeat or leave out according to `rates`.

        A pass stays as long, and its order follows from the seed and the number of the pass alone.
        An image is drawn by systematic sampling: as often as its rate says, rounded down or up.
        Passes that are not shuffled have every image once.

        Args:
            rates: how often an image of each integer label is drawn, relative to the others, such
                as `keras_vit.tasks.balance.sampling_rates(counts)`.

        Raises:
            ValueError: labels are rows, or there is not a number of at least 0 per label.
        """
        values = np.asarray(rates, np.float64)
        if self._labels.ndim != 1 or values.ndim != 1 or len(values) <= self._labels.max():
            raise ValueError(
                f"{values.shape} rates do not fit labels of {self!r}, {self._labels.shape}: give "
                "one per class, for integer labels."
            )
        if not (np.isfinite(values).all() and values.min() >= 0 and values[self._labels].any()):
            raise ValueError(f"rates={rates!r} must be at least 0, some of them above.")
        changed = copy.copy(self)
        changed.sampling_rates = values
        return changed

    @property
    def num_examples(self) -> int:
        return len(self._labels)

    @property
    def label_shape(self) -> tuple[int, ...]:
        return self._labels.shape[1:]

    def labels(self) -> np.ndarray:
        return self._labels

    def digests(self) -> np.ndarray:
        """Return the digest of each image, in the order of `labels()`, `(images,)` of bytes.

        The first 32 hexadecimal digits of the SHA-256 of an image's file; of images in memory, of
        their shape and pixels. The first call reads every file that was not read to verify it.
        """
        if self._digests is None:
            with ThreadPoolExecutor(available_processors()) as pool:
                read = pool.map(lambda i: digest_of(self._contents(i)), range(len(self)))
                self._digests = np.array(list(read), f"S{DIGEST_DIGITS}")
        return self._digests

    def looks(self) -> np.ndarray:
        """Return what each image looks like, uint64 `(images, 2)`: see `image_looks.look_of`.

        Zeros of those that are not files of photographs. The first call decodes every file.
        """
        if self._looks is None:
            self._looks = self._looks_of_files()
        return self._looks

    def _looks_of_files(self) -> np.ndarray:
        return np.zeros((len(self), WORDS), np.uint64)

    def _contents(self, index: int) -> bytes:
        """Return the bytes that an image's digest is of."""
        image = self.pixels(index, self.channels)
        return f"{image.shape}".encode() + image.tobytes()

    def label_map(self, index: int) -> np.ndarray:
        """Return the label of each pixel of the image at this place.

        `(height, width, *task.pixel_shape)`, of the type that `task.pixel_dtype` names.

        Raises:
            BadImageError, OSError: it cannot be decoded.
        """
        raise NotImplementedError  # by those whose labels are `per_pixel`

    @abstractmethod
    def pixels(self, index: int, channels: int = 3, crop: Crop | None = None) -> np.ndarray:
        """`decode` without TensorFlow, of the image at this place in `labels()`.

        Raises:
            BadImageError, OSError: it cannot be decoded.
        """

    def pixels_or_replace(
        self, index: int, channels: int = 3, crop: Crop | None = None
    ) -> tuple[np.ndarray, bool]:
        """`decode_or_replace` without TensorFlow."""
        try:
            return self.pixels(index, channels, crop), True
        except (OSError, BadImageError) as error:
            if not self.can_fail:
                raise
            self.report_undecodable(index, unreadable_reason(error))
            return np.full((1, 1, channels), 0 if self.bands else GRAY, np.uint8), False

    def report_undecodable(self, index: int, reason: str) -> None:
        """Prints to stderr what becomes of an image that cannot be decoded, and why."""
        raise NotImplementedError  # by those that `can_fail`

    def decoded(
        self, channels: int = 3, indices: Sequence[int] | np.ndarray | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        if self.reader == "tensorflow":
            yield from super().decoded(channels, indices)
            return
        places = range(len(self)) if indices is None else indices
        with ThreadPoolExecutor(available_processors()) as pool:
            for begin in range(0, len(places), _READ_AHEAD):
                part = places[begin : begin + _READ_AHEAD]
                images = pool.map(lambda place: self.pixels_or_replace(place, channels), part)
                for place, (image, valid) in zip(part, images, strict=True):
                    if valid or not self.skips:
                        yield image, self._labels[place]

    def order(self, shuffle_seed: int | None, epoch: int) -> np.ndarray:
        """Return the places of one pass in `labels()`, int64: see `dataset`."""
        if shuffle_seed is None:
            return np.arange(len(self))
        # Made at once: a run that is resumed within a pass does not go through its beginning.
        draws = generator(shuffle_seed, "order", epoch)
        order = draws.permutation(len(self))
        return order if self.sampling_rates is None else self._sample(order, draws)

    def _sample(self, shuffled: np.ndarray, draws: np.random.Generator) -> np.ndarray:
        """Draw as many places as `shuffled` has by the rates, in another random order."""
        assert self.sampling_rates is not None
        by_label = shuffled[np.argsort(self._labels[shuffled], kind="stable")]
        rates = self.sampling_rates[self._labels[by_label]]
        edges = rates.cumsum() / rates.sum() * len(self)
        places = np.searchsorted(edges, np.arange(len(self)) + draws.random(), "right")
        # The last edge may be a rounding error below the last place.
        return draws.permutation(by_label[np.minimum(places, len(self) - 1)])

    def dataset(
        self,
        shuffle_seed: int | None = None,
        epoch: int | tf.Tensor = 0,
        start: int | tf.Tensor = 0,
    ) -> tf.data.Dataset:
        order = tf.numpy_function(partial(self.order, shuffle_seed), [epoch], tf.int64)
        order = tf.ensure_shape(order, len(self))[start:]
        examples, labels = self._examples(order), tf.gather(self._label_tensor, order)
        return tf.data.Dataset.from_tensor_slices((examples, labels))

    def _examples(self, order: tf.Tensor) -> tf.Tensor:
        """Return the undecoded examples with these indices; by default the indices themselves."""
        return order

    @cached_property
    def _label_tensor(self) -> tf.Tensor:
        with tf.device("CPU"), tf.init_scope():
            return tf.constant(self._labels)


def digest_of(contents: bytes) -> str:
    """Return the digest of an image, from the bytes of its file: see `IndexedSplit.digests`."""
    return hashlib.sha256(contents).hexdigest()[:DIGEST_DIGITS]


def joined(splits: Sequence[Split]) -> Split:
    """Return the images of all, one after the other, as one split "all".

    Raises:
        ValueError: They are records, which are read one split at a time.
    """
    if len(splits) == 1:
        return splits[0]
    parts = [split for split in splits if isinstance(split, IndexedSplit)]
    if len(parts) < len(splits):
        raise ValueError(
            "Splits of records are not joined: give one of "
            f"{', '.join(split.name for split in splits)}."
        )
    whole = parts[0]._copy()
    whole.name = "all"
    for name in whole._per_example:
        values = [getattr(part, name) for part in parts]
        if any(value is None for value in values):
            setattr(whole, name, None)
        elif isinstance(values[0], np.ndarray):
            setattr(whole, name, np.concatenate(values))
        else:
            setattr(whole, name, tuple(one for value in values for one in value))
    return whole


def spread(count: int, most: int) -> range:
    """Up to `most` of so many places, evenly over them.

    >>> list(spread(7, 3)), list(spread(2, 3))
    ([0, 2, 4], [0, 1])
    """
    return range(0, count, max(count // most, 1))[:most]


MOST_LINES = 20  # of a list of files that is printed


def reasons(rows: Sequence[tuple[Any, str]], where: str = "") -> str:
    """Return a line per file, or the like, with its reason, of very many the first ones."""
    lines = [f"\n    {printable(what)}: {why}" for what, why in rows[:MOST_LINES]]
    if len(rows) > MOST_LINES:
        lines.append(f"\n    and {len(rows) - MOST_LINES:,} more{where}")
    return "".join(lines)


@dataclass(frozen=True)
class FileReport:
    """Which files of a folder are not used, and why.

    Attributes:
        unreadable: `(path, reason)` of every image file that cannot be decoded.
        ignored: `(path, reason)` of every file that is not an image, of folders and lists beside
            those of splits, and of every class without an image to train on.

    Its length and its elements are those of `unreadable`. Printed, it has the first `MOST_LINES` of
    each kind, and how many more there are.
    """

    unreadable: tuple[tuple[Path, str], ...] = ()
    ignored: tuple[tuple[Path, str], ...] = ()

    def __len__(self) -> int:
        return len(self.unreadable)

    def __iter__(self) -> Iterator[tuple[Path, str]]:
        return iter(self.unreadable)

    def __str__(self) -> str:
        lines = [f"{len(self.unreadable):,} unreadable, {len(self.ignored):,} ignored"]
        for name, files in (("unreadable", self.unreadable), ("ignored", self.ignored)):
            lines += [f"{name:10}  {path}: {reason}" for path, reason in files[:MOST_LINES]]
            if len(files) > MOST_LINES:
                lines.append(f"{name:10}  and {len(files) - MOST_LINES:,} more")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False, repr=False)
class Splits(Mapping[str, Split]):
    """The parts of a data set by name: a mapping of "train" and "val", or of "all" alone.

    Attributes:
        source: the argument of `load`.
        class_names: the names of the task.
        splits: the parts; "test" is there when the source has one beside "val". Data without
            splits that were loaded with `val_fraction=None` have the part "all" alone.
        report: files, folders and rows that are not used.
        task_reason: why the labels of a table are taken as `task`, a sentence.

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
    task_reason: str = ""

    @property
    def _first(self) -> Split:
        return next(iter(self.splits.values()))

    @property
    def task(self) -> Task:
        """What the labels mean."""
        return self._first.task

    @property
    def train(self) -> Split:
        return self["train"]

    @property
    def val(self) -> Split:
        return self["val"]

    @property
    def num_classes(self) -> int:
        return self._first.num_classes

    def __getitem__(self, name: str) -> Split:
        if name not in self.splits:
            raise KeyError(
                f"{self.source} does not have a split {name!r}: it has {', '.join(self.splits)}"
            )
        return self.splits[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.splits)

    def __len__(self) -> int:
        return len(self.splits)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {len(split)}" for name, split in self.splits.items())
        return f"Splits({self.source!r}, {self.task.kind_and_size}: {sizes})"
