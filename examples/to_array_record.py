"""Converts TFRecord files to ArrayRecord files, once.

    python examples/to_array_record.py /data/imagenet --out /data/imagenet_array_record

`keras_vit.data.load` reads ArrayRecord files by index, in an order of all records that an
interrupted run continues exactly; TFRecord files do not have an index, and are read into memory up
to 4 GiB. File names stay, but for the suffix, and the names of classes are copied. An interrupted
conversion goes on with the file that it had begun. As fast as the disks: records are copied as they
are.

A folder that TensorFlow Datasets has prepared is converted with its descriptions, so that TFDS
reads the new one, too:

    python examples/to_array_record.py ~/tensorflow_datasets/imagenet2012 --out new/imagenet2012
    keras-vit train --data imagenet2012 --data-dir new

Needs keras3-vit[tensorflow], and array_record (pip install array_record).
"""

import argparse
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from keras_vit._base.files import atomic_write
from keras_vit.data._imports import require
from keras_vit.data.sources.records import tfrecords

SUFFIX = re.compile(r"\.tf_?records?\b", re.IGNORECASE)
SHARD = re.compile(r"-\d{5,}-of-\d{5,}$")


def files_of(source: Path) -> Iterator[Path]:
    """The TFRecord files in a folder and in the folders of its splits."""
    for path in sorted(source.rglob("*")):
        if path.is_file() and (SUFFIX.search(path.name) or SHARD.search(path.name)):
            yield path.relative_to(source)


def convert(file: Path, target: Path) -> int:
    """Copies the records of a file; returns how many these are."""
    writers = require("array_record.python.array_record_module", "pip install array_record")
    target.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with atomic_write(target) as temporary:
        # One record per group: records are read one by one, in random order.
        writer = writers.ArrayRecordWriter(str(temporary), "group_size:1")
        for record in tfrecords(str(file)):
            writer.write(record)
            count += 1
        writer.close()
    return count


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("source", type=Path, help="folder of TFRecord files")
    parser.add_argument("--out", type=Path, required=True, help="folder of ArrayRecord files")
    options = parser.parse_args(arguments)
    files = list(files_of(options.source))
    if not files:
        parser.error(f"there are no TFRecord files in {options.source}")
    for file in files:
        target = options.out / file.with_name(SUFFIX.sub(".array_record", file.name))
        if target.exists():
            print(f"{target} exists")
        else:
            print(f"{target}: {convert(options.source / file, target):,} records")
    for file in options.source.rglob("*.*"):
        if file.suffix in (".json", ".txt"):  # names of classes, and TFDS's descriptions
            shutil.copy(file, options.out / file.relative_to(options.source))
    for file in options.out.rglob("dataset_info.json"):
        facts = json.loads(file.read_text("utf-8"))
        file.write_text(json.dumps({**facts, "fileFormat": "array_record"}, indent=2), "utf-8")


if __name__ == "__main__":
    main()
