"""The id of a request, and a line of JSON per request for who runs the server."""

import json
import re
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = b"x-request-id"
# What stands in logs and headers as it is: without spaces, quotes and line breaks.
ACCEPTED = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
LONGEST_PATH = 200


class RequestLog:
    """Gives each request an id, which its answer has, too, and logs it when it is answered.

    The id is that of the client's `X-Request-ID` where it has one, of up to 128 letters, digits and
    `._:/+=-`; others are replaced by a new one.

    Args:
        write: Called with a line of JSON in ASCII per request; None to log nothing.
    """

    def __init__(self, app: ASGIApp, write: Callable[[str], None] | None = None) -> None:
        self._app, self._write = app, write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), 0
        name = request_id(scope["headers"])
        state = scope.setdefault("state", {})
        state["id"] = name.decode()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (HEADER, name)]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            if self._write is not None:
                line = {
                    "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                    "id": state["id"],
                    "method": scope["method"],
                    "path": scope["path"][:LONGEST_PATH],
                    "status": status,
                    "images": state.get("images", 0),
                    "milliseconds": round(1000 * (time.monotonic() - began), 1),
                }
                with suppress(OSError):  # a log that nobody reads takes no answers away
                    self._write(json.dumps(line))


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the one id that the headers of a request have, or a new one.

    >>> request_id([(b"x-request-id", b"job-7")])
    b'job-7'
    """
    values = [value for key, value in headers if key == HEADER]
    if len(values) == 1 and ACCEPTED.fullmatch(values[0]):
        return values[0]
    return uuid.uuid4().hex.encode()
