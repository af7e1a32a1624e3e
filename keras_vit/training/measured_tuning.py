"""Fine-tuning from the best head on frozen features, and whether it is kept.

    HeadChoice ─► plan_tuning ─► compare: head and fine-tuned weights answer the same unseen images
                                  └──► kept: tune on all; else the head stays

Of a few images per class, fine-tuning is kept only where it wins by a standard error; of more,
where it usually does, wherever its log-loss is the lower one. What is finished lies in files, so
that a run that was killed goes on from there.
"""

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._base.errors import check_above_zero, check_positive, counted
from keras_vit._base.files import atomic_write
from keras_vit.data import Split, Splits
from keras_vit.evaluation.linear_heads import Head, stratified_folds
from keras_vit.evaluation.prediction import predict_split
from keras_vit.training.callbacks import Progress
from keras_vit.training.fitting import History, fit, images_digest
from keras_vit.training.head_choice import (
    Candidate,
    HeadChoice,
    groups_of,
    is_known,
    judge,
    mean_and_error,
)
from keras_vit.training.recipes import Recipe
from keras_vit.training.refinement import set_head
from keras_vit.training.run_identity import check_identity, to_json
from keras_vit.training.training_set import units_of, without

FINE_TUNED = "fine-tuned"
EXPECTED_FROM = 10  # images per class; docs/accuracy.md has what was measured
FOLDS, FEWER_FOLDS = 3, 2  # two where fine-tuning is expected to win: half the time
FEW = 1000  # training images below which folds answer all of them
SECONDS_BETWEEN_LINES = 60
MOST_PASSES = 20_000  # of images through training, for folds and several rates without a budget


@dataclass(frozen=True)
class TuningPlan:
    """How fine-tuning is tried.

    Attributes:
        folds: Folds of training images that compare it with the head; 0 for a part that is held
            out.
        passes: Images that pass through training, in all.
        is_expected: Whether fine-tuning usually wins with so many images per class.
    """

    folds: int
    passes: int
    left_out: str = ""
    is_expected: bool = False


def plan_tuning(
    images: int,
    recipe: Recipe,
    most_passes: float | None = None,
    can_fold: bool = True,
    is_expected: bool = False,
) -> TuningPlan | None:
    """Return the most thorough plan within a number of passes; None where not even one is.

    Args:
        recipe: Of one fine-tuning.
        most_passes: Images that may pass through training, in all. None for `MOST_PASSES`, and one
            fine-tuning whatever it takes.
        can_fold: False where images are held out already.
        is_expected: As in `TuningPlan`.

    Raises:
        ValueError: A number is not above 0.

    >>> from keras_vit.training import recipes
    >>> recipe = recipes.get("finetune_measured")
    >>> plan_tuning(20, recipe).folds, plan_tuning(20, recipe, 700).left_out
    (3, 'folds (a part is held out)')
    """
    check_positive(images=images)
    most = MOST_PASSES if most_passes is None else most_passes
    check_above_zero(most_passes=most)
    once = recipe.steps * min(recipe.batch_size, images) or recipe.epochs * images
    folds = (FEWER_FOLDS if is_expected else FOLDS) if can_fold and images < FEW else 0
    # n folds without a part each, and one of the whole, have n times all images.
    plan = TuningPlan(folds, once * max(folds, 1), is_expected=is_expected)
    if folds and plan.passes > most:
        plan = TuningPlan(0, once, "folds (a part is held out)", is_expected)
    return plan if plan.passes <= most or most_passes is None else None


@dataclass(frozen=True)
class MeasuredChoice:
    """What was kept, and the table that it follows from.

    Attributes:
        images: How many training images compared fine-tuning with the head; 0 for none.
        left_out: What was not tried for lack of time, as a clause; "" if nothing.
    """

    selected: str
    reason: str
    measure: str
    candidates: tuple[Candidate, ...]
    images: int = 0
    left_out: str = ""

    def __str__(self) -> str:
        rows = [("", self.measure.replace("_", " "), "log-loss", "setting"), *self.rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        lines += [f"left out: {self.left_out}"] if self.left_out else []
        return "\n".join([*lines, f"kept: {self.selected}, as {self.reason}"])

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return the cells of the table as text: name, score, log-loss, setting or remark."""
        return [
            (
                row.name,
                f"{row.score:.2%}" + ("" if row.error is None else f" ± {100 * row.error:.2f}"),
                f"{row.log_loss:.3f}",
                row.note or row.setting,
            )
            for row in self.candidates
        ]


@dataclass(frozen=True)
class Tuning:
    """One way of fine-tuning: everything but the images and the head.

    Attributes:
        model: With the pretrained weights; it stays as it is.
        recipe: Of one fine-tuning.
        plan: Its `is_expected` says which way a tie is decided.
        folder: For checkpoints, and what is finished.
    """

    model: Any
    recipe: Recipe
    plan: TuningPlan
    folder: Path
    options: Mapping[str, Any]
    print_fn: Callable[[str], None] = print

    def run(self, head: Head, splits: Splits, name: str) -> tuple[Any, History]:
        """Return a model that is fine-tuned from a head, and the history."""
        folder, model = self.folder / name, self.model.copy()
        file = folder / "tuned.npz"
        begun = ", goes on from its checkpoint" if any(folder.glob("checkpoints/*")) else ""
        begun = ", finished before" if file.is_file() else begun
        self.print_fn(f"fine-tuning, {name}: {counted(len(splits.train), 'image')}{begun}")
        same = {key: self.options.get(key) for key in ("seed", "identity", "augment")}
        same |= {"recipe": self.recipe, "images_sha256": images_digest(splits)}
        made_by = json.loads(to_json(same))
        if not file.is_file():
            set_head(model, head)
            # Of several short trainings, a line each is enough, and of long ones one per minute.
            progress = Progress(self.recipe.batch_size, _each_minute(self.print_fn))
            options = {"print_fn": lambda _: None, "monitor": None, **self.options}
            options["callbacks"] = [*options.get("callbacks", ()), progress]
            history = fit(model, self.recipe, splits, folder, **options)
            weights = [np.asarray(array) for array in model.get_weights()]
            with atomic_write(file) as temporary:
                texts = [np.array(json.dumps(value)) for value in (history, made_by)]
                np.savez(temporary, *weights, history=texts[0], made_by=texts[1])
            shutil.rmtree(folder / "checkpoints")  # three times the weights
        with np.load(file, allow_pickle=False) as stored:
            # With other images, folds would be answered by weights that were trained on them.
            check_identity(file, json.loads(str(stored.get("made_by", "{}"))), made_by)
            plain = self.model.copy()
            plain.set_weights([stored[f"arr_{i}"] for i in range(len(plain.get_weights()))])
            return plain, json.loads(str(stored["history"]))


def _each_minute(print_fn: Callable[[str], None]) -> Callable[[str], None]:
    """Return a `print_fn` that leaves lines out where the last one is less than a minute ago."""
    shown = time.monotonic()

    def show(line: str) -> None:
        nonlocal shown
        if time.monotonic() - shown >= SECONDS_BETWEEN_LINES:
            shown = time.monotonic()
            print_fn(line)

    return show


@dataclass(frozen=True)
class Comparison:
    """Fine-tuned weights beside the head that they started from, on the same unseen images.

    Attributes:
        gain: Mean of the differences in log-loss, above 0 where fine-tuning is better.
        error: Standard error of that mean.
        temperature: That suits the fine-tuned weights.
        is_expected: As in `TuningPlan`.
    """

    candidates: tuple[Candidate, Candidate]
    gain: float
    error: float
    images: int
    temperature: float
    is_expected: bool = False

    @property
    def is_kept(self) -> bool:
        """Whether fine-tuning wins: by more than a standard error where that is not expected."""
        return self.gain > (0 if self.is_expected else self.error)

    @property
    def is_worse(self) -> bool:
        """Whether it loses by more than that, so that further folds are not worth their time."""
        return self.gain < -self.error

    @property
    def reason(self) -> str:
        """Why the winner is kept, as a clause."""
        verb = "wins" if self.is_kept else "does not win"
        by = "" if self.is_expected else " by more than a standard error"
        side = "lower" if self.gain > 0 else "higher"
        return (
            f"fine-tuning {verb}{by} on "
            f"{counted(self.images, 'unseen training image')}: its log-loss is "
            f"{abs(self.gain):.3f} ± {self.error:.3f} {side}"
        )


def compare(
    choice: HeadChoice,
    tuning: Tuning,
    labels: np.ndarray,
    frozen: np.ndarray,
    tuned: np.ndarray,
    groups: Any = None,
    known: np.ndarray | None = None,
) -> Comparison:
    """Compare scores `(n, classes)` of a head and of fine-tuned weights for the same images.

    Args:
        known: Whether both were fitted to images of each image's class, `(n,)`; None for all.
    """
    counts, known = np.bincount(labels)[labels], np.ones(len(labels)) if known is None else known
    weights = known / counts if choice.measure == "balanced_accuracy" else known
    weights, units = weights / weights.mean(), groups_of(labels, groups)
    rate = f"learning rate {tuning.recipe.learning_rate:g}"
    rows, answers, temperature = [], [], 1.0
    for name, setting, scores in (
        (f"{choice.method}, same images", "", frozen),
        (FINE_TUNED, rate, tuned),
    ):
        temperature, answer = judge(labels, scores, weights)
        score, error = mean_and_error(answer.right, weights, units)
        loss = float(np.average(answer.loss, weights=weights))
        rows.append(Candidate(name, setting, score, error if np.isfinite(error) else None, loss))
        answers.append(answer.loss)
    gain, error = mean_and_error(answers[0] - answers[1], weights, units)
    sides = (rows[0], rows[1])
    images = int(np.count_nonzero(known))
    return Comparison(sides, gain, error, images, temperature, tuning.plan.is_expected)


def compare_in_folds(
    choice: HeadChoice, tuning: Tuning, features: np.ndarray, splits: Splits, seed: int = 0
) -> Comparison | None:
    """Compare on every training image, by heads and weights of the other folds.

    Where the first folds already speak against fine-tuning, the others are left out. An image
    whose class the other folds do not have is never answered, and does not count; None if all are.

    Args:
        features: Of the training images, `(n, dimension)`.
        splits: Their `train` is a split with fixed places.
    """
    train: Any = splits.train
    labels, units = train.labels(), units_of(train)
    folds = stratified_folds(labels, units, seed, tuning.plan.folds)
    frozen = np.zeros((len(labels), choice.classes))
    tuned, result, known = frozen.copy(), None, is_known(labels, folds)
    for fold in range(folds.max() + 1):
        rows, seen = np.flatnonzero(folds == fold), np.flatnonzero(folds <= fold)
        if not known[rows].any():
            continue
        others, part = without(splits, train, rows)
        rest = np.flatnonzero(folds != fold)
        head = choice.fit(features[rest], labels[rest])
        frozen[rows] = head.scores(features[rows])
        others = replace(others, splits={**others.splits, "val": part})
        model, _ = tuning.run(head, others, f"fold {fold + 1} of {folds.max() + 1}")
        _, tuned[rows] = predict_split(model, part, tuning.recipe.batch_size)
        groups = None if units is None else units[seen]
        sides = frozen[seen], tuned[seen]
        result = compare(choice, tuning, labels[seen], *sides, groups, known[seen])
        if result.is_worse:
            break
    return result


def compare_held_out(
    choice: HeadChoice, tuning: Tuning, head: Head, tuned: Any, held_out: Split, features: Any
) -> Comparison:
    """Compare on images that are held out, by a head and by weights fine-tuned from it.

    Args:
        tuning: How `tuned` was made.
        head: Fitted without these images.
        tuned: The model that was fine-tuned from it.
        features: Theirs, `(n, dimension)`.
    """
    labels, scores = predict_split(tuned, held_out, tuning.recipe.batch_size)
    return compare(choice, tuning, labels, head.scores(features), scores, units_of(held_out))
