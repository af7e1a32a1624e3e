"""From a split to batches: order, decode, augment, batch, mix, prefetch.

Nothing random has a state. The order of pass e follows from (seed, e), what happens to a picture
from (seed, e, its index), and what happens to a batch from its first picture. So a stream can start
anywhere: the number of its first batch tells the pass and the place in its order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from numbers import Integral
from typing import Any

from keras_vit.errors import as_pair, check_choice

from ._imports import tf
from .augmentation import Augmentation, get_augmentation
from .memory import DecodedSplit
from .mixing import mix_or_cut
from .preprocessing import (
    CROP_FRACTION,
    EVALUATION,
    augmented,
    evaluation_image,
    training_crop,
)
from .splits import ArraySplit, Split

_CACHE_BYTES = 2 * 2**30


def _decoded_bytes(split: Split, channels: int, sample: int = 16) -> float:
    """About how many bytes the images of a split take when decoded, from a few spread over it."""
    spread = split.dataset().shard(max(len(split) // sample, 1), 0).take(sample)
    sizes = [int(tf.size(image)) for image, *_ in split.images(spread, channels)]
    return len(split) * sum(sizes) / max(len(sizes), 1)


def pipeline(
    split: Split,
    image_size: int | tuple[int, int],
    batch_size: int,
    training: bool = False,
    *,
    seed: int = 0,
    augment: Augmentation | str | None = None,
    evaluation: str = "crop",
    crop_fraction: float = CROP_FRACTION,
    channels: int = 3,
    num_classes: int | None = None,
    mixup: float = 0.0,
    cutmix: float = 0.0,
    shuffle: bool | None = None,
    drop_remainder: bool = False,
    cache: bool | None = False,
    repeat: bool = False,
    start_step: int = 0,
) -> tf.data.Dataset:
    """Batches of images and labels for `fit`, `evaluate` and `predict` on any backend.

    For training, every pass has its own order, crops and flips. What they are follows from `seed`
    and the number of the pass alone, whatever the global seed and however many threads decode: pass
    k of a second pipeline equals pass k of the first. With `repeat=True` the passes follow each
    other without an end, batches run on from one into the next, and a run that stopped after s
    steps goes on with `start_step=s`, bit by bit as if it had not stopped.

    Args:
        split: one of `load(...)`.
        image_size: int or `(height, width)`.
        batch_size: images in a batch.
        training: shuffle and augment; otherwise keep the order and prepare all images alike.
        seed: of order and augmentation.
        augment: an `Augmentation`, a name in `AUGMENTATIONS`, or None for what suits the split.
        evaluation: a key of `EVALUATION`, how images are prepared when not training.
        crop_fraction: of the evaluation, see `evaluation_image`.
        channels: 3, or 1 for grey.
        num_classes: give labels as float32 one-hot rows of this many classes.
        mixup: for training, the alpha of mixup (see `mix_pairs`), above 0; 0 for none.
        cutmix: likewise of CutMix (see `cut_pairs`). With both, every batch has one of them, by a
            toss of a coin.
        shuffle: None shuffles for training only.
        drop_remainder: leave out a last batch that is not full.
        cache: keep decoded uint8 images in memory; all are decoded now, before this returns. None
            caches when they take less than 2 GiB.
        repeat: never end; `fit` then needs `steps_per_epoch`.
        start_step: the number of the first batch, with `repeat` only. What comes before is not
            decoded, and mostly not read either: of a TFDS data set the records of the pass before
            that batch are read. Only a folder loaded with `verify=False`, in which nobody knows how
            many files decode, is decoded from its beginning.

    Returns:
        A `tf.data.Dataset` of (float32 images `(batch, height, width, channels)` in 0..255, int32
        labels `(batch,)`, or float32 `(batch, num_classes)`).

    Raises:
        ValueError: an argument out of range or an unknown name.

    Example:
        >>> from keras_vit.data import load
        >>> batches = pipeline(load("digits").train, 8, 32, training=True, channels=1)
        >>> next(iter(batches))[0].shape.as_list(), len(batches)
        ([32, 8, 8, 1], 45)
    """
    size = as_pair(image_size, "image_size")
    augmentation = get_augmentation(split.augment if augment is None else augment)
    if not isinstance(batch_size, Integral) or batch_size < 1:
        raise ValueError(f"batch_size={batch_size!r} must be an integer, 1 or more")
    if not isinstance(seed, Integral) or seed < 0:
        raise ValueError(f"seed={seed!r} must be an integer, 0 or more")
    check_choice(evaluation, "evaluation", EVALUATION)
    if start_step < 0 or (start_step and not repeat):
        raise ValueError(f"start_step={start_step} must be 0 or more, and 0 without repeat=True")
    if drop_remainder and not repeat and len(split) < batch_size:
        raise ValueError(
            f"{split} has no full batch of {batch_size}: lower batch_size or drop_remainder=False"
        )
    for name, alpha in {"mixup": mixup, "cutmix": cutmix}.items():
        if alpha < 0:
            raise ValueError(f"{name}={alpha} must be 0 or more, for instance 0.2; 0 is none")
        if alpha and num_classes is None:
            raise ValueError(f"{name}={alpha} mixes one-hot labels: give num_classes, too")
    shuffle_seed = seed if (training if shuffle is None else shuffle) else None

    if cache is None:
        cache = _decoded_bytes(split, channels) < _CACHE_BYTES
    if cache and not isinstance(split, ArraySplit):  # whose images are in memory as they are
        split = DecodedSplit(split, channels)
    examples = _examples(split, shuffle_seed, repeat, 0 if split.skips else start_step * batch_size)

    def sized(image: tf.Tensor, picture_seed: tf.Tensor) -> tf.Tensor:
        if training:
            return augmented(image, size, picture_seed, augmentation)
        return evaluation_image(image, size, evaluation, crop_fraction)

    # Both ways to prepare a picture call it: as a function of its own it is traced once.
    sized = tf.function(sized, autograph=False)

    def prepare(
        example: tf.Tensor, label: tf.Tensor, number: tf.Tensor, guarded: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        picture_seed = tf.stack([number, seed])
        crop = training_crop(picture_seed, augmentation) if training else None
        if guarded:
            image, good = split.decode_or_replace(example, channels, crop)
        else:
            image, good = split.decode(example, channels, crop), tf.constant(True)
        if num_classes is not None:
            label = tf.one_hot(label, num_classes)
        return sized(image, picture_seed), label, number, good

    def finish(
        images: tf.Tensor, labels: tf.Tensor, numbers: tf.Tensor, _: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        if training and (mixup or cutmix):
            # The first picture's seed, folded, so that it is no other's draw as well.
            batch_seed = tf.random.experimental.stateless_fold_in((numbers[0], seed), 1)
            return mix_or_cut(images, labels, batch_seed, mixup, cutmix)
        return images, labels

    guarded = partial(prepare, guarded=True)
    if split.skips:
        good = _parallel(examples, guarded).filter(lambda image, label, number, good: good)
        batches = good.batch(batch_size, drop_remainder).skip(start_step)
    elif split.can_fail:
        batches = _guarded_batches(examples, prepare, guarded, batch_size, drop_remainder)
    else:
        batches = _parallel(examples, prepare).batch(batch_size, drop_remainder)
    # TensorFlow's autotuner sleeps for twice as long each time, and who ends an epoch may wait for
    # it to wake: an epoch of 10 seconds took 20, measured. Without it, AUTOTUNE is all cores.
    options = tf.data.Options()
    options.autotune.enabled = False
    return batches.map(finish).prefetch(tf.data.AUTOTUNE).with_options(options)


def _parallel(examples: tf.data.Dataset, function: Callable[..., Any]) -> tf.data.Dataset:
    return examples.map(function, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _guarded_batches(
    examples: tf.data.Dataset,
    prepare: Callable[..., Any],
    guarded: Callable[..., Any],
    batch_size: int,
    drop_remainder: bool,
) -> tf.data.Dataset:
    """Batches of prepared pictures; a batch that fails is prepared again, each picture guarded.

    To guard every picture would cost half as much again as to prepare it.
    """
    plans = examples.batch(batch_size, drop_remainder)

    def attempt_batch(*plan: tf.Tensor) -> tf.data.Dataset:
        size = batch_size if drop_remainder else tf.size(plan[1], tf.int64)
        one_batch = tf.data.Dataset.from_tensor_slices(plan)
        # drop_remainder: after an error the data set goes on, with what is left of the batch.
        tried = _parallel(one_batch, prepare).batch(size, drop_remainder=True).ignore_errors()
        again = _parallel(one_batch, guarded).batch(size, drop_remainder=True)
        return tried.concatenate(again).take(1)

    # Two at a time: the next one starts while the last pictures of this one are on their way.
    batches = plans.interleave(
        attempt_batch, cycle_length=2, num_parallel_calls=2, deterministic=True
    )
    return batches.apply(tf.data.experimental.assert_cardinality(plans.cardinality()))


def _examples(split: Split, shuffle_seed: int | None, repeat: bool, start: int) -> tf.data.Dataset:
    """The undecoded examples of one pass, or of all from the example number `start` on."""
    count = len(split)
    first, offset = divmod(start, max(count, 1))
    if repeat:
        passes = tf.data.Dataset.range(first, tf.int64.max)
        count = tf.data.INFINITE_CARDINALITY
    else:
        # Every time the data set is iterated, this variable counts one pass further.
        passed = tf.Variable(-1, trainable=False, dtype=tf.int64)
        passes = tf.data.Dataset.from_tensors(1).map(lambda _: passed.assign_add(1))

    def one_pass(epoch: tf.Tensor) -> tf.data.Dataset:
        begin = tf.where(epoch == first, tf.constant(offset, tf.int64), 0)
        return split.dataset(shuffle_seed, epoch, begin)

    return passes.flat_map(one_pass).apply(tf.data.experimental.assert_cardinality(count))
