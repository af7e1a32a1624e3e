"""What the tests on several devices and those in several processes share."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

import keras_vit
from keras_vit.data.sources.array_splits import ArraySplit
from keras_vit.distribution.kinds import distribution_of
from keras_vit.tasks import Segmentation
from keras_vit.tasks.query_losses import QueryLoss
from keras_vit.training.resume import ResumableRun

# Runs the tests of a file in a process of its own: its devices are counted once.
PYTEST = ("-m", "pytest", "-q", "--tb=short", "--durations=8", "-o", "addopts=")
PYTEST += ("-p", "no:cacheprovider", "-p", "no:xdist")
CLASSES = 5

Training = tuple[keras.Model, dict[str, list[float]], list[float], np.ndarray]
Job = Callable[[], Any]


def images_and_labels(count: int, size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (count, size, size, 3)).astype("uint8")
    return images, random.integers(0, CLASSES, count)


def endless(images: np.ndarray, labels: np.ndarray, size: int, start: int) -> Iterator[Any]:
    """Batches that depend on their step alone."""
    for step in itertools.count(start):
        rows = (np.arange(size) + size * step) % len(images)
        yield images[rows], labels[rows]


def vit(**arguments: Any) -> keras.Model:
    sizes = {"patch_size": 4, "hidden_dim": 16, "mlp_dim": 32, "depth": 1, "num_heads": 2}
    common = {"num_classes": CLASSES, "input_shape": (16, 16, 3)}
    return keras_vit.VisionTransformer(**{**sizes, **common, **arguments})


def mixer(width: int, size: int, **arguments: Any) -> keras.Model:
    sizes = {"patch_size": size // 4, "hidden_dim": width, "depth": 1, "num_classes": CLASSES}
    mlps = {"tokens_mlp_dim": width, "channels_mlp_dim": 2 * width}
    return keras_vit.models.MLPMixer(**sizes, **mlps, input_shape=(size, size, 3), **arguments)


def with_head(model: keras.Model) -> keras.Model:
    """With logits that differ from zero: new heads are zero, and give the blocks no gradient."""
    kernel = model.get_layer("head").kernel
    kernel.assign(np.random.default_rng(2).normal(0, 0.1, kernel.shape))
    return model


def compiled(model: keras.Model, optimizer: Any, **options: Any) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], **options)
    return model


def sharpness_aware(model: keras.Model, **options: float) -> keras.Model:
    keras_vit.training.sharpness_aware(model, **options)
    return model


class Stop(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 3:
            raise KeyboardInterrupt


def resumable(folder: Any) -> ResumableRun:
    return ResumableRun(folder, every_steps=1, print_fn=lambda line: None)


def on(kind: str | None, job: Job, seed: int = 1, **options: Any) -> Any:
    """What a job returns on a kind of distribution; None: on one device, in each process alone."""
    distribution = kind and distribution_of(kind, **options)
    keras.distribution.set_distribution(distribution)
    keras.utils.set_random_seed(seed)
    try:
        return job()
    finally:
        keras.distribution.set_distribution(None)


def whole_training(vit: Any, sgd: Any, images: np.ndarray, labels: np.ndarray) -> Training:
    """All that random numbers and averages go into: 21 steps, of 16, 16 and 3 of 35 images.

    Returns the model, its history, its scores on the other images, and its logits of all images.
    """
    names, pipeline = tuple("abcde"), keras_vit.data.pipeline
    options = {"num_classes": len(names), "image_size": images.shape[1], "batch_size": 16}
    model = vit(dropout=0.1, attention_dropout=0.1, stochastic_depth=0.1, patch_dropout=0.25)
    optimizer = sgd(use_ema=True, gradient_accumulation_steps=2, global_clipnorm=1.0)
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    training = {"training": True, "seed": 4, "augment": keras_vit.data.Augmentation(mixup=0.5)}
    batches = pipeline(ArraySplit("train", names, images[:35], labels[:35]), **training, **options)
    held_out = pipeline(ArraySplit("val", names, images[35:], labels[35:]), **options)
    history = model.fit(batches, epochs=7, validation_data=held_out, verbose=0).history
    scores = model.evaluate(held_out, verbose=0)
    return model, history, scores, model.predict(images, batch_size=16, verbose=0)


def assert_same(one: Any, other: Any, tolerance: float) -> None:
    """Each number of a structure within a tolerance."""
    for value, expected in zip(keras.tree.flatten(one), keras.tree.flatten(other), strict=True):
        np.testing.assert_allclose(value, expected, rtol=0, atol=tolerance)


def assert_same_training(one: Training, other: Training) -> None:
    model, history, scores, logits = one
    its_model, its_history, its_scores, its_logits = other
    assert its_history.keys() == history.keys()
    assert_same((its_history, its_scores), (history, scores), 1e-5)
    assert_same(its_logits, logits, 1e-6 * np.abs(logits).max())
    assert_same_weights(its_model, model, 1e-6)


def assert_same_weights(model: Any, expected: Any, tolerance: float) -> None:
    """Each variable, of models or lists, within a tolerance of its largest value, or of 0.1."""
    worst = 0.0
    models = (m if isinstance(m, list) else m.get_weights() for m in (model, expected))
    for one, other in zip(*models, strict=True):
        worst = max(worst, np.abs(one - other).max() / max(np.abs(other).max(), 0.1))
    print(f"weights differ by {worst:.1e} of their scale")
    assert worst <= tolerance


def masked(model: Any, optimizer: Any, images: np.ndarray, size: int) -> tuple[Any, ...]:
    task = keras_vit.training.MaskedPatchPrediction(model, seed=3)
    task.compile(optimizer, keras.losses.CategoricalCrossentropy(from_logits=True))
    history = task.fit(images, batch_size=size, epochs=2, verbose=0).history
    return task, history, task.evaluate(images, batch_size=size, verbose=0)


def distilled(student: Any, teacher: Any, optimizer: Any, *batches: Any) -> tuple[Any, ...]:
    task = keras_vit.training.Distillation(student, teacher, weight=0.9)
    task.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = task.fit(*batches, epochs=2, verbose=0).history
    return task, history, task.evaluate(*batches, verbose=0)


def of_queries(vit: Callable[..., keras.Model], optimizer: Any, images: np.ndarray) -> keras.Model:
    """A model with an EoMT head, trained on batches of which the last is not whole."""
    keras.utils.set_random_seed(0)
    options = {"num_classes": 3, "task": Segmentation(size=3), "depth": 2}
    model = vit(**options, map_head={"kind": "eomt", "queries": 5, "blocks": 1})
    model.compile(optimizer, QueryLoss(points=50, steps=6))
    labels = (images[..., 0] // 86).clip(0, 2).astype("int32")
    model.fit(images, labels, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model


def assert_as_in_one(kind: str, job: Job, tolerance: float = 1e-6, **options: Any) -> None:
    """A job's model, and the numbers that it may return beside it, are those of one device."""
    (one, *expected), (model, *numbers) = (
        result if isinstance(result, tuple) else (result,)
        for result in (on(None, job), on(kind, job, **options))
    )
    assert_same(numbers, expected, 1e-5)
    assert_same_weights(model, one, tolerance)
