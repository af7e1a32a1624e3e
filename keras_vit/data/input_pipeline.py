"""From a split to batches: order, decode, augment, batch, mix, prefetch.

Nothing random has a state. The order of pass e follows from (seed, e), the changes of an image from
(seed, e, its index), and the mixing of a batch from its first image. So a stream can start
anywhere: the number of its first batch determines the pass and the place in its order. And each of
several processes can decode its rows of a batch alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np

from keras_vit._base.errors import as_pair, check_choice
from keras_vit.data._imports import tf
from keras_vit.data.augment.augment_layers import Augment, LayerAugmentation, resolve_augment
from keras_vit.data.augment.augmentation import get_augmentation
from keras_vit.data.augment.mixtures import mixup_or_cutmix
from keras_vit.data.eval_transform import MODES, EvalTransform
from keras_vit.data.preprocessing import augment_crop, evaluation_image, training_crop
from keras_vit.data.sources.array_splits import ArraySplit, DecodedSplit
from keras_vit.data.sources.splits import Split
from keras_vit.ops import rows_of_process
from keras_vit.tasks import Classification

_CACHE_BYTES = 2 * 2**30


def pipeline(
    split: Split,
    image_size: int | tuple[int, int],
    batch_size: int,
    training: bool = False,
    *,
    seed: int = 0,
    augment: Augment | None = None,
    eval_transform: EvalTransform | Mapping[str, Any] | str = "crop",
    channels: int = 3,
    num_classes: int | None = None,
    cache: bool | None = False,
    repeat: bool = False,
    start_step: int = 0,
) -> tf.data.Dataset:
    """Batches of images and labels for `fit`, `evaluate` and `predict` on any backend.

    For training, every pass has its own order, crops and flips, which follow from `seed` and the
    number of the pass alone, whatever the global seed and the number of threads: pass k of a second
    pipeline equals pass k of the first. With `repeat=True` the stream never ends and batches run on
    from one pass into the next; a run that stopped after s steps resumes with `start_step=s`, bit
    by bit as if it had not stopped.

    In several processes, with `keras_vit.distribution.create` set before, a batch has the labels of
    all its images and the images of this process's rows, which alone are decoded; `fit`, `evaluate`
    and `predict` put them together. A last batch that is not full has all images everywhere.

    Args:
        split: one of `load(...)`.
        image_size: int or `(height, width)`.
        batch_size: images per batch. Without `repeat` the last one may have fewer.
        training: shuffle and augment; otherwise keep the order and prepare all images alike.
        seed: of order and augmentation.
        augment: None for what suits the split; an `Augmentation` or a name in `AUGMENTATIONS`; or
            what follows crop and resize in place of flip, RandAugment and mixup: an image layer of
            Keras or KerasCV, a `Sequential`, a callable, or a list of these, the first of which may
            be an `Augmentation` or its name.
            A callable takes one image, or a batch of images and one-hot labels where it has two
            arguments; it sees float32 pixels 0..255, and returns them in the same shape.
            Keras's layers draw from `seed`. With a layer or callable that has a random state of its
            own, as KerasCV's have, exact resume is lost.
        eval_transform: how images are prepared when not training: a key of `EVAL_TRANSFORMS`, or
            an `EvalTransform`, such as `model.eval_transform`, or its arguments as a dictionary.
        channels: 3, or 1 for gray.
        num_classes: give integer labels as float32 one-hot rows of this many classes. Labels that
            are rows, such as those of `Multilabel` and `Regression`, stay as they are.
        cache: decode all images now and keep them in memory as uint8. None does so when they take
            less than 2 GiB.
        repeat: never end; `fit` then needs `steps_per_epoch`.
        start_step: the number of the first batch, with `repeat` only. Earlier images are not
            decoded. They are mostly not read either, except the records of a TFDS data set in the
            pass that contains the batch. Only a folder loaded with `verify=False`, where the number
            of files that decode is unknown, is decoded from its beginning.

    Returns:
        A `tf.data.Dataset` of (float32 images `(batch, height, width, channels)` in 0..255, labels
        as the split has them, int32 `(batch,)` or float32 `(batch, columns)`, or float32
        `(batch, num_classes)`).

    Raises:
        ValueError: an argument out of range or an unknown name, labels that cannot be mixed, or a
            layer that changes the shape, dtype or range of the images, or cannot run inside
            tf.data.

    Example:
        >>> import keras
        >>> from keras_vit.data import load
        >>> batches = pipeline(load("digits").train, 8, 32, training=True, channels=1)
        >>> next(iter(batches))[0].shape.as_list(), len(batches)
        ([32, 8, 8, 1], 45)
        >>> options = {"channels": 1, "augment": keras.layers.MixUp(), "num_classes": 10}
        >>> mixed = pipeline(load("digits").train, 8, 32, training=True, **options)
        >>> next(iter(mixed))[1].shape.as_list()
        [32, 10]
    """
    size = as_pair(image_size, "image_size")
    augmentation, layers = resolve_augment(augment, get_augmentation(split.augment))
    if isinstance(eval_transform, str):
        check_choice(eval_transform, "eval_transform", MODES)
    transform = EvalTransform.of(eval_transform)
    if not training and transform.decoder:
        split = split.with_decoder(transform.decoder)
    _check_numbers(batch_size, seed, repeat, start_step)
    alphas = (augmentation.mixup, augmentation.cutmix) if training else (0.0, 0.0)
    columns = _label_columns(split, num_classes)
    changes = LayerAugmentation(layers if training else (), (*size, channels), columns)
    _check_mixing(alphas, changes.mixes, columns)
    if cache is None:
        cache = _decoded_bytes(split, channels) < _CACHE_BYTES
    if cache and not isinstance(split, ArraySplit):  # which is in memory already
        split = DecodedSplit(split, channels)

    def resize(image: tf.Tensor, image_seed: tf.Tensor) -> tf.Tensor:
        if training:
            image = augment_crop(image, size, image_seed, augmentation)
            return changes.change(image, image_seed)
        return evaluation_image(image, size, transform)

    resize = tf.function(resize, autograph=False)  # traced once, for both calls of `prepare`

    def prepare(
        example: tf.Tensor, label: tf.Tensor, number: tf.Tensor, guarded: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        image_seed = tf.stack([number, seed])
        crop = training_crop(image_seed, augmentation) if training else None
        example, label = split.read(example, label, guarded)
        if guarded:
            image, valid = split.decode_or_replace(example, channels, crop)
        else:
            image, valid = split.decode(example, channels, crop), tf.constant(True)
        return resize(image, image_seed), label, number, valid

    # Where images that cannot be decoded are left out, nobody knows before which rows they have.
    rows = None if split.skips else rows_of_process(batch_size)
    if changes.mixes:
        changes.check_processes(rows is not None)
        needed = None  # layers pair any images of a batch
    else:
        needed = _with_neighbors(rows, batch_size) if rows is not None and any(alphas) else rows
    mix = partial(_mix, changes, alphas, num_classes, rows, batch_size, seed)
    shuffle_seed = seed if training else None
    batches = _batches(split, prepare, batch_size, shuffle_seed, repeat, start_step, needed)
    # TensorFlow's autotuner sleeps for twice as long each time, and the end of an epoch may wait
    # for it to wake: an epoch of 10 seconds took 20, measured. Without it, AUTOTUNE is all cores.
    options = tf.data.Options()
    options.autotune.enabled = False
    return batches.map(mix).prefetch(tf.data.AUTOTUNE).with_options(options)


def _mix(
    changes: LayerAugmentation,
    alphas: tuple[float, float],
    num_classes: int | None,
    rows: np.ndarray | None,
    batch_size: int,
    seed: int,
    images: tf.Tensor,
    labels: tf.Tensor,
    numbers: tf.Tensor,
    _: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The images of these rows, mixed with others of the batch, and all labels."""
    if num_classes is not None and labels.dtype.is_integer:
        labels = tf.one_hot(labels, num_classes)
    if changes.mixes:
        images, labels = changes.mix(images, labels, tf.stack([numbers[0], seed]))
        return _own_rows(images, rows, batch_size), labels
    images, before = _with_images_before(images, rows, batch_size, numbers, any(alphas))
    # The first image's seed, folded: the same random numbers must not serve twice.
    batch_seed = tf.random.experimental.stateless_fold_in((numbers[0], seed), 1)
    return mixup_or_cutmix(images, labels, batch_seed, *alphas, images_before=before)


def _label_columns(split: Split, num_classes: int | None) -> int | None:
    """The columns of a batch's labels; None for integers."""
    if split.label_shape:
        (columns,) = split.label_shape
        if num_classes not in (None, columns):
            raise ValueError(
                f"num_classes={num_classes}, but the labels of {split!r} are rows of {columns} "
                "numbers already: leave num_classes out."
            )
        return columns
    if num_classes is not None and not isinstance(split.meaning, tuple | Classification):
        raise ValueError(
            f"num_classes={num_classes} makes one-hot rows of classes, which are mixed, and the "
            f"labels of {split!r} must stay integers: leave num_classes out, and mixup and CutMix."
        )
    return num_classes


def _check_mixing(alphas: tuple[float, float], layers_mix: bool, columns: int | None) -> None:
    if any(alphas) and layers_mix:
        raise ValueError(
            "augment mixes twice: by a layer, and by mixup={} and cutmix={} of the Augmentation. "
            "Give one of them.".format(*alphas)
        )
    if any(alphas) and columns is None:
        raise ValueError(
            "mixup={} and cutmix={} mix one-hot labels: give num_classes, too".format(*alphas)
        )


def _check_numbers(batch_size: int, seed: int, repeat: bool, start_step: int) -> None:
    if not isinstance(batch_size, Integral) or batch_size < 1:
        raise ValueError(f"batch_size={batch_size!r} must be an integer, 1 or more")
    if not isinstance(seed, Integral) or seed < 0:
        raise ValueError(f"seed={seed!r} must be an integer, 0 or more")
    if start_step < 0 or (start_step and not repeat):
        raise ValueError(f"start_step={start_step} must be 0 or more, and 0 without repeat=True")


def _decoded_bytes(split: Split, channels: int, sample: int = 16) -> float:
    """An estimate, from a few images, of the memory that all take when decoded."""
    stride = max(len(split) // sample, 1)
    spread = split.dataset(start=0).take(0)
    for start in range(0, len(split), stride):
        spread = spread.concatenate(split.dataset(start=start).take(1))
    sizes = [int(tf.size(image)) for image, *_ in split.images(spread.take(sample), channels)]
    return len(split) * sum(sizes) / max(len(sizes), 1)


def _batches(
    split: Split,
    prepare: Callable[..., Any],
    batch_size: int,
    shuffle_seed: int | None,
    repeat: bool,
    start_step: int,
    rows: np.ndarray | None,
) -> tf.data.Dataset:
    """Batches of what `prepare` returns, whatever becomes of images that cannot be decoded.

    With `rows`, a full batch has these images alone, and all labels and numbers.
    """
    start = 0 if split.skips else start_step * batch_size
    examples = _examples(split, shuffle_seed, repeat, start)
    guarded = partial(prepare, guarded=True)
    if split.skips:
        valid = _map(examples, guarded).filter(lambda image, label, number, valid: valid)
        return valid.batch(batch_size).skip(start_step)
    if rows is not None:
        examples = examples.batch(batch_size)
        return _batches_of_process(examples, split, prepare, guarded, batch_size, rows)
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


def _with_neighbors(rows: np.ndarray, batch_size: int) -> np.ndarray:
    """The rows to decode where images are mixed: these, and those before them."""
    return np.union1d(rows, (rows - 1) % batch_size)


def _with_images_before(
    images: tf.Tensor, rows: np.ndarray | None, batch_size: int, numbers: tf.Tensor, mixed: bool
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """The images of these rows, and for each the one before it where images are mixed.

    A batch that is not full has all images.
    """
    if rows is None or not mixed:
        return images, None
    needed = _with_neighbors(rows, batch_size)
    places = np.searchsorted(needed, rows), np.searchsorted(needed, (rows - 1) % batch_size)
    return tf.cond(
        tf.size(numbers) == batch_size,
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
