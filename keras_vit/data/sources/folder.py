"""A folder of images, one sub-folder per class, in any of three layouts."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._base.errors import (
    ReportedWarning,
    counted,
    listed,
    printable,
    similar_paths,
    warn_at_caller,
)
from keras_vit._base.processors import available_processors
from keras_vit.data._imports import tf
from keras_vit.data.augment.boxes import crop_to_box
from keras_vit.data.data_errors import BadImageError
from keras_vit.data.decode.bit_depth import warn_of_sixteen_bits
from keras_vit.data.decode.decoder import Crop, decode_image, decode_upright_jpeg, to_channels
from keras_vit.data.decode.fallback import map_or_else
from keras_vit.data.decode.headers import MAX_PIXELS
from keras_vit.data.decode.image_files import (
    decode_array,
    irregular,
    read_contents,
    sixteen_bit_files,
)
from keras_vit.data.decode.image_kinds import (
    BANDS,
    PILLOW,
    TENSORFLOW,
    is_hidden,
    kind_of,
    suffixes_of,
)
from keras_vit.data.decode.rasters import fill_missing, read_raster, require_readers
from keras_vit.data.eval_transform import check_bands
from keras_vit.data.image_looks import look_of
from keras_vit.data.image_readers import resolve_reader
from keras_vit.data.sources.listings import read_listing, refuse_overlap
from keras_vit.data.sources.named_sources import kept_apart, warn_of_shared_sources
from keras_vit.data.sources.other_formats import (
    advice_for,
    how_to_convert,
    why_ignored,
)
from keras_vit.data.sources.shortcuts import warn_of_contradictions, warn_of_shortcuts
from keras_vit.data.sources.split_names import (
    are_splits,
    folders_in,
    photographs_and_maps,
    split_folders,
    split_lists,
    split_of,
    with_validation,
)
from keras_vit.data.sources.split_tables import labels_in_splits
from keras_vit.data.sources.splits import (
    DIGEST_DIGITS,
    GRAY,
    FileReport,
    IndexedSplit,
    Splits,
    reasons,
)
from keras_vit.data.sources.table_cells import lookalike
from keras_vit.data.sources.verification import Checked, checked_files, checked_rasters
from keras_vit.tasks import Task
from keras_vit.tasks.classification import as_task
from keras_vit.tasks.splitting import held_out, of_every_class

FOLDER_LAYOUTS = (
    "Give FOLDER/<class>/*.jpg, which is split at random; or with FOLDER/train.txt and "
    "FOLDER/val.txt, which list paths such as <class>/1.jpg; or FOLDER/train/<class>/*.jpg and "
    "FOLDER/val/<class>/*.jpg. Images in any folders, and several labels, numbers or grades of "
    "each, take a table, labels='labels.csv'; with a class or depth for every pixel, a folder of "
    "masks or maps, labels='masks'."
)

Files = list[tuple[Path, str]]  # (file, class), or (file, reason why it is not used)
Examples = dict[str, Files]  # by split


class FileSplit(IndexedSplit):
    """Image files, decoded as they are read.

    Args:
        name: "train", "val", "test" or "all".
        class_names: the name of each label; or the `Task` that says what labels mean.
        files: the files, in a fixed order.
        labels: the label of each file; with a task, what its `check_targets` takes.
        verified: every file is known to decode. One that breaks later is replaced by a gray image,
            so that predictions still line up with `labels()`. In a split that is not verified,
            files that cannot be decoded are skipped and the number of batches is not known
            beforehand. Both are reported on stderr.
        upright: no file has an EXIF orientation, and none is searched for.
        jpeg: every file is a JPEG file; if also `upright`, no header is read before decoding.
        max_pixels: as in `decode_image`; verified files have been checked.
        reader: a name in `keras_vit.data.image_readers.READERS`; None for the default.
        bands: of raster files, from 1, in the order of the channels; for Grain's reader.
        nodata: as in `load`: with "mean", pixels without a value are NaN.
    """

    can_fail = True
    bitmaps = False  # whether the files are BMP, without palettes, which TensorFlow decodes
    _per_example: tuple[str, ...] = ("_labels", "_digests", "_looks", "files", "groups")
    _cached = ("_label_tensor", "_file_tensor")

    def __init__(
        self,
        name: str,
        class_names: Sequence[str] | Task,
        files: Sequence[Path],
        labels: Any,
        verified: bool = False,
        upright: bool = False,
        jpeg: bool = False,
        max_pixels: int | None = MAX_PIXELS,
        reader: str | None = None,
        bands: Sequence[int] | None = None,
        nodata: Any = "mean",
    ):
        self.name, self.reader = name, resolve_reader(reader, bands)
        if bands is not None:
            self.bands, self.channels = check_bands(bands), len(bands)
        self.task = as_task(class_names)
        self.verified, self.upright, self.jpeg = verified, upright, jpeg
        self.max_pixels, self.nodata = max_pixels, nodata
        self.skips = not verified
        self.files: tuple[Path, ...] = tuple(files)
        # A split of which no file is left is empty.
        self._labels = self.task.check_targets(labels) if len(labels) else np.zeros(0, np.int32)
        if len(self._labels) != len(self.files):
            raise ValueError(
                f"{len(self._labels)} labels for {len(self.files)} files: give one for each file"
            )

    def with_bitmaps(self, files: Sequence[Path]) -> FileSplit:
        """Return the same examples in other files, BMP as Pillow writes it, one for each."""
        changed = self._copy()
        changed.files, changed.bitmaps = tuple(files), True
        return changed

    def _examples(self, order: tf.Tensor) -> tf.Tensor:
        return tf.gather(self._file_tensor, order)

    @cached_property
    def _file_tensor(self) -> tf.Tensor:
        with tf.device("CPU"), tf.init_scope():
            # Bytes, as the file system has them: a name need not be UTF-8.
            return tf.constant(list(map(os.fsencode, self.files)))

    def decode(self, example: tf.Tensor, channels: int = 3, crop: Crop | None = None) -> tf.Tensor:
        contents = tf.io.read_file(example)
        if self.bitmaps:
            return to_channels(crop_to_box(tf.io.decode_bmp(contents), crop), channels)
        if self.verified and self.upright and self.jpeg:
            return decode_upright_jpeg(contents, channels, crop, self.decoder)
        # The size of a verified file is known: to check it again would slow small images down.
        max_pixels = None if self.verified else self.max_pixels
        return decode_image(
            contents,
            channels,
            crop,
            max_pixels=max_pixels,
            upright=self.upright,
            decoder=self.decoder,
        )

    def pixels(self, index: int, channels: int = 3, crop: Crop | None = None) -> np.ndarray:
        max_pixels = None if self.verified else self.max_pixels
        contents = read_contents(self.files[index])
        image = decode_array(contents, channels, max_pixels, self.bands)
        if self.nodata != "mean":
            image = fill_missing(image, self.nodata)
        return crop_to_box(image, crop)

    def _looks_of_files(self) -> np.ndarray:
        if self.bands is not None or not len(self):
            return super()._looks_of_files()
        with ThreadPoolExecutor(available_processors()) as pool:
            # Each file is read by its thread: the pool takes all its arguments at once.
            read = pool.map(lambda index: look_of(self._contents(index)), range(len(self)))
            return np.stack(list(read))

    def _contents(self, index: int) -> bytes:
        try:
            return read_contents(self.files[index])
        except OSError:
            return os.fsencode(self.files[index])  # no other image has it

    def report_undecodable(self, index: int, reason: str) -> None:
        file = printable(self.files[index])
        print(f"keras_vit: {file} cannot be decoded and {self._fate}: {reason}", file=sys.stderr)

    @property
    def _fate(self) -> str:
        substitute = "zeros" if self.bands else "a gray image"
        return f"is replaced by {substitute}" if self.verified else "is skipped"

    def decode_or_replace(
        self, example: tf.Tensor, channels: int = 3, crop: Crop | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        def replace(file: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            what = f"cannot be decoded and {self._fate}."
            tf.print("keras_vit:", file, what, output_stream=sys.stderr)
            return tf.fill((1, 1, channels), tf.constant(GRAY, tf.uint8)), False

        return map_or_else(lambda file: (self.decode(file, channels, crop), True), replace, example)


@dataclass(frozen=True)
class FileOptions:
    """How the files of a folder or table are read: arguments of `load`."""

    on_bad_file: str = "skip"
    verify: bool = True
    max_pixels: int | None = MAX_PIXELS
    reader: str = "tensorflow"
    bands: tuple[int, ...] | str | None = None
    whole: bool = False
    nodata: Any = "mean"

    @property
    def read_by(self) -> str:
        """Who reads the files, as `keras_vit.data.decode.image_kinds` has it."""
        if self.bands is not None:
            return BANDS
        return PILLOW if self.reader == "grain" else TENSORFLOW

    def numbers(self, files: Sequence[Path]) -> tuple[int, ...] | None:
        """Return the bands, which of "all" are those of the first file that can be read."""
        if not isinstance(self.bands, str):
            return self.bands
        for file in files:
            with suppress(OSError, BadImageError):
                count = read_raster(read_contents(file), None, self.max_pixels).shape[-1]
                return tuple(range(1, count + 1))
        return (1,)  # the check names the reason of each file


def load_folder(folder: Path, val_fraction: float, seed: int, options: FileOptions) -> Splits:
    """Detects the layout of `folder`, checks its files and makes the splits."""
    if not folder.is_dir():
        general = f"{folder} is a file, not a folder of images. {FOLDER_LAYOUTS}"
        raise NotADirectoryError(advice_for(str(folder)) or general)
    examples, class_names, ignored = _find_examples(folder, options)
    sources: dict[Path, int] = {}
    if options.whole:
        examples = {"all": examples["train"]} if set(examples) == {"train"} else examples
    elif set(examples) == {"train"}:
        examples, sources = _split_at_random(examples["train"], class_names, val_fraction, seed)
    else:
        examples = with_validation(examples, folder)
        train, val = ([file for file, _ in examples.get(s, ())] for s in ("train", "val"))
        warn_of_shared_sources(train, val)
    files = [file for part in examples.values() for file, _ in part]
    bands, checked = check_images(files, options)
    bad = {file for file, _ in checked.unreadable}
    examples = {s: [(f, c) for f, c in part if f not in bad] for s, part in examples.items()}
    to_know = examples.values() if options.whole else [examples["train"]]
    trained = {c for part in to_know for _, c in part}
    _warn_of_spellings(trained)
    purpose = "" if options.whole else " to train on"
    unused = [
        _unused_class(folder, name, examples, trained, purpose)
        for name in class_names
        if name not in trained
    ]
    class_names = tuple(name for name in class_names if name in trained)
    examples = {s: [(f, c) for f, c in part if c in trained] for s, part in examples.items()}
    hint = how_to_convert(path for path, _ in ignored)
    _report_classes(folder, examples, unused, options, hint)
    label = {name: index for index, name in enumerate(class_names)}
    splits = {}
    for name, part in examples.items():
        files, labels = [file for file, _ in part], [label[c] for _, c in part]
        splits[name] = checked_split(name, class_names, files, labels, bands, checked, options)
        if sources:
            splits[name].groups = np.array([sources[file] for file in files])
    warn_of_contradictions(splits)
    if not options.whole:
        warn_of_shortcuts(splits["train"], checked.shapes)
    _report_ignored(ignored)
    report = FileReport(tuple(checked.unreadable), (*ignored, *unused))
    return Splits(str(folder), class_names, splits, report)


def _find_examples(folder: Path, options: FileOptions) -> tuple[Examples, tuple[str, ...], Files]:
    """Return the files of each split in the folder, the class names, and the other files there.

    The split of a folder of classes is "train".
    """
    parts, ignored = split_folders(folder)
    lists, unused_lists = split_lists(folder)
    ignored += unused_lists
    if parts:
        ignored += [(path, "a list beside the folders of splits") for path in lists.values()]
        if "test" in parts and not folders_in(parts["test"]):
            ignored.append((parts.pop("test"), "without class folders: its labels are not known"))
        if "train" not in parts and not options.whole:
            names = ", ".join(path.name for path in parts.values())
            raise ValueError(f"{folder} has {names}, and not train. {FOLDER_LAYOUTS}")
        examples, class_names, others = _from_split_folders(parts, options)
        return examples, class_names, ignored + others
    class_names = _class_names(folder, options)
    if "train" in lists:
        if len(lists) == 1 and not options.whole:
            raise ValueError(
                f"{folder} has train.txt but no val.txt: add it, or remove train.txt to have the "
                "images split by val_fraction"
            )
        examples = {name: read_listing(path, class_names) for name, path in lists.items()}
        refuse_overlap(examples, lists)
        return examples, class_names, ignored
    ignored += [(path, f"a list of {name} without train.txt") for name, path in lists.items()]
    files, others = _scan(folder, class_names, options.read_by)
    return {"train": files}, class_names, ignored + others


def _from_split_folders(
    parts: dict[str, Path], options: FileOptions
) -> tuple[Examples, tuple[str, ...], Files]:
    if "train" in parts:
        _class_names(parts["train"], options)
    class_names = tuple(sorted({path.name for part in parts.values() for path in folders_in(part)}))
    examples: Examples = {}
    ignored: Files = []
    for name, part in parts.items():
        examples[name], its_ignored = _scan(part, class_names, options.read_by)
        ignored += its_ignored
        if not examples[name]:
            hint = how_to_convert(path for path, _ in its_ignored)
            raise ValueError(
                f"{part} does not hold an image in a class folder: add some as "
                f"{part / class_names[0]}/1.jpg{'. ' if hint else ''}{hint}"
            )
    return examples, class_names, ignored


def _class_names(folder: Path, options: FileOptions) -> tuple[str, ...]:
    folders = folders_in(folder)
    names = tuple(path.name for path in folders)
    is_train_alone = [split_of(name) for name in names] == ["train"] and not options.whole
    if is_train_alone or are_splits(folders):
        have = "split" if is_train_alone else "splits"
        raise ValueError(
            f"{folder} has the {have} {', '.join(names)} without class folders: give "
            f"{names[0]}/<class>/*.jpg, or a table of labels (labels='labels.csv')."
            f"{labels_in_splits(folder)}"
        )
    if pair := photographs_and_maps(names):
        photographs, maps = (folder / name for name in pair)
        raise ValueError(
            f"{printable(folder)} has {pair[0]} and {pair[1]}, which are the names of photographs "
            f"and their masks, not of classes: give {printable(photographs)} as the folder, and "
            f"labels={printable(maps)!r}; or rename them, if they are classes."
        )
    if len(names) < (1 if options.whole else 2):
        needs = "one or more are needed" if options.whole else "a classifier needs two or more"
        raise ValueError(
            f"{folder} has {counted(len(names), 'class folder')} and {needs}. "
            f"{_is_one_class(folder)}{FOLDER_LAYOUTS}"
        )
    return names


def near_folders(name: str) -> list[str]:
    """Folders with nearly this path: most misspelled names are those of a folder."""
    path = Path(name).expanduser()
    if not path.parent.is_dir():
        return []
    return similar_paths(path, [folder.name for folder in folders_in(path.parent)])


def _is_one_class(folder: Path) -> str:
    """Return a hint for a user who gave one class folder, or one too far out; or ""."""
    parent, files = folder.absolute().parent, [path for path in folder.iterdir() if path.is_file()]
    if len(inner := folders_in(folder)) == 1 and len(within := folders_in(inner[0])) > 1:
        names = listed([path.name for path in within], 3)
        return f"There, {inner[0].name} has {names}: give {inner[0]}. "
    if hint := how_to_convert(files):
        return f"{hint} They have to lie in a folder per class. "
    if not any(map(kind_of, files)):
        return ""
    if len(folders_in(parent)) < 2:
        return "Its images have to lie in a folder per class, or be listed in a table with labels. "
    return f"Is {folder.name} one of the classes? Then give the folder around it, {parent}. "


def _scan(folder: Path, class_names: Iterable[str], reader: str) -> tuple[Files, Files]:
    """Return the images of `FOLDER/<class>/*`, sorted, and what else lies there."""
    examples: Files = []
    ignored: Files = [
        (path, "an image beside the class folders")
        for path in sorted(folder.iterdir())
        if path.is_file() and not is_hidden(path.name) and kind_of(path)
    ]
    for name in class_names:
        class_folder = folder / name
        if not class_folder.is_dir():
            continue  # a class need not occur among the validation images
        for path in sorted(class_folder.iterdir()):
            if is_hidden(path.name):
                continue
            if path.is_dir():
                ignored.append((path, "a folder within a class folder"))
            elif reason := irregular(path):  # reading it might never end
                ignored.append((path, reason))
            elif (kind := kind_of(path)) is None or reader not in kind.readers:
                ignored.append((path, why_ignored(path, suffixes_of(reader))))
            else:
                examples.append((path, name))
    return examples, ignored


def _split_at_random(
    examples: Files, class_names: Sequence[str], val_fraction: float, seed: int
) -> tuple[Examples, dict[Path, int]]:
    """Return the examples to train on and to validate on, and the source of each, where known."""
    label = {name: index for index, name in enumerate(class_names)}
    strata = np.array([label[name] for _, name in examples], np.int32)
    files = [file for file, _ in examples]
    sources = kept_apart(files, strata)
    if sources is None:
        is_held_out = of_every_class(strata, val_fraction, seed)
    else:
        is_held_out = held_out(strata, val_fraction, seed, sources)
    parts: Examples = {"train": [], "val": []}
    for example, is_val in zip(examples, is_held_out, strict=True):
        parts["val" if is_val else "train"].append(example)
    if sources is None:
        return parts, {}
    return parts, dict(zip(files, sources.tolist(), strict=True))


def check_images(
    files: Sequence[Path], options: FileOptions
) -> tuple[tuple[int, ...] | None, Checked]:
    """Decodes files, where they are to be verified, and reports those that cannot be decoded.

    Returns:
        The numbers of bands, or None; and what is known of the files.
    """
    if options.bands is not None:
        require_readers(kind.suffixes[0] for file in files if (kind := kind_of(file)))
    bands = options.numbers(files)
    if not options.verify:
        if bands is None:
            warn_of_sixteen_bits(sixteen_bit_files(files), len(files))
        return bands, Checked([], {})
    if bands is not None:
        is_exact = options.bands == "all"
        checked = checked_rasters(files, options.max_pixels, bands, is_exact, options.nodata)
    else:
        checked = checked_files(files, options.max_pixels, options.reader)
        warn_of_sixteen_bits(checked.deep, len(files))
    _report_unreadable(checked.unreadable, len(files), options.on_bad_file)
    return bands, checked


def checked_split(
    name: str,
    meaning: Sequence[str] | Task,
    files: Sequence[Path],
    labels: Any,
    bands: tuple[int, ...] | None,
    checked: Checked,
    options: FileOptions,
    kind: type[FileSplit] = FileSplit,
    **more: Any,
) -> FileSplit:
    """Return the split of some of the files that `check_images` has looked at.

    `more` are arguments of its class alone.
    """
    split = kind(
        name,
        meaning,
        files,
        labels,
        options.verify,
        checked.upright,
        checked.jpeg,
        options.max_pixels,
        options.reader,
        bands,
        options.nodata,
        **more,
    )
    if options.verify:  # so that nobody reads them once more for it
        digests = [checked.digests[file] for file in files]
        split._digests = np.array(digests, f"S{DIGEST_DIGITS}")
    return split


def _report_unreadable(unreadable: Files, checked: int, on_bad_file: str) -> None:
    if not unreadable:
        return
    count = f"{len(unreadable)} of {checked} files cannot be decoded"
    if len(unreadable) == checked:
        raise BadImageError(f"{count}, none is left:{reasons(unreadable)}")
    if on_bad_file == "raise":
        raise BadImageError(
            f"{count}:{reasons(unreadable)}\nRepair or remove them, or load with "
            "on_bad_file='skip'."
        )
    first = ", ".join(f"{path} ({reason})" for path, reason in unreadable[:3])
    more = ", ..." if len(unreadable) > 3 else ""
    warn_at_caller(f"{count} and are skipped: {first}{more}; see splits.report", ReportedWarning)


def _report_ignored(ignored: Files) -> None:
    """Warns of what lies in class folders, or beside those of splits, and is not used."""
    if not ignored:
        return
    folders = sum(path.is_dir() for path, _ in ignored)
    counts = {"file": len(ignored) - folders, "folder": folders}
    number = " and ".join(counted(count, what) for what, count in counts.items() if count)
    verb = "is" if len(ignored) == 1 else "are"
    lines = reasons(ignored, ": see splits.report.ignored")
    hint = how_to_convert(path for path, _ in ignored)
    warn_at_caller(f"{number} {verb} ignored:{lines}{hint and chr(10)}{hint}", ReportedWarning)


def _unused_class(
    folder: Path, name: str, examples: Examples, trained: set[str], purpose: str
) -> tuple[Path, str]:
    """Return the folder of a class that cannot be trained on, and the reason."""
    places = (folder / name, *(part / name for part in folders_in(folder)))
    path = next((place for place in places if place.is_dir()), folder / name)
    count = sum(c == name for part in examples.values() for _, c in part)
    where = f", only {count} elsewhere" if count else ""
    reason = f"a class without an image{purpose}{where}"
    if same := [c for c in trained if lookalike(c) == lookalike(name)]:
        names = f"{same[0]!a} has some: is {name!a} the same class? Then rename it"
        return path, f"{reason}: {names}"
    inner = [part.name for part in folders_in(path)] if path.is_dir() else []
    if inner and not count:
        holds = f"{reason}: it holds folders, {printable(listed(inner, 3))}"
        return path, f"{holds}; move them up, or call it train, val or test if it is a split"
    return path, reason


def _warn_of_spellings(names: set[str]) -> None:
    """Warns of class folders whose names differ only in case, blanks or Unicode form."""
    spellings: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        spellings[lookalike(name)].append(name)
    same = [" and ".join(map(repr, each)) for each in spellings.values() if len(each) > 1]
    if same:
        warn_at_caller(
            f"{printable(listed(same))} are different classes that differ only in case, blanks or "
            "Unicode form. Where they are one class, move the images into one folder."
        )


def _report_classes(
    folder: Path, examples: Examples, unused: Files, options: FileOptions, hint: str
) -> None:
    """Raises a ValueError for too few classes or images, or warns of classes that are left out."""
    lines, number = reasons(unused), counted(len(unused), "class", "classes")
    whole = options.whole  # where an empty folder is not an error
    if not any(examples.values()):
        raise ValueError(f"{folder} does not hold an image in a class folder. {hint}{lines}")
    classes, validated = len({c for _, c in examples.get("train", ())}), examples.get("val")
    if not whole and (classes < 2 or not validated):
        raise ValueError(
            f"{folder} has {counted(classes, 'class', 'classes')} with images to train on and "
            f"{counted(len(validated or ()), 'image')} to validate on; a classifier needs two "
            f"classes and an image to validate on.{' ' if hint else ''}{hint}{lines}"
        )
    if unused and options.on_bad_file == "raise" and not whole:
        raise ValueError(
            f"{number} cannot be used:{lines}\n"
            "Add images or remove these folders, or load with on_bad_file='skip'."
        )
    if unused:
        verb = "is" if len(unused) == 1 else "are"
        warn_at_caller(f"{number} {verb} left out:{lines}", ReportedWarning)
