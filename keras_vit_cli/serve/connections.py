"""Connections that leave room for others: slow ones, and too many, are closed."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

MAX_CONNECTIONS = 1024  # beyond them uvicorn answers 503
CLIENT_CONNECTIONS = 256  # from one address, a proxy perhaps
IDLE_SECONDS = 10.0  # until all headers have arrived, or an answer has been taken


class FairConnection(AutoHTTPProtocol):  # type: ignore[valid-type, misc]
    """uvicorn's connection, which makes room for others.

    A connection above `CLIENT_CONNECTIONS` of its address, or above `MAX_CONNECTIONS`, replaces the
    one that has been idle longest; where all have requests in progress, the new one is closed.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Counts the connection, and makes room for it."""
        self.idle_since: float = self.loop.time()
        self._last_request: Any = None
        super().connection_made(transport)
        everyone = [each for each in self.connections if not each.transport.is_closing()]
        crowd = [each for each in everyone if each.host == self.host]
        if len(crowd) <= CLIENT_CONNECTIONS:
            if len(everyone) < MAX_CONNECTIONS:
                return
            crowd = everyone
        idle = [each for each in crowd if each is not self and each.is_idle]
        longest = min(idle, key=lambda each: each.idle_since, default=self)
        longest.transport.abort()

    @property
    def host(self) -> str | None:
        """The address of the client without its port."""
        return self.client[0] if self.client else None

    @property
    def is_idle(self) -> bool:
        """Whether the client is waited for: for the rest of its headers, or to take its answer."""
        return self.cycle is None or self.cycle.response_complete or self.flow.write_paused

    def close_if_idle(self, now: float) -> None:
        """Closes the connection where it has been idle for `IDLE_SECONDS`; called every second."""
        request = self.cycle
        if request is not self._last_request or not self.is_idle:
            self.idle_since, self._last_request = now, request
        elif now - self.idle_since > IDLE_SECONDS:
            self.transport.abort()
