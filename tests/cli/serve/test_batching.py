"""Parts of the server: dynamic batching and its limits, what `/metrics` counts and its board."""

import asyncio
import json
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from keras_vit.data.data_errors import BadImageError
from keras_vit_cli.serve.batching import Batcher, FullError, Places
from keras_vit_cli.serve.decoders import Decoders
from keras_vit_cli.serve.metrics import MOST_NAMES, OTHERS, Metrics
from keras_vit_cli.serve.threads import WatchedThreads
from tests import processes
from tests.conftest import REPOSITORY


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
        with pytest.raises(ValueError, match="negative"):
            await submit(batcher, first, -1)
        assert (await submit(batcher, first, 3))[0] == 6

    run(scenario)
    assert (first.batches, second.batches) == ([[0, 1], [3], [-1], [3]], [[2]])
    places = Places(1)
    with places.taken(), pytest.raises(FullError, match="1 requests"), places.taken():
        pass
    assert places.in_use == 0


def test_a_decoder_that_takes_too_long_or_crashes_is_replaced(monkeypatch: Any) -> None:
    processes._start_forkserver()  # the tests' own, which has imported everything
    for name in ("DECODE_SECONDS", "LEFT_SECONDS"):
        monkeypatch.setattr(f"keras_vit_cli.serve.decoders.{name}", 0.2)
    with Decoders(1) as threads:
        first = threads.submit(os.getpid).result()
        for function, argument, kind, reason in (
            (time.sleep, 60, BadImageError, "longer than 0.2"),
            (os._exit, 1, BadImageError, "crash"),
            (len, 1, RuntimeError, "TypeError"),
        ):
            with pytest.raises(kind, match=reason):
                threads.submit(function, argument).result()
        assert threads.submit(os.getpid).result() not in (first, os.getpid())
        assert threads.stalled_seconds() == 0


def test_a_stall_is_seen_whoever_hangs_up() -> None:
    go = threading.Event()
    with WatchedThreads(1, "model") as threads:
        works = [threads.submit(go.wait, 10) for _ in range(2)]
        time.sleep(0.05)
        assert works[1].cancel()
        assert threads.stalled_seconds() >= 0.05
        go.set()


def samples(metrics: Metrics) -> dict[tuple[str, str], float]:
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


def test_answers_are_counted() -> None:
    metrics = Metrics(lambda: 0)
    sure = {"predictions": [{"class": "cat", "probability": 0.9}], "set": ["cat"], "novelty": 0.4}
    unsure = {**sure, "set": ["cat", "dog"], "novelty": 1.2}
    metrics.answers([sure, unsure, {"error": "cut off"}])
    metrics.answers([{"predictions": [], "labels": ["a", "b"]}, {"grade": "mild"}])
    metrics.answers([{"predictions": [{"name": "weight", "value": 2.0}]}])  # nothing to count
    counted = samples(metrics)
    names = {name: counted["keras_vit_answers_total", name] for name in ("cat", "a", "b", "mild")}
    assert names == {"cat": 2, "a": 1, "b": 1, "mild": 1}
    assert counted["keras_vit_set_names_sum", ""] == 3
    assert counted["keras_vit_novelty_bucket", "1.0"] == 1
    assert counted["keras_vit_novelty_count", ""] == 2
    metrics.answers([{"grade": str(number)} for number in range(MOST_NAMES + 50)])
    counted = samples(metrics)
    named = [name for metric, name in counted if metric == "keras_vit_answers_total"]
    assert len(named) == MOST_NAMES + 1
    assert counted["keras_vit_answers_total", OTHERS] == 54


def test_the_board_shows_what_there_is() -> None:
    metrics = Metrics(lambda: 0)
    metrics.answers([{"grade": "mild", "set": ["mild"], "novelty": 0.5}])
    metrics.request("predict", 200, 0.1)
    metrics.batch(2, 0.1)
    known = {name for name, _ in samples(metrics)}
    board = json.loads((REPOSITORY / "deploy/grafana.json").read_text("utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert {name for query in queries for name in re.findall(r"keras_vit_\w+", query)} <= known
