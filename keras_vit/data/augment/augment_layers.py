"""Augmentation by the layers of Keras and KerasCV, or by callables, inside `Dataset.map`.

Keras's layers ask a `SeedGenerator` for every random number. While a layer is traced it is given
one whose seeds follow from the number of the example, so that its graph keeps no state. What others
draw from, such as callables and KerasCV's layers, is theirs.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import keras
import numpy as np

from keras_vit.data._imports import tf
from keras_vit.data.augment.augmentation import AUGMENTATIONS, Augmentation

# An augmentation, its name, a layer, a callable, or a list of them.
Augment: TypeAlias = "Augmentation | str | Callable[..., Any] | Sequence[Any]"

# Layers that mix the images of a batch with each other, and their labels.
MIXING_LAYERS = ("MixUp", "CutMix", "FourierMix", "Mosaic")
_PROBES = 4  # random versions of a test image


def resolve_augment(
    augment: Augment | None, suitable: Augmentation
) -> tuple[Augmentation, tuple[Any, ...]]:
    """Return the settings of our own augmentation, and the layers that follow it.

    Layers replace everything but crop and resize, unless the first of them is an `Augmentation` or
    its name.

    Args:
        augment: as in `pipeline`.
        suitable: what None stands for, and whose crop precedes layers.

    Raises:
        ValueError: an unknown name.
        TypeError: something that is neither a name nor callable.

    >>> settings, layers = resolve_augment(keras.layers.RandomFlip(), AUGMENTATIONS["tiny"])
    >>> settings.crop, settings.shift, len(layers)
    ('resize', 0, 1)
    """
    if augment is None:
        return suitable, ()
    parts = list(augment) if isinstance(augment, (list, tuple)) else [augment]
    settings = crop_only(suitable)
    if parts and (first := _settings(parts[0])) is not None:
        settings = first
        del parts[0]
    return settings, tuple(layer for part in parts for layer in _layers(part))


def crop_only(augmentation: Augmentation) -> Augmentation:
    """Return the augmentation's crop without any other change."""
    off = Augmentation(crop=augmentation.crop, flip=False)
    return replace(off, min_area=augmentation.min_area, aspect_ratio=augmentation.aspect_ratio)


def _settings(part: Any) -> Augmentation | None:
    if isinstance(part, str):
        return AUGMENTATIONS.get(part)
    return part if isinstance(part, Augmentation) else None


def _layers(part: Any) -> list[Any]:
    """Return one part of `augment` as layers or callables, those of a `Sequential` one by one."""
    if isinstance(part, (keras.Sequential, keras.layers.Pipeline)):
        # A Sequential would compute with the backend, which tf.data cannot do on JAX and torch.
        return [layer for inner in part.layers for layer in _layers(inner)]
    if _settings(part) is not None:
        raise ValueError(f"augment: {part!r} must come first, before all layers.")
    if isinstance(part, str):
        raise ValueError(
            f"augment={part!r} is not known. Give one of: {', '.join(map(repr, AUGMENTATIONS))}; "
            "or, in Python, a layer itself, such as keras.layers.RandomRotation(0.05)."
        )
    if not callable(part):
        raise TypeError(
            f"augment={part!r} is a {type(part).__name__}. Give an Augmentation, a name in "
            "AUGMENTATIONS, a Keras or KerasCV layer, a callable, or a list of these."
        )
    return [part]


def describe_augment(settings: Augmentation, layers: Sequence[Any]) -> str:
    """Return what `resolve_augment` returned, as a line for a title or a log.

    >>> describe_augment(*resolve_augment(keras.layers.MixUp(), AUGMENTATIONS["tiny"]))
    'resize, keras.layers.MixUp'
    >>> describe_augment(AUGMENTATIONS["randaugment"], ())
    'inception crop of at least 5 %, flip, RandAugment (2 operations, magnitude 10)'
    """
    changes = map(str, (settings.random_crop, *settings.changes.values()))
    mixtures = {"mixup": settings.mixup, "CutMix": settings.cutmix}
    part = "" if settings.mixed_part == 1 else f" in {settings.mixed_part:.0%} of the batches"
    mixed = (f"{name} {alpha:g}{part}" for name, alpha in mixtures.items() if alpha)
    return ", ".join([*changes, *mixed, *map(describe, layers)])


def describe(layer: Any) -> str:
    """Return the public name of a layer, or the name of a callable.

    Example:
        >>> import keras
        >>> describe(keras.layers.MixUp())
        'keras.layers.MixUp'
    """
    if not isinstance(layer, keras.Layer):
        return getattr(layer, "__qualname__", type(layer).__qualname__)
    cls = type(layer)
    package = cls.__module__.partition(".")[0]
    public = package in ("keras", "keras_cv")
    return f"{package}.layers.{cls.__name__}" if public else cls.__qualname__


def mixes(layer: Any) -> bool:
    """Return whether a layer changes a batch of images and labels, rather than single images."""
    if isinstance(layer, keras.Layer):
        classes = {cls.__name__ for inner in layer._flatten_layers() for cls in type(inner).mro()}
        return not classes.isdisjoint(MIXING_LAYERS)
    try:
        parameters = inspect.signature(layer).parameters.values()
    except ValueError:  # some functions of C
        return False
    required = [
        p
        for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) == 2


@dataclass(frozen=True)
class _Step:
    """One traced layer: `function(seed, image)`, or `function(seed, images, labels)`."""

    name: str
    mixes: bool
    seeded: bool  # draws from the seed alone
    function: Callable[..., Any]


class LayerAugmentation:
    """Layers and callables in the graph of a pipeline, traced once each.

    Args:
        layers: what `resolve_augment` returned.
        image_shape: `(height, width, channels)`.
        num_classes: of the one-hot labels, which layers that mix images need.

    Raises:
        ValueError: a layer that cannot be traced, that changes shape, dtype or range of the images,
            or that mixes without `num_classes` or before one that does not.
    """

    def __init__(
        self, layers: Sequence[Any], image_shape: tuple[int, int, int], num_classes: int | None
    ):
        steps = [_trace(x, i, image_shape, num_classes) for i, x in enumerate(layers)]
        for before, after in itertools.pairwise(steps):
            if before.mixes and not after.mixes:
                raise ValueError(
                    f"augment: {after.name} changes one image at a time, and {before.name} mixes a "
                    f"batch: give {after.name} first."
                )
        self._image_steps = [step for step in steps if not step.mixes]
        self._batch_steps = [step for step in steps if step.mixes]
        self.mixes = bool(self._batch_steps)

    def check_processes(self, several: bool) -> None:
        """Raises a ValueError where processes would mix the same labels differently."""
        for step in self._batch_steps:
            if several and not step.seeded:
                raise ValueError(
                    f"augment: {step.name} may draw from a random state of its own, which differs "
                    "between processes: give keras.layers.MixUp or keras.layers.CutMix."
                )

    def change(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Augment one float32 image `(height, width, channels)`, 0..255, by a seed `(2,)`."""
        for step in self._image_steps:
            image = tf.clip_by_value(step.function(seed, image), 0.0, 255.0)
        return image

    def mix(
        self, images: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return a batch of images and one-hot labels; the seed has shape `(2,)`."""
        for step in self._batch_steps:
            images, labels = step.function(seed, images, labels)
            images = tf.clip_by_value(images, 0.0, 255.0)
        return images, labels


def _trace(layer: Any, index: int, shape: tuple[int, int, int], num_classes: int | None) -> _Step:
    name, batchwise = describe(layer), mixes(layer)
    if batchwise and num_classes is None:
        raise ValueError(f"augment: {name} mixes one-hot labels: give num_classes, too")
    _check_settings(layer, name)

    def step(seed: tf.Tensor, *tensors: tf.Tensor) -> Any:
        with _stateless(layer, tf.random.experimental.stateless_fold_in(seed, index)):
            # AutoGraph for the layer alone, as `Dataset.map` does: some have a Python `if`.
            outputs = tf.function(partial(_call, layer, batchwise))(*tensors)
        return _checked(name, outputs, tensors)

    specs = [tf.TensorSpec((None, *shape) if batchwise else shape, tf.float32)]
    if batchwise:
        specs.append(tf.TensorSpec((None, num_classes), tf.float32))
    try:
        traced = tf.function(step, autograph=False)
        function = traced.get_concrete_function(tf.TensorSpec((2,), tf.int64), *specs)
    except _OutputError:
        raise
    except Exception as error:  # each layer raises what it likes
        raise ValueError(
            f"augment: {name} cannot change images of shape {shape} inside tf.data on the "
            f"{keras.backend.backend()} backend: {' '.join(str(error).split())}"
        ) from error
    _check_range(name, function, shape, num_classes if batchwise else None)
    seeded = isinstance(layer, keras.Layer) and hasattr(layer, "_get_seed_generator")
    return _Step(name, batchwise, seeded, function)


class _OutputError(ValueError):
    """A layer returned images or labels of the wrong kind."""


def _call(layer: Any, batchwise: bool, images: tf.Tensor, *labels: tf.Tensor) -> Any:
    if not isinstance(layer, keras.Layer):
        return layer(images, *labels)
    if batchwise:
        outputs = layer({"images": images, "labels": labels[0]}, training=True)
        return outputs["images"], outputs["labels"]
    # A batch of one: all layers take batches, and some of them nothing else.
    return layer(images[None], training=True)[0]


class _Seeds(keras.random.SeedGenerator):
    """Seeds that follow from one seed and their order, without a variable."""

    def __init__(self, seed: tf.Tensor):
        self._seed, self._number = seed, itertools.count()

    def next(self, ordered: bool = True) -> tf.Tensor:
        return tf.random.experimental.stateless_fold_in(self._seed, next(self._number))


@contextmanager
def _stateless(layer: Any, seed: tf.Tensor) -> Iterator[None]:
    """While it is traced, a Keras layer computes in float32 and draws from this seed.

    Under a mixed policy pixels would be rounded to bfloat16, and some layers fail.
    """
    seeds = _Seeds(seed)
    inner = layer._flatten_layers() if isinstance(layer, keras.Layer) else ()
    policies = {id(each): (each, each.dtype_policy) for each in inner}
    for each, _ in policies.values():
        each.dtype_policy = "float32"
        if hasattr(each, "_get_seed_generator"):
            vars(each)["_get_seed_generator"] = lambda backend=None: seeds
    try:
        yield
    finally:
        for each, policy in policies.values():
            each.dtype_policy = policy
            vars(each).pop("_get_seed_generator", None)


def _check_settings(layer: Any, name: str) -> None:
    """Raises a ValueError for settings that are not those of this package's images."""
    expected = {"value_range": (0, 255), "data_format": "channels_last"}
    for each in layer._flatten_layers() if isinstance(layer, keras.Layer) else ():
        for argument, value in expected.items():
            setting = getattr(each, argument, value)
            if (tuple(setting) if isinstance(setting, list) else setting) != value:
                raise ValueError(
                    f"augment: {name} has {argument}={setting!r}: images have {argument}={value!r}."
                )


def _checked(name: str, outputs: Any, inputs: Sequence[tf.Tensor]) -> Any:
    """Return what a layer returned, as float32 tensors of the shapes of its inputs."""
    single = len(inputs) == 1
    results = (outputs,) if single else outputs
    if not isinstance(results, (list, tuple)) or len(results) != len(inputs):
        raise _OutputError(f"augment: {name} returned {outputs!r}: expected (images, labels).")
    checked = []
    for result, before, what in zip(results, inputs, ("images", "labels"), strict=False):
        if not isinstance(result, (tf.Tensor, np.ndarray)):
            raise _OutputError(f"augment: {name} returned {result!r} for {what}, not a tensor.")
        result = tf.convert_to_tensor(result)
        if not (result.dtype.is_floating or result.dtype.is_integer):
            raise _OutputError(
                f"augment: {name} returned {what} of dtype {result.dtype.name}: expected float32."
            )
        if not result.shape.is_compatible_with(before.shape):
            raise _OutputError(
                f"augment: {name} returned {what} of shape {tuple(result.shape)} for "
                f"{tuple(before.shape)}: it must keep the shape."
            )
        checked.append(tf.ensure_shape(tf.cast(result, tf.float32), before.shape))
    return checked[0] if single else tuple(checked)


def _check_range(
    name: str, function: Any, shape: tuple[int, int, int], num_classes: int | None
) -> None:
    """Raises a ValueError for a layer that returns other values than 0..255, such as 0..1.

    Layers may exceed the range a little, which is clipped, and a random one may return an image
    that is all black; so a test image is changed a few times.
    """
    ramp = tf.reshape(tf.linspace(0.0, 255.0, int(np.prod(shape))), shape)
    lows, highs = [], []
    with tf.device("CPU"):
        for number in range(_PROBES):
            seed = tf.constant([number, 0], tf.int64)
            if num_classes is None:
                changed = function(seed, ramp)
            else:
                labels = tf.one_hot([0, num_classes - 1], num_classes)
                changed, _ = function(seed, tf.stack([ramp, ramp[::-1]]), labels)
            lows.append(float(tf.reduce_min(changed)))
            highs.append(float(tf.reduce_max(changed)))
    low, high = min(lows), max(highs)
    # NaN compares false: each condition is what must hold.
    if not (low > -255 and high < 511 and high - low > 10):
        raise ValueError(
            f"augment: {name} returned pixels from {low:.3g} to {high:.3g} for an image from 0 to "
            "255: give a layer that keeps this range; models of this package rescale by themselves."
        )
