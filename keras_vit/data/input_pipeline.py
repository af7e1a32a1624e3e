"""From a split to batches: shuffle, decode, augment, batch, prefetch."""

from __future__ import annotations

from keras_vit.errors import as_pair

from ._imports import tf
from .augmentation import Augmentation, get_augmentation
from .mixing import mix_pairs
from .preprocessing import CROP_FRACTION, EVALUATION, evaluation_image, training_image
from .splits import Split, shuffled

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
    shuffle: bool | None = None,
    drop_remainder: bool = False,
    cache: bool | None = False,
    repeat: bool = False,
    first_step: int = 0,
) -> tf.data.Dataset:
    """Batches of images and labels for `fit`, `evaluate` and `predict` on any backend.

    For training, every pass has its own order, crops and flips, and pass k of a second pipeline
    equals pass k of the first, however many threads decode. What they are follows from `seed` and,
    as everything random in tf.data, from the global seed: `keras.utils.set_random_seed`. With
    `repeat=True` the passes follow each other without an end, and a run that stopped after s steps
    goes on with `first_step=s` as if it had not stopped.

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
        mixup: for training, the parameter of mixup (see `keras_vit.data.mixing`); 0 for none.
        shuffle: None shuffles for training only.
        drop_remainder: leave out a last batch that is not full.
        cache: keep decoded uint8 images in memory; the first shuffled batch waits for all of them.
        repeat: never end; `fit` then needs `steps_per_epoch`.
        first_step: batches to leave out at the start, without decoding them; with `repeat` only.

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
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be 1 or more")
    if evaluation not in EVALUATION:
        raise ValueError(f"evaluation={evaluation!r}: choose one of {', '.join(EVALUATION)}")
    if first_step < 0 or (first_step and not repeat):
        raise ValueError(f"first_step={first_step} must be 0 or more, and 0 without repeat=True")
    if drop_remainder and not repeat and len(split) < batch_size:
        raise ValueError(
            f"{split} has no full batch of {batch_size}: lower batch_size or drop_remainder=False"
        )
    if mixup and num_classes is None:
        raise ValueError(f"mixup={mixup} mixes one-hot labels: give num_classes, too")
    shuffle_seed = seed if (training if shuffle is None else shuffle) else None

    if cache or (cache is None and _decoded_bytes(split, channels) < _CACHE_BYTES):
        cache = True
        decoded = split.images(split.dataset(), channels).cache()
        examples = shuffled(decoded, len(split), shuffle_seed)
    else:
        examples = split.dataset(shuffle_seed)

    # A number for each example of each pass, before anything runs in parallel.
    numbers = tf.data.Dataset.random(seed, rerandomize_each_iteration=True)
    examples = tf.data.Dataset.zip(examples, numbers)
    if repeat:
        examples = examples.repeat().skip(first_step * batch_size)
    examples = examples.map(lambda example, number: (*example, number))
    if not cache:
        examples = split.images(examples, channels)

    def prepare(
        image: tf.Tensor, label: tf.Tensor, number: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        if training:
            image = training_image(image, size, tf.stack([number, seed]), augmentation)
        else:
            image = evaluation_image(image, size, evaluation, crop_fraction)
        if num_classes is not None:
            label = tf.one_hot(label, num_classes)
        return image, label, number

    def finish(
        images: tf.Tensor, labels: tf.Tensor, numbers: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        if training and mixup:
            return mix_pairs(images, labels, tf.stack([numbers[0], seed]), mixup)
        return images, labels

    prepared = examples.map(prepare, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    batches = prepared.batch(batch_size, drop_remainder).map(finish)
    return batches.prefetch(tf.data.AUTOTUNE)
