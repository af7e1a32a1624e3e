"""Dynamic batching and its limits."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from keras_vit_cli.serve.batching import Batcher, FullError, Places


class Model:
    def __init__(self) -> None:
        self.batches: list[list[float]] = []
        self.go = threading.Event()

    def predict(self, pixels: np.ndarray) -> np.ndarray:
        self.go.wait(10)
        self.batches.append(pixels[:, 0].tolist())
        if (pixels < 0).any():
            raise ValueError("negative")
        return 2 * pixels


def run(scenario: Any) -> None:
    async def with_batcher() -> None:
        with ThreadPoolExecutor(1) as thread:
            batcher = Batcher(thread, 4)
            work = asyncio.create_task(batcher.run())
            await scenario(batcher)
            work.cancel()

    asyncio.run(with_batcher())


def submit(batcher: Batcher, model: Any, value: float) -> "asyncio.Task[np.ndarray]":
    return asyncio.ensure_future(batcher.predict(model, np.array([float(value)])))


def test_what_arrives_meanwhile_is_the_next_batch() -> None:
    model = Model()

    async def scenario(batcher: Batcher) -> None:
        rows = [submit(batcher, model, 0)]
        await asyncio.sleep(0.05)
        rows += [submit(batcher, model, i) for i in range(1, 7)]
        await asyncio.sleep(0.05)
        rows[3].cancel()  # its client hung up: not computed
        model.go.set()
        done = await asyncio.gather(*rows, return_exceptions=True)
        found = [None if isinstance(row, BaseException) else row[0] for row in done]
        assert found == [0, 2, 4, None, 8, 10, 12]

    run(scenario)
    assert model.batches == [[0], [1, 2, 4, 5], [6]]


def test_versions_errors_and_places() -> None:
    first, second = Model(), Model()

    async def scenario(batcher: Batcher) -> None:
        rows = [submit(batcher, m, i) for i, m in enumerate((first, first, second, first))]
        first.go.set(), second.go.set()
        await asyncio.gather(*rows)

    run(scenario)
    assert (first.batches, second.batches) == ([[0, 1], [3]], [[2]])
    model = Model()
    model.go.set()

    async def scenario(batcher: Batcher) -> None:
        with pytest.raises(ValueError, match="negative"):
            await submit(batcher, model, -1)
        assert (await submit(batcher, model, 3))[0] == 6

    run(scenario)
    places = Places(1)
    with places.taken(), pytest.raises(FullError, match="1 requests"), places.taken():
        pass
    assert places.in_use == 0
