"""What is wrong with labeled files as such: one with two labels, or sizes that show the class."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._base.errors import counted, printable, warn_at_caller

_FEWEST = 20  # images
_MOST_SHOWN = 0.9  # of each class, on average, before a warning


def warn_of_contradictions(splits: Mapping[str, Any]) -> None:
    """Warn of the same file under several names, with labels that differ."""
    known = [split for split in splits.values() if split._digests is not None]
    if not known:
        return
    files = [file for split in known for file in split.files]
    labels = np.concatenate([split.labels() for split in known])
    _, image, counts = np.unique(
        np.concatenate([split._digests for split in known if split._digests is not None]),
        return_inverse=True,
        return_counts=True,
    )
    first: dict[int, int] = {}
    count, example = 0, ""
    for row in np.flatnonzero(counts[image] > 1).tolist():
        other = first.setdefault(int(image[row]), row)
        if not np.array_equal(labels[row], labels[other]):
            count += 1
            example = example or f"{printable(files[other])} and {printable(files[row])}"
    if count:
        warn_at_caller(
            f"{counted(count, 'file')} with the content of one with another label, such as "
            f"{example}: one of the labels is wrong, or an image has several. An audit lists all."
        )


def warn_of_shortcuts(train: Any, shapes: Mapping[Path, tuple[int, ...]]) -> None:
    """Warn where the class of a file follows from its size and format alone.

    Each file is taken to be of the class that most others of its size and format have.

    Args:
        train: A split of files, of one class each; of others nothing is said.
        shapes: Height, width and kind of each file, as far as they are known.
    """
    labels, files = train.labels(), train.files
    if not train.task.sums_to_one or len(files) < _FEWEST or any(f not in shapes for f in files):
        return
    classes = train.task.size
    _, kind = np.unique([shapes[file] for file in files], axis=0, return_inverse=True)
    # Pairs of a kind of file and a class: a table of all would not fit into memory.
    pairs, pair, counts = np.unique(
        kind.ravel() * classes + labels, return_inverse=True, return_counts=True
    )
    of_kind = pairs // classes
    most, second = np.zeros((2, len(pairs)), np.int64)
    np.maximum.at(most, of_kind, counts)
    is_most = counts == most[of_kind]
    np.maximum.at(second, of_kind, np.where(is_most, 0, counts))
    ties = np.bincount(of_kind[is_most], minlength=len(pairs)) > 1
    second[ties] = most[ties]
    # Without the file itself, more of its kind are of its class than of another one.
    known = (is_most & (counts - 1 > second[of_kind]))[pair.ravel()]
    sizes = np.bincount(labels, minlength=classes)
    shares = np.bincount(labels, known, classes)[sizes > 0] / sizes[sizes > 0]
    if shares.mean() < _MOST_SHOWN:
        return
    examples = []
    for label in np.unique(labels[known])[:2].tolist():
        file = files[int(np.flatnonzero(known & (labels == label))[0])]
        height, width, _ = shapes[file]
        name = printable(repr(train.task.shown_names[label]))
        examples.append(f"{height} x {width} pixels in {printable(file.suffix)} for {name}")
    warn_at_caller(
        f"From the size and the format of a file alone follows the class of {shares.mean():.0%} of "
        f"the training images, such as {' and '.join(examples)}: a model may learn what the files "
        "are, and not what they show, and its scores hold for these files alone. Take the images "
        "of all classes in the same way."
    )
