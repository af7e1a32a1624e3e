"""OpenTelemetry traces of requests, where its standard variables name a collector."""

import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from keras_vit._base.version import install_command

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_tracer: Any = None  # one per process, as OpenTelemetry's own


def traced(route: str, endpoint: Callable[..., Awaitable[Response]]) -> Callable[..., Any]:
    """Return an endpoint with a span per request: a child of the client's, where it sent one."""

    async def answer(request: Request) -> Response:
        if _tracer is None:
            return await endpoint(request)
        from opentelemetry import propagate, trace

        parent, kind = propagate.extract(request.headers), trace.SpanKind.SERVER
        with _tracer.start_as_current_span(f"POST {route}", parent, kind) as span:
            response = await endpoint(request)
            span.set_attribute("http.response.status_code", response.status_code)
            for name, unknown in (("id", ""), ("images", 0), ("version", "")):
                span.set_attribute(f"keras_vit.{name}", getattr(request.state, name, unknown))
            span.set_status(trace.StatusCode["ERROR" if response.status_code >= 500 else "UNSET"])
            return response

    return answer


def add_part(name: str, began: int, ended: int | None = None, **values: int) -> None:
    """Makes a span of a part of the request that is answered, by `time_ns`; until now for None."""
    if _tracer is not None:
        _tracer.start_span(name, start_time=began, attributes=values).end(ended)


@contextmanager
def tracing(report: Callable[[str], None]) -> Iterator[None]:
    """Traces requests if a variable asks for it; if none does, OpenTelemetry is not imported."""
    global _tracer
    endpoint, provider = next(filter(os.environ.get, ENDPOINTS), None), None
    try:
        if endpoint and os.environ.get("OTEL_TRACES_EXPORTER") != "none":
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            provider = TracerProvider(shutdown_on_exit=False)
            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
            _tracer = provider.get_tracer("keras_vit")
    except ImportError as error:
        report(f"{endpoint} is set; traces need {error.name}: {install_command('serve', 'otel')}")
    try:
        yield
    finally:
        if provider:
            stopping = threading.Thread(target=provider.shutdown, daemon=True)
            stopping.start()
            stopping.join(3)  # a collector that does not answer would keep the end for longer
