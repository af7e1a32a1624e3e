"""Files that appear whole or not at all, and the folder of those that can be made again."""

import errno
import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

TEMPORARY_FILES = ".*.part*"
# The process has one mask, which can only be read by setting it: of two threads that do, the second
# one would find 0, and leave it.
_MASK = threading.Lock()
_FILE_TYPES = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def cache_folder() -> Path:
    """Return the folder `keras_vit` in Keras's cache (`KERAS_HOME`), for files safe to delete."""
    return Path(os.environ.get("KERAS_HOME", Path.home() / ".keras")) / "keras_vit"


def path_from(folder: Path, path: Path) -> str:
    """Return a path from a folder, with forward slashes, so that both can be moved together.

    On another drive, where there is no such path, the absolute one.

    >>> path_from(Path("runs/index"), Path("runs/photos"))
    '../photos'
    """
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:
        return Path(os.path.abspath(path)).as_posix()


def irregular_type(path: Path, *, follow: bool = True) -> str | None:
    """Return the type of a path that is not a regular file, such as `"a folder"`; else None."""
    mode = path.stat(follow_symlinks=follow).st_mode
    if stat.S_ISLNK(mode):
        return f"a link to {os.readlink(path)}"
    return None if stat.S_ISREG(mode) else _FILE_TYPES.get(stat.S_IFMT(mode), "not a regular file")


def check_place(path: Path) -> None:
    """Refuses a path where anything but a regular file stands: nothing is written there.

    Raises:
        FileExistsError: A link, which may lead to any file of its user, a folder, a named pipe or
            a device.
    """
    try:
        file_type = irregular_type(path, follow=False)
    except OSError:
        return  # there is nothing, or writing raises the reason
    if file_type is None:
        return
    raise FileExistsError(
        f"{path} is {file_type}, and nothing is written there: give the name of a file, or remove "
        "what stands in its place."
    )


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Gives errors of the disk, which do not name a file, this path.

    Raises:
        OSError: With the path, whatever is raised in the block.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:  # a library's message
            if str(path) in str(error):
                raise
            raise OSError(f"{path} cannot be written: {error}") from error
        raise type(error)(error.errno, os.strerror(error.errno), str(path)) from error


@contextmanager
def atomic_write(
    path: str | os.PathLike[str], *, forced: bool = True, new: bool = False
) -> Iterator[Path]:
    """Yields a temporary path beside `path`, which takes its place when the block succeeds.

    The temporary file has the suffix of `path`, is forced to the disk and then renamed, so that a
    full disk or a kill leaves what stood at `path`. A link is not followed, and not replaced:
    see `check_place`. A kill may leave the temporary file, which matches `TEMPORARY_FILES`.

    Args:
        forced: Force it to the disk, which takes milliseconds. Without, a power failure may leave
            a part of it under its name.
        new: Never replace a file, even one that appears while the block runs: then what was written
            stays under another name, which the error has.

    Raises:
        FileExistsError: There is something that is not a regular file; or, with `new`, anything.
        OSError: The file cannot be written; the error names `path`.

    >>> file = Path(tempfile.mkdtemp()) / "report.md"
    >>> with atomic_write(file) as temporary:
    ...     _ = temporary.write_text("# Report")
    >>> file.read_text()
    '# Report'
    """
    path = Path(path).absolute()
    check_place(path)
    with named_errors(path):
        handle, name = tempfile.mkstemp(f".part{path.suffix}", f".{path.stem}.", path.parent)
        os.close(handle)
    temporary = Path(name)
    try:
        with named_errors(path):
            yield temporary
            _set_usual_mode(temporary)
            if forced:
                _force_to_disk(temporary)
            if new:
                _take_free_place(temporary, path)
            else:
                check_place(path)  # again: what stands there may have come meanwhile
                os.replace(temporary, path)
            if forced:
                _force_to_disk(path.parent)
    finally:
        with suppress(OSError):  # the first error is the one to report
            temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a UTF-8 file atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | os.PathLike[str], content: bytes, *, forced: bool = True) -> None:
    """Writes a binary file atomically; see `atomic_write`."""
    with atomic_write(path, forced=forced) as temporary:
        if temporary.write_bytes(content) != temporary.stat().st_size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def open_to_append(path: Path, *, new: bool) -> FileIO:
    """Opens a file for `append`: a new one, or one that is there; never through a link.

    Raises:
        FileExistsError: There is a file, and it should be new; or see `check_place`.
    """
    if not new:
        check_place(path)
    # Unbuffered: what a full disk did not take would be written again when it is closed.
    return FileIO(path, "x" if new else "a", opener=_open_without_links)


def append(file: FileIO, content: bytes) -> None:
    """Adds all of the content to the end of a file; the error of a full disk names the file."""
    rest = memoryview(content)
    with named_errors(Path(os.fsdecode(file.name))):
        while rest:  # a disk that is nearly full takes a part
            rest = rest[file.write(rest) :]


def begins_with_mark(path: Path, mark: bytes) -> bool:
    """Return whether a regular file, not a link, has its writer's `mark` in its first 1 KiB."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return mark in file.read(1024)


def _open_without_links(path: Any, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _take_free_place(temporary: Path, path: Path) -> None:
    """Renames a file; where the name was taken meanwhile, it gets another one beside it."""
    try:
        os.link(temporary, path)  # never replaces, and the former name is removed afterwards
        return
    except OSError as error:
        is_taken = isinstance(error, FileExistsError) or os.path.lexists(path)
    if not is_taken:  # a file system without hard links
        os.replace(temporary, path)
        return
    other = path.with_name(temporary.name.removeprefix(".").replace(".part", ""))
    os.replace(temporary, other)
    raise FileExistsError(
        f"{path} appeared meanwhile, and is not replaced: what was written is in {other}."
    )


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
