"""A folder of photographs, one sub-folder for each class, in any of three layouts."""

from __future__ import annotations

import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from ._imports import tf
from .decoding import IMAGE_SUFFIXES, Crop, decode_image, decode_upright_jpeg
from .errors import BadImageError
from .guarding import attempt
from .headers import MAX_PIXELS
from .image_files import irregular
from .listings import read_listing, refuse_overlap
from .splits import FileReport, Split, Splits, pass_order
from .verification import checked_files

LAYOUTS = """a folder of photographs is one of
    FOLDER/train/<class>/*.jpg and FOLDER/val/<class>/*.jpg
    FOLDER/<class>/*.jpg with FOLDER/train.txt and FOLDER/val.txt that list <class>/1.jpg and so on
    FOLDER/<class>/*.jpg, split by val_fraction and seed"""

# The names under which a split is found, first come first served; "val" is needed, "test" is extra.
_SPLIT_NAMES = {"train": ("train",), "val": ("val", "validation", "test"), "test": ("test",)}

Examples = dict[str, list[tuple[Path, str]]]  # split -> (file, class)


class FileSplit(Split):
    """Image files, decoded as they are read.

    Args:
        name: "train", "val" or "test".
        class_names: the name of each label.
        files: the files, in a fixed order.
        labels: the label of each file.
        verified: every file is known to decode. Then one that breaks later keeps its place as a
            grey picture, so that predictions still line up with `labels()`; without, files that
            cannot be decoded are skipped and the number of batches is not known beforehand. Both
            are told on stderr.
        upright: every file is known to have no EXIF orientation, and is not searched for one.
        jpeg: every file is known to be a JPEG file; with `upright`, nothing is looked at before
            it is decoded.
        max_pixels: as in `decode_image`; verified files have been checked.
    """

    can_fail = True

    def __init__(
        self,
        name: str,
        class_names: tuple[str, ...],
        files: Sequence[Path],
        labels: Sequence[int] | np.ndarray,
        verified: bool = False,
        upright: bool = False,
        jpeg: bool = False,
        max_pixels: int | None = MAX_PIXELS,
    ):
        self.name, self.class_names = name, class_names
        self.verified, self.upright, self.jpeg = verified, upright, jpeg
        self.max_pixels = max_pixels
        self.skips = not verified
        self.files: tuple[Path, ...] = tuple(files)
        self._labels = np.asarray(labels, np.int32)

    @property
    def num_examples(self) -> int:
        return len(self.files)

    def labels(self) -> np.ndarray:
        return self._labels

    def dataset(
        self,
        shuffle_seed: int | None = None,
        epoch: int | tf.Tensor = 0,
        start: int | tf.Tensor = 0,
    ) -> tf.data.Dataset:
        order, numbers = pass_order(len(self), shuffle_seed, epoch, start)
        files, labels = (tf.gather(tensor, order) for tensor in self._tensors)
        return tf.data.Dataset.from_tensor_slices((files, labels, numbers))

    @cached_property
    def _tensors(self) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.device("CPU"), tf.init_scope():
            # Bytes, as the file system has them: a name need not be UTF-8.
            return tf.constant(list(map(os.fsencode, self.files))), tf.constant(self._labels)

    def decode(self, example: tf.Tensor, channels: int = 3, crop: Crop | None = None) -> tf.Tensor:
        contents = tf.io.read_file(example)
        if self.verified and self.upright and self.jpeg:
            return decode_upright_jpeg(contents, channels, crop)
        # The size of a verified file is known: to check it again would slow small images down.
        max_pixels = None if self.verified else self.max_pixels
        return decode_image(contents, channels, crop, max_pixels=max_pixels, upright=self.upright)

    def decode_or_replace(
        self, example: tf.Tensor, channels: int = 3, crop: Crop | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        def read(file: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return self.decode(file, channels, crop), True

        def broken(file: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            fate = "stands as a grey picture" if self.verified else "is skipped"
            tf.print("keras_vit:", file, f"cannot be decoded and {fate}.", output_stream=sys.stderr)
            return tf.fill((1, 1, channels), tf.constant(127, tf.uint8)), False

        return attempt(read, broken, example)


def load_folder(
    folder: Path,
    val_fraction: float,
    seed: int,
    on_bad_file: str,
    verify: bool,
    max_pixels: int | None,
) -> Splits:
    """Finds the layout of `folder`, checks its files and makes the splits."""
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: {LAYOUTS}")
    examples, class_names, ignored = _find_examples(folder, val_fraction, seed)
    report = FileReport()
    upright = jpeg = False
    if verify:
        files = [file for part in examples.values() for file, _ in part]
        unreadable, upright, jpeg = checked_files(files, max_pixels)
        report = replace(report, unreadable=tuple(unreadable))
        _tell(report, len(files), on_bad_file)
        examples = _without(examples, {file for file, _ in unreadable})
    examples, class_names, left_out = _with_trained_classes(folder, examples, class_names)
    _tell_classes(folder, examples, class_names, left_out, on_bad_file)
    report = replace(report, ignored=(*ignored, *left_out))
    label = {name: index for index, name in enumerate(class_names)}
    splits = {
        name: FileSplit(
            name,
            class_names,
            [f for f, _ in part],
            [label[c] for _, c in part],
            verify,
            upright,
            jpeg,
            max_pixels,
        )
        for name, part in examples.items()
    }
    return Splits(str(folder), class_names, splits, report)


def _find_examples(
    folder: Path, val_fraction: float, seed: int
) -> tuple[Examples, tuple[str, ...], list[tuple[Path, str]]]:
    """The files of each split, the class names, and the files that are not photographs by name."""
    parts = {path.name: path for path in _folders(folder)}
    listings = {path.stem: path for path in sorted(folder.glob("*.txt"))}
    # A class may be called "train": it is a split only when it holds folders itself.
    if "train" in parts and _folders(parts["train"]):
        if any(name in parts for name in _SPLIT_NAMES["val"]):
            return _from_split_folders(_split_sources(folder, parts))
        folder = parts["train"]
    elif "train" in listings:
        return _from_listings(folder, _split_sources(folder, listings))
    class_names = _class_names(folder)
    everything, ignored = _scan(folder, class_names)
    return _stratified(everything, class_names, val_fraction, seed), class_names, ignored


def _from_split_folders(
    parts: dict[str, Path],
) -> tuple[Examples, tuple[str, ...], list[tuple[Path, str]]]:
    class_names = tuple(sorted({n for part in parts.values() for n in _class_names(part, 0)}))
    _class_names(parts["train"])
    examples: Examples = {}
    ignored: list[tuple[Path, str]] = []
    for name, part in parts.items():
        examples[name], more = _scan(part, class_names)
        ignored += more
        if not examples[name]:
            raise ValueError(
                f"{part} holds no photograph in a class folder: add some as "
                f"{part / class_names[0]}/1.jpg"
            )
    return examples, class_names, ignored


def _from_listings(
    folder: Path, listings: dict[str, Path]
) -> tuple[Examples, tuple[str, ...], list[tuple[Path, str]]]:
    class_names = _class_names(folder)
    examples = {name: read_listing(path, class_names) for name, path in listings.items()}
    refuse_overlap(examples, listings)
    return examples, class_names, []


def _folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _class_names(folder: Path, least: int = 2) -> tuple[str, ...]:
    names = tuple(path.name for path in _folders(folder))
    if len(names) < least:
        raise ValueError(
            f"{folder} has {len(names)} class folders and a classifier needs two or more: {LAYOUTS}"
        )
    return names


def _split_sources(folder: Path, available: dict[str, Path]) -> dict[str, Path]:
    """Which folder or listing serves as which split; no one serves twice."""
    found: dict[str, Path] = {}
    for split, names in _SPLIT_NAMES.items():
        unused = [
            available[n] for n in names if n in available and available[n] not in found.values()
        ]
        if unused:
            found[split] = unused[0]
    if "val" not in found:
        raise ValueError(
            f"{folder} has train.txt but no val.txt: add it, or remove train.txt to have the "
            "photographs split by val_fraction"
        )
    return found


def _scan(
    folder: Path, class_names: Iterable[str]
) -> tuple[list[tuple[Path, str]], list[tuple[Path, str]]]:
    """The photographs of `FOLDER/<class>/*`, sorted, and what else lies there."""
    examples: list[tuple[Path, str]] = []
    ignored: list[tuple[Path, str]] = []
    for name in class_names:
        class_folder = folder / name
        if not class_folder.is_dir():
            continue  # a class need not occur among the validation photographs
        for path in sorted(class_folder.iterdir()):
            if path.name.startswith("."):
                continue
            if path.is_dir():
                ignored.append((path, "a folder within a class folder"))
            elif path.suffix.lower() not in IMAGE_SUFFIXES:
                ignored.append((path, f"not one of {' '.join(IMAGE_SUFFIXES)}"))
            elif kind := irregular(path):
                ignored.append((path, kind))  # reading it might never end
            else:
                examples.append((path, name))
    return examples, ignored


def _stratified(
    examples: list[tuple[Path, str]], class_names: Sequence[str], val_fraction: float, seed: int
) -> Examples:
    """The same share of every class for validation, at least one photograph on either side.

    The only photograph of a class is one to train on.
    """
    by_class: dict[str, list[Path]] = defaultdict(list)
    for file, name in examples:
        by_class[name].append(file)
    parts: Examples = {"train": [], "val": []}
    for index, name in enumerate(class_names):
        files = by_class[name]
        count = min(max(round(len(files) * val_fraction), 1), max(len(files) - 1, 0))
        # A generator for each class: one more photograph of roses leaves the tulips where they are.
        order = np.random.default_rng([seed, index]).permutation(len(files))
        chosen = set(order[:count].tolist())
        for position, file in enumerate(files):
            parts["val" if position in chosen else "train"].append((file, name))
    return parts


def _tell(report: FileReport, checked: int, on_bad_file: str) -> None:
    if not report.unreadable:
        return
    count = f"{len(report.unreadable)} of {checked} files cannot be decoded"
    if on_bad_file == "raise":
        named = "\n".join(f"    {path}: {reason}" for path, reason in report.unreadable)
        raise BadImageError(
            f"{count}:\n{named}\nMend or remove them, or load with on_bad_file='skip'."
        )
    first = ", ".join(f"{path} ({reason})" for path, reason in report.unreadable[:3])
    more = ", ..." if len(report.unreadable) > 3 else ""
    warnings.warn(f"{count} and are skipped: {first}{more}; see splits.report", stacklevel=4)


def _without(examples: Examples, unreadable: set[Path]) -> Examples:
    return {
        name: [(file, c) for file, c in part if file not in unreadable]
        for name, part in examples.items()
    }


def _with_trained_classes(
    folder: Path, examples: Examples, class_names: Sequence[str]
) -> tuple[Examples, tuple[str, ...], list[tuple[Path, str]]]:
    """What is left when classes without a photograph to train on are left out, and these."""
    trained = {c for _, c in examples["train"]}
    left_out = []
    for name in class_names:
        if name not in trained:
            places = (folder / "train" / name, folder / name, folder / "val" / name)
            path = next((place for place in places if place.is_dir()), folder / name)
            count = sum(c == name for part in examples.values() for _, c in part)
            where = f", only {count} elsewhere" if count else ""
            left_out.append((path, f"a class without a photograph to train on{where}"))
    kept = tuple(name for name in class_names if name in trained)
    examples = {name: [(f, c) for f, c in part if c in trained] for name, part in examples.items()}
    return examples, kept, left_out


def _tell_classes(
    folder: Path,
    examples: Examples,
    class_names: Sequence[str],
    left_out: Sequence[tuple[Path, str]],
    on_bad_file: str,
) -> None:
    named = "".join(f"\n    {path}: {reason}" for path, reason in left_out)
    if len(class_names) < 2 or not examples["val"]:
        raise ValueError(
            f"{folder} has {len(class_names)} classes with photographs to train on and "
            f"{len(examples['val'])} photographs to validate on; a classifier needs two classes "
            f"and a photograph to validate on.{named}"
        )
    if left_out and on_bad_file == "raise":
        raise ValueError(
            f"{len(left_out)} classes cannot be used:{named}\n"
            "Add photographs or remove these folders, or load with on_bad_file='skip'."
        )
    if left_out:
        warnings.warn(f"{len(left_out)} classes are left out:{named}", stacklevel=4)
