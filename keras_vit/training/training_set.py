"""`TrainingSet`: which images are trained on, and which are kept for what, decided in one place."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from keras_vit._base.errors import listed, printable
from keras_vit.data import Split, Splits
from keras_vit.data.image_looks import distinct
from keras_vit.data.seen_images import (
    CALIBRATED,
    MOST_LISTED,
    TRAINED,
    TUNED,
    USED,
    VALIDATED,
    SeenImages,
    none_left,
)
from keras_vit.data.sources.splits import IndexedSplit
from keras_vit.tasks.conformal import check_coverage, fewest_examples
from keras_vit.training.recipes import Recipe

CALIBRATION = 0.1  # of the training images, for prediction sets, intervals and thresholds
# Below this, a temperature says more about the few images than about the model.
LEAST_HELD_OUT = 20
TO_CHOOSE = 0.2  # of the training images
MOST_TO_CHOOSE = 500  # enough to see a difference of a few percent; all others are trained on


@dataclass(frozen=True)
class TrainingSet:
    """The images of a run, each with one use; what has one is not scored.

    Attributes:
        known: The images, but for those that calibrate.
        splits: Of these, what is trained on, and the validation images, which are scored.
        tuning: Kept from training for the temperature, thresholds or intervals; None without.
        deciding: Kept from training to choose between frozen features and fine-tuned weights;
            those of `tuning`, where there are any.
        calibrating: Kept for prediction sets or intervals alone.
        seen: Who has seen which image, after `apart`; of records, how many.
    """

    known: Splits
    splits: Splits
    tuning: Split | None = None
    deciding: Split | None = None
    calibrating: Split | None = None
    seen: SeenImages = field(default_factory=SeenImages)

    @classmethod
    def of(
        cls,
        splits: Splits,
        recipe: Recipe,
        *,
        coverage: float | None = None,
        held_out: float | None = None,
        chooses: bool = False,
        seed: int = 0,
    ) -> TrainingSet:
        """Keep from training what the recipe, a coverage and a choice need.

        Args:
            recipe: Its `held_out` is the part for the temperature, thresholds or intervals.
            coverage: Of prediction sets or intervals, in (0, 1); None for none.
            held_out: The part where the user has named it, and nothing else is kept; else None.
            chooses: Whether images are needed to choose the probe or the fine-tuned weights.

        Raises:
            ValueError: The images are records, or too few, or one group has a whole class.
        """
        calibrating = None
        if coverage is not None:
            splits, calibrating = hold_out_for_coverage(splits, coverage, seed)
        task = splits.task
        fraction = recipe.held_out if task.learns_from_held_out else 0.0
        if task.calibrates and held_out is None and coverage is None:
            fraction = fraction or CALIBRATION  # thresholds and intervals are of unseen images
        trained_on, tuning = hold_out(splits, fraction, seed)
        deciding = tuning
        if chooses and held_out is None and tuning is None:
            trained_on, deciding = hold_out_to_choose(trained_on, seed)
        return cls(splits, trained_on, tuning, deciding, calibrating)

    def apart(self, before: SeenImages) -> tuple[TrainingSet, str]:
        """Leave what is trained on out of every score, and list who has seen which image.

        Copies of training images are left out of what is kept and of the validation images; of
        these, also those that were seen before.

        Args:
            before: What the weights that the run starts from, or its teacher, were made with.

        Returns:
            The set with what is left, and a line on what is not, empty where all are.

        Raises:
            ValueError: No validation image is left.
        """
        train = self.splits.train
        if not isinstance(train, IndexedSplit):
            counts = {TRAINED: len(train), VALIDATED: len(self.splits.val)}
            seen = SeenImages(counts=counts) | before
            line = "note: scores may count records that the first weights were made with"
            return replace(self, seen=seen), line if before.used else ""
        parts = (self.tuning, self.deciding, self.calibrating)
        tuning, deciding, calibrating = (without_copies(part, train) for part in parts)
        uses = {
            TRAINED: train.digests(),
            TUNED: digests_of(tuning, deciding),
            CALIBRATED: digests_of(calibrating),
        }
        looks = looks_of(train, tuning, deciding, calibrating)
        val, line = self.splits.val, ""
        if isinstance(val, IndexedSplit):
            val, line = _unseen(val, SeenImages.of(uses, looks), before, self.splits.source)
        known, splits = (
            replace(one, splits={**one.splits, "val": val}) for one in (self.known, self.splits)
        )
        seen = SeenImages.of({**uses, VALIDATED: digests_of(val)}, looks) | before
        return TrainingSet(known, splits, tuning, deciding, calibrating, seen), line

    def note_on(self, before: SeenImages, measures: bool) -> str:
        """Return a note where the first weights know what is measured on training images, or "".

        Args:
            before: What the weights that the run starts from, or its teacher, were made with.
            measures: Whether ways to train are compared on the training images.
        """
        others = (self.tuning, self.deciding, self.calibrating)
        parts = [p for p in (self.splits.train, *others) if isinstance(p, IndexedSplit)]
        weights = "note: the weights it starts from, or its teacher, were made with"
        if parts and not before.is_listed:
            images = f"{before.used:,} images, which their file does not list"
            return f"{weights} {images}: scores may count some of these"
        if not parts or (not measures and others == (None, None, None)):
            return ""
        digests = np.concatenate([part.digests() for part in parts])
        is_short = len(digests) <= MOST_LISTED
        uses = [before.uses_of(p) if is_short else before.uses(p.digests()) for p in parts]
        known = len(np.unique(digests[np.isin(np.concatenate(uses), USED)]))
        images = f"{known:,} of the {len(np.unique(digests)):,} training images"
        why = "what is measured on these, such as in folds, a temperature or a coverage"
        return f"{weights} {images}: {why}, may promise too much" if known else ""


def hold_out(splits: Splits, fraction: float, seed: int = 0) -> tuple[Splits, Split | None]:
    """Keeps a part of the training images from training, of each class in proportion.

    Images of one group, by the column `group` of a table of labels, stay on one side.

    Returns:
        The splits with the other training images, and the part; None for a fraction of 0.

    Raises:
        ValueError: The images are records, which do not have fixed places, or the part would have
            fewer than 20 images, or a class would be left without one, as where one group has all
            of its images.
    """
    if not fraction:
        return splits, None
    train = splits.train
    if not isinstance(train, IndexedSplit):
        raise ValueError(
            f"held_out={fraction} needs a folder of images, and {splits.source} has records: give "
            "held_out=0, or fit the temperature yourself with keras_vit.evaluation.fit_temperature."
        )
    count, part = round(fraction * len(train)), grouped_part(splits, fraction, seed)
    if splits.task.sums_to_one and count < LEAST_HELD_OUT:
        raise ValueError(
            f"held_out={fraction} of {len(train)} training images is {count}, and a "
            f"temperature needs at least {LEAST_HELD_OUT}: give more images, or held_out=0."
        )
    _check_classes_left(splits, part, f"held_out={fraction}", "held_out=0")
    return without(splits, train, part)


def _check_classes_left(splits: Splits, part: np.ndarray, option: str, other: str) -> None:
    """Raises a ValueError where no image of a class would be left to train on."""
    task, targets = splits.task, splits.task.to_targets(splits.train.labels())
    before, after = task.counts(targets), task.counts(np.delete(targets, part, axis=0))
    if before is not None and (missing := np.flatnonzero((before > 0) & (after == 0))).size:
        names = listed([task.shown_names[place] for place in missing])
        raise ValueError(
            f"{option} holds out the groups that have all training images of {printable(names)}: "
            f"give another seed= or {other}."
        )


def hold_out_for_coverage(splits: Splits, coverage: float, seed: int = 0) -> tuple[Splits, Split]:
    """Keeps a tenth of the training images from training, or as many more as a coverage needs.

    Nothing else may be decided on them: thresholds of images that have already set the temperature
    or chosen the weights would promise more than they hold.

    Returns:
        The splits with the other training images, and the part.

    Raises:
        ValueError: The images are records, or too few, or a class would be left without one.
    """
    least, train = fewest_examples(check_coverage(coverage)), splits.train
    if not isinstance(train, IndexedSplit):
        raise ValueError(
            f"coverage={coverage} holds out training images, which needs a folder of images, and "
            f"{splits.source} has records: train without it, and calibrate on other images by "
            "task.with_coverage."
        )
    few = (
        f"coverage={coverage} needs at least {least:,} training images that are not trained on, "
        f"and half of {len(train):,} may be held out: give {2 * least:,} or more training images, "
        "a lower coverage, or train without it and calibrate on other images by task.with_coverage."
    )
    if 2 * least > len(train):
        raise ValueError(few)
    # Rounded per class: a little more than needed.
    fraction = max(CALIBRATION, min((least + splits.task.size) / len(train), 0.5))
    part = grouped_part(splits, fraction, seed)
    # `apart` will leave out copies of those that are trained on.
    is_copy = np.isin(train.digests()[part], np.delete(train.digests(), part))
    if np.count_nonzero(~is_copy) < least:
        raise ValueError(few)
    _check_classes_left(splits, part, f"coverage={coverage}", "train without it")
    return without(splits, train, part)


def grouped_part(splits: Splits, fraction: float, seed: int) -> np.ndarray:
    """Return the indices of training images to hold out.

    A group is never on both sides; without groups, nor are copies of an image.
    """
    task, train = splits.task, splits.train
    targets = task.to_targets(train.labels())
    if train.groups is not None or not isinstance(train, IndexedSplit):
        return np.flatnonzero(task.split(targets, fraction, seed, train.groups))
    _, first, unit = np.unique(train.digests(), return_index=True, return_inverse=True)
    if len(first) == len(train):
        return np.flatnonzero(task.split(targets, fraction, seed))
    order = np.argsort(first)  # as many images as before, of fewer different ones
    fraction = min(fraction * len(train) / len(first), max(fraction, 0.5))
    is_held_out = task.split(targets[first[order]], fraction, seed)
    return np.flatnonzero(is_held_out[np.argsort(order)][unit])


def without(splits: Splits, train: IndexedSplit, part: np.ndarray) -> tuple[Splits, Split]:
    """Return the splits without the training images of the indices `part`, and those images."""
    rest = np.setdiff1d(np.arange(len(train)), part)
    others = {**splits.splits, "train": train.take(rest)}
    return replace(splits, splits=others), train.take(part)


def hold_out_to_choose(splits: Splits, seed: int = 0) -> tuple[Splits, Split | None]:
    """Keeps a fifth of the training images, at most `MOST_TO_CHOOSE`, from training.

    Every class gives about a fifth of its images and keeps at least one; two classes keep two,
    which a linear probe needs.

    Returns:
        The splits with the other training images, and the part; None where the images are records,
        which do not have fixed places, or too few.
    """
    train = splits.train
    if not isinstance(train, IndexedSplit):
        return splits, None
    labels = train.labels()
    size = min(round(TO_CHOOSE * len(labels)), MOST_TO_CHOOSE)
    sizes = np.bincount(labels, minlength=splits.num_classes)
    needed = np.ones_like(sizes)
    needed[np.argsort(-sizes, kind="stable")[:2]] = 2
    if train.groups is not None:
        grouped = grouped_part(splits, size / len(labels), seed)
        remaining = np.bincount(np.delete(labels, grouped), minlength=splits.num_classes)
        is_enough = (remaining >= np.minimum(needed, sizes)).all()
        return without(splits, train, grouped) if is_enough else (splits, None)
    most = np.minimum(np.ceil(TO_CHOOSE * sizes), np.maximum(sizes - needed, 0)).astype(int)
    part: list[int] = []
    for place in np.random.default_rng(seed).permutation(len(labels)).tolist():
        if most[labels[place]] and len(part) < size:
            most[labels[place]] -= 1
            part.append(place)
    if not part:
        return splits, None
    return without(splits, train, np.sort(part))


def without_copies(part: Split | None, train: IndexedSplit) -> Split | None:
    """Return the held-out images, without copies of images that are trained on."""
    if not isinstance(part, IndexedSplit):
        return part
    is_copy = np.isin(part.digests(), train.digests())
    return part.take(np.flatnonzero(~is_copy)) if is_copy.any() else part


def digests_of(*parts: Split | None) -> np.ndarray | None:
    """Return the digests of all images of these parts; None without any, or for records."""
    known = [part.digests() for part in parts if isinstance(part, IndexedSplit)]
    return np.concatenate(known) if known else None


def units_of(*parts: Any) -> np.ndarray | None:
    """Return which images answer for each other, as numbers: of one group, or copies; or None."""
    if all(part.groups is not None for part in parts):
        return np.unique(np.concatenate([part.groups for part in parts]), return_inverse=True)[1]
    digests = digests_of(*parts)
    units = None if digests is None else np.unique(digests, return_inverse=True)[1]
    return None if units is None or units.max(initial=-1) + 1 == len(units) else units


def looks_of(*parts: Split | None) -> list[np.ndarray]:
    """Return the looks by which images of these parts are known; none of too many to list."""
    known = [part for part in parts if isinstance(part, IndexedSplit)]
    if not known or sum(map(len, known)) > MOST_LISTED:
        return []
    looks = np.concatenate([part.looks() for part in known])
    return [distinct(looks[looks.any(-1)])]


def note_images(model: Any, splits: Splits) -> None:
    """Notes in a model that it is trained on and validated on these images.

    Of more than a model's file lists, their numbers alone; records are not compared.
    """
    if not isinstance(splits.train, IndexedSplit) or not hasattr(model, "seen_images"):
        return
    if len(splits.train) > MOST_LISTED:
        seen = SeenImages(counts={TRAINED: len(splits.train), VALIDATED: len(splits.val)})
    else:
        digests = {TRAINED: splits.train.digests(), VALIDATED: digests_of(splits.val)}
        seen = SeenImages.of(digests, looks_of(splits.train))
    model.seen_images = seen | model.seen_images


def _unseen(
    val: IndexedSplit, here: SeenImages, before: SeenImages, source: str
) -> tuple[Any, str]:
    """Return the validation images that nothing has seen, and a line on the others."""
    is_copy, is_known = (np.isin(seen.uses_of(val), USED) for seen in (here, before))
    is_seen = is_copy | is_known
    if not is_seen.any():
        return val, ""
    if is_seen.all():
        raise none_left((here | before).uses_of(val), f"the validation split of {source}")
    counts = {
        "are copies of training images": is_copy.sum(),
        "the weights it starts from, or its teacher, were made with": (is_known & ~is_copy).sum(),
    }
    clauses = [f"{count:,} that {cause}" for cause, count in counts.items() if count]
    line = f"left out of the validation images: {', '.join(clauses)}"
    if is_known.any():
        line += "; the seed= of a run on the same images holds out those that it held out"
    return val.take(np.flatnonzero(~is_seen)), line


def some_of(split: Split, most: int, of_every_class: bool = False) -> Split:
    """Return `most` images at equal distances of a longer split; all of records or fewer.

    Args:
        of_every_class: Whether the first image of each class that they miss is returned as well.
    """
    if len(split) <= most or not isinstance(split, IndexedSplit):
        return split
    places = np.linspace(0, len(split) - 1, most).astype(int)
    if of_every_class:
        classes, first = np.unique(split.labels(), return_index=True)
        places = np.union1d(places, first[~np.isin(classes, split.labels()[places])])
    return split.take(places)
