"""A lock on a folder that is being written: one process at a time."""

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows, where nothing is locked
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the folder's lock, or raises `BlockingIOError`; the folder may be renamed meanwhile.

    The operating system frees the lock of a process that has ended, however it ended, so that a
    stale file is recognised. A lock that another machine wrote is always respected: file systems
    between machines may not report locks.
    """
    path = folder / LOCK
    with path.open("a+", encoding="utf-8") as file:
        _acquire(file, path)
        file.seek(0)
        file.truncate()
        json.dump(_this_process(), file)
        file.flush()
        yield
        # The folder may have another name by now: its caller calls `unlock`.


def unlock(folder: Path) -> None:
    """Removes the lock's file from a folder that this process had locked."""
    (folder / LOCK).unlink(missing_ok=True)


def _acquire(file: IO[str], path: Path) -> None:
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BlockingIOError(
            f"Another process is writing {path.parent}: {_describe(_read(file))}. Wait for it, "
            "stop it, or give another --out."
        ) from error
    holder, here = _read(file), _this_process()
    if holder and holder.get("boot") != here["boot"] and holder.get("machine") != here["machine"]:
        raise BlockingIOError(
            f"Another machine may be writing {path.parent}: {_describe(holder)}. If that process "
            f"has ended, delete {path} and try again."
        )
    if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
        raise BlockingIOError(f"Another process has just finished {path.parent}: try again.")


def _read(file: IO[str]) -> dict[str, Any]:
    file.seek(0)
    try:
        holder = json.load(file)
    except ValueError:  # killed while it wrote
        return {}
    return holder if isinstance(holder, dict) else {}


def _describe(holder: dict[str, Any]) -> str:
    if not holder:
        return "its process is not known"
    return f"process {holder.get('process')} on {holder.get('machine')} since {holder.get('since')}"


def _this_process() -> dict[str, Any]:
    boot = Path("/proc/sys/kernel/random/boot_id")  # the same in all containers of a machine
    machine = platform.node()
    return {
        "process": os.getpid(),
        "machine": machine,
        "boot": boot.read_text().strip() if boot.is_file() else machine,
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
