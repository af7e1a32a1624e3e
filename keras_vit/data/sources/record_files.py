"""A folder or pattern of TFRecord or ArrayRecord files: their splits, classes and features."""

from __future__ import annotations

import glob
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from keras_vit._base.errors import counted, printable
from keras_vit.data._imports import tf
from keras_vit.data.data_errors import DamagedShardError
from keras_vit.data.sources.records import Parse, Records, RecordSplit, open_records
from keras_vit.data.sources.split_names import folders_in, split_of, with_validation
from keras_vit.data.sources.splits import Splits

RECORD_LAYOUTS = """records are TFRecord or ArrayRecord files of tf.train.Examples such as
    FOLDER/train-00000-of-01024 and FOLDER/validation-00000-of-00128 with FOLDER/labels.txt
    FOLDER/train/*.tfrecord and FOLDER/val/*.tfrecord
    FOLDER/*.array_record, split by val_fraction and seed
labels.txt has the class names, one per line, in the order of the labels"""

# The features of the encoded image and of its label: ImageNet's TFRecords, and those of TFDS.
_FEATURES = (("image/encoded", "image/class/label"), ("image", "label"))

_FILE = re.compile(r"\.tf_?records?\b|\.array_?records?\b|-\d{5,}-of-\d{5,}$", re.IGNORECASE)
_OF = re.compile(r"(.*?)(\d{5,})-of-(\d{5,})(.*)")


def holds_records(folder: Path) -> bool:
    """Return whether a folder, or its folder `train`, holds files with the name of record files."""
    return bool(_files_of(folder))


def load_records(
    source: str, val_fraction: float, seed: int, whole: bool = False, **options: Any
) -> Splits:
    """Splits of the record files in a folder, or of those that match a pattern."""
    files = _find(source)
    groups = _by_split(files)
    if len(groups) == 1 and (not whole or "train" in groups):
        groups = {"all" if whole else "train": next(iter(groups.values()))}
    elif not whole:
        groups = _validated(groups, source)
    folder = Path(next(iter(groups.values()))[0]).parent
    class_names = _class_names([folder, folder.parent])
    parse = None
    splits = {}
    records = {name: open_records(files) for name, files in groups.items()}
    for name, part in _subsets(records, val_fraction, seed).items():
        parse = parse or _parse(part[0])
        splits[name] = RecordSplit(name, class_names, part[0], parse, part[1], **options)
    next(iter(splits.values())).warn_of_sixteen_bits()
    return Splits(source, class_names, splits)


def _find(source: str) -> list[str]:
    path = Path(source).expanduser()
    if path.is_dir():
        files = _files_of(path)
    elif path.is_file():
        files = [str(path)]
    else:
        files = sorted(filter(os.path.isfile, glob.glob(str(path))))
    if not files:
        raise FileNotFoundError(f"There are no records at {printable(source)}: {RECORD_LAYOUTS}")
    _check_complete(files)
    return files


def _files_of(folder: Path) -> list[str]:
    parts = (folder, *(path for path in folders_in(folder) if split_of(path.name)))
    files = (path for part in parts for path in part.iterdir())
    return sorted(str(path) for path in files if _FILE.search(path.name) and path.is_file())


def _check_complete(files: Iterable[str]) -> None:
    """Raise a FileNotFoundError if files of a set such as "train-00000-of-00016" are missing."""
    sets: dict[tuple[str, int, str], set[int]] = defaultdict(set)
    for file in files:
        if match := _OF.fullmatch(file):
            sets[match[1], int(match[3]), match[4]].add(int(match[2]))
    for (before, count, after), numbers in sets.items():
        if missing := sorted(set(range(count)) - numbers):
            name = printable(f"{before}{missing[0]:05}-of-{count:05}{after}")
            raise FileNotFoundError(
                f"{len(missing)} of {count} files are missing, the first of them {name}. Copy the "
                "whole set."
            )


def _by_split(files: Sequence[str]) -> dict[str, list[str]]:
    """Return the files of each split; those of no name are "train"."""
    groups: dict[str, list[str]] = defaultdict(list)
    for file in files:
        path = Path(file)
        words = re.findall("[a-z]+", f"{path.parent.name}/{path.name}".lower())
        groups[next(filter(None, map(split_of, reversed(words))), "")].append(file)
    if set(groups) == {""}:
        return {"train": groups[""]}
    if "" in groups:
        raise ValueError(
            f"{printable(groups[''][0])} belongs neither to train, val nor test, as other files "
            f"do: {RECORD_LAYOUTS}"
        )
    return dict(groups)


def _validated(groups: dict[str, list[str]], source: str) -> dict[str, list[str]]:
    if "train" not in groups:
        first = next(iter(groups.values()))[0]
        raise ValueError(
            f"{printable(first)}: there are no files of a split train. {RECORD_LAYOUTS}"
        )
    return with_validation(groups, source)


def _subsets(records: dict[str, Records], val_fraction: float, seed: int) -> dict[str, Any]:
    """Return each split's records, and which of them it takes."""
    for name, part in records.items():
        if len(part) < (2 if set(records) == {"train"} else 1):
            raise ValueError(f"The files of {name} hold {counted(len(part), 'record')}: too few.")
    if set(records) != {"train"}:
        return {name: (part, None) for name, part in records.items()}
    (whole,) = records.values()
    count = len(whole)
    train = min(max(count - round(count * val_fraction), 1), count - 1)
    return {"train": (whole, (seed, 0, train)), "val": (whole, (seed, train, count))}


def _class_names(folders: Sequence[Path]) -> tuple[str, ...]:
    """Return the lines of `labels.txt`, or of the file `label.labels.txt` that TFDS writes."""
    for folder in folders:
        for file in (folder / "labels.txt", folder / "label.labels.txt"):
            if not file.is_file():
                continue
            lines = file.read_text("utf-8-sig").rstrip().split("\n")
            names = tuple(line.strip() for line in lines)
            if len(names) < 2:
                raise ValueError(
                    f"{printable(file)} has {len(names)} class names, and a classifier needs two "
                    "or more: write one per line."
                )
            if "" in names:
                raise ValueError(
                    f"{printable(file)}, line {names.index('') + 1}, is empty, and the lines after "
                    "it would be names of other labels: write a name."
                )
            return names
    raise FileNotFoundError(
        f"{printable(folders[0] / 'labels.txt')} is missing: write the class names there, one per "
        "line, in the order of the labels."
    )


def _parse(records: Records) -> Parse:
    """Reads the features that the first record has."""
    first = tf.train.Example()
    try:
        first.ParseFromString(records.fetch(0))
    except Exception as error:
        raise DamagedShardError(f"{records.place(0)} is not a tf.train.Example: {error}") from error
    present = first.features.feature
    for image, label in _FEATURES:
        if image in present and label in present:
            return lambda record: _parse_example(record, image, label)
    known = " or ".join(f"{image} and {label}" for image, label in _FEATURES)
    raise ValueError(
        f"{records.place(0)} has the features {', '.join(sorted(present))}; an encoded image and "
        f"an integer label are expected as {known}."
    )


def _parse_example(record: tf.Tensor, image: str, label: str) -> tuple[tf.Tensor, tf.Tensor]:
    features = {
        image: tf.io.FixedLenFeature((), tf.string),
        label: tf.io.FixedLenFeature((), tf.int64),
    }
    example = tf.io.parse_single_example(record, features)
    return example[image], example[label]
