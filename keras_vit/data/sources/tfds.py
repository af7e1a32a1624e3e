"""Data sets of TensorFlow Datasets (TFDS), prepared on this machine or downloaded."""

from __future__ import annotations

import difflib
import os
import threading
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from keras_vit.data._imports import require, tensorflow_datasets, tf
from keras_vit.data.data_errors import DatasetUnavailableError
from keras_vit.data.sources.folder import near_folders
from keras_vit.data.sources.records import Parse, RecordSplit, Shard, open_records
from keras_vit.data.sources.split_names import with_validation
from keras_vit.data.sources.splits import Splits

_HOST = "https://storage.googleapis.com"  # where TFDS keeps its data set descriptions
_PROBE_SECONDS = 3.0
_FORMATS = ("array_record", "tfrecord")


class TFDSSplit(RecordSplit):
    """A split, or a slice such as "train[:80%]", of a prepared TFDS data set, read by index.

    Args:
        name: "train", "val", "test" or "all".
        class_names: the name of each label.
        builder: of the data set, with `supervised_keys`.
        tfds_split: the split or slice.
        **options: `on_bad_file` and `max_pixels` of `RecordSplit`.

    Raises:
        ValueError: an empty split, or more TFRecord files than memory is used for.
        DamagedShardError: a file does not hold the records that TFDS has written.
    """

    def __init__(
        self,
        name: str,
        class_names: tuple[str, ...],
        builder: Any,
        tfds_split: str,
        **options: Any,
    ):
        self.tfds_split = tfds_split
        if not builder.info.splits[tfds_split].num_examples:
            raise ValueError(
                f"The split {tfds_split!r} of {builder.info.name} is empty: give another "
                "val_fraction, such as 0.2."
            )
        instructions = builder.info.splits[tfds_split].file_instructions
        shards = [
            Shard(os.fspath(i.filename), i.skip, i.take, i.examples_in_shard) for i in instructions
        ]
        super().__init__(name, class_names, open_records(shards), _parse(builder), **options)


def _parse(builder: Any) -> Parse:
    """Reads the image and the label of a record, and none of its other features."""
    image_key, label_key = builder.info.supervised_keys
    keys = tensorflow_datasets.decode.PartialDecoding({image_key: True, label_key: True})
    features = keys.extract_features(builder.info.features)
    decoders = {image_key: tensorflow_datasets.decode.SkipDecoding()}

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        values = features.deserialize_example(record, decoders=decoders)
        return values[image_key], values[label_key]

    return parse


def is_dataset_name(name: str, data_dir: str | None) -> bool:
    """Return whether TFDS has `name`, which may carry a configuration: "imagenet_resized/32x32"."""
    dataset = name.split("/")[0].split(":")[0]
    if data_dir is not None and (Path(data_dir) / dataset).is_dir():
        return True
    try:
        return dataset in tensorflow_datasets.list_builders()
    except ImportError:
        return False


def is_prepared_folder(folder: Path) -> bool:
    """Return whether TFDS has prepared a data set here: "tensorflow_datasets/cifar10/3.0.2"."""
    return (folder / "dataset_info.json").is_file() and (folder / "features.json").is_file()


def load_tfds(
    name: str, data_dir: str | None, val_fraction: float, whole: bool = False, **options: Any
) -> Splits:
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
        if find_spec("array_record"):  # TFDS's default, TFRecord, does not have an index
            builder = tensorflow_datasets.builder(name, data_dir=data_dir, file_format=_FORMATS[0])
        _prepare(builder, name)
    if builder.info.file_format.value not in _FORMATS:
        raise ValueError(
            f"The TFDS data set {name!r} is prepared as {builder.info.file_format.value} files, "
            f"which are not read here. Prepare it as one of {', '.join(_FORMATS)}: "
            f"tfds build {builder.name} --file_format array_record"
        )
    class_names = tuple(features[keys[1]].names)
    available = builder.info.splits
    parts = _choose_splits(available, None if whole else val_fraction, name)
    splits = {
        split: TFDSSplit(split, class_names, builder, source, **options)
        for split, source in parts.items()
    }
    next(iter(splits.values())).warn_of_sixteen_bits()
    return Splits(name, class_names, splits)


def _builder(name: str, data_dir: str | None) -> Any:
    folder = Path(name).expanduser()
    if is_prepared_folder(folder):
        return tensorflow_datasets.builder_from_directory(folder)
    try:
        return tensorflow_datasets.builder(name, data_dir=data_dir)
    except tensorflow_datasets.core.DatasetNotFoundError:
        known = ["digits", "digits/half", *tensorflow_datasets.list_builders()]
        close = difflib.get_close_matches(name, [*near_folders(name), *known], n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "tfds.list_builders() lists all."
        raise ValueError(
            f"{name!r} is neither 'digits', nor a TFDS data set, nor a folder here: {hint}"
        ) from None


def _choose_splits(available: Any, val_fraction: float | None, source: str) -> dict[str, str]:
    """Map our names to TFDS's splits or slices; without a fraction, a single one is "all"."""
    parts = {"train": "train", "val": "validation", "test": "test"}
    parts = {name: part for name, part in parts.items() if part in available}
    others = parts.keys() - {"train"}
    if others and "train" in available:
        return with_validation(parts, source)
    if val_fraction is None and others:  # as imagenet_v2, which has test alone
        return parts
    if val_fraction is None:
        return {"all": "+".join(available)}
    if others and len(available) > 1:
        raise ValueError(
            f"This TFDS data set has the splits {', '.join(available)} and no train: there is "
            "nothing to train on. To score a model on it, give val_fraction=None."
        )
    percent = min(max(round(100 * (1 - val_fraction)), 1), 99)
    whole = "train" if "train" in available else next(iter(available))  # ImageNet-21k: "full"
    return {"train": f"{whole}[:{percent}%]", "val": f"{whole}[{percent}%:]"}


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
    """Return whether the host of TFDS answers within seconds, through a proxy if one is set."""
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
