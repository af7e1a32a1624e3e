"""Connections that leave room for others: slow ones, and too many, are closed."""

import asyncio
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

MAX_CONNECTIONS = 1024  # beyond them uvicorn answers 503
CLIENT_CONNECTIONS = 256  # from one address, a proxy perhaps
# Turns after a signal: in each, 16 waiting connections are accepted; some more until all are read.
LAST_READS = 100
IDLE_SECONDS = 10.0  # until all headers have arrived, or an answer has been taken


class FairConnection(AutoHTTPProtocol):  # type: ignore[valid-type, misc]
    """uvicorn's connection, which makes room for others.

    A connection above `CLIENT_CONNECTIONS` of its address, or above `MAX_CONNECTIONS`, replaces the
    one that has been idle longest, of those first that have not had an answer yet: who opens
    hundreds and sends nothing keeps nobody out who asks again and again on one. Where all have
    requests in progress, the new one is closed.
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
        first = min(idle, key=lambda each: (each.is_welcome, each.idle_since), default=self)
        first.transport.abort()

    def on_response_complete(self) -> None:
        """Notes when the client was answered."""
        self.idle_since = self.loop.time()
        super().on_response_complete()

    @property
    def host(self) -> str | None:
        """The address of the client without its port."""
        return self.client[0] if self.client else None

    @property
    def is_idle(self) -> bool:
        """Whether the server waits for the client: to send its headers, or to read its answer."""
        return self.cycle is None or self.cycle.response_complete or self.flow.write_paused

    @property
    def is_welcome(self) -> bool:
        """Whether the client has taken an answer, and may soon ask again."""
        return self.cycle is not None and not self.flow.write_paused

    def close_if_idle(self, now: float) -> None:
        """Closes the connection where it has been idle for `IDLE_SECONDS`; called every second."""
        request = self.cycle
        if request is not self._last_request or not self.is_idle:
            self.idle_since, self._last_request = now, request
        elif now - self.idle_since > IDLE_SECONDS:
            self.transport.abort()


class Server(uvicorn.Server):
    """uvicorn's server, which closes idle connections, and ends within a time of a signal.

    Args:
        seconds: After that, the system ends the process, whatever runs.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        on_start: Callable[[], None],
        on_stop: Callable[[], None],
        seconds: int,
    ) -> None:
        super().__init__(config)
        self._on_start, self._on_stop, self._seconds = on_start, on_stop, seconds

    def run_until_signal(self, listener: socket.socket) -> None:
        """Answers until Ctrl-C, which is a KeyboardInterrupt, or SIGTERM, which is a normal end."""
        # From before uvicorn takes the signal until after it has raised it again, when it is done.
        former = signal.signal(signal.SIGTERM, self.handle_exit)
        try:
            self.run(sockets=[listener])
        finally:
            signal.signal(signal.SIGTERM, former)
            # It goes on where a second Ctrl-C has left work behind.
            if hasattr(signal, "alarm") and not self.force_exit:  # not on Windows
                signal.alarm(0)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begins the end."""
        if not self.should_exit and hasattr(signal, "alarm"):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(self._seconds)
        self._on_stop()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to accept connections."""
        await super().startup(sockets)
        self._on_start()

    async def on_tick(self, counter: int) -> bool:
        """Ten times per second; True after a signal."""
        if counter % 10 == 0:
            connections: set[Any] = self.server_state.connections
            for connection in list(connections):
                connection.close_if_idle(time.monotonic())
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Reads what had reached the system by the signal, and answers it.

        uvicorn closes connections whose requests it has not read. Turns of the loop are counted,
        not the time: on a busy machine, a second may pass without any.
        """
        for _ in range(LAST_READS):
            await asyncio.sleep(0)
        await super().shutdown(sockets)
