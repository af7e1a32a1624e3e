"""The HTTP interface: routes, limits and errors."""

from __future__ import annotations

import asyncio
import base64
import io
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from keras_vit._base.errors import did_you_mean
from keras_vit._base.processors import available_processors
from keras_vit.data.decode.bit_depth import DEEP, has_sixteen_bits
from keras_vit_cli.inspect.looks import METHODS
from keras_vit_cli.serve.batching import Batcher, FullError, Places
from keras_vit_cli.serve.images import RefusedError, discard_body, prepare, read_image_bytes
from keras_vit_cli.serve.metrics import Metrics
from keras_vit_cli.serve.model import Explanation, ServedModel
from keras_vit_cli.serve.start_page import page_headers, render_page
from keras_vit_cli.serve.versions import Versions

HUNG_UP = 499  # nginx's status for it; nobody reads the answer
ATTENTION_PLACES = 2  # one is computed, one waits: each takes as long as several predictions
UPLOADS_PER_PLACE = 2  # bodies that are read while the places are taken
_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Limits:
    """What a server accepts.

    Attributes:
        batch_size: The most images per batch.
        queue: The most accepted requests in progress, those in the batch included.
        max_bytes: Of a body.
        max_pixels: Height times width of an image.
        top: Number of classes in an answer.
    """

    batch_size: int
    queue: int
    max_bytes: int
    max_pixels: int
    top: int


class Service:
    """Answers requests with the newest version of a model."""

    def __init__(self, versions: Versions, limits: Limits, title: str) -> None:
        self.versions, self.limits, self.title = versions, limits, title
        self.places = Places(limits.queue)
        self.uploads = Places(UPLOADS_PER_PLACE * limits.queue)
        self.attention_places = Places(ATTENTION_PLACES)
        self.metrics = Metrics(lambda: self.places.in_use + self.attention_places.in_use)
        self.is_stopping = False
        self._has_warned = False
        self._model_thread = ThreadPoolExecutor(1, "model")
        self._decoders = ThreadPoolExecutor(min(8, available_processors()), "decoder")
        self._batcher = Batcher(self._model_thread, limits.batch_size, self.metrics.batch)
        # TensorFlow makes its graph of decoding now: later it would stop the loop for two seconds.
        with suppress(RefusedError):
            prepare(versions.model, b"no image", limits.max_pixels)

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Computes batches and watches for new versions, from the first request to the last."""
        # Windows does not have it, and only the main thread may set it.
        with suppress(NotImplementedError, AttributeError, RuntimeError, ValueError):
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, self.versions.reload_requested.set)
        tasks = [
            asyncio.create_task(self._batcher.run()),
            asyncio.create_task(self.versions.watch(self.metrics.reload)),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            self._decoders.shutdown()
            self._model_thread.shutdown()

    async def predict(self, request: Request) -> dict[str, Any]:
        """The answer for the image in a request, as the model's task describes it."""
        contents = await self._read(request)
        with self.places.taken():
            model, version = self.versions.model, self.versions.version
            pixels = await self._prepare(model, contents)
            row = await _unless_gone(request, self._batcher.predict(model, pixels))
        if not np.isfinite(row).all():
            raise ValueError(f"version {version.name} predicts values that are not finite")
        answer = model.task.describe(row, self.limits.top)
        return {**answer, "version": version.name, **self._warning(contents)}

    async def attention(self, request: Request) -> dict[str, Any]:
        """Where the model looked: a map of all layers, and the image as the model saw it.

        The query has `method`, one of `METHODS`, and `class`, the name of the class to explain.
        """
        self._explaining(request)  # before the body is read
        contents = await self._read(request)
        with self.attention_places.taken():
            model, version = self.versions.model, self.versions.version
            explain = self._explaining(request)  # a reload may have changed the model
            pixels = await self._prepare(model, contents)
            loop = asyncio.get_running_loop()
            work = loop.run_in_executor(self._model_thread, explain, pixels[None])
            explanation = await _unless_gone(request, work)
        return {
            "method": request.query_params.get("method", METHODS[0]),
            "class": explanation.class_name,
            "map": np.round(explanation.map.astype("float64"), 6).tolist(),
            "covered": [c / s for c, s in zip(explanation.covered, model.image_size, strict=True)],
            "image": _png(pixels),
            "version": version.name,
            **self._warning(contents),
        }

    def _explaining(self, request: Request) -> Callable[[np.ndarray], Explanation]:
        """What explains an image as the query of a request asks for, or a RefusedError."""
        model, query = self.versions.model, request.query_params
        explain = model.explain
        if explain is None:
            raise RefusedError(404, "This model does not have attention to show.")
        method, class_name = query.get("method", METHODS[0]), query.get("class")
        if method not in METHODS:
            known = " or ".join(METHODS)
            raise RefusedError(400, f"There is no method {method!r}. Ask for {known}.")
        if class_name is not None and class_name not in model.class_names:
            known = did_you_mean(class_name, model.class_names, model.class_names[:8])
            raise RefusedError(400, f"There is no class {class_name!r}. {known}")
        if class_name is not None and method == "rollout":
            raise RefusedError(400, "Rollout is the same for every class: leave class= out.")
        if method == "attribution" and class_name is None and len(model.class_names) == 1:
            raise RefusedError(400, "This model has one class: name it with class= in the query.")
        return lambda pixels: explain(pixels, method, class_name)

    def health(self) -> dict[str, Any]:
        """Which version answers, and why a newer one does not."""
        versions = self.versions
        return {
            "status": "stopping" if self.is_stopping else "ok",
            "model": self.title,
            "format": versions.model.format,
            "task": versions.model.task.kind,
            "version": versions.version.name,
            "error": versions.error,
        }

    def _warning(self, contents: bytes) -> dict[str, str]:
        """What an answer adds about an image that is not read as it is; logged the first time."""
        if not has_sixteen_bits(contents):
            return {}
        if not self._has_warned:
            self._has_warned = True
            logging.getLogger(__name__).warning("the image of a request is a %s", DEEP)
        return {"warning": f"The image is a {DEEP}"}

    async def _read(self, request: Request) -> bytes:
        with self.uploads.taken():
            return await read_image_bytes(request, self.limits.max_bytes)

    async def _prepare(self, model: ServedModel, contents: bytes) -> np.ndarray:
        loop, pixels = asyncio.get_running_loop(), self.limits.max_pixels
        return await loop.run_in_executor(self._decoders, prepare, model, contents, pixels)


async def _unless_gone(request: Request, work: Awaitable[_Result]) -> _Result:
    """What `work` returns; when the client hangs up, cancels it and raises ClientDisconnect."""

    async def hang_up() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    result, gone = asyncio.ensure_future(work), asyncio.ensure_future(hang_up())
    try:
        await asyncio.wait((result, gone), return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise ClientDisconnect
        return result.result()
    finally:
        result.cancel()
        gone.cancel()


def _png(pixels: np.ndarray) -> str:
    """The pixels as a data URL."""
    from PIL import Image

    levels = np.round(pixels).clip(0, 255).astype("uint8")
    buffer = io.BytesIO()
    Image.fromarray(levels[..., 0] if levels.shape[-1] == 1 else levels).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def _error(status: int, reason: str, **headers: str) -> JSONResponse:
    return JSONResponse({"error": reason}, status, {**_HEADERS, **headers})


def make_app(service: Service, hosts: list[str]) -> Starlette:
    """The ASGI application of a service.

    Args:
        service: What answers.
        hosts: Accepted names in the `Host` header, `["*"]` for all. Naming them keeps a web page
            that makes its own name point here (DNS rebinding) from reading answers.
    """

    def answering(
        name: str, answer: Callable[[Request], Coroutine[Any, Any, dict[str, Any]]]
    ) -> Callable[[Request], Awaitable[Response]]:
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
        return JSONResponse(service.health(), headers=_HEADERS)

    async def ready(request: Request) -> Response:
        if service.is_stopping:
            return _error(503, "The server is stopping.")
        return JSONResponse(service.health(), headers=_HEADERS)

    async def metrics(request: Request) -> Response:
        return Response(service.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def not_found(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        accepted = "POST /predict, POST /attention, GET /, /health, /ready and /metrics"
        reason = f"{error.detail}. This server answers {accepted}."
        return _error(error.status_code, reason, **(error.headers or {}))

    return Starlette(
        routes=[
            Route("/", page),
            Route("/predict", answering("predict", service.predict), methods=["POST"]),
            Route("/attention", answering("attention", service.attention), methods=["POST"]),
            Route("/health", health),
            Route("/ready", ready),
            Route("/metrics", metrics),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)],
        exception_handlers={HTTPException: not_found},
        lifespan=service.lifespan,
    )


async def _response_of(
    request: Request, answer: Callable[[Request], Coroutine[Any, Any, dict[str, Any]]]
) -> Response:
    """The answer as JSON, or its error; a client that still sends is heard out first."""
    try:
        return JSONResponse(await answer(request), headers=_HEADERS)
    except ClientDisconnect:
        return Response(status_code=HUNG_UP)
    except FullError as error:
        await discard_body(request)
        reason = f"The server is busy: {error}. Try again in a second."
        return _error(429, reason, **{"retry-after": "1"})
    except RefusedError as error:
        await discard_body(request)
        return _error(error.status, str(error))
    except Exception:
        logging.getLogger(__name__).exception("a request could not be answered")
        return _error(500, "The server could not compute an answer; its log has the reason.")
