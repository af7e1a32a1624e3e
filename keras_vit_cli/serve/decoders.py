"""Processes that decode images: one that takes too long, or crashes, is replaced."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from keras_vit.data.data_errors import BadImageError
from keras_vit_cli.serve.threads import WatchedThreads

DECODE_SECONDS = 20.0
LEFT_SECONDS = 1.0  # after which an image whose client has hung up is given up
START_SECONDS = 120.0
_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


class Decoders(WatchedThreads):
    """An executor whose work is done in processes, each of which is ended at a deadline.

    A thread cannot be ended: a file that takes minutes would keep it for as long, whether or not
    its client still waits. The processes start at once, beside what else is loaded.

    Functions and what they return are pickled. Work raises a BadImageError after `DECODE_SECONDS`,
    and where the process ends by itself, as one that runs out of memory does.
    """

    def __init__(self, count: int) -> None:
        super().__init__(count, "decoder")
        self.count = count
        self._context: Any = multiprocessing.get_context(_METHOD)
        # What is imported there is shared by all that are forked from it.
        self._context.set_forkserver_preload(["keras_vit.data.decode.image_files"])
        if _METHOD == "forkserver":
            _start_forkserver()
        self._idle: queue.SimpleQueue[_Worker | None] = queue.SimpleQueue()
        self._workers: set[_Worker] = set()
        self._is_closed = False
        for _ in range(count):
            self._idle.put(None)
        self.in_each(os.getpid)

    def submit(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        return super().submit(self._run, threading.Event(), function, *args, **options)

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return what a function returns; leave the wait, and its process soon ends."""
        is_left = threading.Event()
        try:
            return await asyncio.wrap_future(super().submit(self._run, is_left, function, *args))
        finally:
            is_left.set()

    def in_each(self, function: Callable[..., Any], *args: Any) -> list[Future[Any]]:
        """Has each process call a function: they take turns."""
        return [self.submit(function, *args) for _ in range(self.count)]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the processes, and what they are doing."""
        self._is_closed = True
        self._kill(*self._workers)
        super().shutdown(wait, cancel_futures=True)
        self._kill(*self._workers)  # one may have been started meanwhile

    def _kill(self, *workers: _Worker) -> None:
        for worker in workers:
            worker.process.kill()
            worker.process.join()
            self._workers.discard(worker)

    def _run(self, is_left: threading.Event, function: Callable[..., Any], *args: Any) -> Any:
        worker, reason = self._idle.get(), None
        try:
            if self._is_closed:
                raise BadImageError("the server is stopping")
            if worker is None or not worker.process.is_alive():
                worker = _Worker(self._context)
                self._workers.add(worker)
                if self._is_closed:  # since it was asked
                    raise BadImageError("the server is stopping")
            result = worker.call(function, args, is_left)
        except TimeoutError:
            reason = f"decoding it takes longer than {DECODE_SECONDS:g} seconds"
        except (EOFError, OSError):
            reason = "the process that decoded it crashed, or ran out of memory"
        finally:
            self._idle.put(worker if reason is None else None)
        if reason is not None:
            if worker is not None:
                self._kill(worker)
            raise BadImageError(reason)
        if isinstance(result, Exception):
            raise result
        return result


def _start_forkserver() -> None:
    """Starts the process that the others are forked from, deaf to SIGTERM and Ctrl-C.

    Both are sent to every process, and the server still decodes what it has accepted.
    """
    # Unblocks the signals when it starts, and would do so below.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Worker:
    """A process that runs the functions it receives."""

    def __init__(self, context: Any) -> None:
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self._is_ready = False

    def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], is_left: threading.Event
    ) -> Any:
        """Return what a function returns or its exception; TimeoutError, EOFError if none comes."""
        if not self._is_ready:
            self._wait_for_start()
        self._pipe.send((function, args))
        end = time.monotonic() + DECODE_SECONDS
        while not self._pipe.poll(LEFT_SECONDS):
            if is_left.is_set() or time.monotonic() > end:
                raise TimeoutError
        return self._pipe.recv()

    def _wait_for_start(self) -> None:
        try:
            if not self._pipe.poll(START_SECONDS):
                raise TimeoutError
            self._pipe.recv()
        except (TimeoutError, EOFError, OSError) as error:
            self.process.kill()
            raise RuntimeError(
                "A process that decodes images could not be started. In a script, call serve() "
                "under `if __name__ == '__main__':`, since processes import the script."
            ) from error
        self._is_ready = True


def _work(pipe: Connection) -> None:
    # Ctrl-C and systemd's SIGTERM are sent to every process: the server answers what it accepted.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # TensorFlow would take the memory of the GPU
    with contextlib.suppress(EOFError, ConnectionError):  # the server ended, or was killed
        _answer_calls(pipe)


def _answer_calls(pipe: Connection) -> None:
    parent = os.getppid()
    pipe.send(None)
    while True:
        while not pipe.poll(1):
            if os.getppid() != parent:  # the server was killed
                return
        function, args = pipe.recv()
        _end_in(2 * DECODE_SECONDS)
        try:
            result = function(*args)
        except BadImageError as error:
            result = error
        except Exception as error:  # whose class might not be pickled
            result = RuntimeError(f"{type(error).__name__}: {error}")
        _end_in(0)
        pipe.send(result)


def _end_in(seconds: float) -> None:
    """Has the system end this process: where the server was killed, nobody else does."""
    if hasattr(signal, "setitimer"):  # not on Windows
        signal.setitimer(signal.ITIMER_REAL, seconds)
