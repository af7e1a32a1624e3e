"""From the body of a request to pixels, within limits on bytes, time and pixels."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import numpy as np
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from keras_vit.data.data_errors import BadImageError
from keras_vit.data.decode.image_files import prepare_contents
from keras_vit_cli.serve.model import ServedModel

UPLOAD_SECONDS = 30.0
# What is read and thrown away after a refusal: a client that is still sending does not see the
# answer, and a connection closed at once reads as a network error.
DISCARDED_BYTES, DISCARD_SECONDS = 2**26, 5.0


class RefusedError(Exception):
    """A request that is answered with a status of 400 and above."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _FormInMemory(MultiPartParser):
    spool_max_size = 2**62  # the body is in memory and within the limit: no copy on disk


async def read_image_bytes(request: Request, max_bytes: int) -> bytes:
    """The image in a body: the body itself, or the file in a multipart form.

    Raises:
        RefusedError: The body is too large, too slow, empty, or a form without a file.
        ClientDisconnect: The client has hung up.
    """
    too_large = RefusedError(
        413, f"The body has more than {max_bytes} bytes. Send a smaller file, or raise --max-bytes."
    )
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise too_large
    body = bytearray()

    async def read() -> None:
        async for chunk in request.stream():
            body.extend(chunk)
            if len(body) > max_bytes:
                raise too_large

    try:
        await asyncio.wait_for(read(), UPLOAD_SECONDS)
    except TimeoutError:
        raise RefusedError(
            408, f"The body did not arrive within {UPLOAD_SECONDS:g} seconds."
        ) from None
    contents = bytes(body)
    if request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        contents = await _file_in_form(request, contents)
    if not contents:
        raise RefusedError(400, "The body is empty. Send the bytes of an image file.")
    return contents


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


async def _file_in_form(request: Request, body: bytes) -> bytes:
    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    try:
        form = await _FormInMemory(request.headers, stream(), max_files=1, max_fields=16).parse()
    except MultiPartException as error:
        raise RefusedError(400, f"The form cannot be read: {error.message}") from error
    for _, value in form.multi_items():
        if isinstance(value, UploadFile):
            return await value.read()
    raise RefusedError(400, "The form does not have a file. Send one: curl -F image=@photo.jpg")


def prepare(model: ServedModel, contents: bytes, max_pixels: int) -> np.ndarray:
    """float32 pixels `(height, width, channels)` as `keras-vit predict` and evaluation see them.

    Raises:
        RefusedError: The bytes cannot be decoded, or the image has too many pixels.
    """
    size, channels = model.image_size, model.channels
    try:
        return prepare_contents(contents, size, channels, max_pixels, model.evaluation)
    except BadImageError as error:
        raise RefusedError(422, f"The image cannot be read: {error}") from error
