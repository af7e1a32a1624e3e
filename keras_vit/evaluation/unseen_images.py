"""Selects labeled images to score a model on: those that it was not made with.

the model's record ─┐
labeled images ─────┴──► what each image was used for ──► images to score, and a line on the others
"""

import csv
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np

from keras_vit._base.errors import check_choice, counted, listed, printable, warn_at_caller
from keras_vit.data import MAX_PIXELS, Split, Splits, load
from keras_vit.data.seen_images import NEW, USED, USES, VALIDATED, SeenImages, described, none_left
from keras_vit.data.sources.split_names import split_of
from keras_vit.data.sources.split_tables import files_of_splits
from keras_vit.data.sources.splits import IndexedSplit, joined
from keras_vit.data.sources.table_cells import lookalike
from keras_vit.data.sources.table_files import SUFFIXES as TABLE_SUFFIXES
from keras_vit.models.answers import task_of
from keras_vit.models.views import eval_transform_of
from keras_vit.tasks import Depth, Ordinal, RelativeDepth, Task

_FAR, _TIMES = 5, 30  # standard deviations of numbers; how often the usual depth
WHOLE = "all"  # the split of a source that does not have any
IMAGES = "images.csv"  # of a run: which images it used, and for what
COLUMNS = ("image", "sha256_begins", "use")
OF_FILES = ("data_dir", "max_pixels", "reader")
OF_TABLE = (
    *("labels", "task", "order", "depth_scale", "file_column", "label_columns", "separator"),
    "on_bad_row",
)
_DEFAULTS = {"max_pixels": MAX_PIXELS, "on_bad_row": "error"}


@dataclass(frozen=True)
class Scored:
    """Labeled images that a model is scored on.

    Attributes:
        train: Others, on which a classifier of its features may be fitted; None where there are
            none.
        source: Where they are from, to print.
        line: Which they are, and what was left out, to print.
        digests: Those of the images; None of records.
    """

    split: Split
    train: Split | None
    source: str
    line: str

    @property
    def digests(self) -> np.ndarray | None:
        return self.split.digests() if isinstance(self.split, IndexedSplit) else None


def run_options(path: str | PathLike[str]) -> Mapping[str, Any]:
    """Return the options of the run that a file or folder is of; empty for any other model.

    Paths lead to where its files were, from any working directory, where they still lie there.
    """
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        config = json.loads((_folder(path) / "config.json").read_text("utf-8"))
        job, noted = config["job"], config.get("identity", {})
        if isinstance(job, dict) and isinstance(job.get("data"), str):
            for name in ("data", "labels", "data_dir", "weights"):
                folder = noted.get("data", "") if name == "labels" else ""  # where a table may lie
                place = os.path.join(folder, noted.get(name, ""))
                is_there = os.path.isabs(place) and os.path.exists(place)
                if job.get(name) and is_there and os.path.abspath(job[name]) != place:
                    job[name] = place
            return job
    return {}


def seen_images_of(model: Any, path: str | PathLike[str] | None) -> SeenImages | None:
    """Return what a model was made with; of very many images, by the table of its run."""
    seen = getattr(model, "seen_images", None)
    if seen is None or seen.is_listed or path is None:
        return seen
    with suppress(OSError, ValueError, KeyError):
        file = _folder(path) / IMAGES
        with open(file, encoding="utf-8", errors="surrogateescape", newline="") as stream:
            rows = list(csv.DictReader(stream))
        _, digest, use = COLUMNS
        listed_ = {u: np.array([r[digest] for r in rows if r[use] == u], "S32") for u in USES}
        # That file does not know what came later, such as a calibration.
        return SeenImages.of(listed_) | SeenImages.of(seen.digests, [seen.looks])
    return seen


def unseen_images(
    model: Any,
    data: str | PathLike[str] | Split | Splits | None = None,
    *,
    path: str | PathLike[str] | None = None,
    split: str | None = None,
    fits: bool = False,
    own_classes: bool = True,
    **loading: Any,
) -> Scored:
    """Find the labeled images that a model may be scored on.

    Args:
        model: With `seen_images`, or without.
        data: What `keras_vit.data.load` takes or returns, or a split of it; None for the images of
            the model's own run.
        path: The file or folder that the model is of; None of a model in memory.
        split: "val", "test", "train" or "all"; None for the validation images where the data says
            which these are, and otherwise for all that the model has not seen.
        fits: Whether others are needed, such as those that a classifier of its features is fitted
            on.
        own_classes: Whether the classes must be those of the model.
        **loading: `data_dir`, `max_pixels`, `reader`, and what is about a table, as for
            `keras_vit.data.load`.

    Raises:
        ValueError: There is no data, and the model is not of a run; no image is left, or the split
            is not there, or classes are unknown.
    """
    for name in loading:
        check_choice(name, "argument", (*OF_FILES, *OF_TABLE))
    split = split and (split_of(split) or split)
    run, seen = {} if path is None else run_options(path), seen_images_of(model, path)
    if data is None and not run:
        raise ValueError(
            f"{path or model.name} does not say what it was trained on: give data=, a folder of "
            "images or a data set's name."
        )
    is_own = data is None or (isinstance(data, str | PathLike) and _is_of(run, data))
    source: Any = run["data"] if data is None else data
    arguments = _loading(model, loading, run if is_own else {}, own_classes)
    if isinstance(source, Split):
        source = Splits("the given images", source.class_names, {WHOLE: source})
    is_loaded = isinstance(source, Splits)
    parts = source if is_loaded else _loaded(source, data is None and path, arguments)
    of_run = {name: run[name] for name in ("val_fraction", "seed") if name in run}
    is_named = len(parts) == 1 and not isinstance(next(iter(parts.values())), IndexedSplit)
    if is_named and WHOLE not in parts and not is_loaded and (is_own or fits):
        # Records that are all called "validation": whoever trains on them or fits takes a part.
        parts = load(source, **arguments, **of_run)
    pool = None
    if list(parts) == [WHOLE]:
        pool = parts[WHOLE]
        is_used = np.isin(_uses(pool, seen), USED)
        # Where it is not known which were trained on, those of the run's own split are taken.
        is_told_apart = isinstance(pool, IndexedSplit)
        is_unknown = not run and split != WHOLE
        is_split = (is_own and seen is None) if is_told_apart else (is_own or is_unknown)
        if is_used.any() and isinstance(pool, IndexedSplit):
            parts = replace(parts, splits=_by_use(pool, is_used))
        elif not is_loaded and (fits or split in ("val", "train") or is_split):
            parts, pool = load(source, **arguments, **of_run), None
    names = [*parts, *([WHOLE] if WHOLE not in parts else [])]
    name = split or next(name for name in ("val", "test", WHOLE) if name in names)
    check_choice(name, "split", names)
    if name in parts and (pool is None or name == "train"):
        images = parts[name]
    else:
        images = joined(list(parts.values())) if pool is None else pool
    if own_classes:
        images = with_classes(images, model)
    is_run_val = data is None and split in (None, "val")
    chosen_uses = _uses_to_score(name, seen if is_run_val else None)
    where = parts.source if is_loaded else source
    chosen, line = without_used(images, seen, model.name, where, chosen_uses)
    if run.get("labels") and not arguments.get("labels") and not is_loaded:
        line += f"; not labeled by {printable(run['labels'])}, as those of its run were"
    if name == "train" and np.isin(_uses(chosen, seen), USED).any():
        line += "; a score on images that it was made with says nothing about others"
    return Scored(chosen, parts.get("train"), repr(parts), f"{name}: {line}")


def _loaded(source: Any, path: Any, arguments: Mapping[str, Any]) -> Splits:
    """Return all images of a source; one that is not here may be of a run from elsewhere."""
    try:
        return load(source, **arguments, val_fraction=None)
    except (ValueError, FileNotFoundError) as error:
        if not path:
            raise
        raise type(error)(
            f"{path} was trained on {source!r}, from another folder perhaps: {error} Give data= "
            "with where these images are now."
        ) from error


def with_classes(split: Split, model: Any) -> Split:
    """Return the images with the labels that a classifier has for their classes, by their names.

    A class without an image here is fine; data with none of the model's classes stay as they
    are, for the check that says so.

    Raises:
        ValueError: Some of the classes are not the model's, or are several of them.
    """
    names, task = getattr(model, "class_names", None), getattr(model, "task", None)
    if names is None or not split.task.sums_to_one or task is None or not task.sums_to_one:
        return split
    if isinstance(split, IndexedSplit):
        alike = {normalize("NFC", name): name for name in names}  # a Mac has folders decomposed
        same = [n if n in names else alike.get(normalize("NFC", n), n) for n in split.class_names]
        if same != [*split.class_names]:
            split = split.take(range(len(split)))
            split.task = split.task.with_names(same)
    labels, classes = split.labels(), split.class_names
    counts = labels.sum(0) if labels.ndim == 2 else np.bincount(labels, minlength=len(classes))
    unknown = {n: int(c) for n, c in zip(classes, counts, strict=True) if c and n not in names}
    if (
        tuple(classes) == tuple(names)
        or not isinstance(split, IndexedSplit)
        or not set(classes) & {*names}
    ):
        return split
    if unknown:
        shown = listed([f"{name} ({counted(count, 'image')})" for name, count in unknown.items()])
        raise ValueError(
            f"{model.name} does not have the {'class' if len(unknown) == 1 else 'classes'} "
            f"{printable(shown)}: leave these images out, or rename their folders to one of "
            f"{printable(listed(names))}."
        )
    if twice := [n for n, c in zip(classes, counts, strict=True) if c and names.count(n) > 1]:
        raise ValueError(
            f"{model.name} has several classes of the name {printable(twice[0])}, and images of it "
            "may be of each: leave these images out, or give a model whose names are distinct."
        )
    return split.with_classes(names)


def without_used(
    split: Split,
    seen: SeenImages | None,
    made: str,
    source: str | Path,
    chosen_uses: tuple[str, ...] = (VALIDATED, NEW),
) -> tuple[Split, str]:
    """Return the images whose use is in `chosen_uses`, and a line with the number for each use.

    Args:
        split: The images; records are not compared, and all of them are returned.
        seen: What the model was made with; None where there is no record of it.
        chosen_uses: Those that may be scored, of `USES` and `"new"`.

    Raises:
        ValueError: No image is left.
    """
    images = counted(len(split), "image")
    if seen is None:
        return split, f"{images}; {made} does not have a record of those it was made with"
    if not isinstance(split, IndexedSplit):
        return split, f"{images}, records, which are not compared with those it was made with"
    if not seen.is_listed:
        return split, (
            f"{images}; whether the {seen.used:,} that {made} was made with are among them is not "
            "known, as its file does not list them"
        )
    uses = _uses(split, seen)
    is_kept = np.isin(uses, chosen_uses)
    if not is_kept.any():
        raise none_left(uses, printable(source))
    text = f"{counted(int(is_kept.sum()), 'image')}: {described(uses[is_kept])}"
    if is_kept.all():
        return split, text
    chosen = split.take(np.flatnonzero(is_kept))
    return chosen, f"{text}; left out: {described(uses[~is_kept])}"


def _uses(split: Split, seen: SeenImages | None) -> np.ndarray:
    if seen is None or not isinstance(split, IndexedSplit):
        return np.full(len(split), NEW)
    return seen.uses_of(split)


def check_same_task(model: Any, split: Split) -> None:
    """Raise a ValueError where the labels of a split mean something else than a model answers."""
    task, asked = getattr(model, "task", None), split.task
    if asked.sums_to_one and (task is None or task.sums_to_one):
        names, classes = model.class_names, asked.shown_names
        if model.num_classes != len(classes) or (names is not None and tuple(names) != classes):
            shown = "" if names is None else f" ({_shorten(names)})"
            spelled = sorted(map(lookalike, names or ())) == sorted(map(lookalike, classes))
            hint = " Write their names as it does: only case or blanks differ." if spelled else ""
            raise ValueError(
                f"{model.name} predicts {model.num_classes} classes{shown}, and the data has "
                f"{len(classes)} ({_shorten(classes)}). Give images of its classes, or evaluate "
                f"its features instead: linear probe, k-NN or few-shot.{hint}"
            )
        return
    task = task_of(model)
    if (asked.kind, asked.shown_names) != (task.kind, task.shown_names):
        raise ValueError(
            f"{model.name} answers {task.kind} of {_shorten(task.shown_names)}, and the data has "
            f"{asked.kind} of {_shorten(asked.shown_names)}: give its labels, and what they mean "
            "(labels=, task=, label_columns=)."
        )
    if task.are_numbers and not task.per_pixel and len(split):
        numbers = task.check_targets(asked.to_targets(split.labels()))
        far = np.median(np.abs(numbers), axis=0) > _FAR
        if far.any():
            warn_at_caller(
                f"{printable(task.shown_names[int(far.argmax())])} of most of these images is more "
                f"than {_FAR} standard deviations away from the mean that {model.name} was trained "
                "on: is it in another unit?"
            )
    if type(task) is Depth and type(asked) is Depth and task.typical != 1.0 and len(split):
        times = asked.fitted(split.labels()).typical / task.typical
        if not 1 / _TIMES < times < _TIMES:
            warn_at_caller(
                f"the depths of these images are {times:.2g} times those that {model.name} was "
                "trained on: are their files in another unit, for another depth_scale=?"
            )


def table_arguments(options: Mapping[str, Any], task: Task | None = None) -> dict[str, Any]:
    """Return what `keras_vit.data.load` takes about a table; nothing where no table is given.

    Args:
        options: By the names of `OF_TABLE`, as `load` takes them or as a run has noted them, with
            commas between columns, and between the grades of `order`.
        task: Of the model that the table is for, where there is one.

    Raises:
        ValueError: The order of the grades has fewer than two, or one of them twice.
    """
    if options.get("labels") is None:
        return {}
    # Where the labels are not of the model's kind, they say what they are.
    is_table = Path(options["labels"]).suffix.lower() in TABLE_SUFFIXES
    kind: Any = options.get("task")
    if kind is None and task is not None and task.per_pixel != is_table:
        kind = task.kind
    order, columns = options.get("order"), options.get("label_columns")
    depth_scale = options.get("depth_scale")
    if order is not None:
        kind = Ordinal(tuple(name.strip() for name in order.split(",")))
    elif task is not None and (task.names or task.per_pixel) and kind == task.kind:
        kind = task.unfitted()  # whose names the table need not show again
    if depth_scale is not None:
        known = {RelativeDepth.kind: RelativeDepth()}.get(kind, Depth())
        kind = replace(kind if isinstance(kind, Depth) else known, depth_scale=depth_scale)
    return {
        "labels": options["labels"],
        "task": kind,
        "file_column": options.get("file_column"),
        "label_columns": columns.split(",") if isinstance(columns, str) else columns,
        "separator": options.get("separator"),
        "on_bad_row": options.get("on_bad_row") or "error",
    }


def _folder(path: str | PathLike[str]) -> Path:
    return Path(path) if Path(path).is_dir() else Path(path).parent


def _uses_to_score(name: str, seen_by_run: SeenImages | None) -> tuple[str, ...]:
    if name == "train":  # asked for, whatever they were used for
        return (*USES, NEW)
    # The run's own, and not what came to its folder since.
    is_known = seen_by_run is not None and VALIDATED in seen_by_run.digests
    return (VALIDATED,) if is_known else (VALIDATED, NEW)


def _by_use(pool: IndexedSplit, is_used: np.ndarray) -> dict[str, Split]:
    both = {"train": is_used, "val": ~is_used}
    return {n: pool.take(np.flatnonzero(mask)) for n, mask in both.items() if mask.any()}


def _is_of(run: Mapping[str, Any], data: str | PathLike[str]) -> bool:
    """Return whether data is that of a run, whose table, if any, is there as well."""
    # Another machine's folder may have the name of the run's, without its table.
    labels = run.get("labels")
    return _is_same(data, run.get("data")) and (not labels or _is_in(labels, Path(data)))


def _is_same(data: str | PathLike[str], other: str | None) -> bool:
    """Return whether both name one source: `records:` may stand before a folder of them."""
    first, second = (str(each or "").removeprefix("records:") for each in (data, other))
    return other is not None and Path(first).resolve() == Path(second).resolve()


def _is_in(labels: str, folder: Path) -> bool:
    """Return whether labels by this name are found, by themselves or in the folder of images."""
    places = Path(labels).expanduser(), folder / labels
    return any(place.exists() for place in places) or bool(files_of_splits(folder, labels))


def _loading(
    model: Any, loading: Mapping[str, Any], run: Mapping[str, Any], own_classes: bool
) -> dict[str, Any]:
    """Return the arguments of `load`: the caller's, else of the run that had the images."""
    of_run = loading.get("labels") is None and run.get("labels") is not None
    task = getattr(model, "task", None) if own_classes or of_run else None
    transform = eval_transform_of(model)
    asked = {k: v for k, v in loading.items() if v is not None and v != _DEFAULTS.get(k)}
    either = {**_DEFAULTS, **run, **asked}
    return {
        **table_arguments(either if of_run else loading, task),
        **{name: either.get(name) for name in OF_FILES},
        "bands": transform.bands,
        "nodata": transform.nodata,
    }


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
