"""Batches without TensorFlow: Pillow decodes, NumPy augments, and Grain reads ahead in threads.

The same images in the same order, with the same crops and draws, as `tensorflow_pipeline` makes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import grain
import numpy as np

from keras_vit._base.processors import available_processors
from keras_vit.data.augment.augmentation import of_image
from keras_vit.data.augment.mixtures import draw_mixture, mix_images, mix_rows
from keras_vit.data.augment.training_image import augment_crop
from keras_vit.data.batch_plan import BatchPlan
from keras_vit.data.decode.rasters import fill_missing
from keras_vit.data.preprocessing import evaluation_image
from keras_vit.data.sources.splits import IndexedSplit

_ENDLESS = sys.maxsize  # positions, beyond which no run comes
_CHUNK = 256  # images for which random changes are drawn at once


def grain_batches(plan: BatchPlan) -> grain.IterDataset:
    """Return what `pipeline` returns where Grain reads.

    Raises:
        ValueError: the plan has layers or callables, which are TensorFlow's.
    """
    if plan.layers:
        raise ValueError(
            "augment: layers and callables run in tf.data, in TensorFlow's graph. Load the images "
            "with reader='tensorflow', or give an Augmentation or its name."
        )
    return GrainBatches(plan)


class GrainBatches(grain.IterDataset):
    """Batches of NumPy arrays, pass after pass.

    An iteration that was read to its end begins the next pass. `fit` looks at the first batches
    before it trains, which so does not cost a pass.
    """

    def __init__(self, plan: BatchPlan) -> None:
        super().__init__()
        self._plan, self._finished = plan, 0
        self._examples = _Examples(plan)
        self._kept: grain.MapDataset | None = None

    @property
    def num_batches(self) -> int | None:
        """Batches per pass; None for endless passes, or if undecodable files are left out."""
        if self._plan.repeat or self._plan.source.skips:
            return None
        return -(-self._plan.pass_rows // self._plan.batch_size)

    def __len__(self) -> int:
        if self.num_batches is None:
            raise TypeError("nobody knows how many batches there are")
        return self.num_batches

    def __iter__(self) -> grain.DatasetIterator:
        return _Iteration(self, self._finished)

    def as_numpy_iterator(self) -> Iterator[Any]:
        """Itself, as `tf.data.Dataset` has it."""
        return iter(self)

    def of_pass(self, number: int) -> grain.DatasetIterator:
        """Return the batches of one pass, or with `repeat` of all passes."""
        if not self._plan.keeps_batches:
            return self._read(number)
        if self._kept is None:
            self._kept = grain.MapDataset.source(list(self._read(number)))
        return iter(self._kept.to_iter_dataset())

    def _read(self, number: int) -> grain.DatasetIterator:
        plan, count = self._plan, self._plan.pass_rows
        skipped = plan.start_step if plan.source.skips else 0
        begin, end = number * count, (number + 1) * count
        if plan.repeat:
            begin, end = (plan.start_step - skipped) * plan.batch_size, _ENDLESS
        examples = grain.MapDataset.range(begin, end).map(self._examples.at)
        threads = available_processors()
        ahead = max(2 * plan.batch_size, threads)  # a batch, while one before it is trained on
        read = examples.to_iter_dataset(grain.ReadOptions(threads, ahead))  # leaves None out
        batches = iter(read.batch(plan.batch_size, batch_fn=self._examples.together))
        for _ in range(skipped):
            next(batches)
        return batches

    def finish(self, number: int) -> None:
        """Note that the pass of this number was read to its end."""
        self._finished = max(self._finished, number + 1)


class _Iteration(grain.DatasetIterator):
    """One iteration over the batches, which notes a pass that is read to its end."""

    def __init__(self, batches: GrainBatches, number: int) -> None:
        super().__init__()
        self.batches, self.number, self.inner = batches, number, batches.of_pass(number)

    def __next__(self) -> Any:
        try:
            return next(self.inner)
        except StopIteration:
            self.batches.finish(self.number)
            raise

    def close(self) -> None:
        self.inner.close()
        super().close()

    def get_state(self) -> dict[str, Any]:
        return {"pass": self.number, "batches": self.inner.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        if state["pass"] != self.number:
            self.inner.close()
            self.number, self.inner = state["pass"], self.batches.of_pass(state["pass"])
        self.inner.set_state(state["batches"])


class _Example(NamedTuple):
    """An image of the rows that this process decodes, or None; its label and position."""

    image: np.ndarray | None
    label: np.ndarray
    position: int


class _Examples:
    """Makes the example at each position of the stream, and batches of examples."""

    def __init__(self, plan: BatchPlan) -> None:
        assert isinstance(plan.source, IndexedSplit)  # records are TensorFlow's
        self._plan, self._source = plan, plan.source
        self._labels = plan.source.labels()
        self._needed = None if plan.needed is None else frozenset(plan.needed.tolist())
        self._order = lru_cache(maxsize=2)(partial(self._source.order, plan.shuffle_seed))
        self._draw = lru_cache(maxsize=4)(lambda chunk: plan.draw(chunk * _CHUNK, _CHUNK))
        self._one_thread = threading.Lock()  # makes the order, and others wait

    def at(self, position: int) -> _Example | None:
        """Return the prepared image; None where it cannot be decoded and is left out."""
        plan, split = self._plan, self._source
        position = int(position)
        epoch, place = divmod(position, plan.pass_rows)
        with self._one_thread:
            index = int(self._order(epoch)[place // plan.views])
        crop, draws = None, {}
        if plan.training:
            with self._one_thread:
                draws = of_image(self._draw(position // _CHUNK), position % _CHUNK)
        label = self._labels[index]
        if split.per_pixel:
            label = plan.moved_map(split.label_map(index), draws)
        if not self._is_needed(position if plan.repeat else place):
            return _Example(None, label, position)
        if plan.training:
            crop = plan.augmentation.random_crop.to_decode(draws["crop"])
        image, valid = split.pixels_or_replace(index, plan.channels, crop)
        if not valid and split.skips:
            return None
        if split.bands is not None:
            image = fill_missing(image, plan.transform.nodata)
        if plan.training and split.bands is not None:
            # Black comes in at the border: of bands, the lowest value in the image.
            lowest = image.min(axis=(0, 1)).astype("float32")
            above = image.astype("float32") - lowest
            image = augment_crop(above, plan.size, draws, plan.augmentation) + lowest
        elif plan.training:
            image = augment_crop(image, plan.size, draws, plan.augmentation)
        else:
            image = evaluation_image(image, plan.size, plan.transform)
        return _Example(image, label, position)

    def _is_needed(self, place: int) -> bool:
        """Return whether this process decodes what stands at a place of a pass or of the stream."""
        if self._needed is None:
            return True
        size, row = self._plan.batch_size, place % self._plan.batch_size
        is_full = self._plan.repeat or place - row + size <= self._plan.pass_rows
        return not is_full or row in self._needed

    def together(self, examples: Sequence[_Example]) -> tuple[np.ndarray, np.ndarray]:
        """Return the images of this process's rows, mixed within the batch, and all labels."""
        plan = self._plan
        images = np.stack([e.image for e in examples if e.image is not None])
        labels = np.stack([example.label for example in examples])
        if plan.num_classes is not None and labels.ndim == 1:
            rows = np.zeros((len(labels), plan.num_classes), np.float32)
            rows[np.arange(len(labels)), labels] = 1
            labels = rows
        if any(plan.alphas):
            position, part = examples[0].position, plan.augmentation.mixed_part
            draws = draw_mixture(plan.alphas, plan.size, plan.seed, position, part)
            before = np.roll(images, 1, axis=0)
            if plan.needed is not None:
                images, before = images[plan.pairs(len(examples))]
            images = mix_images(images, before, draws)
            labels = mix_rows(labels, np.roll(labels, 1, axis=0), draws)
        return (np.moveaxis(images, -1, 1) if plan.channels_first else images), labels
