"""From a compiled recipe and splits to a trained model: the one place that calls `fit`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras

from keras_vit import data
from keras_vit.evaluation.prediction import preparation
from keras_vit.training.callbacks import watching
from keras_vit.training.compiling import compile_model
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
    say: Callable[[str], None] = print,
    identity: Any = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    **watch: Any,
) -> History:
    """Trains on `splits.train` as the recipe says, watching `splits.val`.

    A run that was killed goes on from `folder` when it is called again with the same arguments,
    and ends with the same weights.

    Args:
        model: An image classifier, not compiled yet. Any Keras model that gives logits.
        recipe: A row of `keras_vit.recipes`.
        splits: Of `keras_vit.data.load`.
        folder: For checkpoints, `history.csv` and the best weights; see `watching`.
        seed: Of order and augmentation.
        say: Where lines for a reader go.
        identity: What else must agree for two runs to be one, as JSON takes it.
        callbacks: More of them.
        **watch: Options of `watching`.

    Returns:
        The history: name of a figure to its values by epoch.

    Raises:
        FloatingPointError: The loss stopped being finite; the message says at which step.
    """
    images = len(splits.train)
    batch_size = min(recipe.batch_size // recipe.accumulation, images)
    per_epoch = -(-images // batch_size)
    updates = recipe.total_steps(images)
    steps = updates * recipe.accumulation
    epochs = -(-steps // per_epoch)
    per_epoch = -(-steps // epochs)
    compile_model(model, recipe, updates)
    say(
        f"{model.name}: {model.count_params():,} parameters, {epochs} epochs of {per_epoch} "
        f"steps of {batch_size} images"
    )
    prepared = preparation(model)
    classes = len(splits.class_names)

    def batches(start_step: int) -> Any:
        examples = data.pipeline(
            splits.train,
            recipe.image_size,
            batch_size,
            training=True,
            seed=seed,
            augment=replace(recipe.augmentation, mixup=recipe.mixup, cutmix=recipe.cutmix),
            channels=prepared["channels"],
            num_classes=classes,
            cache=None,
            repeat=True,
            start_step=start_step,
        )
        return in_data_format(model, examples)

    validation = data.pipeline(
        splits.val,
        **prepared,
        batch_size=batch_size,
        num_classes=classes,
        cache=None,
    )
    run = ResumableRun(folder / "checkpoints", recipe=identity, say=say)
    history = run.fit(
        model,
        batches,
        epochs,
        per_epoch,
        callbacks=[*watching(folder, images_per_step=batch_size, **watch), *callbacks],
        validation_data=in_data_format(model, validation),
        verbose=0,  # Progress, among the callbacks, says more
    ).history
    return {name: [float(value) for value in values] for name, values in history.items()}


def in_data_format(model: Any, batches: Any) -> Any:
    """Batches of `data.pipeline`, whose channels are last, as a `channels_first` model takes them.

    Example:

    >>> import keras_vit
    >>> from keras_vit.training.fitting import in_data_format
    >>> model = keras_vit.VisionTransformer(patch_size=4, hidden_dim=8, depth=1, num_heads=1,
    ...     input_shape=(1, 8, 8), data_format="channels_first")
    >>> batches = keras_vit.data.pipeline(keras_vit.data.load("digits").val, 8, 32, channels=1)
    >>> tuple(in_data_format(model, batches).element_spec[0].shape)
    (None, 1, 8, 8)
    """
    if getattr(model, "data_format", "channels_last") == "channels_last":
        return batches
    import tensorflow as tf

    return batches.map(lambda images, labels: (tf.transpose(images, (0, 3, 1, 2)), labels))
