"""The ViT paper's fine-tuning on a VTAB task."""

from typing import Any

import keras

from keras_vit import data
from keras_vit.evaluation.vtab import Setting, Train
from keras_vit.evaluation.vtab_tasks import Task


def finetuning(model: Any, verbose: str | int = "auto") -> Train:
    """The `train` of `run_vtab` that fine-tunes copies of a model under new zero heads.

    SGD with momentum 0.9, no weight decay, cosine decay after a linear warm-up, gradients clipped
    at global norm 1; images resized to the setting's size, without augmentation, as the benchmark
    publishes it.

    Args:
        model: A pretrained model that takes pixels; it stays as it is.
        verbose: `verbose` of Keras's `fit`.

    Returns:
        `(task, training split, test split, setting) -> accuracy`.

    Example:

    >>> import keras_vit
    >>> from keras_vit.evaluation.vtab_training import finetuning
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=4, hidden_dim=8, depth=1, num_heads=2, input_shape=(8, 8, 3))
    >>> train = finetuning(model)  # for run_vtab(train, "runs/vtab", data_dir="tfds")
    """

    def train(task: Task, train: data.Split, test: data.Split, setting: Setting) -> float:
        keras.utils.set_random_seed(setting.seed)
        channels, size = model.channels, (setting.image_size, setting.image_size)
        first = model.data_format == "channels_first"
        shape = (channels, *size) if first else (*size, channels)
        copy = model.with_input_shape(shape).with_classifier(task.classes)
        part = setting.batch_size // setting.accumulate

        def batches(split: data.Split, **options: Any) -> Any:
            examples = data.pipeline(
                split,
                setting.image_size,
                part,
                channels=channels,
                eval_transform="stretch",
                **options,
            )
            return examples.map(_channels_first) if first else examples

        copy.compile(
            keras.optimizers.SGD(
                _schedule(setting),
                momentum=0.9,
                global_clipnorm=1.0,
                gradient_accumulation_steps=setting.accumulate if setting.accumulate > 1 else None,
            ),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        copy.fit(
            batches(train, training=True, seed=setting.seed, augment="none", repeat=True),
            steps_per_epoch=setting.steps * setting.accumulate,
            shuffle=False,  # the pipeline has shuffled
            verbose=verbose,
        )
        return float(copy.evaluate(batches(test), return_dict=True, verbose=verbose)["accuracy"])

    return train


def _channels_first(images: Any, labels: Any) -> tuple[Any, Any]:
    import tensorflow as tf

    return tf.transpose(images, (0, 3, 1, 2)), labels


def _schedule(setting: Setting) -> Any:
    """Linear from 0 to the learning rate, then a cosine to 0, over updates."""
    warmup = min(setting.warmup, setting.steps - 1)
    if warmup == 0:
        return keras.optimizers.schedules.CosineDecay(setting.learning_rate, setting.steps)
    return keras.optimizers.schedules.CosineDecay(
        0.0, setting.steps - warmup, warmup_target=setting.learning_rate, warmup_steps=warmup
    )
