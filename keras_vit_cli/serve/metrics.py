"""What Prometheus reads at `/metrics`."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counters of one server.

    Args:
        in_progress: Returns the number of requests that are being answered.
    """

    def __init__(self, in_progress: Callable[[], float]) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "keras_vit_requests", "Requests", ["endpoint", "status"], registry=registry
        )
        self._seconds = Histogram(
            "keras_vit_request_seconds",
            "Time from the headers of a request to its answer",
            ["endpoint"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._images = Histogram(
            "keras_vit_batch_images", "Images per batch", registry=registry, buckets=_IMAGES
        )
        self._batch_seconds = Histogram(
            "keras_vit_batch_seconds", "Time per batch", registry=registry, buckets=_SECONDS
        )
        self._reloads = Counter("keras_vit_reloads", "Reloads", ["result"], registry=registry)
        gauge = Gauge("keras_vit_in_progress", "Accepted requests", registry=registry)
        gauge.set_function(in_progress)

    def request(self, endpoint: str, status: int, seconds: float) -> None:
        """Counts an answered request; status 499 is a client that hung up."""
        self._requests.labels(endpoint, str(status)).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def batch(self, images: int, seconds: float) -> None:
        """Counts a computed batch."""
        self._images.observe(images)
        self._batch_seconds.observe(seconds)

    def reload(self, succeeded: bool) -> None:
        """Counts a version that was loaded or refused."""
        self._reloads.labels("loaded" if succeeded else "failed").inc()

    def text(self) -> bytes:
        """Return all counters in Prometheus's text format."""
        return generate_latest(self._registry)
