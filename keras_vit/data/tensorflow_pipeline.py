"""Batches by tf.data: order, decode, augment, batch, mix, prefetch, in TensorFlow's graph.

What is random follows from a seed and a number, see `input_pipeline`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from keras_vit.data._imports import tf
from keras_vit.data.augment.augment_layers import LayerAugmentation
from keras_vit.data.augment.mixtures import mixup_or_cutmix
from keras_vit.data.batch_plan import BatchPlan
from keras_vit.data.preprocessing import augment_crop, evaluation_image, training_crop
from keras_vit.data.sources.splits import Split


def tensorflow_batches(plan: BatchPlan) -> tf.data.Dataset:
    """What `pipeline` returns where TensorFlow reads."""
    size, seed, channels = plan.size, plan.seed, plan.channels
    changes = LayerAugmentation(plan.layers, (*size, channels), plan.columns)
    split = plan.source

    def resize(image: tf.Tensor, image_seed: tf.Tensor) -> tf.Tensor:
        if plan.training:
            image = augment_crop(image, size, image_seed, plan.augmentation)
            return changes.change(image, image_seed)
        return evaluation_image(image, size, plan.transform)

    resize = tf.function(resize, autograph=False)  # traced once, for both calls of `prepare`

    def prepare(
        example: tf.Tensor, label: tf.Tensor, number: tf.Tensor, guarded: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        image_seed = tf.stack([number, seed])
        crop = training_crop(image_seed, plan.augmentation) if plan.training else None
        example, label = split.read(example, label, guarded)
        if guarded:
            image, valid = split.decode_or_replace(example, channels, crop)
        else:
            image, valid = split.decode(example, channels, crop), tf.constant(True)
        return resize(image, image_seed), label, number, valid

    if changes.mixes:  # layers pair any images of a batch
        changes.check_processes(plan.rows is not None)
    batches = _batches(plan, prepare, None if changes.mixes else plan.needed)
    # TensorFlow's autotuner sleeps for twice as long each time, and the end of an epoch may wait
    # for it to wake: an epoch of 10 seconds took 20, measured. Without it, AUTOTUNE is all cores.
    options = tf.data.Options()
    options.autotune.enabled = False
    batches = batches.map(partial(_mix, plan, changes))
    if plan.channels_first:
        batches = batches.map(lambda x, y: (tf.transpose(x, (0, 3, 1, 2)), y))
    if plan.keeps_batches:
        batches = batches.cache()
    return batches.prefetch(tf.data.AUTOTUNE).with_options(options)


def _mix(
    plan: BatchPlan,
    changes: LayerAugmentation,
    images: tf.Tensor,
    labels: tf.Tensor,
    numbers: tf.Tensor,
    _: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The images of these rows, mixed with others of the batch, and all labels."""
    if plan.num_classes is not None and labels.dtype.is_integer:
        labels = tf.one_hot(labels, plan.num_classes)
    if changes.mixes:
        images, labels = changes.mix(images, labels, tf.stack([numbers[0], plan.seed]))
        return _own_rows(images, plan.rows, plan.batch_size), labels
    images, before = _with_images_before(plan, images, numbers)
    # The first image's seed, folded: the same random numbers must not serve twice.
    batch_seed = tf.random.experimental.stateless_fold_in((numbers[0], plan.seed), 1)
    return mixup_or_cutmix(images, labels, batch_seed, *plan.alphas, images_before=before)


def _batches(
    plan: BatchPlan, prepare: Callable[..., Any], needed: np.ndarray | None
) -> tf.data.Dataset:
    """Batches of what `prepare` returns, whatever becomes of images that cannot be decoded.

    With `needed` rows, a full batch has these images alone, and all labels and numbers.
    """
    split, batch_size = plan.source, plan.batch_size
    start = 0 if split.skips else plan.start_step * batch_size
    examples = _examples(split, plan.shuffle_seed, plan.repeat, start)
    guarded = partial(prepare, guarded=True)
    if split.skips:
        valid = _map(examples, guarded).filter(lambda image, label, number, valid: valid)
        return valid.batch(batch_size).skip(plan.start_step)
    if needed is not None:
        examples = examples.batch(batch_size)
        return _batches_of_process(examples, split, prepare, guarded, batch_size, needed)
    if split.can_fail:
        return _guarded_batches(examples.batch(batch_size), prepare, guarded)
    return _map(examples, prepare).batch(batch_size)


def _map(examples: tf.data.Dataset, function: Callable[..., Any]) -> tf.data.Dataset:
    return examples.map(function, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _guarded_batches(
    plans: tf.data.Dataset, prepare: Callable[..., Any], guarded: Callable[..., Any]
) -> tf.data.Dataset:
    """Batches of prepared images; a batch that fails is prepared again, image by image guarded.

    Guarding every image from the start takes half as much time again.
    """
    return _each(plans, partial(_guarded_batch, prepare=prepare, guarded=guarded))


def _guarded_batch(
    *plan: Any, prepare: Callable[..., Any], guarded: Callable[..., Any]
) -> tf.data.Dataset:
    size = tf.size(plan[-1], tf.int64)
    examples = tf.data.Dataset.from_tensor_slices(plan)
    # drop_remainder: after an error the data set goes on with the rest of the batch.
    tried = _map(examples, prepare).batch(size, drop_remainder=True).ignore_errors()
    again = _map(examples, guarded).batch(size, drop_remainder=True)
    return tried.concatenate(again).take(1)


def _batches_of_process(
    plans: tf.data.Dataset,
    split: Split,
    prepare: Callable[..., Any],
    guarded: Callable[..., Any],
    batch_size: int,
    rows: np.ndarray,
) -> tf.data.Dataset:
    """Batches with the images of these rows alone, and the labels and numbers of all."""

    def label_of(example: Any, label: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        return split.read(example, label, guarded=True)[1]

    def batch_of(*plan: Any) -> tf.data.Dataset:
        size = tf.size(plan[-1], tf.int64)
        index = tf.cond(
            size == batch_size, lambda: tf.constant(rows, tf.int64), lambda: tf.range(size)
        )
        mine = tf.nest.map_structure(lambda column: tf.gather(column, index), plan)
        images = _guarded_batch(*mine, prepare=prepare, guarded=guarded)
        # Where records have the labels, all of them are read, and those of the rows decoded.
        labels = _map(tf.data.Dataset.from_tensor_slices(plan), label_of).batch(size)
        return tf.data.Dataset.zip((images, labels)).map(
            lambda image, label: (image[0], label, plan[2], image[3])
        )

    return _each(plans, batch_of)


def _each(plans: tf.data.Dataset, batch_of: Callable[..., tf.data.Dataset]) -> tf.data.Dataset:
    """A batch for each plan. Two at a time: the next starts while the last images are prepared."""
    batches = plans.interleave(batch_of, cycle_length=2, num_parallel_calls=2, deterministic=True)
    return batches.apply(tf.data.experimental.assert_cardinality(plans.cardinality()))


def _with_images_before(
    plan: BatchPlan, images: tf.Tensor, numbers: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """The images of these rows, and for each the one before it where images are mixed.

    A batch that is not full has all images.
    """
    rows, needed = plan.rows, plan.needed
    if rows is None or needed is None or not any(plan.alphas):
        return images, None
    before = (rows - 1) % plan.batch_size
    places = np.searchsorted(needed, rows), np.searchsorted(needed, before)
    return tf.cond(
        tf.size(numbers) == plan.batch_size,
        lambda: tuple(tf.gather(images, place) for place in places),
        lambda: (images, tf.roll(images, 1, axis=0)),
    )


def _own_rows(images: tf.Tensor, rows: np.ndarray | None, batch_size: int) -> tf.Tensor:
    """These rows of a full batch; a batch that is not full keeps all images."""
    if rows is None:
        return images
    full = tf.shape(images)[0] == batch_size
    return tf.cond(full, lambda: tf.gather(images, rows), lambda: images)


def _examples(split: Split, shuffle_seed: int | None, repeat: bool, start: int) -> tf.data.Dataset:
    """The undecoded examples of one pass, or with `repeat` of all from number `start` on."""
    count = len(split)
    first, offset = divmod(start, max(count, 1))
    if repeat:
        passes = tf.data.Dataset.range(first, tf.int64.max)
        count = tf.data.INFINITE_CARDINALITY
    else:
        # Counts how often the data set has been iterated.
        iteration = tf.Variable(-1, trainable=False, dtype=tf.int64)
        passes = tf.data.Dataset.from_tensors(1).map(lambda _: iteration.assign_add(1))

    def one_pass(epoch: tf.Tensor) -> tf.data.Dataset:
        begin = tf.where(epoch == first, tf.constant(offset, tf.int64), 0)
        return split.dataset(shuffle_seed, epoch, begin)

    return passes.flat_map(one_pass).apply(tf.data.experimental.assert_cardinality(count))
