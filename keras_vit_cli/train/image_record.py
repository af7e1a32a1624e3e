"""`images.csv` of a run: which images it used, and for what."""

import csv
import io
import os
from pathlib import Path

import numpy as np

from keras_vit._base.files import write_bytes
from keras_vit._base.spreadsheet import as_text_cell
from keras_vit.data import Splits
from keras_vit.data.seen_images import SeenImages
from keras_vit.data.sources.splits import IndexedSplit
from keras_vit.evaluation.unseen_images import COLUMNS


def write_images(file: Path, splits: Splits, seen: SeenImages) -> None:
    """Write a table of a run's images: the place of each in its data, its digest, its use."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for name in ("train", "val"):  # others are not used
        split = splits[name]
        if not isinstance(split, IndexedSplit):
            continue
        images = [f"{name}/{place}" for place in range(len(split))]
        if split.files is not None:
            images = [os.path.relpath(path, splits.source) for path in split.files]
        digests, images = split.digests(), list(map(as_text_cell, images))
        writer.writerows(zip(images, np.char.decode(digests), seen.uses(digests), strict=True))
    # A file name may hold bytes that are not UTF-8.
    write_bytes(file, text.getvalue().encode("utf-8", "surrogateescape"))
