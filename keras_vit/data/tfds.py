"""Data sets of TensorFlow Datasets (TFDS), prepared on this machine or downloaded."""

from __future__ import annotations

import difflib
import threading
import urllib.error
import urllib.request
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ._imports import require, tensorflow_datasets, tf
from .decoder import Crop, decode_image
from .errors import DatasetUnavailableError
from .splits import Split, Splits

_HOST = "https://storage.googleapis.com"  # where TFDS keeps its data set descriptions
_PROBE_SECONDS = 3.0
_SHUFFLE_WINDOW = 10_000  # encoded images


class TFDSSplit(Split):
    """A split, or a slice such as "train[:80%]", of a prepared TFDS data set.

    TFDS has written its records in a random order. They are shuffled again through a window of
    10,000, and a pass that starts in the middle reads what comes before, without decoding it.
    """

    def __init__(self, name: str, class_names: tuple[str, ...], builder: Any, tfds_split: str):
        self.name, self.class_names = name, class_names
        self.tfds_split = tfds_split
        self._builder = builder
        self._image_key, self._label_key = builder.info.supervised_keys

    @property
    def num_examples(self) -> int:
        return int(self._builder.info.splits[self.tfds_split].num_examples)

    def labels(self) -> np.ndarray:
        label_only = tensorflow_datasets.decode.PartialDecoding({self._label_key: True})
        records = self._builder.as_dataset(split=self.tfds_split, decoders=label_only)
        labels = [int(r[self._label_key]) for r in records.as_numpy_iterator()]
        return np.array(labels, np.int32)

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
        first = epoch * len(self)
        return one_pass.map(lambda example, label, i: (example, label, first + i)).skip(start)

    @cached_property
    def _records(self) -> tf.data.Dataset:
        with tf.init_scope():
            decoders = {self._image_key: tensorflow_datasets.decode.SkipDecoding()}
            records = self._builder.as_dataset(split=self.tfds_split, decoders=decoders)
            return records.enumerate().map(
                lambda index, r: (r[self._image_key], tf.cast(r[self._label_key], tf.int32), index)
            )

    def decode(self, example: tf.Tensor, channels: int = 3, crop: Crop | None = None) -> tf.Tensor:
        return decode_image(example, channels, crop)


def is_dataset_name(name: str, data_dir: str | None) -> bool:
    """Whether TFDS has `name`, which may carry a configuration: "imagenet_resized/32x32"."""
    dataset = name.split("/")[0].split(":")[0]
    if data_dir is not None and (Path(data_dir) / dataset).is_dir():
        return True
    try:
        return dataset in tensorflow_datasets.list_builders()
    except ImportError:
        return False


def load_tfds(name: str, data_dir: str | None, val_fraction: float) -> Splits:
    """Splits of the TFDS data set `name`; by default validation is the end of train."""
    # TFDS needs it and does not declare it.
    require("importlib_resources", "pip install importlib_resources")
    builder = _builder(name, data_dir)
    features, keys = builder.info.features, builder.info.supervised_keys
    kinds = tensorflow_datasets.features
    if (
        not keys
        or not isinstance(features[keys[0]], kinds.Image)
        or not isinstance(features[keys[1]], kinds.ClassLabel)
    ):
        raise ValueError(
            f"The TFDS data set {name!r} does not have pairs of an image and a class label: "
            "choose one for image classification, such as 'tf_flowers' or 'cifar10'"
        )
    if not builder.info.splits:
        _prepare(builder, name)
    class_names = tuple(features[keys[1]].names)
    splits = {
        split: TFDSSplit(split, class_names, builder, source)
        for split, source in _choose_splits(builder.info.splits, val_fraction).items()
    }
    return Splits(name, class_names, splits)


def _builder(name: str, data_dir: str | None) -> Any:
    try:
        return tensorflow_datasets.builder(name, data_dir=data_dir)
    except tensorflow_datasets.core.DatasetNotFoundError:
        known = ["digits", "digits/half", *tensorflow_datasets.list_builders()]
        close = difflib.get_close_matches(name, known, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "tfds.list_builders() lists all."
        raise ValueError(
            f"{name!r} is neither 'digits', nor a TFDS data set, nor a folder here: {hint}"
        ) from None


def _choose_splits(available: Any, val_fraction: float) -> dict[str, str]:
    """From our names to their splits or slices."""
    others = [name for name in ("validation", "test") if name in available]
    if others:
        return dict(zip(("train", "val", "test"), ("train", *others), strict=False))
    percent = min(max(round(100 * (1 - val_fraction)), 1), 99)
    return {"train": f"train[:{percent}%]", "val": f"train[{percent}%:]"}


def _prepare(builder: Any, name: str) -> None:
    # Without a network TFDS tries ten times, for more than three minutes: ask first.
    if not _online():
        raise DatasetUnavailableError(
            f"The TFDS data set {name!r} is not prepared in {builder.data_dir} and cannot be "
            f"downloaded: {_HOST} cannot be reached. Prepare it on a machine with a "
            "network, copy the folder and give data_dir; or train on 'digits' or on a folder."
        )
    try:
        builder.download_and_prepare()
    except Exception as error:  # every host fails in its own way, and TFDS wraps none of them
        raise DatasetUnavailableError(
            f"The TFDS data set {name!r} could not be downloaded and prepared in "
            f"{builder.data_dir}: {error}"
        ) from error


def _online() -> bool:
    """Whether the host of TFDS answers within a few seconds, through a proxy where one is set."""
    answers: list[bool] = []

    def probe() -> None:
        try:
            urllib.request.urlopen(_HOST, timeout=_PROBE_SECONDS)
        except urllib.error.HTTPError:
            pass  # it answered
        except OSError:
            return
        answers.append(True)

    # In a thread, because a timeout does not bound the time that the name look-up takes.
    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(_PROBE_SECONDS + 1)
    return bool(answers)
