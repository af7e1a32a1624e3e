"""From a split to batches: order, decode, augment, batch, mix, prefetch.

Nothing random has a state, and all of it is drawn in NumPy. The order of pass e follows from (seed,
e), the changes of an image from (seed, e, its place in this order), and the mixing of a batch from
its first image. So a stream can start anywhere: the number of its first batch determines the pass
and the place in its order. And each of several processes can decode its rows of a batch alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_vit._base.errors import as_pair, check_choice
from keras_vit.data.augment.augment_layers import Augment, mixes, resolve_augment
from keras_vit.data.augment.augmentation import get_augmentation
from keras_vit.data.batch_plan import (
    BatchPlan,
    check_band_plan,
    check_map_plan,
    check_mixing,
    check_numbers,
    label_columns,
)
from keras_vit.data.eval_transform import MODES, EvalTransform
from keras_vit.data.sources.splits import Split
from keras_vit.data.tensorflow_pipeline import tensorflow_batches


def pipeline(
    split: Split,
    image_size: int | tuple[int, int],
    batch_size: int,
    training: bool = False,
    *,
    seed: int = 0,
    augment: Augment | None = None,
    eval_transform: EvalTransform | Mapping[str, Any] | str = "crop",
    channels: int | None = None,
    data_format: str = "channels_last",
    num_classes: int | None = None,
    cache: bool | None = False,
    repeat: bool = False,
    start_step: int = 0,
    views: int = 1,
) -> Any:
    """Batches of images and labels for `fit`, `evaluate` and `predict` on any backend.

    For training, every pass has its own order, crops and flips, which follow from `seed` and the
    number of the pass alone, whatever the global seed and the number of threads: pass k of a second
    pipeline equals pass k of the first. With `repeat=True` the stream never ends and batches run on
    from one pass into the next; a run that stopped after s steps resumes with `start_step=s`, bit
    by bit as if it had not stopped.

    In several processes, after `keras_vit.distribution.data_parallel()`, a batch has the labels of
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
        channels: 3, or 1 for gray; None for 3, or for the bands of a split that has them.
        data_format: "channels_last", or "channels_first" for images `(channels, height, width)`.
        num_classes: give integer labels as float32 one-hot rows of this many classes. Labels that
            are rows, such as those of `Multilabel` and `Regression`, stay as they are.
        cache: decode all images now and keep them in memory as uint8. None does so when they take
            less than 2 GiB; otherwise batches that are alike in every pass stay in memory, where
            they take less.
        repeat: never end; `fit` then needs `steps_per_epoch`.
        start_step: the number of the first batch, with `repeat` only. Earlier images are not
            decoded. They are mostly not read either, except the records of a TFDS data set in the
            pass that contains the batch. Only a folder loaded with `verify=False`, where the number
            of files that decode is unknown, is decoded from its beginning.
        views: in training, give each image of a batch so many times, one after another, each time
            with changes of its own: a batch has `views * batch_size` rows.

    Returns:
        A `tf.data.Dataset`, or Grain's `IterDataset`, of (float32 images
        `(batch, height, width, channels)` in 0..255, or in the files' own range with bands; labels
        as the split has them, int32 `(batch,)` or float32 `(batch, columns)`, or float32
        `(batch, num_classes)`).

    Raises:
        ValueError: an argument out of range or an unknown name, labels that cannot be mixed, what
            does not fit the bands of the split, or a
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
    check_choice(data_format, "data_format", ("channels_last", "channels_first"))
    transform = EvalTransform.of(eval_transform)
    if split.bands is not None:
        check_band_plan(split, channels, transform, augmentation, training)
    elif transform.bands is not None:
        raise ValueError(
            f"eval_transform reads bands {transform.bands}, and {split!r} has photographs: load "
            f"the files with bands={transform.bands}."
        )
    if channels is None:
        channels = 3 if split.bands is None else len(split.bands)
    if not training and transform.decoder:
        split = split.with_decoder(transform.decoder)
    check_numbers(batch_size, seed, repeat, start_step, views)
    columns = label_columns(split, num_classes)
    plan = BatchPlan(
        split=split,
        size=size,
        batch_size=batch_size * (views if training else 1),
        training=training,
        seed=seed,
        augmentation=augmentation,
        layers=layers if training else (),
        transform=transform,
        channels=channels,
        channels_first=data_format == "channels_first",
        num_classes=num_classes,
        columns=columns,
        cache=cache,
        repeat=repeat,
        start_step=start_step,
        views=views if training else 1,
    )
    check_map_plan(plan)
    check_mixing(plan.alphas, any(map(mixes, plan.layers)), columns)
    if split.reader == "tensorflow":
        return tensorflow_batches(plan)
    # Grain is not installed where TensorFlow reads.
    from keras_vit.data.grain_pipeline import grain_batches

    return grain_batches(plan)
