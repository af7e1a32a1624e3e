"""Files that appear whole or not at all, and the folder of those that can be made again."""

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TEMPORARY_FILES = ".*.part*"
# The process has one mask, which can only be read by setting it: of two threads that do, the second
# one would find 0, and leave it.
_MASK = threading.Lock()


def cache_folder() -> Path:
    """What can be downloaded or computed again: `keras_vit` in Keras's own cache (`KERAS_HOME`)."""
    return Path(os.environ.get("KERAS_HOME", Path.home() / ".keras")) / "keras_vit"


def path_from(folder: Path, path: Path) -> str:
    """A path from a folder, with forward slashes, so that both can be moved together.

    On another drive, where there is no such path, the absolute one.

    >>> path_from(Path("runs/index"), Path("runs/photos"))
    '../photos'
    """
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:
        return Path(os.path.abspath(path)).as_posix()


@contextmanager
def atomic_write(path: str | os.PathLike[str], *, forced: bool = True) -> Iterator[Path]:
    """Yields a temporary path beside `path`, which takes its place when the block succeeds.

    The temporary file has the suffix of `path`, is forced to the disk and then renamed, so that a
    full disk or a kill leaves what stood at `path`. A link is followed: what it points to is
    replaced, and the link stays. A kill may leave the temporary file, which matches
    `TEMPORARY_FILES`.

    Args:
        path: The file.
        forced: Force it to the disk, which takes milliseconds. Without, a power failure may leave
            a part of it under its name.

    Raises:
        OSError: The file cannot be written; the error names `path`.

    Example:

    >>> file = Path(tempfile.mkdtemp()) / "report.md"
    >>> with atomic_write(file) as temporary:
    ...     _ = temporary.write_text("# Report")
    >>> file.read_text()
    '# Report'
    """
    path = Path(os.path.realpath(path))
    try:
        handle, name = tempfile.mkstemp(f".part{path.suffix}", f".{path.stem}.", path.parent)
        os.close(handle)
    except OSError as error:
        raise _naming(error, path) from error
    temporary = Path(name)
    try:
        yield temporary
        _set_usual_mode(temporary)
        if forced:
            _force_to_disk(temporary)
        os.replace(temporary, path)
        if forced:
            _force_to_disk(path.parent)
    except OSError as error:
        raise _naming(error, path) from error
    finally:
        with suppress(OSError):  # the first error is the one to report
            temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a UTF-8 file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, "utf-8")


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a binary file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def begins_with_mark(path: Path, mark: bytes) -> bool:
    """Whether a regular file, not a link, has `mark`, which shows its writer, near its start."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return mark in file.read(1024)


def _naming(error: OSError, path: Path) -> OSError:
    """The error with the caller's path: the disk's errors do not have one."""
    if error.errno is None:  # a library's message
        return OSError(f"{path} cannot be written: {error}")
    return type(error)(error.errno, os.strerror(error.errno), str(path))


def _set_usual_mode(path: Path) -> None:
    """`mkstemp` makes files for the owner alone; others expect the process's usual permissions."""
    with _MASK:
        mask = os.umask(0)
        os.umask(mask)
    path.chmod(0o666 & ~mask)


def _force_to_disk(path: Path) -> None:
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):
        return  # Windows does not open folders
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
