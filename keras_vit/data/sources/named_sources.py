"""Images of one patient, slide or video, known by the names of their files.

They are alike, so that a split at random, which has them on both sides, promises too much.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_vit._base.errors import counted, printable, warn_at_caller
from keras_vit.tasks import Task

# What several images are of, with its number: patient12_slice3, sub-01_t1_040, clip 3 (0012).
_SOURCE = re.compile(
    r"(^|.*?[\W_])((patient|pat|pt|subject|subj|sub|person|case|individual|slide|wsi|specimen|biopsy"
    r"|video|vid|clip|movie|sequence|seq|scene|session|scan|volume|vol|study|series|trial|flight)"
    r"[\W_]*[a-z]?\d+|tcga[-_]\w\w[-_]\w{4})(?=[\W_].*\d|[a-z]+[\W_]*\d)"
)
# A part of something whose name is before it: GOPR0012_frame_34.
_PART = re.compile(r"(.*?\w)[\W_]*(frame|slice|tile|patch|crop|burst)[\W_]*\d[\W_\d]*")
_FRAME = re.compile(r"(video|clip)?[\W_]*(frame|slice)[\W_]*\d+")
# Versions of an image, by Roboflow and by others: rot_rose.jpg, rose_hflip.jpg, rose_90deg.jpg.
_CHANGED = (
    r"(aug|augmented|rot|rotated?|flip|flipped|flip(lr|tb|ud)|[hv]flip|mirror|mirrored|copy of|copy"
    r"|noise|noisy|blur|blurred)"
)
_VERSIONS = (
    re.compile(
        rf"(?P<name>.*?\w)(_(jpe?g|png|bmp|webp)\.rf\.\w+|[\W_]+{_CHANGED}[\W_]*\d*\W?"
        r"|[\W_]+(new)?\d+deg(flip..)?)"
    ),
    # Of Keras: a prefix, the number of the image, any number.
    re.compile(r"(?P<name>((.*[\W_])?aug(mented)?([\W_]?im(age|g))?)?_\d+)_\d+"),
    re.compile(rf"{_CHANGED}\d{{0,3}}[\W_]+(?P<name>(?!\d{{1,3}}$)\w.*)"),
)
_SAMPLE = 1000  # names that are looked at first: most folders do not show any
_FEWEST = 5  # sources that are kept apart
_LEAST = 0.1  # the part of all images that have to be of shared sources


def source_of(name: str) -> str:
    """Return what an image is of, by its name without a suffix: the name itself, or its beginning.

    >>> source_of("patient12_slice3"), source_of("GOPR0012_frame_34"), source_of("IMG_2034")
    ('patient12', 'gopr0012', 'img_2034')
    """
    name = name.lower()
    for versions in _VERSIONS:
        while version := versions.fullmatch(name):
            name = version["name"]
    if (source := _SOURCE.match(name)) or (source := _PART.fullmatch(name)):
        return source[1] if source.re is _PART else source[0]
    return name


def sources_of(paths: Sequence[Path], top: Path | None = None) -> np.ndarray | None:
    """Return the number of the source of each image; None where names do not show any.

    Args:
        top: The folder of all of them, where the name of an image's own folder belongs to its name,
            as of `patient12/003.png`; None where it is that of a class.
    """
    names = [
        p.stem if top is None or p.parent == top else f"{p.parent.name}_{p.stem}" for p in paths
    ]
    sample = names[:: max(len(names) // _SAMPLE, 1)]
    if all(source_of(name) == name.lower() for name in sample):
        return None
    by_name = list(map(source_of, names))
    # rose/003 and tulip/003 are of one source only where a third, 003_flip, is of theirs.
    shown = {source for source, name in zip(by_name, names, strict=True) if source != name.lower()}
    sources = [source if source in shown else i for i, source in enumerate(by_name)]
    counts = Counter(sources)
    shared = sum(count for count in counts.values() if count > 1)
    if len(counts) < 2 or shared < max(_LEAST * len(names), 2):
        return None
    numbers = {source: number for number, source in enumerate(counts)}
    return np.array([numbers[source] for source in sources])


def kept_apart(
    paths: Sequence[Path], strata: np.ndarray | None, top: Path | None = None
) -> np.ndarray | None:
    """Return the sources of images that are to be split, with a warning; None where none are shown.

    Args:
        strata: The class of each image, of which those of one source alone cannot be on both sides;
            None without classes.
    """
    sources = sources_of(paths, top)
    if sources is None:
        frames = [path for path in paths if _FRAME.fullmatch(path.stem.lower())]
        if 2 * len(frames) > len(paths):
            warn_at_caller(
                f"{counted(len(frames), 'image')} seem to be the frames of a recording, such as "
                f"{printable(frames[0].name)}: one is like the next, and on the other side of the "
                "split, so that scores promise too much. Put other recordings into folders train "
                "and val."
            )
        return None
    sizes = np.bincount(sources)
    example = paths[int((sizes[sources] > 1).argmax())].name
    about = (
        f"{counted(len(paths), 'image')} are of {counted(len(sizes), 'source')} by their names, "
        f"such as {printable(example)}"
    )
    per_class = Counter([] if strata is None else np.unique([strata, sources], axis=1)[0].tolist())
    if len(sizes) < _FEWEST or min(per_class.values(), default=2) < 2:
        warn_at_caller(
            f"{about}, which are too few to keep apart, or one alone in a class: they are on both "
            "sides of the split, and scores promise too much where they are alike. Give images of "
            "other sources, or folders train and val."
        )
        return None
    warn_at_caller(
        f"{about}: those of one source are trained on or validated on, and not both. Folders "
        "train and val, or a table with a column group, say it otherwise."
    )
    return sources


def warn_of_shared_sources(
    train: Sequence[Path], val: Sequence[Path], top: Path | None = None
) -> None:
    """Warn of sources with images on both sides of a split that folders or a table have."""
    sources = sources_of([*train, *val], top)
    if sources is None:
        return
    trained, validated = set(sources[: len(train)].tolist()), sources[len(train) :].tolist()
    if both := [i for i, source in enumerate(validated) if source in trained]:
        warn_at_caller(
            f"{len(both):,} of {counted(len(val), 'image')} that are validated on are of sources "
            f"that are trained on as well, by their names, such as {printable(val[both[0]].name)}: "
            "where these are alike, scores promise too much. Keep the images of one on one side."
        )


def validated(
    parts: dict[str, list[int]],
    files: Sequence[Path],
    targets: np.ndarray,
    task: Task,
    part: tuple[float, int],
    folder: Path,
    groups: np.ndarray | None = None,
) -> tuple[dict[str, list[int]], np.ndarray | None]:
    """Return the rows of each split, some of "train" to validate on, and the group of each row.

    Args:
        parts: The rows of the splits that there are, one of them "train".
        files, targets: Of all rows, as the `split` of the task takes them.
        part: What part to hold out where there is no "val", and the seed.
        folder: Of all files.
        groups: The group of each row, where it is known; otherwise those that names show.
    """
    if "val" in parts:
        if groups is None:
            train, val = ([files[row] for row in parts[name]] for name in ("train", "val"))
            warn_of_shared_sources(train, val, folder)
        return parts, groups
    rows = np.array(parts["train"])
    if groups is None:
        strata = targets[rows] if targets.ndim == 1 else None
        sources = kept_apart([files[row] for row in rows], strata, folder)
        if sources is not None:
            groups = np.full(len(files), -1)
            groups[rows] = sources
    held_out = task.split(targets[rows], *part, None if groups is None else groups[rows])
    return parts | {"train": rows[~held_out].tolist(), "val": rows[held_out].tolist()}, groups
