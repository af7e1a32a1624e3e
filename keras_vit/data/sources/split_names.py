"""The names of splits, as folders, lists, records and tables have them."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from keras_vit._base.errors import printable, warn_at_caller
from keras_vit.data.decode.image_kinds import is_hidden

# Of several folders or lists of one split, the first name is the one that is used.
SPLIT_NAMES = {
    "train": ("train", "training"),
    "val": ("val", "validation", "valid", "dev", "eval"),
    "test": ("test", "testing"),
}
SHOWN_NAMES = "train, val, test (also training, train_set, valid, validation, dev, eval, testing)"
_SPLIT_OF = {name: split for split, names in SPLIT_NAMES.items() for name in names}
_PRIORITY = list(_SPLIT_OF)
_BEHIND = re.compile(r"[ _-]?(set|data|images)$")
# Names of folders of photographs, and of what lies beside them for every pixel, in lower case.
_PHOTOGRAPHS = re.compile(r"(jpeg|png|rgb|color)?_?(im(age|g)s?|photos?|photographs?)|rgb")
_MAPS = re.compile(
    r"(segmentation|mask|label|annotation|annot|groundtruth|ground_truth|gt|trimap|depth|disparity)"
    r"(class|object)?_?(s|maps?|images?|png)?"
)

Unused = list[tuple[Path, str]]  # a path, and why it is not used
Part = TypeVar("Part")


def split_of(name: str) -> str | None:
    """Return the split that a name stands for, in any case; None for another name.

    >>> split_of("Valid"), split_of("training_set"), split_of("daisy")
    ('val', 'train', None)
    """
    return _SPLIT_OF.get(_word(name))


def _word(name: str) -> str:
    """Return a name in lower case, without "set", "data" or "images" at its end."""
    return _BEHIND.sub("", name.strip().lower())


def folders_in(folder: Path) -> list[Path]:
    """Return the folders in a folder but hidden ones, sorted; links to folders are among them."""
    with os.scandir(folder) as entries:
        return sorted(
            folder / entry.name for entry in entries if not is_hidden(entry.name) and entry.is_dir()
        )


def are_splits(folders: Sequence[Path]) -> bool:
    """Return whether folders without class folders are all named as splits, one of them train."""
    splits = [split_of(path.name) for path in folders]
    return len(splits) > 1 and None not in splits and "train" in splits


def split_folders(folder: Path) -> tuple[dict[str, Path], Unused]:
    """Return the folder of each split, and the folders beside them that are not used.

    Both are empty in a folder of classes. A class may be called "train": it is a split where it
    holds folders itself, or where nothing but splits that do lies beside it.
    """
    inner = folders_in(folder)
    holders = [path for path in inner if split_of(path.name) and folders_in(path)]
    if not any(split_of(path.name) == "train" for path in holders) and (holders != inner):
        return {}, []
    parts, unused = _by_split({path: path.name for path in inner})
    others = [path for path in inner if split_of(path.name) is None]
    unused += [(path, f"a folder beside {holders[0].name} that is not a split") for path in others]
    return parts, unused


def splits_by_folders(folder: Path, paths: Sequence[Path], whole: bool) -> list[str] | None:
    """Return the split of each file by its folder at the top; None where these are not splits.

    Raises:
        ValueError: Some files are of train and another split and some of none, and not all of them
            are to be one split: they would be drawn anew, those of a given val among them.
    """
    # A row of a table without a file stands in the folder itself, and is left out in any case.
    tops = [split_of((path.relative_to(folder).parts[:1] or ("train",))[0]) for path in paths]
    named = [name for name in SPLIT_NAMES if name in tops]
    if "train" not in named or len(named) < 2 or (whole and None in tops):
        return None
    if None in tops:
        raise ValueError(
            f"{printable(paths[tops.index(None)])} lies in none of the folders of the splits "
            f"{' and '.join(named)} in {printable(folder)}, as others do: move it into one or out "
            "of there; in a table, leave it out or write the splits in a column 'split'."
        )
    return [name for name in tops if name]


def photographs_and_maps(names: Sequence[str]) -> tuple[str, str] | None:
    """Return which folders have photographs and the masks or depths of these, by their names.

    >>> photographs_and_maps(["JPEGImages", "SegmentationClass"])
    ('JPEGImages', 'SegmentationClass')
    >>> photographs_and_maps(["train", "train_labels"]), photographs_and_maps(["images", "text"])
    (('train', 'train_labels'), None)
    """
    maps = [name for name in names if _MAPS.fullmatch(name.lower())]
    maps.sort(key=lambda name: not name.lower().startswith(("mask", "segm")))  # rather than labels
    photographs = [name for name in names if _PHOTOGRAPHS.fullmatch(name.lower())]
    for name in names:  # train and train_labels
        start, _, end = name.lower().rpartition("_")
        if _MAPS.fullmatch(end) and (same := [x for x in names if x.lower() == start]):
            return same[0], name
    return (photographs[0], maps[0]) if photographs and maps else None


def split_lists(folder: Path) -> tuple[dict[str, Path], Unused]:
    """Return the list of each split, such as `train.txt`, and those that are not used."""
    return _by_split({path: path.stem for path in sorted(folder.glob("*.txt"))})


def _by_split(names: dict[Path, str]) -> tuple[dict[str, Path], Unused]:
    """Return the path that serves as each split, and further ones of the same split."""
    named = sorted(
        (_PRIORITY.index(_word(name)), path) for path, name in names.items() if split_of(name)
    )
    parts: dict[str, Path] = {}
    unused: Unused = []
    for place, path in named:
        split = _SPLIT_OF[_PRIORITY[place]]
        if split in parts:
            unused.append((path, f"{parts[split].name} is used as {split}"))
        else:
            parts[split] = path
    return parts, unused


def with_validation(parts: dict[str, Part], source: str | os.PathLike[str]) -> dict[str, Part]:
    """Return the parts in the order train, val, test; test stands in for val, with a warning."""
    if "val" not in parts and "test" in parts:
        warn_at_caller(
            f"{printable(source)} has the splits train and test, and not val: test is validated "
            "on, so that what is chosen by it, such as the best epoch and thresholds, is not "
            "measured by it. To measure on it, leave it out here, so that images of train are "
            "held out, and evaluate on it afterwards."
        )
        parts = {("val" if name == "test" else name): part for name, part in parts.items()}
    return {name: parts[name] for name in SPLIT_NAMES if name in parts}
