"""Makes one write of a process fail: the n-th file opened, renamed or removed below a folder."""

import errno
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Events of Python's audit hooks that change a file system, and how many paths they begin with.
CHANGES = dict.fromkeys(("os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.truncate"), 1)
CHANGES |= dict.fromkeys(("os.rename", "os.link", "os.symlink"), 2)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@dataclass
class Fault:
    """The write that fails, from which on all do with `error` 0; `happened`: which one it was."""

    folder: str
    number: int
    error: int
    seen: int = 0
    happened: str | None = None

    def look(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            paths = [path] if isinstance(flags, int) and flags & WRITING else []
        else:
            paths = list(arguments[: CHANGES.get(event, 0)])
        paths = [os.fsdecode(path) for path in paths if isinstance(path, str | bytes | os.PathLike)]
        if not any(os.path.abspath(path).startswith(self.folder) for path in paths):
            return
        self.seen += 1
        if self.seen > self.number and (self.happened is None or not self.error):
            self.happened = f"{event} {paths}"
            if not self.error:
                raise KeyboardInterrupt
            raise OSError(self.error, os.strerror(self.error), paths[0])


_armed: list[Fault] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _armed and (event == "open" or event in CHANGES):
        fault = _armed[0]
        _armed.clear()  # what the fault itself does is not looked at
        try:
            fault.look(event, arguments)
        finally:
            _armed.append(fault)


sys.addaudithook(_hook)  # it cannot be removed, but does nothing while no fault is armed


@contextmanager
def fault(folder: Path, number: int, error: int = errno.ENOSPC) -> Iterator[Fault]:
    """Lets write `number`, counted from 0, below `folder` fail once."""
    armed = Fault(os.path.abspath(folder), number, error)
    _armed.append(armed)
    try:
        yield armed
    finally:
        _armed.clear()


@contextmanager
def limited_files(size: int) -> Iterator[int]:
    """Lets no file exceed a size: of a write, by Python or a library in C, a part is taken."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield size
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
