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
from keras_vit.data.augment.mixtures import draw_mixture, mix_images, mix_rows
from keras_vit.data.augment.training_image import augment_crop
from keras_vit.data.batch_plan import BatchPlan
from keras_vit.data.preprocessing import evaluation_image

_CHUNK = 256  # images for which random changes are drawn at once


def tensorflow_batches(plan: BatchPlan) -> tf.data.Dataset:
    """Return what `pipeline` returns where TensorFlow reads."""
    size, seed, channels = plan.size, plan.seed, plan.channels
    changes = LayerAugmentation(plan.layers, (*size, channels), plan.columns)
    split = plan.source

    def resize(image: tf.Tensor, draws: Any, position: tf.Tensor) -> tf.Tensor:
        if plan.training:
            image = augment_crop(image, size, draws, plan.augmentation)
            return changes.change(image, tf.stack([position, seed]))
        return evaluation_image(image, size, plan.transform)

    resize = tf.function(resize, autograph=False)  # traced once, for both calls of `prepare`

    def moved(label: tf.Tensor, draws: Any) -> tf.Tensor:
        return plan.moved_map(label, draws) if split.per_pixel else label

    def prepare(
        example: Any, label: tf.Tensor, draws: Any, position: tf.Tensor, guarded: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        crop = plan.augmentation.random_crop.to_decode(draws["crop"]) if plan.training else None
        example, label = split.read(example, label, guarded)
        if guarded:
            image, valid = split.decode_or_replace(example, channels, crop)
        else:
            image, valid = split.decode(example, channels, crop), tf.constant(True)
        return resize(image, draws, position), moved(label, draws), position, valid

    if changes.mixes:  # layers pair any images of a batch
        changes.check_processes(plan.rows is not None)
    batches = _batches(plan, prepare, moved, None if changes.mixes else plan.needed)
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
    positions: tf.Tensor,
    _: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the images of these rows, mixed with others of the batch, and all labels."""
    if plan.num_classes is not None and labels.dtype.is_integer:
        labels = tf.one_hot(labels, plan.num_classes)
    if changes.mixes:
        images, labels = changes.mix(images, labels, tf.stack([positions[0], plan.seed]))
        return _own_rows(images, plan.rows, plan.batch_size), labels
    if not any(plan.alphas):
        return images, labels
    part = plan.augmentation.mixed_part
    draw = partial(draw_mixture, plan.alphas, plan.size, plan.seed, part=part)
    draws = _in_numpy(draw, positions[0], like=draw(0))
    if plan.needed is None:
        before = tf.roll(images, 1, axis=0)
    else:
        places = tf.numpy_function(plan.pairs, [tf.size(positions)], tf.int64)
        images, before = tf.unstack(tf.gather(images, tf.ensure_shape(places, (2, None))))
    labels = mix_rows(labels, tf.roll(labels, 1, axis=0), draws)
    return mix_images(images, before, draws), labels


def _batches(
    plan: BatchPlan,
    prepare: Callable[..., Any],
    moved: Callable[..., Any],
    needed: np.ndarray | None,
) -> tf.data.Dataset:
    """Batches of what `prepare` returns, whatever becomes of images that cannot be decoded.

    With `needed` rows, a full batch has these images alone, and all labels and positions.
    """
    split, batch_size = plan.source, plan.batch_size
    start = 0 if split.skips else plan.start_step * batch_size
    examples = _examples(plan, start)
    guarded = partial(prepare, guarded=True)
    if split.skips:
        valid = _map(examples, guarded).filter(lambda image, label, position, valid: valid)
        return valid.batch(batch_size).skip(plan.start_step)
    if needed is not None:
        examples = examples.batch(batch_size)

        def label_of(example: Any, label: tf.Tensor, draws: Any, _: Any) -> tf.Tensor:
            return moved(split.read(example, label, guarded=True)[1], draws)

        return _batches_of_process(examples, label_of, prepare, guarded, batch_size, needed)
    if split.can_fail:
        # A batch that fails is prepared again, image by image guarded: guarding every image from
        # the start takes half as much time again.
        batch_of = partial(_guarded_batch, prepare=prepare, guarded=guarded)
        return _each(examples.batch(batch_size), batch_of)
    return _map(examples, prepare).batch(batch_size)


def _map(examples: tf.data.Dataset, function: Callable[..., Any]) -> tf.data.Dataset:
    return examples.map(function, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


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
    label_of: Callable[..., Any],
    prepare: Callable[..., Any],
    guarded: Callable[..., Any],
    batch_size: int,
    rows: np.ndarray,
) -> tf.data.Dataset:
    """Batches with the images of these rows alone, and the labels and positions of all."""

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
            lambda image, label: (image[0], label, plan[-1], image[3])
        )

    return _each(plans, batch_of)


def _each(plans: tf.data.Dataset, batch_of: Callable[..., tf.data.Dataset]) -> tf.data.Dataset:
    """Make a batch per plan, two at a time: one starts while the other's last images finish."""
    batches = plans.interleave(batch_of, cycle_length=2, num_parallel_calls=2, deterministic=True)
    return batches.apply(tf.data.experimental.assert_cardinality(plans.cardinality()))


def _own_rows(images: tf.Tensor, rows: np.ndarray | None, batch_size: int) -> tf.Tensor:
    """These rows of a full batch; a batch that is not full keeps all images."""
    if rows is None:
        return images
    full = tf.shape(images)[0] == batch_size
    return tf.cond(full, lambda: tf.gather(images, rows), lambda: images)


def _examples(plan: BatchPlan, start: int) -> tf.data.Dataset:
    """Return the undecoded examples of one pass, or with `repeat` of all from number `start` on.

    Returns:
        (example, label, what is drawn for it, its position among those of all passes).
    """
    count = plan.pass_rows
    first, offset = divmod(start, max(count, 1))
    if plan.repeat:
        passes = tf.data.Dataset.range(first, tf.int64.max)
        cardinality = tf.data.INFINITE_CARDINALITY
    else:
        # Counts how often the data set has been iterated.
        iteration = tf.Variable(-1, trainable=False, dtype=tf.int64)
        passes = tf.data.Dataset.from_tensors(1).map(lambda _: iteration.assign_add(1))
        cardinality = count

    def one_pass(epoch: tf.Tensor) -> tf.data.Dataset:
        begin = tf.where(epoch == first, tf.constant(offset, tf.int64), 0)
        examples = plan.source.dataset(plan.shuffle_seed, epoch, begin // plan.views)
        if plan.views > 1:
            examples = examples.flat_map(
                lambda *row: tf.data.Dataset.from_tensors(row).repeat(plan.views)
            )
        positions = tf.data.Dataset.range(epoch * count + begin, (epoch + 1) * count)
        if not plan.training:
            draws = positions.map(lambda position: ({}, position))
        else:
            draws = positions.batch(_CHUNK).map(partial(_draw, plan)).unbatch()
        return tf.data.Dataset.zip((examples, draws)).map(lambda a, b: (*a, *b))

    return passes.flat_map(one_pass).apply(tf.data.experimental.assert_cardinality(cardinality))


def _draw(plan: BatchPlan, positions: tf.Tensor) -> tuple[Any, tf.Tensor]:
    """Return the random changes at successive positions, and these."""
    draws = _in_numpy(lambda p: plan.draw(p[0], len(p)), positions, like=plan.draw(0, 1), rows=True)
    return draws, positions


def _in_numpy(
    draw: Callable[[Any], Any], argument: tf.Tensor, like: Any, rows: bool = False
) -> Any:
    """Return what a NumPy function draws, as tensors with the structure, types, shapes of `like`.

    With `rows`, the first axis may have any length.
    """
    flat = tf.nest.flatten(like)
    if not flat:  # nothing is random
        return like
    tensors = tf.numpy_function(
        lambda value: tf.nest.flatten(draw(value)), [argument], [array.dtype for array in flat]
    )
    for tensor, array in zip(tensors, flat, strict=True):
        tensor.set_shape((None, *array.shape[1:]) if rows else array.shape)
    return tf.nest.pack_sequence_as(like, tensors)
