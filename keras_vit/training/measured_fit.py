"""`measured_fit`: the best head on frozen features, or fine-tuned weights where those win."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_vit._base.errors import check_above_zero
from keras_vit._base.files import write_text
from keras_vit.data import Split, Splits
from keras_vit.data.seen_images import TUNED, SeenImages
from keras_vit.data.sources.splits import IndexedSplit
from keras_vit.evaluation.features import features
from keras_vit.evaluation.temperature import divide_logits
from keras_vit.models.answers import task_of
from keras_vit.training.fitting import History, prepare_network
from keras_vit.training.head_choice import HeadChoice, choose_head
from keras_vit.training.measured_tuning import (
    EXPECTED_FROM,
    FINE_TUNED,
    Comparison,
    MeasuredChoice,
    Tuning,
    TuningPlan,
    compare_held_out,
    compare_in_folds,
    plan_tuning,
)
from keras_vit.training.recipes import Recipe
from keras_vit.training.refinement import set_head
from keras_vit.training.training_set import (
    digests_of,
    grouped_part,
    looks_of,
    some_of,
    units_of,
    without,
    without_copies,
)

MOST_COMPARED = 5000  # training images whose features the heads are fitted to
HELD_OUT = (200, 500)  # training images that decide, where folds take too long: fewest and most
STEP_COST = 3.5  # a training step beside the forward pass of its images, which is timed
SECONDS_PER_FIT = 15.0  # to compile, at the least


class Prepared(NamedTuple):
    """What `prepare` decides before anything is fitted.

    Attributes:
        plan: How fine-tuning is tried; None where the time does not allow any.
        splits: With the training images that are left.
        held_out: Images that compare fine-tuning with the head; None where folds do.
        refits: Whether a head that is kept is fitted to them as well.
    """

    plan: TuningPlan | None
    splits: Splits
    held_out: Split | None = None
    refits: bool = False


def prepare(
    model: Any,
    recipe: Recipe,
    splits: Splits,
    folder: str | os.PathLike[str],
    *,
    budget: float | None = None,
    held_out: Split | None = None,
    seed: int = 0,
) -> Prepared:
    """Plan how fine-tuning is tried, and hold training images out where the plan needs it.

    Args:
        model: The classifier, whose speed is measured for a budget.
        folder: Keeps what was measured, so that a resumed run has the same plan.
        budget: Seconds that fine-tuning may take, about; None for the same work on every machine
            (see `plan_tuning`).
        held_out: Images that are held out already.

    Raises:
        ValueError: The budget is not above 0, or images are records, which do not have fixed
            places.
    """
    train = splits.train
    if not isinstance(train, IndexedSplit):
        raise ValueError(
            f"{splits.source} has records, and heads are compared in folds of images with fixed "
            "places: give a folder of images, or fit with recipe='finetune_small'."
        )
    most = None
    if budget is not None:
        check_above_zero(budget=budget)
        most = passes_within(model, recipe, budget, Path(folder) / "plan.json")
    is_expected = len(train) >= EXPECTED_FROM * splits.num_classes
    plan = plan_tuning(len(train), recipe, most, held_out is None, is_expected)
    if plan is None or plan.folds or held_out is not None:
        return Prepared(plan, splits, held_out)
    if train.groups is not None and len(np.unique(train.groups)) < 2:
        return Prepared(None, splits)  # one group cannot be on both sides
    size = np.clip(0.1 * len(train), *HELD_OUT)
    part = grouped_part(splits, float(min(size / len(train), 0.2)), seed)
    rest, held = without(splits, train, part)
    remaining: Any = rest.train
    if set(np.unique(train.labels())) - set(np.unique(remaining.labels())):
        return Prepared(None, splits)  # a class would be left without an image
    return Prepared(plan, rest, without_copies(held, remaining), refits=True)


def passes_within(
    model: Any, recipe: Recipe, seconds: float, file: Path, step_cost: float = STEP_COST
) -> float:
    """Return how many images a time lets through training; once measured, at the same speed.

    Args:
        model: Whose pass forward is timed.
        recipe: With the batch and, where the model takes any, the size of the images.
        step_cost: Of a training step beside the pass forward of its images.
    """
    most = max(seconds - SECONDS_PER_FIT, 1e-3)
    if file.is_file():
        plan = json.loads(file.read_text("utf-8"))
        return float(plan["passes"] * (most / max(plan["seconds"] - SECONDS_PER_FIT, 1e-3)))
    shape = (recipe.batch_size, *(side or recipe.image_size for side in model.input_shape[1:]))
    images = np.zeros(shape, "float32")
    for _ in range(2):  # the first one compiles
        started = time.monotonic()
        model.predict_on_batch(images)
    per_image = step_cost * (time.monotonic() - started) / len(images)
    passes = most / per_image
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps({"seconds": seconds, "passes": passes}))
    return passes


def measured_fit(
    model: Any,
    recipe: Recipe,
    splits: Splits,
    folder: str | os.PathLike[str],
    *,
    budget: float | None = None,
    prepared: Prepared | None = None,
    seed: int = 0,
    cache_dir: str | os.PathLike[str] | None = None,
    print_fn: Callable[[str], None] = print,
    **options: Any,
) -> tuple[Any, MeasuredChoice, History]:
    """Fit what measurably suits the images: a head on frozen features, or all weights from it on.

    Class means, ridge and logistic regression are compared by their answers to training images
    that they were not fitted to. From the best of them all weights are fine-tuned. Their answers to
    unseen training images are compared with those of the head: they are kept where their log-loss
    is lower by more than a standard error; from ten images per class on, where it is lower. The
    validation images take no part.

    Args:
        model: A classifier of this package with pretrained weights.
        recipe: Of one fine-tuning, such as `keras_vit.recipes.get("finetune_measured")`.
        splits: What `keras_vit.data.load` returned; images, not records.
        folder: For checkpoints: the same call continues an interrupted one.
        budget: Seconds that fine-tuning may take, about; None for the same work on every machine.
        prepared: What `prepare` returned, where that was called before; else None.
        seed: Of folds, the order of images and augmentation.
        cache_dir: Folder of cached features; None caches nothing.
        print_fn: Prints a line.
        **options: Further arguments of `keras_vit.fit`.

    Returns:
        The model, what was compared and why it was kept, and the history of the last fine-tuning,
        empty where the head is kept.

    Raises:
        ValueError: The model is not a classifier, the images are records, or `budget` is out of
            range.

    Example:

    >>> import keras_vit, tempfile
    >>> from keras_vit.training.measured_fit import measured_fit
    >>> splits = keras_vit.data.load("digits")
    >>> few = splits.train.take(range(40))
    >>> model = keras_vit.VisionTransformer(patch_size=4, hidden_dim=16, depth=1, num_heads=2,
    ...     input_shape=(8, 8, 1), num_classes=10)
    >>> recipe = keras_vit.recipes.get("digits").scaled(steps=2)
    >>> splits = keras_vit.data.Splits("digits", splits.class_names, {"train": few, "val": few})
    >>> fitted, choice, _ = measured_fit(
    ...     model, recipe, splits, tempfile.mkdtemp(), print_fn=lambda line: None)
    >>> len(choice.candidates), choice.images > 0
    (6, True)
    """
    if not task_of(model).sums_to_one:
        raise ValueError(
            f"{model.name} answers {task_of(model).kind}, and heads are compared for one class per "
            "image: give keras_vit.fit the recipe finetune_small, or finetune_few."
        )
    if splits.task.changes_in_mirror:  # the mean of both images would be that of two classes
        recipe = replace(recipe, views="one")
    if prepared is None:
        prepared = prepare(model, recipe, splits, folder, budget=budget, seed=seed)
    plan, splits, held_out, refits = prepared
    prepare_network(model, recipe, splits)
    # The answers may be of ten views; heads and weights are compared by two.
    views, recipe = recipe.views, replace(recipe, views="one" if recipe.views == "one" else "flip")
    if held_out is not None:
        held = SeenImages.of({TUNED: digests_of(held_out)}, looks_of(held_out))
        model.seen_images = held | model.seen_images
    if recipe.views != "one":
        model.eval_transform = replace(model.eval_transform, views=recipe.views)
    train: Any = some_of(splits.train, MOST_COMPARED, of_every_class=True)
    x, y = _features(model, train, recipe.views, cache_dir), train.labels()
    choice = choose_head(
        x, y, splits.num_classes, groups=units_of(train), balance=recipe.balance, seed=seed
    )
    print_fn(f"on frozen features, {choice.reason}")
    every = {"seed": seed, "progress": False, **options}
    head, comparison, history = choice.fit(x, y), None, History()
    tuned: Any = None
    unseen = None if held_out is None else _features(model, held_out, recipe.views, cache_dir)
    if plan is not None and choice.candidates and (held_out is None or len(held_out)):
        tuning = Tuning(model, recipe, plan, Path(folder), every, print_fn)
        if held_out is None:
            comparison = compare_in_folds(choice, tuning, x, splits, seed)
            if comparison is not None and comparison.is_kept:
                tuned, history = tuning.run(head, splits, "all images")
        else:
            tuned, history = tuning.run(head, splits, "without those held out")
            comparison = compare_held_out(choice, tuning, head, tuned, held_out, unseen)
    result = _result(choice, comparison, plan)
    if comparison is not None and comparison.is_kept:
        divide_logits(tuned, comparison.temperature)
    else:
        if held_out is not None and refits:
            head = choice.fit(np.concatenate([x, unseen]), np.append(y, held_out.labels()))
        set_head(model, head)
        tuned, history = model, {}
    if views != "one":
        tuned.eval_transform = replace(tuned.eval_transform, views=views)
    return tuned, result, history


def _features(model: Any, split: Any, views: str, cache_dir: Any) -> np.ndarray:
    """Return the features of a split; of several views, the mean with the mirror images'."""
    x = features(model, split, cache_dir)[0]
    if views == "one":
        return x
    return (x + features(model, split, cache_dir, mirrored=True)[0]) / 2


def _result(
    choice: HeadChoice, comparison: Comparison | None, plan: TuningPlan | None
) -> MeasuredChoice:
    """Return the table of the heads and the fine-tuned weights, and what follows from it."""
    if comparison is None:
        reason = choice.reason.partition(": ")[2] or choice.reason
        return MeasuredChoice(
            choice.method, reason, choice.measure, choice.candidates, 0, "fine-tuning"
        )
    assert plan is not None
    return MeasuredChoice(
        FINE_TUNED if comparison.is_kept else choice.method,
        comparison.reason,
        choice.measure,
        (*choice.candidates, *comparison.candidates),
        comparison.images,
        plan.left_out,
    )
