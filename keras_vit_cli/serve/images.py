"""From the body of a request to pixels, within limits on bytes, time, images and pixels."""

import asyncio
import codecs
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from keras_vit._base.errors import printable
from keras_vit.data.data_errors import BadImageError
from keras_vit_cli.serve.batching import FullError
from keras_vit_cli.serve.model import ServedModel

UPLOAD_SECONDS = 30.0
# Of the names in a form: other codecs of Python's give texts that no answer can have, or raise
# errors of their own.
_CHARSETS = ("utf-8", "ascii", "iso8859-1")
FEWER = "Send several requests, or raise --max-images."
PATIENCE_SECONDS = 2.0  # for a body while others wait for its place
# What is read and thrown away after a refusal: a client that is still sending does not see the
# answer, and a connection closed at once reads as a network error.
DISCARDED_BYTES, DISCARD_SECONDS = 2**26, 5.0


class RefusedError(Exception):
    """A request that is answered with a status of 400 and above."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Upload:
    """One image of a request.

    Attributes:
        name: Of the file in a form; elsewhere its place in the request, `"0"`, `"1"`, ...
        contents: The bytes of an image file; or float32 pixels `(height, width, channels)` as the
            model takes them; or the reason why it cannot be read.
    """

    name: str
    contents: bytes | np.ndarray | str


class _FormInMemory(MultiPartParser):
    spool_max_size = 2**62  # the body is in memory and within the limit: no copy on disk


class Uploads:
    """How many bodies may be read at once, half of them from one address.

    Slow clients do not keep others out: where all places are taken, the body that has been read for
    longest is given up, if that is more than `PATIENCE_SECONDS`.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._clients: Counter[str] = Counter()
        self._reading: dict[asyncio.Timeout, tuple[str, float]] = {}  # the oldest first

    @contextmanager
    def taken(self, request: Request) -> Iterator[None]:
        """Holds a place, or raises a FullError."""
        client = _address(request)
        if self._clients[client] >= -(-self._limit // 2):
            self._give_up_slowest(client)
        elif self._clients.total() >= self._limit:
            self._give_up_slowest(None)
        self._clients[client] += 1
        try:
            yield
        finally:
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]

    def _give_up_slowest(self, client: str | None) -> None:
        now = asyncio.get_running_loop().time()
        for deadline, (address, start) in self._reading.items():
            is_slow = now - start > PATIENCE_SECONDS and not deadline.expired()
            if is_slow and client in (None, address):
                deadline.reschedule(now)
                del self._reading[deadline]
                return
        raise FullError(f"{self._limit} requests are being sent")

    async def read(self, request: Request, max_bytes: int) -> bytes:
        """Return the body of a request that holds a place: see `read_body`."""
        start = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(UPLOAD_SECONDS) as deadline:
                self._reading[deadline] = (_address(request), start)
                try:
                    return await read_body(request, max_bytes)
                finally:
                    self._reading.pop(deadline, None)
        except TimeoutError:
            seconds = asyncio.get_running_loop().time() - start
            raise RefusedError(
                408, f"The body did not arrive within {seconds:.0f} seconds."
            ) from None


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Return the body of a request.

    Raises:
        RefusedError: It is too large.
        ClientDisconnect: The client has hung up.
    """
    too_large = RefusedError(
        413, f"The body has more than {max_bytes} bytes. Send a smaller file, or raise --max-bytes."
    )
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body.extend(chunk)
        if len(body) > max_bytes:
            raise too_large
    return bytes(body)


async def images_in(request: Request, body: bytes, max_images: int) -> list[Upload]:
    """Return the images in a body: the body itself, or the files in a multipart form.

    Raises:
        RefusedError: It is empty, a form without a file, or one with too many.
    """
    uploads = [Upload("0", body)]
    if request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        uploads = await _files_in_form(request, body, max_images)
    if len(uploads) == 1 and not uploads[0].contents:
        raise RefusedError(400, "The body is empty. Send the bytes of an image file.")
    return uploads


def check_count(images: int, max_images: int) -> None:
    """Refuses more images than a request may have."""
    if images > max_images:
        raise RefusedError(413, f"The request has more than {max_images} images. {FEWER}")


def check_query(request: Request, known: Collection[str], fix: str) -> None:
    """Refuses what a query asks for and nobody would look at."""
    if unknown := [name for name in request.query_params if name not in known]:
        shown = printable(unknown[0][:60])
        raise RefusedError(400, f"The query has {shown}=, which {request.url.path} ignores: {fix}.")


async def discard_body(request: Request) -> None:
    """Reads what a refused client is still sending, up to a limit."""

    async def read() -> None:
        count = 0
        async for chunk in request.stream():
            count += len(chunk)
            if count > DISCARDED_BYTES:
                return

    try:
        await asyncio.wait_for(read(), DISCARD_SECONDS)
    except (TimeoutError, ClientDisconnect, RuntimeError):
        return  # too slow, gone, or read to its end before


async def _files_in_form(request: Request, body: bytes, max_images: int) -> list[Upload]:
    charset = parse_options_header(request.headers["content-type"])[1].get(b"charset", b"utf-8")
    try:
        is_known = codecs.lookup(charset.decode("latin-1")).name in _CHARSETS
    except (LookupError, ValueError):
        is_known = False
    if not is_known:
        shown = printable(charset[:60].decode("latin-1"))
        raise RefusedError(400, f"The form has charset={shown}. Send it in UTF-8.")

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    parser = _FormInMemory(request.headers, stream(), max_files=max_images, max_fields=16)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if "Too many files" in error.message:
            check_count(max_images + 1, max_images)
        raise RefusedError(400, f"The form cannot be read: {error.message}") from error
    files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
    if not files:
        raise RefusedError(400, "The form does not have a file. Send one: curl -F image=@photo.jpg")
    return [Upload(file.filename or str(i), await file.read()) for i, file in enumerate(files)]


def unreadable(request: Request, upload: Upload, reason: str, title: str) -> RefusedError:
    """Return the error of a request whose one image cannot be read."""
    kind, hint = request.headers.get("content-type", "").lower(), ""
    body = upload.contents if isinstance(upload.contents, bytes) else b""
    if kind.startswith("application/json") or body[:1] in (b"{", b"["):
        hint = f" (JSON is read by /v1/models/{title}:predict)"
    elif kind == "application/x-www-form-urlencoded" and b"\n" not in body:
        hint = " (curl -d drops bytes of a file: --data-binary sends all)"
    return RefusedError(422, f"The image cannot be read: {reason}{hint}")


def preparation(model: ServedModel, contents: bytes, max_pixels: int) -> tuple[Any, ...]:
    """Return the arguments of `prepare_contents`, which may be sent to another process."""
    if not contents:
        raise BadImageError("the file is empty")
    return contents, model.image_size, model.channels, max_pixels, model.evaluation
