"""The plan of a pipeline, for any reader: its arguments, checked, with defaults filled in."""

from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np

from keras_vit._base.errors import check_choice
from keras_vit.data.arrays import Array
from keras_vit.data.augment.augmentation import Augmentation
from keras_vit.data.augment.change import Draws
from keras_vit.data.augment.training_image import training_mask
from keras_vit.data.eval_transform import BAND_MODES, EvalTransform
from keras_vit.data.preprocessing import evaluation_mask
from keras_vit.data.sources.array_splits import MEMORY_BYTES, ArraySplit, DecodedSplit
from keras_vit.data.sources.splits import Split, spread
from keras_vit.ops import rows_of_process


@dataclass(frozen=True)
class BatchPlan:
    """The arguments of `pipeline`, see there.

    Attributes:
        layers: What changes images after `augmentation`, in training alone.
        columns: Of a batch's labels; None for integers.
        batch_size: Rows of a batch, of which each image has `views`, one after another.
    """

    split: Split
    size: tuple[int, int]
    batch_size: int
    training: bool
    seed: int
    augmentation: Augmentation
    layers: tuple[Any, ...]
    transform: EvalTransform
    channels: int
    channels_first: bool
    num_classes: int | None
    columns: int | None
    cache: bool | None
    repeat: bool
    start_step: int
    views: int = 1

    @cached_property
    def pass_rows(self) -> int:
        """The rows of a pass: each is a position of the stream, with random numbers of its own."""
        return self.views * len(self.source)

    @cached_property
    def source(self) -> Split:
        """The split, or its images decoded in memory; decodes them when first asked for."""
        split, cache = self.split, self.cache
        if split.per_pixel:  # its maps are in files
            return split
        if cache is None:
            cache = _decoded_bytes(split, self.channels) < MEMORY_BYTES
        if not cache or isinstance(split, ArraySplit):  # which is in memory already
            return split
        return DecodedSplit(split, self.channels)

    @cached_property
    def keeps_batches(self) -> bool:
        """Whether the prepared batches of all passes, which are alike, stay in memory.

        Where `cache` is None and the images decoded are too large for it, but the images prepared
        are not: photographs of a phone are a hundred times as large.
        """
        if self.cache is not None or self.training or self.repeat or self.source is not self.split:
            return False
        prepared = 4 * len(self.split) * self.size[0] * self.size[1] * self.channels
        return prepared < MEMORY_BYTES and not isinstance(self.split, ArraySplit)

    @property
    def alphas(self) -> tuple[float, float]:
        """The alphas of mixup and CutMix; 0 for neither, as always outside of training."""
        if not self.training:
            return 0.0, 0.0
        return self.augmentation.mixup, self.augmentation.cutmix

    def moved_map(self, label: Array, draws: dict[str, Draws]) -> Array:
        """Return a label that is a map, moved as its image is."""
        if self.training:
            task = self.split.task
            fill, turns = task.unknown_pixel, task.turns
            return training_mask(label, self.size, draws, self.augmentation, fill, turns)
        return evaluation_mask(label, self.size)

    @property
    def shuffle_seed(self) -> int | None:
        return self.seed if self.training else None

    def draw(self, first: int, count: int) -> dict[str, Draws]:
        """Draw the changes of so many images, from position `first` of the stream on."""
        return self.augmentation.draw(self.size, self.seed, first, count=count)

    @cached_property
    def rows(self) -> np.ndarray | None:
        """The rows of a full batch that this process trains on; None for all.

        Where images that cannot be decoded are left out, nobody knows before which rows they have.
        """
        return None if self.source.skips else rows_of_process(self.batch_size)

    @cached_property
    def needed(self) -> np.ndarray | None:
        """The rows to decode: where images are mixed, these and those before them."""
        if self.rows is None or not any(self.alphas):
            return self.rows
        return np.union1d(self.rows, (self.rows - 1) % self.batch_size)

    def pairs(self, count: int) -> np.ndarray:
        """Return which of the decoded images are this process's, and the one before each.

        Args:
            count: how many images the batch has in all; of one that is not full, all are decoded.

        Returns:
            int64 `(2, images)`.
        """
        rows, needed = np.arange(count), np.arange(count)
        if self.rows is not None and self.needed is not None and count == self.batch_size:
            rows, needed = self.rows, self.needed
        return np.searchsorted(needed, [rows, (rows - 1) % count])


def _decoded_bytes(split: Split, channels: int, sample: int = 16) -> float:
    """Return an estimate, from a few images, of the memory that all take when decoded."""
    places = spread(len(split), sample)
    sizes = [image.nbytes for image, _ in split.decoded(channels, places)]
    return len(split) * sum(sizes) / max(len(sizes), 1)


def label_columns(split: Split, num_classes: int | None) -> int | None:
    """Return the columns of a batch's labels; None for integers, and for maps of them."""
    if split.per_pixel and num_classes is not None:
        raise ValueError(
            f"num_classes={num_classes} makes one-hot rows of classes, and the labels of "
            f"{split!r} are maps: leave num_classes out."
        )
    if split.label_shape and not split.per_pixel:
        (columns,) = split.label_shape
        if num_classes not in (None, columns):
            raise ValueError(
                f"num_classes={num_classes}, but the labels of {split!r} are rows of {columns} "
                "numbers already: leave num_classes out."
            )
        return columns
    if num_classes is not None and not split.task.mixes:
        raise ValueError(
            f"num_classes={num_classes} makes one-hot rows of classes, which are mixed, and the "
            f"labels of {split!r} must stay integers: leave num_classes out, and mixup and CutMix."
        )
    return num_classes


def check_band_plan(
    split: Split,
    channels: int | None,
    transform: EvalTransform,
    augmentation: Augmentation,
    training: bool,
) -> None:
    """Raises a ValueError for what would change the range of bands, or read others."""
    assert split.bands is not None
    if channels not in (None, len(split.bands)):
        raise ValueError(
            f"channels={channels} does not fit {split!r} of {len(split.bands)} bands: a model of "
            f"them has input_shape=(height, width, {len(split.bands)})."
        )
    if transform.bands not in (None, split.bands):
        raise ValueError(
            f"The model reads bands {transform.bands}, and {split!r} was loaded with "
            f"{split.bands}: load it with bands={transform.bands}."
        )
    if not training:
        check_choice(transform.mode, "eval_transform's mode beside bands", BAND_MODES)
        return
    if of_bytes := [name for name, change in augmentation.changes.items() if change.of_bytes]:
        raise ValueError(
            f"augment changes the colors of pixels 0..255 by {', '.join(of_bytes)}, and bands have "
            "a range of their own: give an Augmentation without, such as augment='inception'."
        )


def check_map_plan(plan: BatchPlan) -> None:
    """Raises a ValueError for what would move or mix images, and not the maps of their labels."""
    if not plan.split.per_pixel:
        return
    if plan.training and (plan.layers or any(plan.alphas)):
        what = "layers and callables change" if plan.layers else "mixup and CutMix mix"
        raise ValueError(
            f"augment: {what} images, and the labels of {plan.split!r} are maps, which would stay "
            'as they are: give an Augmentation without, such as "maps".'
        )
    if not plan.training:
        plan.transform.check_whole(repr(plan.split))


def check_mixing(alphas: tuple[float, float], layers_mix: bool, columns: int | None) -> None:
    if any(alphas) and layers_mix:
        raise ValueError(
            "augment mixes twice: by a layer, and by mixup={} and cutmix={} of the Augmentation. "
            "Give one of them.".format(*alphas)
        )
    if any(alphas) and columns is None:
        raise ValueError(
            "mixup={} and cutmix={} mix one-hot labels: give num_classes, too".format(*alphas)
        )


def check_numbers(batch_size: int, seed: int, repeat: bool, start_step: int, views: int) -> None:
    for name, value in (("batch_size", batch_size), ("views", views)):
        if not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name}={value!r} must be an integer, 1 or more")
    if not isinstance(seed, Integral) or seed < 0:
        raise ValueError(f"seed={seed!r} must be an integer, 0 or more")
    if start_step < 0 or (start_step and not repeat):
        raise ValueError(f"start_step={start_step} must be 0 or more, and 0 without repeat=True")
