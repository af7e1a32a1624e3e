"""Dynamic batching: what has arrived while the model was busy is its next batch."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from keras_vit_cli.serve.model import ServedModel
from keras_vit_cli.serve.traces import add_part


class FullError(RuntimeError):
    """The limit of requests in progress is reached."""


class Places:
    """How many of something may be in progress at once.

    >>> places = Places(1)
    >>> with places.taken():
    ...     places.in_use
    1
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.in_use = limit, 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Holds a place, or raises a FullError."""
        if self.in_use >= self.limit:
            raise FullError(f"{self.limit} requests are in progress")
        self.in_use += 1
        try:
            yield
        finally:
            self.in_use -= 1


@dataclass(frozen=True)
class _Waiting:
    model: ServedModel
    pixels: np.ndarray
    row: asyncio.Future[tuple[np.ndarray, int, int]]


class Batcher:
    """Collects images into batches of one model, which one thread computes.

    An image never waits for others to come: when the model is idle it computes what there is, and
    under load a batch fills while the one before is computed.

    Args:
        thread: An executor with one thread, which makes all calls of the models.
        on_batch: Called with the number of images of each batch and the seconds it took.
    """

    def __init__(
        self,
        thread: ThreadPoolExecutor,
        batch_size: int,
        on_batch: Callable[[int, float], None] = lambda images, seconds: None,
    ) -> None:
        self._thread, self._batch_size, self._on_batch = thread, batch_size, on_batch
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()

    async def predict(self, model: ServedModel, pixels: np.ndarray) -> np.ndarray:
        """Return one image's probabilities `(classes,)`; if nobody waits, it is not computed."""
        row, arrived = asyncio.get_running_loop().create_future(), time.time_ns()
        self._waiting.append(_Waiting(model, pixels, row))
        self._arrived.set()
        answer, began, images = await row
        add_part("wait", arrived, began)
        add_part("predict", began, batch_size=images)
        return answer

    async def run(self) -> None:
        """Computes batches until it is canceled."""
        while True:
            await self._arrived.wait()
            batch = self._next_batch()
            if batch:
                await self._compute(batch)
            else:
                self._arrived.clear()

    def _next_batch(self) -> list[_Waiting]:
        """Up to `batch_size` images for the model of the first: a reload does not mix versions."""
        batch: list[_Waiting] = []
        while self._waiting and len(batch) < self._batch_size:
            if batch and self._waiting[0].model is not batch[0].model:
                break
            image = self._waiting.popleft()
            if not image.row.done():  # its client has not hung up
                batch.append(image)
        return batch

    async def _compute(self, batch: list[_Waiting]) -> None:
        loop, start, began = asyncio.get_running_loop(), time.monotonic(), time.time_ns()
        try:
            pixels = np.stack([image.pixels for image in batch])  # memory may be short
            rows = await loop.run_in_executor(self._thread, batch[0].model.predict, pixels)
        except Exception as error:
            for image in batch:
                if not image.row.done():
                    image.row.set_exception(error)
            return
        self._on_batch(len(batch), time.monotonic() - start)
        for image, row in zip(batch, rows, strict=True):
            if not image.row.done():
                image.row.set_result((row, began, len(batch)))
