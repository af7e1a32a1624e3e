"""The HTTP interface: routes and errors."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from keras_vit_cli.serve.batching import FullError
from keras_vit_cli.serve.images import RefusedError, discard_body
from keras_vit_cli.serve.infer import BINARY
from keras_vit_cli.serve.request_log import RequestLog
from keras_vit_cli.serve.service import Service
from keras_vit_cli.serve.start_page import page_headers, render_page
from keras_vit_cli.serve.traces import traced

HUNG_UP = 499  # nginx's status for it; nobody reads the answer
# What programs compare of an error; its text is for people.
ERRORS = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    408: "too_slow",
    413: "too_large",
    422: "unreadable_image",
    429: "busy",
    500: "failed",
    503: "stopping",
}
# JSON; or also bytes that follow it.
Answered = dict[str, Any] | tuple[dict[str, Any], bytes]
Answer = Callable[[Request], Coroutine[Any, Any, Answered]]
_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class _Json(JSONResponse):
    """JSON in ASCII: texts of clients may hold what cannot be encoded."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def _error(status: int, reason: str, **headers: str) -> JSONResponse:
    content = {"error": reason, "type": ERRORS.get(status, "refused")}
    return _Json(content, status, {**_HEADERS, **headers})


def make_app(
    service: Service, hosts: list[str], log: Callable[[str], None] | None = None
) -> RequestLog:
    """Return the ASGI application of a service.

    Args:
        hosts: Accepted names in the `Host` header, `["*"]` for all. Naming them keeps a web page
            that makes its own name point here (DNS rebinding) from reading answers.
    """

    def answering(name: str, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            loop = asyncio.get_running_loop()
            start = loop.time()
            response = await _response_of(request, answer)
            service.metrics.request(name, response.status_code, loop.time() - start)
            return response

        return endpoint

    async def page(request: Request) -> Response:
        content = render_page(service.title, service.versions.model, service.limits.max_bytes)
        return HTMLResponse(content, headers={**_HEADERS, **page_headers()})

    async def health(request: Request) -> Response:
        status = 503 if service.status == "stalled" else 200
        return _Json(service.health(), status, headers=_HEADERS)

    async def ready(request: Request) -> Response:
        if service.status != "ok":
            return _error(503, f"The server is {service.status}.")
        return _Json({**service.health(), "ready": True}, headers=_HEADERS)

    async def live(request: Request) -> Response:
        is_live = service.status != "stalled"
        return _Json({"live": is_live}, 200 if is_live else 503, headers=_HEADERS)

    async def metrics(request: Request) -> Response:
        versions, drift = service.versions, service.versions.model.drift
        text = service.metrics.text(versions.version.name, drift.value() if drift else None)
        return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})

    def post(path: str, name: str, answer: Answer) -> Route:
        return Route(path, traced(path, answering(name, answer)), methods=["POST"])

    routes = [
        Route("/", page),
        post("/predict", "predict", service.predict),
        post("/attention", "attention", service.attention),
        Route("/health", health),
        Route("/ready", ready),
        Route("/metrics", metrics),
        post("/v1/models/{name}:predict", "instances", service.instances),
        Route("/v1/models/{name}", answering("model", service.describe)),
        Route("/v2/health/live", live),
        Route("/v2/health/ready", ready),
        Route("/v2", answering("tensors", service.describe_server)),
        Route("/v2/models/{name}", answering("tensors", service.describe_tensors)),
        Route("/v2/models/{name}/ready", answering("tensors", service.model_ready)),
        post("/v2/models/{name}/infer", "infer", service.infer),
    ]
    known = [f"{'POST' if 'POST' in (r.methods or ()) else 'GET'} {r.path}" for r in routes]

    async def not_found(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        reason = f"{error.detail}. This server answers {', '.join(known)}."
        return _error(error.status_code, reason, **(error.headers or {}))

    app = Starlette(
        routes=routes,
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)],
        exception_handlers={HTTPException: not_found},
        lifespan=service.lifespan,
    )
    app.router.redirect_slashes = False  # "/predict/" would be an answer without a word
    return RequestLog(app, log)


async def _response_of(request: Request, answer: Answer) -> Response:
    """Return the answer as JSON, or its error; a client that still sends is heard out first."""
    try:
        answered = await answer(request)
        content, tail = answered if isinstance(answered, tuple) else (answered, b"")
        response = _Json(content, headers=_HEADERS)
        if not tail:
            return response
        size = {BINARY: str(len(response.body))}
        body = bytes(response.body) + tail
        return Response(body, 200, {**_HEADERS, **size}, "application/octet-stream")
    except ClientDisconnect:
        return Response(status_code=HUNG_UP)
    except asyncio.CancelledError:  # the time for answers after a signal is over
        return _error(
            503, "The server stops, and no time was left for this request: send it again."
        )
    except FullError as error:
        await discard_body(request)
        reason = f"The server is busy: {error}. Try again in a second."
        return _error(429, reason, **{"retry-after": "1"})
    except RefusedError as error:
        await discard_body(request)
        return _error(error.status, str(error))
    except Exception:
        logging.getLogger(__name__).exception("request %s could not be answered", request.state.id)
        return _error(500, "The server could not compute an answer; its log has the reason.")
