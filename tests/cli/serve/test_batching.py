"""Parts of the server: batches and limits, what `/metrics` counts; models on every backend."""

import asyncio
import json
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from keras_vit._base.errors import printable
from keras_vit.data.data_errors import BadImageError
from keras_vit.evaluation import fit_novelty
from keras_vit.exporting import ExportedModel
from keras_vit.inspection import attention_rollout, class_attribution
from keras_vit.tasks import Classification, Ordinal
from keras_vit_cli.serve.batching import Batcher, FullError, Places
from keras_vit_cli.serve.decoders import Decoders
from keras_vit_cli.serve.metrics import MOST_NAMES, OTHERS, Metrics
from keras_vit_cli.serve.model import load_served, warm_up
from keras_vit_cli.serve.threads import WatchedThreads
from keras_vit_cli.serve.versions import newest_version
from tests import bank, processes
from tests.backend import refused
from tests.cli.serve.helpers import NAMES, save, tiny_model
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


def test_what_arrives_meanwhile_is_the_next_batch_of_its_version() -> None:
    model, first, second = Model(), Model(), Model()

    async def of_one(batcher: Batcher) -> None:
        rows = [submit(batcher, model, 0)]
        await asyncio.sleep(0.05)
        rows += [submit(batcher, model, i) for i in range(1, 7)]
        await asyncio.sleep(0.05)
        rows[3].cancel()  # its client hung up: not computed
        model.go.set()
        done = await asyncio.gather(*rows, return_exceptions=True)
        found = [None if isinstance(row, BaseException) else row[0] for row in done]
        assert found == [0, 2, 4, None, 8, 10, 12]

    async def of_two(batcher: Batcher) -> None:
        rows = [submit(batcher, m, i) for i, m in enumerate((first, first, second, first))]
        first.go.set(), second.go.set()
        await asyncio.gather(*rows)
        with pytest.raises(ValueError, match="negative"):
            await submit(batcher, first, -1)
        assert (await submit(batcher, first, 3))[0] == 6

    run(of_one)
    assert model.batches == [[0], [1, 2, 4, 5], [6]]
    run(of_two)
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
            refused(reason, threads.submit(function, argument).result, error=kind)
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


def samples(metrics: Metrics, *drift: Any) -> dict[tuple[str, str], float]:
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(metrics.text(*drift).decode())
        for sample in family.samples
    }


def test_answers_are_counted_and_the_board_shows_what_there_is() -> None:
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
    metrics.request("predict", 200, 0.1)
    metrics.batch(2, 0.1)
    known = {name for name, _ in samples(metrics, "7", 0.5)}
    assert "keras_vit_feature_drift" in known - {name for name, _ in samples(metrics)}
    board = json.loads((REPOSITORY / "deploy/grafana.json").read_text("utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert {name for query in queries for name in re.findall(r"keras_vit_\w+", query)} <= known


def test_the_drift_of_the_mean_features(tmp_path: Path) -> None:
    model, colors = tiny_model(), np.random.default_rng(0).uniform(0, 255, (500, 4, 3, 3))
    colors[400:] /= 4
    images = colors.repeat(8, 1).repeat(8, 2).astype("float32")
    rows = bank.outputs(model.feature_model("pre_logits"), images)
    model.set_novelty(fit_novelty(rows[:300], rows[300:400]))
    served = load_served(save(model, tmp_path / "model.keras"))
    warm_up(served, 99)
    assert served.drift.value() is None  # nobody sent those
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    for like, parts in ((slice(400, 500), 1), (slice(300, 400), 10)):
        served.predict(np.concatenate([images[like]] * parts))
        moved = np.linalg.norm(unit[like].mean(0) - unit[:300].mean(0))
        expected = moved / unit[:300].var(0).sum() ** 0.5
        assert served.drift.value() == pytest.approx(expected, rel=1e-2)


@pytest.mark.every_backend
@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_a_keras_model_predicts_as_it_does_itself(data_format: str, tmp_path: Path) -> None:
    if data_format == "channels_first":
        model = bank.tiny(num_classes=3, input_shape=(3, 32, 24), data_format=data_format)
        kernel = np.random.default_rng(0).normal(size=(16, 3))
        model.get_layer("head").kernel.assign(kernel.astype("float32"))
    else:
        model = tiny_model(classifier_activation="softmax")
    served = load_served(save(model, tmp_path / "model.keras"))
    warm_up(served, 5)
    images = np.random.default_rng(0).uniform(0, 255, (3, 32, 24, 3)).astype("float32")
    taken = np.moveaxis(images, -1, 1) if data_format == "channels_first" else images
    scores = bank.outputs(model, taken)
    if data_format == "channels_first":
        scores = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    else:
        assert served.class_names == tuple(map(printable, NAMES))
    assert served.image_size == (32, 24)
    np.testing.assert_allclose(served.predict(images), scores, atol=1e-5)
    best = served.class_names[served.predict(images[:1])[0].argmax()]
    default = served.explain(images[:1], "attribution", None)
    assert (default.map.shape, default.covered, default.class_name) == ((4, 3), (32, 24), best)
    np.testing.assert_array_equal(default.map, class_attribution(model, taken[:1])[0])
    other = next(name for name in served.class_names if name != best)
    chosen = served.explain(images[:1], "attribution", other)
    assert chosen.class_name == other
    assert np.abs(chosen.map - default.map).max() > 1e-3
    rollout = served.explain(images[:1], "rollout", None)
    np.testing.assert_array_equal(rollout.map, attention_rollout(model, taken[:1])[0])
    assert rollout.class_name is None
    model = bank.tiny(num_classes=1, task=Ordinal(("none", "severe")))
    graded = load_served(save(model, tmp_path / "graded.keras"))
    pixels = images[:1, : graded.image_size[0], : graded.image_size[1]]
    assert graded.explain(pixels, "attribution", "severe").evidence == "at least severe"


def test_what_cannot_be_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for options, reason in (
        ({"num_classes": 0}, "not one score per class"),
        ({"num_classes": 1}, r"model\.task = "),  # nobody said what it is
        ({"include_preprocessing": False}, "normalized pixels"),
        ({"input_shape": (16, 16, 2)}, "one, three or four channels"),
    ):
        file = save(bank.tiny(**options), tmp_path / "model.keras")
        refused(reason, load_served, file)
    refused("no model at", load_served, tmp_path / "nothing", error=FileNotFoundError)
    assert load_served(save(bank.small_kind("mixer"), tmp_path / "mixer.keras")).explain is None
    contract = SimpleNamespace(
        task=Classification(("a\n", "b")), answer_shape=(2,), image_size=(8, 8), channels=1,
        evaluation={"mode": "stretch"}, top_k=2, format="onnx", novelty=False, statistics=None,
        seen_images=None, tasks=(), has_task=True,
    )  # fmt: skip
    contract.heads = (contract,)
    file = tmp_path / "model.onnx"
    file.write_bytes(b"")
    exported = ExportedModel(file, contract, lambda x: [np.full((len(x), 2), 0.5)])
    monkeypatch.setattr("keras_vit_cli.serve.model.load_classifier", lambda path: exported)
    served = load_served(file)
    assert (served.class_names, served.explain, served.drift) == (("a\\n", "b"), None, None)
    warm_up(served, 4)
    exported._run = lambda x: np.full((len(x), 3), 0.5)
    refused("not classification of 2", warm_up, load_served(file), 4)


def test_the_newest_version(tmp_path: Path) -> None:
    for number in ("2", "10", "notes"):
        (tmp_path / number).mkdir()
        (tmp_path / number / "model.keras").write_text(number)
    newest = newest_version(tmp_path)
    assert (newest.name, newest.path) == ("10", tmp_path / "10")
    run = newest_version(tmp_path / "2")
    (tmp_path / "2" / "report.md").write_text("does not count")
    assert newest_version(tmp_path / "2") == run
    (tmp_path / "2" / "model.keras").write_text("changed")
    assert newest_version(tmp_path / "2").name != run.name
