"""Real processes for tests: to kill, to limit, to look at from outside.

One process per worker imports Keras and this package, and every process of a test is forked from it
in milliseconds instead of importing for seconds. Whatever asks what an import brings, or needs
other environment variables at import, takes `subprocess` and `sys.executable`.
"""

import io
import multiprocessing
import os
import runpy
import subprocess
import sys
import traceback
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.processes_preload"])


@cache
def _start_forkserver() -> None:
    """Where `tests` is this package: others have one of that name, and tests change the folder."""
    folder = Path.cwd()
    os.chdir(Path(__file__).parents[1])
    try:
        forkserver.ensure_running()
    finally:
        os.chdir(folder)


class WarmProcess:
    """Part of `subprocess.Popen`: a session of its own, and a file of what it prints."""

    def __init__(self, process: ForkServerProcess, printed: Path) -> None:
        self._process, self.printed = process, printed
        assert process.pid is not None
        self.pid: int = process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = 600) -> int:
        """The exit status; negative is the signal that ended it."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            self.kill()
            raise subprocess.TimeoutExpired("a warm process", timeout or 0, self.output())
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def output(self) -> str:
        """What it has printed to both streams so far."""
        return self.printed.read_text("utf-8", "replace") if self.printed.exists() else ""


def start(
    code: str, *arguments: str, printed: Path, cwd: Path | None = None, **environment: str
) -> WarmProcess:
    """Runs code in a new process that has keras_vit imported, on this backend.

    A `code` of `-m MODULE` runs a module. `printed` is the file that gets both streams.
    """
    _start_forkserver()
    process = _context.Process(
        target=_run, args=(code, arguments, str(printed), str(cwd or Path.cwd()), environment)
    )
    process.start()
    return WarmProcess(process, printed)


def _run(
    code: str, arguments: tuple[str, ...], printed: str, cwd: str, environment: dict[str, str]
) -> None:
    os.setsid()
    output = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.FileIO(number, "wb", closefd=False), write_through=True)
        for number in (1, 2)
    )
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = ["-c", *arguments]
    try:
        if code.startswith("-m "):
            runpy.run_module(code[3:], run_name="__main__", alter_sys=True)
        else:
            exec(compile(code, "<test>", "exec"), {"__name__": "__main__"})
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        sys.exit(1)


def run(code: str, *arguments: str, printed: Path, **options: Any) -> str:
    """What the code printed; fails with it where its exit status is not 0."""
    process = start(code, *arguments, printed=printed, **options)
    status, output = process.wait(), process.output()
    assert status == 0, output[-4000:]
    return output
