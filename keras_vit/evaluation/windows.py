"""Photographs of any size under a model of one size: by windows that overlap, or at their ratio."""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from numbers import Integral
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit import data
from keras_vit import ops as backend
from keras_vit._base.errors import check_choice
from keras_vit.data.data_errors import BadImageError
from keras_vit.data.decode.image_files import prepare_file, read_contents, unreadable_reason
from keras_vit.data.decode.pillow import displayed_size
from keras_vit.models.answers import answers_of, task_of
from keras_vit.models.scoring import scoring_model
from keras_vit.models.views import eval_transform_of
from keras_vit.tasks.bilinear import GrowingMap

WINDOWS = ("model", "own", "whole")
MOST_SIDE = 2**15
_STEP = 2 / 3  # of a window, at most, from one to the next
_MOST_SCORES = 2**24  # that are predicted, and turned into answers, at once
_MOST_SIZES = 4  # of images, that copies of a model are kept for


class Windows:
    """Maps of photographs, each at its own size, by a model of images of one size.

    A photograph is resized so that its short side has the pixels that are asked for, and at least
    so that the model's images fit into it; the model sees it by windows of its size that overlap
    by a third or more, as in DINOv3's and EoMT's inference, and in each pixel the mean of its
    outputs counts. Only the rows of windows under way are in memory, so that it grows with one side
    of a photograph and not with both.

    Args:
        model: Of this package, or an exported file; its task is one of pixels.
        side: `"model"` for a short side as long as that of the model's images, `"own"` for the
            photograph as it is, or a number of pixels. `"whole"`: no windows; a copy of the model
            for images of the photograph's aspect ratio, whose short side is that of the model's.
            Relative depths need it.
        batch_size: Windows per batch.

    Raises:
        ValueError: The model does not answer every pixel, crops the border of images, or is a file
            of one size and `side` `"whole"`; or the side is unknown.

    Example:

    >>> import keras_vit, numpy as np
    >>> from keras_vit.evaluation.windows import Windows
    >>> model = keras_vit.VisionTransformer(patch_size=4, hidden_dim=16, depth=1, num_heads=2,
    ...     input_shape=(8, 8, 3), task=keras_vit.tasks.Segmentation(("sky", "tree")))
    >>> windows = Windows(model, "own")
    >>> windows.map_of(np.zeros((20, 30, 3), "uint8")).shape
    (20, 30)
    """

    def __init__(self, model: Any, side: str | int = "model", batch_size: int = 32) -> None:
        if isinstance(side, str):
            check_choice(side, "windows", WINDOWS)
        elif not isinstance(side, Integral) or not 1 <= side <= MOST_SIDE:
            raise ValueError(
                f"windows={side!r} is not the short side of a photograph: give an integer from 1 "
                f"to {MOST_SIDE:,}, or one of {', '.join(map(repr, WINDOWS))}."
            )
        self.model, self.task, self.side = model, task_of(model), side
        self.batch_size, self.transform = batch_size, eval_transform_of(model)
        if not self.task.per_pixel:
            raise ValueError(
                f"windows are for answers to every pixel, and the task of {model.name} is "
                f"{self.task.kind}: leave windows out."
            )
        if side != "whole" and not self.task.joins_windows:
            raise ValueError(
                f"{model.name} answers relative depths, and those of two windows have neither one "
                "zero nor one unit: give windows='whole'."
            )
        self.transform.check_whole(model.name)
        if side == "whole" and not hasattr(model, "with_input_shape"):
            raise ValueError(
                f"windows='whole' needs images of other sizes, and {model.name} is an exported "
                "file, of one size: give 'model', 'own' or a number of pixels."
            )
        first = getattr(model, "data_format", "channels_last") == "channels_first"
        self._channels_axis = 1 if first else 3
        self.channels = model.input_shape[self._channels_axis]
        self.window = model.image_size
        self._scoring = lru_cache(_MOST_SIZES)(self._sized)

    def of_file(self, file: Path, max_pixels: int = data.MAX_PIXELS) -> np.ndarray | str:
        """Return the map of a photograph, or the reason why it cannot be decoded.

        The map is what `task.answer_map` returns; where outputs are not finite, it is a NaN, of
        one pixel.
        """
        try:
            size = displayed_size(read_contents(file), max_pixels)
        except (OSError, BadImageError) as error:
            return unreadable_reason(error)
        seen = self.seen_size(size)
        if math.prod(seen) > max_pixels:
            return f"{seen[1]} x {seen[0]} pixels once windows fit into it"
        image = prepare_file(file, seen, self.channels, max_pixels, self.transform)
        return image if isinstance(image, str) else self._map(image, size)

    def map_of(self, pixels: np.ndarray) -> np.ndarray:
        """Return the same of pixels 0..255, `(height, width, channels)`."""
        size = pixels.shape[:2]
        image = data.evaluation_image(pixels, self.seen_size(size), self.transform)
        return self._map(np.asarray(image), size)

    def seen_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the height and width to which a photograph is resized."""
        fits = max(w / n for w, n in zip(self.window, size, strict=True))
        sides = {"model": 0, "whole": 0, "own": min(size)}
        side = sides[self.side] if isinstance(self.side, str) else self.side
        scale, steps = max(fits, side / min(size)), (1, 1)
        if self.side == "whole":
            grid = getattr(self.model, "position_grid", self.window)
            steps = tuple(w // n for w, n in zip(self.window, grid, strict=True))
        height, width = (
            max(round(n * scale / step) * step, w)
            for n, step, w in zip(size, steps, self.window, strict=True)
        )
        return height, width

    def _sized(self, size: tuple[int, int]) -> Any:
        """Return the model that scores windows of a size."""
        if size == self.window:
            return scoring_model(self.model)
        first = self._channels_axis == 1
        shape = (self.channels, *size) if first else (*size, self.channels)
        return scoring_model(self.model.with_input_shape(shape))

    def _map(self, image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Return the map of a resized photograph, at its size before."""
        turned = image.shape[1] > image.shape[0]  # rows of windows go along the short side
        shapes = _turned(image.shape[:2], turned), _turned(size, turned)
        growing = GrowingMap(*shapes, self.task.decided)
        for outputs in self._rows_of_outputs(image, turned):
            answers = answers_of(self.model, outputs[None])[0]
            if not np.isfinite(answers).all():
                return np.full((1, 1, *self.task.pixel_shape), np.nan)
            growing.add(answers)
        answer_map = growing.finished()
        return answer_map.swapaxes(0, 1) if turned else answer_map

    def _rows_of_outputs(self, image: np.ndarray, turned: bool) -> Iterator[np.ndarray]:
        """Yield the mean outputs of all pixels, some rows at a time, or columns where turned."""
        window = image.shape[:2] if self.side == "whole" else self.window
        scoring = self._scoring(window)
        height, width = _turned(window, turned)
        length, across = _turned(image.shape[:2], turned)
        lines, columns = window_places(length, height), window_places(across, width)
        shares = sum(_covered(across, x, width) for x in columns)
        sums = np.zeros((height, across, self.model.output_shape[-1]), np.float32)
        counts = np.zeros((height, 1, 1), np.float32)
        step = max(_MOST_SCORES // sums[0].size, 1)
        for y, following in zip(lines, [*lines[1:], length], strict=True):
            cut = [(y, x) if not turned else (x, y) for x in columns]
            for x, output in zip(columns, self._scores(scoring, image, cut, window), strict=True):
                sums[:, x : x + width] += output.swapaxes(0, 1) if turned else output
            counts += 1
            done = following - y
            for begin in range(0, done, step):
                rows = slice(begin, min(begin + step, done))
                yield sums[rows] / (counts[rows] * shares)
            for waiting in (sums, counts):
                waiting[: height - done], waiting[height - done :] = waiting[done:].copy(), 0

    def _scores(
        self,
        scoring: Any,
        image: np.ndarray,
        places: Sequence[tuple[int, int]],
        window: tuple[int, int],
    ) -> Iterator[np.ndarray]:
        """Yield the outputs of windows, each `(height, width, outputs)`."""
        most = _MOST_SCORES // (math.prod(window) * max(self.model.output_shape[-1], 8))
        size = min(max(most, 1), self.batch_size)
        for begin in range(0, len(places), size):
            batch = places[begin : begin + size]
            images = np.stack([image[y : y + window[0], x : x + window[1]] for y, x in batch])
            if backend.compiles_per_shape():  # of few sizes of batches
                more = min(1 << (len(batch) - 1).bit_length(), size) - len(batch)
                images = np.pad(images, ((0, more), *3 * [(0, 0)]), mode="edge")
            outputs = scoring.predict_on_batch(np.moveaxis(images, -1, self._channels_axis))
            yield from keras.ops.convert_to_numpy(outputs)[: len(batch)]


def _turned(pair: Sequence[int], turned: bool) -> tuple[int, int]:
    first, second = pair
    return (second, first) if turned else (first, second)


def _covered(length: int, begin: int, size: int) -> np.ndarray:
    """Return 1 where a window is along an axis, `(length, 1)`, and 0 elsewhere."""
    places = np.arange(length)[:, None]
    return ((places >= begin) & (places < begin + size)).astype(np.float32)


def window_places(length: int, window: int) -> list[int]:
    """Return where windows along an axis begin, spread evenly.

    >>> window_places(1000, 512), window_places(512, 512)
    ([0, 244, 488], [0])
    """
    count = math.ceil((length - window) / (window * _STEP)) + 1
    return [round(place) for place in np.linspace(0, length - window, count)]
