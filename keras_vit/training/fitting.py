"""`fit`: trains a model by a recipe on the splits of a data set, and can resume."""

import functools
import hashlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import keras
import numpy as np

from keras_vit import data
from keras_vit._base.errors import as_pair, counted, listed, printable
from keras_vit.data.augment.augment_layers import describe, describe_augment, mixes, resolve_augment
from keras_vit.data.seen_images import MOST_LISTED
from keras_vit.data.sources.cached_files import note_of_cache
from keras_vit.data.sources.splits import IndexedSplit
from keras_vit.evaluation.prediction import pipeline_arguments, size_and_channels
from keras_vit.models.answers import task_of
from keras_vit.models.layer_state import weights_digest
from keras_vit.tasks import Task
from keras_vit.tasks.balance import positive_weights, sampling_rates
from keras_vit.training import recipes
from keras_vit.training.callbacks import default_callbacks
from keras_vit.training.compilation import check_task, compile_model, loss_name, set_head_bias
from keras_vit.training.lora import freeze_backbone, set_trainable_layers, trainable_layers
from keras_vit.training.recipes import Recipe
from keras_vit.training.resume import CHECKPOINT_SECONDS, ResumableRun
from keras_vit.training.training_set import note_images, without_copies

# Training images are few where there are this many times more to validate on.
FEW = 4
VALIDATED_PART = 0.2  # of arrays

# Fields of a recipe for what comes before and after `fit`, where they do not ask for anything.
AROUND_FIT: dict[str, Any] = {"probe_first": False, "tuned_share": 1.0}
AROUND_FIT |= {"eval_size": 0, "views": "one", "held_out": 0.0}

# Numbers of a recipe that a compiled model does not show.
UNSEEN = ("image_size", "head_bias", "rho", "rho_min", "alpha")

History = dict[str, list[float]]
Fit = TypeVar("Fit", bound=Callable[..., History])


def _thawed_again(fit: Fit) -> Fit:
    """Let `fit` leave the layers as trainable as they were, in `best.keras`, too."""

    @functools.wraps(fit)
    def wrapped(model: Any, recipe: Recipe | str, *arguments: Any, **options: Any) -> History:
        recipe = recipes.get(recipe)
        before = trainable_layers(getattr(model, "student", model)) if recipe.frozen else []
        _note_left_out(recipe, options.get("print_fn", print))
        try:
            return fit(model, recipe, *arguments, **options, unfrozen=before)
        finally:
            set_trainable_layers(before)

    return cast(Fit, wrapped)  # whose arguments editors show


@_thawed_again
def fit(
    model: Any,
    recipe: Recipe | str,
    splits: data.Splits | str | os.PathLike[str] | tuple[Any, Any],
    folder: str | os.PathLike[str],
    *,
    seed: int = 0,
    print_fn: Callable[[str], None] = print,
    identity: Any = None,
    augment: Any = None,
    cache: int | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    **callback_options: Any,
) -> History:
    """Trains on `splits.train` by a recipe, and validates on `splits.val`.

    An interrupted run continues from `folder` when it is called again with the same arguments, and
    ends with the same weights.

    Args:
        model: An image classifier, not compiled yet: any Keras model that returns logits, or a
            `Distillation`. Where its image size is fixed, it need not be the recipe's.
        recipe: A recipe of `keras_vit.recipes`, or its name. Where there are more than four times
            as many images in `val` as in `train`, several of its epochs follow each other without
            validation.
            What it has for before and after training is left out, and a line names it:
            `probe_first`, `tuned_share`, `eval_size`, `views` and `held_out`, which
            `training.refinement` (`set_head`, `refine`) and `measured_fit` apply. Layers that it
            freezes are thawed at the end, and in `best.keras`.
        splits: What `keras_vit.data.load` returned; or a folder of photographs, or the name of a
            data set, which it loads; or arrays `(images, labels)`, uint8
            `(n, height, width, 1 or 3)` and targets of the model's task: a fifth validates.
        folder: For checkpoints, `history.csv` and the best model; see `default_callbacks`.
        seed: Seed of the order of images and of augmentation.
        print_fn: Prints a line.
        identity: What else must agree for a checkpoint to belong to the run, as JSON values.
        augment: As in `keras_vit.data.pipeline`, in place of the recipe's augmentation, Mixup and
            CutMix; layers follow the recipe's crop. None for the recipe's.
        cache: Keep the training photographs decoded on the disk, with a shorter side of at most so
            many pixels, the image size or more; see `keras_vit.data.cached_photographs`. None
            decodes them in every epoch, unless all fit in 2 GiB of memory.
        checkpoint_seconds: Time between checkpoints; see `ResumableRun`.
        callbacks: Further callbacks.
        **callback_options: Options of `default_callbacks`.

    Returns:
        The history, from the name of a metric to its values by epoch.

    Raises:
        FloatingPointError: The loss is not finite; the message names the step.
        ValueError: The model answers something else than the labels mean, by kind, names or scale;
            `augment` is unknown, or does not suit the images; `recipe.balance` does not
            suit the task or the source of the images; `cache` is below the image size, or the
            images are not photographs in files; or `checkpoint_seconds` is below 0.

    Example:

    >>> import keras_vit, tempfile
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=4, hidden_dim=16, depth=1, num_heads=2, num_classes=10,
    ...     input_shape=(8, 8, 1), name="small")
    >>> recipe = keras_vit.recipes.get("digits").scaled(steps=4)
    >>> folder = tempfile.mkdtemp()
    >>> history = keras_vit.fit(model, recipe, "digits", folder)  # doctest: +ELLIPSIS
    small: 3,850 parameters, 1 epoch of 4 steps of 64 images
    epoch 1/1  step 4/4  ...
    >>> keras_vit.load(folder + "/best.keras").num_classes
    10
    """
    splits = _loaded(splits, model, seed)
    recipe, batch_size, updates, (epochs, per_epoch) = _in_parts(recipes.get(recipe), splits)
    settings, layers = augmentation_of(augment, recipe, splits.task, print_fn, splits.train.bands)
    mixed = settings.mixup or settings.cutmix or any(map(mixes, layers))
    network, labels = getattr(model, "student", model), splits.train.labels()
    _evaluate_as_trained(network, augment, splits.task)
    prepare_network(network, recipe, splits, getattr(model, "teacher", None))
    compile_model(model, recipe, updates, targets=labels)
    # A `Distillation` takes images at the teacher's size where that is the larger one.
    image_size = recipe.image_size if None in model.input_shape[1:] else size_and_channels(model)[0]
    print_fn(
        f"{network.name}: {network.count_params():,} parameters, {counted(epochs, 'epoch')} of "
        f"{counted(per_epoch, 'step')} of {counted(batch_size, 'image')}"
    )

    if augment is not None:
        print_fn(f"augment: {describe_augment(settings, layers)}")
    identity = _identity(identity, model, recipe, seed, settings, layers)
    train, identity = _resampled(splits, recipe, identity)
    train, identity = _cached(train, cache, model, image_size, identity, print_fn)

    def batches(split: data.Split, **options: Any) -> Any:
        common = {"cache": None, "batch_size": batch_size} | pipeline_arguments(model)
        return data.pipeline(split, **common | options)

    def training_batches(start_step: int) -> Any:
        return batches(
            train,
            image_size=image_size,
            training=True,
            seed=seed,
            augment=[settings, *layers],
            # Mixed labels are rows. Others stay integers: the loss makes rows of a batch, where a
            # queue of batches of 4,096 rows of 21,843 classes would hold 358 MB in each.
            num_classes=splits.num_classes if mixed and labels.ndim == 1 else None,
            repeat=True,
            start_step=start_step,
        )

    run = ResumableRun(
        Path(folder) / "checkpoints", checkpoint_seconds, recipe=identity, print_fn=print_fn
    )
    history = run.fit(
        model,
        training_batches,
        epochs,
        per_epoch,
        callbacks=[*default_callbacks(folder, batch_size, **callback_options), *callbacks],
        validation_data=batches(splits.val),
        verbose=0,  # `Progress` is one of the callbacks
    ).history
    return {name: [float(value) for value in values] for name, values in history.items()}


def _note_left_out(recipe: Recipe, print_fn: Callable[[str], None]) -> None:
    if around := [name for name, none in AROUND_FIT.items() if getattr(recipe, name) != none]:
        print_fn(f"fit leaves out the recipe's {listed(around)}: see training.refinement")


def _loaded(splits: Any, model: Any, seed: int) -> data.Splits:
    """Return the splits of a folder, of a data set, or of arrays."""
    if isinstance(splits, str | os.PathLike):
        return data.load(splits)
    if isinstance(splits, tuple) and len(splits) == 2:
        if all(isinstance(pair, tuple) for pair in splits):
            raise ValueError(
                "splits has two pairs (images, labels), as Keras's data sets do, and one is "
                "expected, of which a fifth validates: give the first of them, splits=pairs[0]."
            )
        every = data.ArraySplit("train", task_of(getattr(model, "student", model)), *splits)
        is_held_out = every.task.split(every.labels(), VALIDATED_PART, seed)
        train, val = (every.take(np.flatnonzero(those)) for those in (~is_held_out, is_held_out))
        val.name = "val"
        parts: dict[str, Any] = {"train": train, "val": without_copies(val, train)}
        return data.Splits("arrays", every.class_names, parts)
    if not isinstance(splits, data.Splits):
        raise ValueError(
            f"splits={type(splits).__name__} is not labeled images. Give a folder, the name of a "
            "data set, what keras_vit.data.load returned, or a tuple (images, labels)."
        )
    return splits


def prepare_network(network: Any, recipe: Recipe, splits: data.Splits, teacher: Any = None) -> None:
    """Checks what the head answers, sets its bias where that is not classes, and notes the images.

    And the names of the classes, where the model does not have any. Without the bias, many steps
    would go into the mean alone.
    """
    check_task(network, splits.task)
    if recipe.frozen and getattr(network, "head_kind", None) == "eomt":
        raise ValueError(
            f"{network.name} has an EoMT head, whose queries pass the last blocks of the encoder, "
            "and the recipe trains a head alone, on features that are frozen: give the recipe "
            '"eomt_pixels", or map_head="dpt" or "linear".'
        )
    if recipe.frozen:
        freeze_backbone(network)
    note_images(network, splits)
    seen = getattr(teacher, "seen_images", None)
    if seen is not None and hasattr(network, "seen_images"):  # it knows them by the answers
        network.seen_images = seen | network.seen_images
    task = getattr(network, "task", None)
    if task is not None and not task.names and task.size == splits.task.size:
        network.class_names = splits.task.names
    # `recipe.head_bias` is for classes, too.
    if task is not None and task.begins_at_mean and not recipe.head_bias:
        task.check_balance(recipe.balance, loss_name(task, recipe.loss))
        targets = task.to_targets(splits.train.labels())
        bias = task.initial_bias(targets)
        if recipe.balance == "weights":  # the mean is that of the weighted loss
            bias += np.log(positive_weights(task.counts(targets), len(targets)))
        set_head_bias(network, bias)


def images_digest(splits: data.Splits) -> str | None:
    """Return a digest of images and labels: a run goes on with those that it began with.

    With others, images that it has trained on would be validated on. None of records; of more
    images than a model's file lists, whose contents may not have been read, of the labels alone.
    """
    digest = hashlib.sha256()
    for split in (splits.train, splits.val):
        if not isinstance(split, IndexedSplit):
            return None
        digest.update(split.labels().tobytes())
        if len(split) <= MOST_LISTED:
            digest.update(split.digests().tobytes())
    return digest.hexdigest()


def _identity(
    identity: Any,
    model: Any,
    recipe: Recipe,
    seed: int,
    settings: data.Augmentation,
    layers: tuple[Any, ...],
) -> dict[str, Any]:
    """Return the caller's identity with what was asked for, and a compiled model does not show."""
    asked = {
        "identity": identity,
        "seed": seed,
        "augment": [asdict(settings), *map(_described, layers)],
        **{name: getattr(recipe, name) for name in UNSEEN},
    }
    if (teacher := getattr(model, "teacher", None)) is not None:
        asked["teacher_sha256"] = weights_digest(teacher)
    return asked


def _described(layer: Any) -> list[Any]:
    """Return the name of a layer of augmentation and its numbers, alike in every process."""
    config = layer.get_config() if isinstance(layer, keras.Layer) else {}
    plain = {k: v for k, v in config.items() if isinstance(v, bool | int | float | str | tuple)}
    return [describe(layer), {k: v for k, v in plain.items() if k not in ("name", "seed")}]


def _resampled(splits: data.Splits, recipe: Recipe, identity: Any) -> tuple[data.Split, Any]:
    """Return the training images, balanced over classes by sampling where the recipe says so.

    And the identity of the run with that, which the loss of other balances shows, with the images,
    and with the reader, whose pixels are its own.
    """
    identity = {**identity, "images_sha256": images_digest(splits)}
    if splits.train.reader != "tensorflow":
        identity["reader"] = splits.train.reader
    if recipe.balance != "sampling":
        return splits.train, identity
    if not isinstance(splits.train, IndexedSplit):
        raise ValueError(
            f'balance="sampling" needs a folder of images, and {splits.source} has records, which '
            'are read in their order: give balance="weights" or balance="logits".'
        )
    rates = sampling_rates(splits.task.counts(splits.train.labels()))
    return splits.train.resampled(rates), {**identity, "balance": recipe.balance}


def _cached(
    train: data.Split,
    cache: int | None,
    model: Any,
    image_size: int | tuple[int, int],
    identity: Any,
    print_fn: Callable[[str], None],
) -> tuple[data.Split, Any]:
    """Return the training images, decoded once where `cache` is set, and the identity with it."""
    channels, least = size_and_channels(model)[1], max(as_pair(image_size, "image_size"))
    if cache is None:
        if note := note_of_cache(train, 2 * least, channels):
            print_fn(note)
        return train, identity
    if cache < least:
        raise ValueError(
            f"cache={cache} pixels are fewer than the image size, {least}: every crop would be "
            f"enlarged. Give {2 * least}, or more."
        )
    train = data.cached_photographs(train, cache, channels, print_fn=print_fn)
    return train, {**identity, "cache": cache}


def augmentation_of(
    augment: Any,
    recipe: Recipe,
    task: Task,
    print_fn: Callable[[str], None],
    bands: tuple[int, ...] | None = None,
) -> tuple[data.Augmentation, tuple[Any, ...]]:
    """Return settings and layers, without the changes that targets of the task cannot follow."""
    settings, layers = resolve_augment(augment, recipe.augment)
    if augment is None and not task.keeps_in_crop and settings.crop != "resize":
        settings = replace(settings, crop="resize")
        print_fn(f"without random crops: what is enlarged has another {task.kind}")
    of_bytes = [name for name, change in settings.changes.items() if change.of_bytes]
    if augment is None and bands is not None and of_bytes:
        off: dict[str, Any] = {
            "rand_augment": None,
            "operations": None,
            "three_augment": False,
            "erasing": 0.0,
        }
        settings = replace(settings, **off)
        print_fn(f"without {listed(of_bytes)}: bands do not have colors of 0 to 255")
    reason = "" if augment is not None else task.changes_in_mirror
    crop = "resize" if moves_in_crop(task) else settings.crop
    if reason and (settings.flip or crop != settings.crop):
        settings = replace(settings, flip=False, crop=crop)
        also = " and random crops" if task.are_numbers else ""
        print_fn(f"without mirror images{also}: they would show {printable(reason)}")
    if (settings.mixup or settings.cutmix) and not task.mixes:
        settings = replace(settings, mixup=0.0, cutmix=0.0)
        print_fn(f"without mixup and CutMix: {task.kind} targets cannot be mixed")
    return settings, layers


def moves_in_crop(task: Task) -> bool:
    """Return whether answers are places or directions, of which a part of an image has others."""
    return task.are_numbers and bool(task.changes_in_mirror)


def _evaluate_as_trained(network: Any, augment: Any, task: Task) -> None:
    """Let a network whose numbers a crop would move be validated and predict on whole images."""
    before = getattr(network, "eval_transform", None)
    if augment is None and moves_in_crop(task) and before is not None and not before.is_whole:
        network.eval_transform = replace(before, mode="stretch", interpolation=None)


def _in_parts(recipe: Recipe, splits: data.Splits) -> tuple[Recipe, int, int, tuple[int, int]]:
    """Return the recipe with no more images per update than there are, the size of its batches,
    the number of updates, and the epochs with their steps.

    Of few images, one update has fewer parts: an epoch is one pass all the same.
    """
    size = min(recipe.batch_size, len(splits.train))
    batch_size = math.ceil(size / recipe.accumulation)
    recipe = replace(recipe, batch_size=size, accumulation=math.ceil(size / batch_size))
    per_pass = math.ceil(len(splits.train) / batch_size)
    steps = recipe.steps * recipe.accumulation or recipe.epochs * per_pass
    updates = math.ceil(steps / recipe.accumulation)
    return recipe, batch_size, updates, _epochs(splits, steps, batch_size)


def _epochs(splits: data.Splits, steps: int, batch_size: int) -> tuple[int, int]:
    """Return into how many epochs to cut `steps`, with a validation after each, and their steps."""
    images = len(splits.train)
    epochs = math.ceil(steps / math.ceil(images / batch_size))
    if len(splits.val) > FEW * images:
        # An epoch is several passes then: validation would take most of the time.
        epochs = max(min(epochs, steps * batch_size // len(splits.val)), 1)
    return epochs, math.ceil(steps / epochs)
