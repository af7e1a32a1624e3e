"""What Prometheus reads at `/metrics`."""

from collections.abc import Callable, Sequence
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from keras_vit.evaluation.answer_row import Row

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)
# Parts of the threshold above which an image is unlike those of the training.
_NOVELTY = (0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 4)
_NAMES = (1, 2, 3, 4, 5, 7, 10, 20, 50)
# A series for each name that is answered, and one for all others: a thousand would be a burden.
MOST_NAMES, OTHERS = 100, "(others)"


class Metrics:
    """Counters of one server."""

    def __init__(self, in_progress: Callable[[], float]) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self._requests = counter("keras_vit_requests", "Requests", ["endpoint", "status"])
        self._seconds = histogram(
            "keras_vit_request_seconds",
            "Time from the headers of a request to its answer",
            ["endpoint"],
            buckets=_SECONDS,
        )
        self._images = histogram("keras_vit_batch_images", "Images per batch", buckets=_IMAGES)
        self._batch_seconds = histogram(
            "keras_vit_batch_seconds", "Time per batch", buckets=_SECONDS
        )
        self._novelty = histogram(
            "keras_vit_novelty",
            "Distance from the training images; above 1 it is novel",
            buckets=_NOVELTY,
        )
        self._set_names = histogram(
            "keras_vit_set_names", "Names in a prediction set", buckets=_NAMES
        )
        self._answers = counter("keras_vit_answers", "Answers by their first name", ["name"])
        self._named: set[str] = set()
        self._reloads = counter("keras_vit_reloads", "Reloads", ["result"])
        gauge = Gauge("keras_vit_in_progress", "Accepted requests", registry=registry)
        gauge.set_function(in_progress)
        self._drift = Gauge(
            "keras_vit_feature_drift",
            "Distance of recent images' mean features from training's, in its standard deviations",
            ["version"],
            registry=registry,
        )

    def request(self, endpoint: str, status: int, seconds: float) -> None:
        """Counts an answered request; status 499 is a client that hung up."""
        self._requests.labels(endpoint, str(status)).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def batch(self, images: int, seconds: float) -> None:
        """Counts a computed batch."""
        self._images.observe(images)
        self._batch_seconds.observe(seconds)

    def answers(self, rows: Sequence[Row]) -> None:
        """Counts what was answered: novelties, sizes of sets, and the first names."""
        for row in rows:
            if "novelty" in row:
                self._novelty.observe(row["novelty"])
            if "set" in row:
                self._set_names.observe(len(row["set"]))
            first = [row["class"] for row in row.get("predictions", [])[:1] if "class" in row]
            names = [row["grade"]] if "grade" in row else row.get("labels", first)
            for name in names:
                self._answers.labels(self._label(name)).inc()

    def _label(self, name: str) -> str:
        if name not in self._named and len(self._named) >= MOST_NAMES:
            return OTHERS
        self._named.add(name)
        return name

    def reload(self, succeeded: bool) -> None:
        """Counts a version that was loaded or refused."""
        self._reloads.labels("loaded" if succeeded else "failed").inc()

    def text(self, version: str = "", drift: float | None = None) -> bytes:
        """Return all counters in Prometheus's text format, and a drift, where there is one."""
        self._drift.clear()
        if drift is not None:
            self._drift.labels(version).set(drift)
        return generate_latest(self._registry)
