"""Threads that know for how long nothing has come to an end."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class WatchedThreads(ThreadPoolExecutor):
    """An executor that notes when work last came to an end, whoever still waits for it.

    >>> with WatchedThreads(1, "model") as threads:
    ...     threads.submit(sum, [1, 2]).result()
    3
    >>> threads.stalled_seconds()
    0.0
    """

    def __init__(self, count: int, name: str) -> None:
        super().__init__(count, name)
        self._counting = threading.Lock()
        self._pending, self._last_end = 0, 0.0

    def submit(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        with self._counting:
            if not self._pending:
                self._last_end = time.monotonic()
            self._pending += 1
        work = super().submit(function, *args, **options)
        work.add_done_callback(self._ended)
        return work

    def _ended(self, work: Future[Any]) -> None:
        with self._counting:
            self._pending -= 1
            if not work.cancelled():  # nothing has come of it
                self._last_end = time.monotonic()

    def stalled_seconds(self) -> float:
        """Return the time since anything came to an end; 0 while there is nothing to do."""
        with self._counting:
            return time.monotonic() - self._last_end if self._pending else 0.0
