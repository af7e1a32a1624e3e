"""`fit`: trains a model by a recipe on the splits of a data set, and can resume."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras

from keras_vit import data
from keras_vit.evaluation.prediction import pipeline_arguments, to_data_format
from keras_vit.training.callbacks import default_callbacks
from keras_vit.training.compile_model import compile_model
from keras_vit.training.recipes import Recipe
from keras_vit.training.resume import ResumableRun

History = dict[str, list[float]]


def fit(
    model: Any,
    recipe: Recipe,
    splits: data.Splits,
    folder: Path,
    *,
    seed: int = 0,
    print_fn: Callable[[str], None] = print,
    identity: Any = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    **callback_options: Any,
) -> History:
    """Trains on `splits.train` by a recipe, and validates on `splits.val`.

    An interrupted run continues from `folder` when it is called again with the same arguments, and
    ends with the same weights.

    Args:
        model: An image classifier, not compiled yet: any Keras model that returns logits.
        recipe: A recipe of `keras_vit.recipes`.
        splits: What `keras_vit.data.load` returned.
        folder: For checkpoints, `history.csv` and the best model; see `default_callbacks`.
        seed: Seed of the order of images and of augmentation.
        print_fn: Prints a line.
        identity: What else must agree for a checkpoint to belong to the run, as JSON values.
        callbacks: Further callbacks.
        **callback_options: Options of `default_callbacks`.

    Returns:
        The history: from the name of a metric to its values by epoch.

    Raises:
        FloatingPointError: The loss is not finite; the message names the step.
    """
    images = len(splits.train)
    batch_size = min(recipe.batch_size // recipe.accumulation, images)
    updates = recipe.total_steps(images)
    steps = updates * recipe.accumulation
    epochs = math.ceil(steps / math.ceil(images / batch_size))
    per_epoch = math.ceil(steps / epochs)
    compile_model(model, recipe, updates)
    print_fn(
        f"{model.name}: {model.count_params():,} parameters, {epochs} epochs of {per_epoch} "
        f"steps of {batch_size} images"
    )
    run = ResumableRun(folder / "checkpoints", recipe=identity, print_fn=print_fn)
    history = run.fit(
        model,
        _training_batches(model, recipe, splits.train, batch_size, seed),
        epochs,
        per_epoch,
        callbacks=[*default_callbacks(folder, batch_size, **callback_options), *callbacks],
        validation_data=_validation_batches(model, splits.val, batch_size),
        verbose=0,  # `Progress` is one of the callbacks
    ).history
    return {name: [float(value) for value in values] for name, values in history.items()}


def _training_batches(
    model: Any, recipe: Recipe, split: data.Split, batch_size: int, seed: int
) -> Callable[[int], Any]:
    """The augmented batches from a step on, as `ResumableRun.fit` takes them."""

    def batches(start_step: int) -> Any:
        examples = data.pipeline(
            split,
            recipe.image_size,
            batch_size,
            training=True,
            seed=seed,
            augment=recipe.augment,
            channels=pipeline_arguments(model)["channels"],
            num_classes=len(split.class_names),
            cache=None,
            repeat=True,
            start_step=start_step,
        )
        return to_data_format(model, examples)

    return batches


def _validation_batches(model: Any, split: data.Split, batch_size: int) -> Any:
    batches = data.pipeline(
        split,
        **pipeline_arguments(model),
        batch_size=batch_size,
        num_classes=len(split.class_names),
        cache=None,
    )
    return to_data_format(model, batches)
