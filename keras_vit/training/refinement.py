"""The steps of a recipe before and after `fit`: a probe, an average, a larger size, a temperature.

hold_out ─► start_from_probe ─► fit ─► refine: WiSE-FT ─► eval_size ─► views ─► temperature
"""

from dataclasses import replace
from typing import Any

import numpy as np

from keras_vit import evaluation
from keras_vit._base.errors import listed, printable
from keras_vit.data import Split, Splits
from keras_vit.data.sources.splits import IndexedSplit
from keras_vit.evaluation.linear_heads import Head
from keras_vit.evaluation.prediction import MOST_SCORE_BYTES, predict_split
from keras_vit.evaluation.task_probe import TaskProbe
from keras_vit.models import MLPMixer
from keras_vit.models.answers import answers_of, task_of
from keras_vit.models.geometry import image_shape
from keras_vit.models.head import DENSE_HEADS
from keras_vit.tasks.conformal import check_coverage, fewest_examples
from keras_vit.training.averaging import toward_start
from keras_vit.training.recipes import Recipe

CALIBRATION = 0.1  # of the training images, for prediction sets, intervals and thresholds
# Below this, a temperature says more about the few images than about the model.
LEAST_HELD_OUT = 20


def hold_out(splits: Splits, fraction: float, seed: int = 0) -> tuple[Splits, Split | None]:
    """Keeps a part of the training images from training, of each class in proportion.

    Images of one group, by the column `group` of a table of labels, stay on one side.

    Args:
        splits: What `keras_vit.data.load` returned.
        fraction: The part, from 0 (none) to below 1.
        seed: Decides which images.

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
    task, targets = splits.task, splits.task.to_targets(train.labels())
    count, part = round(fraction * len(train)), grouped_part(splits, fraction, seed)
    if task.sums_to_one and count < LEAST_HELD_OUT:
        raise ValueError(
            f"held_out={fraction} of {len(train)} training images is {count}, and a "
            f"temperature needs at least {LEAST_HELD_OUT}: give more images, or held_out=0."
        )
    before, after = task.counts(targets), task.counts(np.delete(targets, part, axis=0))
    if before is not None and (missing := np.flatnonzero((before > 0) & (after == 0))).size:
        names = listed([task.shown_names[place] for place in missing])
        raise ValueError(
            f"held_out={fraction} holds out the groups that have all training images of "
            f"{printable(names)}: give another seed= or held_out=0."
        )
    return without(splits, train, part)


def hold_out_for_coverage(splits: Splits, coverage: float, seed: int = 0) -> tuple[Splits, Split]:
    """Keeps a tenth of the training images from training, or as many more as a coverage needs.

    Nothing else may be decided on them: thresholds of images that have already set the temperature
    or chosen the weights would promise more than they hold.

    Args:
        splits: What `keras_vit.data.load` returned.
        coverage: Of the sets or intervals, in (0, 1).
        seed: Decides which images.

    Returns:
        The splits with the other training images, and the part.

    Raises:
        ValueError: The images are records, or too few.
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
    if len(part) < least:
        raise ValueError(few)
    return without(splits, train, part)


def grouped_part(splits: Splits, fraction: float, seed: int) -> np.ndarray:
    """Return the indices of training images to hold out; a group is never on both sides."""
    task, train = splits.task, splits.train
    targets = task.to_targets(train.labels())
    return np.flatnonzero(task.split(targets, fraction, seed, train.groups))


def without(splits: Splits, train: IndexedSplit, part: np.ndarray) -> tuple[Splits, Split]:
    """Return the splits without the training images of the indices `part`, and those images."""
    rest = np.setdiff1d(np.arange(len(train)), part)
    others = {**splits.splits, "train": train.take(rest)}
    return replace(splits, splits=others), train.take(part)


def some_images(held_out: Split) -> Split:
    """Return at most as many images as keep the score matrix within 64 MiB."""
    most = max(MOST_SCORE_BYTES // (4 * held_out.num_classes), LEAST_HELD_OUT)
    return some_of(held_out, most)


def some_of(split: Split, most: int) -> Split:
    """Return `most` images at equal distances of a longer split; all of records or fewer."""
    if len(split) <= most or not isinstance(split, IndexedSplit):
        return split
    return split.take(np.linspace(0, len(split) - 1, most).astype(int))


def set_head(model: Any, probe: evaluation.LinearProbe | TaskProbe | Head) -> None:
    """Makes a linear probe the head of the model, also of one with two."""
    # Beside a second head, which stays zero, the mean of both is half of this one.
    number = sum(layer.name in DENSE_HEADS for layer in model.layers)
    model.get_layer("head").set_weights([number * probe.kernel, number * probe.bias])


def refine(
    model: Any,
    recipe: Recipe,
    start: list[np.ndarray] | None,
    held_out: Split | None,
    batch_size: int = 32,
) -> tuple[Any, dict[str, Any]]:
    """Apply what follows training: the average with the start, final size, views, temperature.

    Args:
        model: The trained model.
        recipe: Its `tuned_share`, `eval_size` and `views` are applied.
        start: The weights that training started from, for a `tuned_share` below 1.
        held_out: Images for the temperature, or None. Of a task without any, as of pixels or
            grades, they are not predicted.
        batch_size: Images per batch of the prediction on them.

    Returns:
        The model, and facts for the report: `held_out`, the number of images that the `temperature`
        of a classifier, or else the thresholds or intervals of the model's task, were fitted on.
    """
    if start is not None and recipe.tuned_share < 1:
        model.set_weights(toward_start(start, model.get_weights(), recipe.tuned_share))
    if recipe.eval_size and not isinstance(model, MLPMixer):  # which has one size
        size = (recipe.eval_size, recipe.eval_size)
        shape = image_shape(size, model.channels, model.data_format)
        model = model.with_input_shape(shape)
    if recipe.views != "one":
        model.eval_transform = replace(model.eval_transform, views=recipe.views)
    if held_out is None or not (task := task_of(model)).learns_from_held_out:
        return model, {}
    held_out = some_images(held_out)
    labels, scores = predict_split(model, held_out, batch_size)
    if not task.sums_to_one:
        model.task = task.calibrated(task.to_targets(labels), answers_of(model, scores))
        return model, {"held_out": len(held_out)}
    temperature = evaluation.fit_temperature(labels, scores)
    evaluation.divide_logits(model, temperature)
    return model, {"temperature": temperature, "held_out": len(held_out)}
