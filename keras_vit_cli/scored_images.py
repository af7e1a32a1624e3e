"""Which labeled images a command may score a model on: those that it was not made with.

the model's record ─┐
labeled images ─────┴──► what each image was used for ──► images to score, and a line on the others
"""

import csv
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from keras_vit._base.errors import check_choice, counted, listed, printable
from keras_vit.data import Split, Splits, load
from keras_vit.data.seen_images import NEW, USED, USES, VALIDATED, SeenImages, described, none_left
from keras_vit.data.sources.splits import IndexedSplit, joined
from keras_vit.models.views import eval_transform_of
from keras_vit_cli.options.option import UsageError
from keras_vit_cli.options.shared import MAX_PIXELS, OF_TABLE
from keras_vit_cli.table_options import table_options
from keras_vit_cli.train.image_record import COLUMNS, IMAGES

WHOLE = "all"  # the split of a source that does not have any


@dataclass(frozen=True)
class Scored:
    """Labeled images that a model is scored on.

    Attributes:
        split: The images.
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


def job_of(model: str | Path) -> Mapping[str, Any]:
    """The options of the run that a model is of, by its folder; empty for any other model."""
    path = Path(model)
    folder = path if path.is_dir() else path.parent
    with suppress(OSError, ValueError, KeyError, TypeError):
        job = json.loads((folder / "config.json").read_text("utf-8"))["job"]
        if isinstance(job, dict) and isinstance(job.get("data"), str):
            return job
    return {}


def seen_images_of(model: Any, path: str | Path) -> SeenImages | None:
    """Images that a model was made with; of very many, by the table in the folder of its run."""
    seen = getattr(model, "seen_images", None)
    if seen is None or seen.is_listed:
        return seen
    folder = Path(path)
    file = (folder if folder.is_dir() else folder.parent) / IMAGES
    with suppress(OSError, ValueError, KeyError):
        with open(file, encoding="utf-8", errors="surrogateescape", newline="") as stream:
            rows = list(csv.DictReader(stream))
        _, digest, use = COLUMNS
        listed_ = {u: np.array([r[digest] for r in rows if r[use] == u], "S32") for u in USES}
        return SeenImages.of(listed_)
    return seen


def scored_images(
    model: Any,
    options: Any,
    *,
    split_name: str | None = None,
    fits: bool = False,
    own_classes: bool = True,
) -> Scored:
    """The images of `options.data`, or of the model's own run, that it may be scored on.

    Args:
        model: With `seen_images`, or without.
        options: Of a command: `model`, and those of `keras_vit_cli.options.shared` about data.
        split_name: "val", "test", "train" or "all"; None for the validation images where the data
            says which these are, and otherwise for all that the model has not seen.
        fits: Whether others are needed, such as those that a classifier of its features is fitted
            on.
        own_classes: Whether the classes must be those of the model.

    Raises:
        UsageError: There is no data, and the model is not of a run.
        ValueError: No image is left, or the split is not there, or classes are unknown.
    """
    job, seen = job_of(options.model), seen_images_of(model, options.model)
    if options.data is None and not job:
        raise UsageError(
            f"{options.model} does not say what it was trained on: give --data, a folder of images "
            "or a data set's name."
        )
    is_own = options.data is None or _is_same(options.data, job.get("data"))
    source = job["data"] if options.data is None else options.data
    arguments = _loading(model, options, job if is_own else {})
    of_run = {name: job[name] for name in ("val_fraction", "seed") if name in job}
    parts, pool = load(source, **arguments, val_fraction=None), None
    if list(parts) == [WHOLE]:
        pool = parts[WHOLE]
        is_used = np.isin(_uses(pool, seen), USED)
        # Where it is not known which were trained on, those of the run's own split are taken.
        is_told_apart = isinstance(pool, IndexedSplit)
        is_split = (is_own and seen is None) if is_told_apart else (is_own or not job)
        if is_used.any() and isinstance(pool, IndexedSplit):
            parts = _replaced(parts, train=_those(pool, is_used), val=_those(pool, ~is_used))
        elif fits or split_name in ("val", "train") or is_split:
            parts, pool = load(source, **arguments, **of_run), None
    names = [*parts, *([WHOLE] if WHOLE not in parts else [])]
    name = split_name or next(name for name in ("val", "test", WHOLE) if name in names)
    check_choice(name, "split", names)
    if name in parts and (pool is None or name == "train"):
        split = parts[name]
    else:
        split = joined(list(parts.values())) if pool is None else pool
    if own_classes:
        split = with_classes(split, model)
    chosen_uses: tuple[str, ...] = (VALIDATED, NEW)
    if options.data is None and seen is not None and VALIDATED in seen.digests:
        chosen_uses = (VALIDATED,)  # the run's own, and not what came to its folder since
    if name == "train":  # asked for, whatever they were used for
        chosen_uses = (*USES, NEW)
    chosen, line = without_used(split, seen, model.name, source, chosen_uses)
    return Scored(chosen, parts.get("train"), repr(parts), f"{name}: {line}")


def with_classes(split: Split, model: Any) -> Split:
    """The images with the labels that a classifier has for their classes, by their names.

    A class without an image here is fine; data with none of the model's classes stay as they
    are, for the check that says so.

    Raises:
        ValueError: Some of the classes are not the model's.
    """
    names, task = getattr(model, "class_names", None), getattr(model, "task", None)
    # One class alone is not a task.
    is_classes = isinstance(split.meaning, tuple) or split.task.kind == "classification"
    if names is None or not is_classes or task is None or task.kind != "classification":
        return split
    classes, counts = split.class_names, np.bincount(split.labels(), minlength=split.num_classes)
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
    return split.with_classes(names)


def without_used(
    split: Split,
    seen: SeenImages | None,
    made: str,
    source: str | Path,
    chosen_uses: tuple[str, ...] = (VALIDATED, NEW),
) -> tuple[Split, str]:
    """The images of which the use is one of these, and a line with how many there are of each.

    Args:
        split: The images; records are not compared, and all of them are returned.
        seen: What the model was made with; None where there is no record of it.
        made: The model, or several, for messages.
        source: Where the images are, for messages.
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
    return _those(split, is_kept), f"{text}; left out: {described(uses[~is_kept])}"


def _uses(split: Split, seen: SeenImages | None) -> np.ndarray:
    if seen is None or not isinstance(split, IndexedSplit):
        return np.full(len(split), NEW)
    return seen.uses(split.digests())


def _those(split: IndexedSplit, mask: np.ndarray) -> IndexedSplit:
    return split.take(np.flatnonzero(mask))


def _replaced(splits: Splits, **parts: Split) -> Splits:
    return replace(splits, splits={name: part for name, part in parts.items() if len(part)})


def _is_same(data: str, other: str | None) -> bool:
    return other is not None and (data == other or Path(data).resolve() == Path(other).resolve())


def _loading(model: Any, options: Any, job: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `load`: those of the options, and otherwise of the run that had the images."""
    task = getattr(model, "task", None)
    names = ("labels", "on_bad_row", *OF_TABLE)
    options_of_table = {name: getattr(options, name, None) for name in names}
    if options_of_table["labels"] is None and job.get("labels") is not None:
        options_of_table = {name: job.get(name, v) for name, v in options_of_table.items()}
    table = table_options(SimpleNamespace(**options_of_table), task)
    return {
        **table,
        "data_dir": options.data_dir or job.get("data_dir"),
        "max_pixels": getattr(options, "max_pixels", MAX_PIXELS),
        "reader": getattr(options, "reader", None),
        "bands": eval_transform_of(model).bands,
        "nodata": eval_transform_of(model).nodata,
    }
