"""Splits of records in ArrayRecord files, or in TFRecord files in memory, read by index.

An example is the index of its record until it is read. So the order of a pass is a permutation of
numbers, a resumed run starts anywhere in it, and what is skipped costs nothing.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from keras_vit._base.errors import printable
from keras_vit.data._imports import require, tf
from keras_vit.data.data_errors import BadImageError, DamagedShardError, undecodable_reason
from keras_vit.data.decode.bit_depth import has_sixteen_bits, warn_of_sixteen_bits
from keras_vit.data.decode.decoder import Crop, decode_image
from keras_vit.data.decode.fallback import map_or_else
from keras_vit.data.decode.headers import MAX_PIXELS
from keras_vit.data.sources.splits import Split
from keras_vit.tasks.classification import as_task

_ARRAY_RECORD = b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f"  # how these files begin

_AROUND_RECORD = 16  # bytes of a TFRecord: length, its checksum, that of the data
MEMORY_GIB = 4  # of TFRecord files, which do not have an index and are read into memory

_CHUNK = 1024  # indices that are permuted at once
_THREADS = 32  # that open files
_FIRST_RECORDS = 8  # whose headers are read when a split is loaded

# From a record to the encoded image, a scalar string, and its integer label: a graph function.
Parse = Callable[[Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Shard:
    """Consecutive records of a file; the fields are those of TFDS's `FileInstruction`.

    Attributes:
        skip: records of the file that come before.
    """

    filename: str
    skip: int
    take: int
    examples_in_shard: int


class Records:
    """Records of several files, numbered from the first record of the first file on.

    Args:
        shards: The files, in order.
        source: What has each of these records by its number: a list, or a reader of files.
    """

    def __init__(self, shards: Sequence[Shard], source: Any):
        self._shards, self._source = tuple(shards), source
        self._ends = np.cumsum([shard.take for shard in shards], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def place(self, index: int) -> str:
        """Where a record is, for messages."""
        number = int(np.searchsorted(self._ends, index, side="right"))
        shard = self._shards[number]
        record = index - int(self._ends[number]) + shard.take + shard.skip
        return f"{printable(shard.filename)}, record {record}"

    def read(self, index: tf.Tensor) -> tf.Tensor:
        """Return the record with this int64 index as a scalar string, in a tf.data graph."""
        record = tf.numpy_function(self.fetch, [index], tf.string)
        record.set_shape(())
        return record

    def fetch(self, index: int) -> bytes:
        """Return a record outside a graph; a DamagedShardError that names it if it is damaged."""
        try:
            return self._source[index]
        except Exception as error:  # readers raise Python's general errors
            raise _damaged(self.place(index), str(error)) from error


def open_records(parts: Sequence[str | Shard]) -> Records:
    """Return the records of TFRecord or of ArrayRecord files: whole files, or shards.

    Raises:
        DamagedShardError: a file is damaged, or does not have the records of its shard.
        ValueError: files of both formats, or more than `MEMORY_GIB` of TFRecord files.
        OSError: a file cannot be read.
    """
    files = [part.filename if isinstance(part, Shard) else part for part in parts]
    formats = [_is_array_record(file) for file in files]
    if len(set(formats)) > 1:
        one, other = files[formats.index(True)], files[formats.index(False)]
        raise ValueError(
            f"{printable(one)} is an ArrayRecord file and {printable(other)} is not: give files of "
            "one format."
        )
    if formats[0]:
        with ThreadPoolExecutor(_THREADS) as pool:
            shards = _shards(parts, list(pool.map(_count, files)))
        reader = _array_record("array_record_data_source").ArrayRecordDataSource
        return Records(shards, reader(list(shards)))
    _check_memory(files)
    contents = [list(tfrecords(file)) for file in files]
    shards = _shards(parts, [len(part) for part in contents])
    taken = (c[s.skip : s.skip + s.take] for s, c in zip(shards, contents, strict=True))
    return Records(shards, list(chain.from_iterable(taken)))


def _check_memory(files: Sequence[str]) -> None:
    size = sum(os.path.getsize(file) for file in files) / 2**30
    if size > MEMORY_GIB:
        raise ValueError(
            f"{printable(files[0])} and others are TFRecord files of {size:.1f} GiB. They do not "
            f"have an index, so that up to {MEMORY_GIB} GiB are read into memory. Convert them "
            f"once to ArrayRecord files: python examples/to_array_record.py "
            f"{printable(os.path.dirname(files[0]))} --out NEW, and give NEW."
        )


def tfrecords(file: str) -> Iterator[bytes]:
    """Yield the records of a TFRecord file, in their order.

    Raises:
        DamagedShardError: the file is damaged; at its end, where it was cut off.
    """
    size = 0
    try:
        for record in tf.data.TFRecordDataset(file).as_numpy_iterator():
            size += len(record) + _AROUND_RECORD
            yield record
    except tf.errors.OpError as error:
        # Between the places in TensorFlow's graph and in its operations.
        reason = re.sub(r"^\{\{.*?\}\} | \[Op:.*", "", error.message)
        raise _damaged(printable(file), f"{reason} (is it compressed?)") from error
    if size != os.path.getsize(file):
        raise _damaged(printable(file), "truncated record at its end")  # TensorFlow leaves it out


def _shards(parts: Sequence[str | Shard], counts: Sequence[int]) -> list[Shard]:
    shards = []
    for part, count in zip(parts, counts, strict=True):
        shard = Shard(part, 0, count, count) if isinstance(part, str) else part
        if shard.examples_in_shard != count:
            raise DamagedShardError(
                f"{printable(shard.filename)} has {count} records and not the "
                f"{shard.examples_in_shard} that were written. Copy or write it again."
            )
        shards.append(shard)
    return shards


def _is_array_record(file: str) -> bool:
    with open(file, "rb") as stream:
        return stream.read(len(_ARRAY_RECORD)) == _ARRAY_RECORD


def _count(file: str) -> int:
    """Return the number of records of an ArrayRecord file, which it has at its end."""
    try:
        reader = _array_record("array_record_module").ArrayRecordReader(file)
        count = reader.num_records()
        reader.close()  # raises where the file is damaged; the number of records is then 0
    except Exception as error:  # the reader raises Python's general errors
        raise _damaged(printable(file), str(error)) from error
    return count


def _array_record(module: str) -> Any:
    return require(f"array_record.python.{module}", "pip install array_record")


def _damaged(place: str, reason: str) -> DamagedShardError:
    return DamagedShardError(f"{place} is damaged: {reason}. Copy or write the file again.")


class RecordSplit(Split):
    """Records with an encoded image and a label, read and decoded where they are needed.

    An image that cannot be decoded is replaced by a gray one and reported on stderr, so that a
    training of weeks survives it. A damaged record ends the training.

    Args:
        name: "train", "val", "test" or "all".
        class_names: the name of each label.
        records: the records.
        parse: from a record to its encoded image and its label.
        subset: `(seed, begin, end)`: those from `begin` to `end` in a random order of all records;
            None for all, in their order.
        on_bad_file: "skip": as above; "raise": an image that cannot be decoded is an error, too.
        max_pixels: as in `decode_image`.
    """

    can_fail = True

    def __init__(
        self,
        name: str,
        class_names: tuple[str, ...],
        records: Records,
        parse: Parse,
        subset: tuple[int, int, int] | None = None,
        on_bad_file: str = "skip",
        max_pixels: int | None = MAX_PIXELS,
    ):
        self.name, self.task = name, as_task(class_names)
        self.on_bad_file, self.max_pixels = on_bad_file, max_pixels
        self._records, self._parse, self._subset = records, parse, subset

    @property
    def num_examples(self) -> int:
        if self._subset is None:
            return len(self._records)
        _, begin, end = self._subset
        return end - begin

    def labels(self) -> np.ndarray:
        """int32 labels `(num_examples,)`; the first call reads every record."""
        return self._labels

    @cached_property
    def _labels(self) -> np.ndarray:
        labels = self.dataset().map(
            lambda example, label: self.read(example, label, guarded=True)[1],
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        return np.concatenate([np.zeros(0, np.int32), *labels.batch(_CHUNK).as_numpy_iterator()])

    def dataset(
        self,
        shuffle_seed: int | None = None,
        epoch: int | tf.Tensor = 0,
        start: int | tf.Tensor = 0,
    ) -> tf.data.Dataset:
        epoch, count = tf.cast(epoch, tf.int64), len(self)

        def examples(positions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            indices = positions
            if shuffle_seed is not None:
                indices = _permuted(positions, shuffle_seed, epoch, count)
            return indices, tf.fill(tf.shape(indices), -1)

        positions = tf.data.Dataset.range(tf.cast(start, tf.int64), count)
        return positions.batch(_CHUNK).map(examples).unbatch()

    def read(self, example: tf.Tensor, label: tf.Tensor, guarded: bool = False) -> tuple[Any, Any]:
        return (
            map_or_else(self._read, self._name_damage, example) if guarded else self._read(example)
        )

    def decode(self, example: Any, channels: int = 3, crop: Crop | None = None) -> tf.Tensor:
        contents, _ = example
        return decode_image(
            contents, channels, crop, max_pixels=self.max_pixels, decoder=self.decoder
        )

    def decode_or_replace(
        self, example: Any, channels: int = 3, crop: Crop | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        def decode(*example: tf.Tensor) -> tuple[tf.Tensor, bool]:
            return self.decode(example, channels, crop), True

        def replace(*example: tf.Tensor) -> tuple[tf.Tensor, bool]:
            tf.numpy_function(self._report, example, [])
            return tf.fill((1, 1, channels), tf.constant(127, tf.uint8)), False

        return map_or_else(decode, replace, *example)

    def _record_index(self, example: Any) -> tf.Tensor:
        if self._subset is None:
            return example
        seed, begin, _ = self._subset
        return _permuted(begin + example, seed, tf.constant(-1, tf.int64), len(self._records))

    def _read(self, example: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], tf.Tensor]:
        """Return the encoded image and the example, for `decode`, and the label."""
        contents, label = self._parse(self._records.read(self._record_index(example)))
        in_range = (label >= 0) & (label < len(self.class_names))
        with tf.control_dependencies([tf.debugging.Assert(in_range, [label])]):
            return (contents, example), tf.cast(label, tf.int32)

    def _name_damage(self, example: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], tf.Tensor]:
        contents, label = tf.numpy_function(self._fetch, [example], [tf.string, tf.int32])
        contents.set_shape(())
        label.set_shape(())
        return (contents, example), label

    def _fetch(self, example: int) -> tuple[bytes, np.int32]:
        """Return what `_read` does, outside a graph, with errors that name the record."""
        index = int(self._record_index(tf.constant(example, tf.int64)))
        record, place = self._records.fetch(index), self._records.place(index)
        try:
            contents, label = self._parse(tf.constant(record))
        except tf.errors.OpError as error:
            raise _damaged(place, error.message) from error
        if not 0 <= label < len(self.class_names):
            raise ValueError(
                f"{place} has the label {int(label)}, but the {len(self.class_names)} class names "
                f"stand for 0 to {len(self.class_names) - 1}. Where labels count from 1, the first "
                "line of labels.txt is the name of class 0, such as background."
            )
        return contents.numpy(), np.int32(label)

    def warn_of_sixteen_bits(self) -> None:
        """Warns where one of the first records holds a PNG file of 16 bits per channel."""
        first = range(min(_FIRST_RECORDS, len(self)))
        deep = []
        with suppress(tf.errors.OpError, ValueError):  # whoever reads the record names the damage
            for example in first:
                if has_sixteen_bits(self._fetch(example)[0]):
                    index = int(self._record_index(tf.constant(example, tf.int64)))
                    deep.append(self._records.place(index))
        warn_of_sixteen_bits(deep, len(first))

    def _report(self, contents: bytes, example: int) -> None:
        """Prints which image is replaced and why, or raises a BadImageError."""
        place = self._records.place(int(self._record_index(tf.constant(example, tf.int64))))
        try:
            decode_image(tf.constant(contents), max_pixels=self.max_pixels)
            reason = "its decoder failed once"
        except tf.errors.InvalidArgumentError as error:
            reason = undecodable_reason(contents, error)
        if self.on_bad_file == "raise":
            raise BadImageError(f"{place}: {reason}")
        print(f"keras_vit: {place}: {reason}; replaced by a gray image.", file=sys.stderr)


def _permuted(positions: tf.Tensor, seed: int, epoch: tf.Tensor, count: int) -> tf.Tensor:
    """Return the numbers at these positions of a random order of `count` numbers.

    A block cipher with the seed and the number of the pass as its key: an order of any length takes
    no memory, and any part of it the time of that part.
    """
    key = tf.stack([tf.constant(seed, tf.int64), epoch])
    return tf.random.experimental.index_shuffle(positions, key, tf.constant(count - 1, tf.int64))
