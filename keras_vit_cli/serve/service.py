"""What a server does with a request: its images, in batches, to answers."""

import asyncio
import base64
import io
import logging
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import numpy as np
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request

from keras_vit._base.errors import did_you_mean, printable
from keras_vit._base.version import __version__
from keras_vit.data.data_errors import BadImageError
from keras_vit.data.decode.bit_depth import DEEP, has_sixteen_bits
from keras_vit.data.decode.image_files import prepare_contents
from keras_vit.evaluation.answer_row import Row
from keras_vit_cli.inspect.looks import METHODS
from keras_vit_cli.library_words import in_options
from keras_vit_cli.options.serve import ServeOptions
from keras_vit_cli.predict.schema import Schema
from keras_vit_cli.serve.batching import Batcher, Places
from keras_vit_cli.serve.decoders import Decoders
from keras_vit_cli.serve.images import (
    RefusedError,
    Upload,
    Uploads,
    check_query,
    images_in,
    preparation,
    unreadable,
)
from keras_vit_cli.serve.infer import BINARY, describe_tensors, infer_answer, read_infer
from keras_vit_cli.serve.instances import read_instances
from keras_vit_cli.serve.maps import maps_of
from keras_vit_cli.serve.metrics import Metrics
from keras_vit_cli.serve.model import Explanation, ServedModel
from keras_vit_cli.serve.threads import WatchedThreads
from keras_vit_cli.serve.traces import add_part
from keras_vit_cli.serve.versions import Versions

ATTENTION_PLACES = 2  # one is computed, one waits: each takes as long as several predictions
UPLOADS_PER_PLACE = 2  # bodies that are read while the places are taken
STALL_SECONDS = 120.0  # without any result, while there is work, is a failure that /health reports
_Result = TypeVar("_Result")


class Service:
    """Answers requests with the newest version of a model, by the pixels that `decoders` return."""

    def __init__(
        self, versions: Versions, limits: ServeOptions, title: str, decoders: Decoders
    ) -> None:
        self.versions, self.limits, self.title = versions, limits, printable(title)
        # One batch is computed while the next one is decoded: more would wait longer without being
        # answered sooner.
        queue = limits.queue or 2 * limits.batch_size
        self.places, self.uploads = Places(queue), Uploads(UPLOADS_PER_PLACE * queue)
        self.attention_places = Places(ATTENTION_PLACES)
        self.metrics = Metrics(lambda: self.places.in_use + self.attention_places.in_use)
        self.is_stopping = False
        self._has_warned = False
        logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # the client gets them
        self._model_thread = WatchedThreads(1, "model")
        # Its own: the first request compiles for many seconds, in which others are answered.
        self._attention_thread = WatchedThreads(1, "attention")
        self._decoders = decoders
        # One: JSON takes many times its size until images are made of it.
        self._json_thread = WatchedThreads(1, "json")
        self._batcher = Batcher(self._model_thread, limits.batch_size, self.metrics.batch)
        # TensorFlow makes its graph of decoding now: it takes two seconds.
        arguments = preparation(versions.model, b"no image", limits.max_pixels)
        for work in decoders.in_each(prepare_contents, *arguments):
            with suppress(BadImageError):
                work.result()

    def stop(self) -> None:
        """Reports from now on that the server stops."""
        self.is_stopping = True

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
            for threads in self._threads:
                threads.shutdown(cancel_futures=True)

    async def predict(self, request: Request) -> dict[str, Any]:
        """Return the row of the image in a request, or the `rows` of several in a form."""
        check_query(request, {}, "give options such as --top where the server is started")
        uploads = await self._read_images(request, self.limits.max_images)
        model, version = self.versions.model, self.versions.version.name
        answers, rows = await self._answer(request, model, version, uploads)
        if len(uploads) > 1:
            return {"rows": rows, "version": version}
        if isinstance(answers[0], str):
            raise unreadable(request, uploads[0], answers[0], self.title)
        if rows[0]["error"] is not None:
            raise ValueError(f"version {version}: {rows[0]['error']}")
        return {**rows[0], "version": version}

    async def instances(self, request: Request) -> dict[str, Any]:
        """Return the rows of the images in JSON as TensorFlow Serving takes it."""
        self._check_name(request)
        with self.uploads.taken(request):
            body = await self.uploads.read(request, self.limits.max_bytes)
            uploads = await self._in_json_thread(read_instances, body, self.limits.max_images)
        model, version = self.versions.model, self.versions.version.name
        _, rows = await self._answer(request, model, version, uploads)
        return {"predictions": rows, "version": version}

    async def infer(self, request: Request) -> tuple[dict[str, Any], bytes]:
        """Return the tensors that answer those of a request by the Open Inference Protocol.

        They are JSON, and bytes that follow it.
        """
        self._check_name(request)
        with self.uploads.taken(request):
            body = await self.uploads.read(request, self.limits.max_bytes)
            model, version = self.versions.model, self.versions.version.name
            limit, length = self.limits.max_images, request.headers.get(BINARY)
            infer = await self._in_json_thread(read_infer, body, model, limit, length)
        answers, rows = await self._answer(request, model, version, infer.uploads)
        name = {"model_name": self.title, "model_version": version}
        tensors, tail = infer_answer(infer, model, answers, rows)
        return {**name, **tensors}, tail

    async def describe(self, request: Request) -> dict[str, Any]:
        """Return what the model is: its task, its size, the sum of its weights, its version."""
        self._check_name(request)
        model = self.versions.model
        return {
            "name": self.title,
            "version": self.versions.version.name,
            "format": model.format,
            "task": model.task.get_config(),
            "classes": model.class_names,
            "image_size": model.image_size,
            "channels": model.channels,
            "sha256": model.sha256,
            "keras_vit": __version__,
        }

    async def describe_tensors(self, request: Request) -> dict[str, Any]:
        """Return what the model takes and returns, by the Open Inference Protocol."""
        self._check_name(request)
        model = self.versions.model
        return {
            "name": self.title,
            "versions": [self.versions.version.name],
            "platform": f"keras_vit_{model.format}",
            **describe_tensors(model),
        }

    async def describe_server(self, request: Request) -> dict[str, Any]:
        """Return what the server is, by the Open Inference Protocol."""
        return {"name": "keras_vit", "version": __version__, "extensions": ["binary_tensor_data"]}

    async def model_ready(self, request: Request) -> dict[str, Any]:
        """Return that the model answers, by the Open Inference Protocol."""
        self._check_name(request)
        if self.status != "ok":
            raise RefusedError(503, f"The server is {self.status}.")
        return {"name": self.title, "ready": True}

    def _check_name(self, request: Request) -> None:
        """Refuses the name of another model in the path; it is compared, and never opened."""
        name = request.path_params["name"]
        if name != self.title:
            raise RefusedError(
                404, f"There is no model {printable(name[:200])!r} here, but {self.title!r}."
            )

    async def _answer(
        self, request: Request, model: ServedModel, version: str, uploads: Sequence[Upload]
    ) -> tuple[list[np.ndarray | str], list[Row]]:
        """Return an answer or the reason why there is none for each image, and the row of each.

        A request of many images is one in the queue: its images enter batches a few at a time, so
        that those of others come between. Answers to every pixel, of which one may take hundreds of
        megabytes, become maps one by one, and are empty here.
        """
        request.state.images, request.state.version = len(uploads), version
        per_pixel, schema = model.task.per_pixel, Schema(model.task, self.limits.top, model.novelty)
        answers: list[np.ndarray | str] = []
        rows: list[Row] = []
        with self.places.taken():
            size = 1 if per_pixel else self.limits.batch_size
            for first in range(0, len(uploads), size):
                part = uploads[first : first + size]
                work = asyncio.gather(*(self._answer_one(model, upload) for upload in part))
                for upload, answer in zip(part, await _unless_gone(request, work), strict=True):
                    row = schema.row(upload.name, answer)
                    if per_pixel and row["error"] is None:
                        maps = self._in_json_thread(maps_of, model.task, answer, upload.contents)
                        row, answer = {**row, "maps": await maps}, np.zeros(0)
                    rows.append({**row, **self._warning(upload.contents)})
                    answers.append(answer)
        self.metrics.answers(rows)
        return answers, rows

    async def _answer_one(self, model: ServedModel, upload: Upload) -> np.ndarray | str:
        contents, began = upload.contents, time.time_ns()
        if isinstance(contents, bytes):
            try:
                contents = await self._prepare(model, contents)
            except BadImageError as error:
                return str(error)
            finally:
                add_part("decode", began)
        if isinstance(contents, str):
            return contents
        return await self._batcher.predict(model, contents)

    async def attention(self, request: Request) -> dict[str, Any]:
        """Where the model looked: a map of all layers, and the image as the model saw it.

        The query has `method`, one of `METHODS`, and `class`, the name of the class to explain.
        """
        self._explaining(request)  # before the body is read
        (upload,) = await self._read_images(request, 1)
        contents, request.state.images = upload.contents, 1
        assert isinstance(contents, bytes)
        with self.attention_places.taken():
            model, version = self.versions.model, self.versions.version
            explain = self._explaining(request)  # a reload may have changed the model
            try:
                pixels = await self._prepare(model, contents)
            except BadImageError as error:
                raise unreadable(request, upload, str(error), self.title) from error
            loop = asyncio.get_running_loop()
            work = loop.run_in_executor(self._attention_thread, explain, pixels[None])
            explanation = await _unless_gone(request, work)
        return {
            "method": request.query_params.get("method", METHODS[0]),
            "class": explanation.class_name,
            "evidence": explanation.evidence,
            "map": np.round(explanation.map.astype("float64"), 6).tolist(),
            "covered": [c / s for c, s in zip(explanation.covered, model.image_size, strict=True)],
            "image": _png(pixels),
            "version": version.name,
            **self._warning(contents),
        }

    def _explaining(self, request: Request) -> Callable[[np.ndarray], Explanation]:
        """Return what explains an image as the query of a request asks for, or a RefusedError."""
        model, query = self.versions.model, request.query_params
        check_query(request, {"method", "class"}, "ask for method= and class= alone")
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
        if method == "attribution" and class_name is None:
            is_one = len(model.class_names) == 1
            if model.task.are_numbers or (is_one and model.task.per_pixel):
                class_name = model.class_names[0]  # none of several numbers is the predicted one
            elif is_one:
                reason = "This model has one class: name it with class= in the query."
                raise RefusedError(400, reason)
        return lambda pixels: explain(pixels, method, class_name)

    @property
    def _threads(self) -> tuple[WatchedThreads, ...]:
        return self._json_thread, self._decoders, self._model_thread, self._attention_thread

    @property
    def status(self) -> str:
        """`"ok"`, `"stopping"`, or `"stalled"` where work has waited for `STALL_SECONDS`."""
        if self.is_stopping:
            return "stopping"
        seconds = max(threads.stalled_seconds() for threads in self._threads)
        return "stalled" if seconds > STALL_SECONDS else "ok"

    def health(self) -> dict[str, Any]:
        """Return which version answers, and why a newer one does not."""
        versions = self.versions
        return {
            "status": self.status,
            "model": self.title,
            "format": versions.model.format,
            "task": versions.model.task.kind,
            "version": versions.version.name,
            "error": versions.error,
        }

    def _warning(self, contents: bytes | np.ndarray | str) -> dict[str, str]:
        """Return a note on an image that is not read as it is, and log the first such image."""
        if not isinstance(contents, bytes) or not has_sixteen_bits(contents):
            return {}
        if not self._has_warned:
            self._has_warned = True
            logging.getLogger(__name__).warning("the image of a request is a %s", _in_http(DEEP))
        return {"warning": f"The image is a {_in_http(DEEP)}"}

    async def _read_images(self, request: Request, max_images: int) -> list[Upload]:
        with self.uploads.taken(request):
            body = await self.uploads.read(request, self.limits.max_bytes)
            return await images_in(request, body, max_images)

    async def _in_json_thread(self, read: Callable[..., _Result], *arguments: Any) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._json_thread, read, *arguments)

    async def _prepare(self, model: ServedModel, contents: bytes) -> np.ndarray:
        arguments = preparation(model, contents, self.limits.max_pixels)
        try:
            pixels: np.ndarray = await self._decoders.call(prepare_contents, *arguments)
        except BadImageError as error:
            raise BadImageError(_in_http(str(error))) from error
        return pixels


def _in_http(text: str) -> str:
    """Return a message of the library in the words of a client, with the options of the server."""
    return in_options(text.replace("read all bits by load(bands='all'), or ", ""), "serve")


async def _unless_gone(request: Request, work: Awaitable[_Result]) -> _Result:
    """Return what `work` returns; if the client hangs up, cancel it and raise ClientDisconnect."""

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
        result.add_done_callback(lambda work: work.cancelled() or work.exception())  # not logged
        gone.cancel()


def _png(pixels: np.ndarray) -> str:
    """Return the pixels as a data URL."""
    from PIL import Image

    levels = np.round(pixels).clip(0, 255).astype("uint8")
    buffer = io.BytesIO()
    Image.fromarray(levels[..., 0] if levels.shape[-1] == 1 else levels).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
