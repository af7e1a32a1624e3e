"""A folder that appears whole and never deletes a user's files.

It is written beside its place, in a folder marked as this package's, and moved there when it is
complete. A folder that it replaces is moved aside first. Of that, only files that the manifest
lists and nobody changed are deleted, and only when the new folder is in place.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from filelock import FileLock, Timeout

from keras_vit._base.files import TEMPORARY_FILES, irregular_type
from keras_vit._base.manifest import (
    MANIFEST,
    all_files,
    delete_files,
    own_files,
    read_manifest,
    write_manifest,
)

LOCK = ".lock"


@dataclass(frozen=True)
class OutputFolder:
    """A folder to write.

    Attributes:
        path: Where it will stand.
        kind: What it is, for its manifest: `"run"` or `"SavedModel"`.
        results: Patterns of the files that belong to the finished folder, relative to it; `*`
            matches across folders.
        scratch: Patterns of files that are needed only until it is finished.
        protected: Folders and files whose owner must not lose them: `path` may not be one of them,
            hold one, or lie in one.
        staging: Name of the folder beside it where it is written; None for a hidden one.
        resumable: Whether an unfinished workspace is worth keeping: it is deleted on request only.
        argument: What the function that writes it calls `path`, for errors.
    """

    path: Path
    kind: str
    results: Sequence[str]
    scratch: Sequence[str] = ()
    protected: Sequence[Path] = ()
    staging: str | None = None
    resumable: bool = False
    argument: str = "out"

    @property
    def place(self) -> Path:
        """The absolute path, whose name is never `..` or empty; links in it stay links."""
        return Path(os.path.abspath(self.path))

    @property
    def workspace(self) -> Path:
        """The folder beside it where it is written."""
        return self.place.with_name(self.staging or f".{self.place.name}.partial")

    @property
    def previous(self) -> Path:
        """Where the former folder stands while the new one takes its place."""
        return self.place.with_name(f"{self.workspace.name.removesuffix('.partial')}.previous")

    def is_finished(self) -> bool:
        """Return whether the workspace is complete, and only the move is left."""
        manifest = read_manifest(self.workspace)
        return manifest is not None and manifest.complete

    def check(self, *, overwrite: bool = False, resume: bool = False) -> None:
        """Refuses a path where a user's files are in danger, before any work.

        Raises:
            FileExistsError: There is a folder already, or an unfinished one beside it.
            ValueError: The path must not be replaced; the message gives the reason.
        """
        self._check_place(self.place)  # first: what lies beside the root does not have a name
        for path in (self.workspace, self.previous):
            self._check_place(path)
        if self.place.is_dir() and any(self.place.iterdir()):
            if not self._is_ours(self.place):
                raise FileExistsError(
                    f"{self.path} holds files that are not of an earlier {self.kind}, which are "
                    f"never replaced: give another {self.argument}=."
                )
            if not overwrite and not resume:
                raise FileExistsError(
                    f"{self.path} is not empty. Give another {self.argument}=, or overwrite=True."
                )

    def _check_place(self, path: Path) -> None:
        shown = self.path if path == self.place else self._shown(path)
        argument = self._argument(shown)
        inside = f"give a folder inside it: {self._argument(self.path / self._example)}"
        if path.is_symlink():
            raise ValueError(
                f"{argument} is a link to {os.readlink(path)}, which cannot be replaced: {inside}"
            )
        if path.exists() and not path.is_dir():
            raise ValueError(f"{argument} is a file: give the name of a folder.")
        if os.path.ismount(path):
            raise ValueError(f"{argument} is a mount point, which cannot be replaced: {inside}")
        for name, folder in (
            ("the working directory", Path.cwd()),
            *(("a home directory", home) for home in _home_folders()),
        ):
            if _holds(path, folder):
                raise ValueError(f"{argument} is or holds {name} {folder}: {inside}")
        for folder in self.protected:
            if folder.exists() and (_holds(path, folder) or _holds(folder, path)):
                raise ValueError(
                    f"{argument} is, holds or lies in {folder}, which is read: give a folder "
                    f"elsewhere, such as {self._argument(f'runs/{self._example}')}"
                )
        if path != self.place and path.exists() and not (_is_new(path) or self._is_ours(path)):
            raise ValueError(
                f"{shown} is needed while {self.path} is written, and holds files that are not of "
                f"an earlier {self.kind}: move it away, or give another {self.argument}=."
            )

    def _check_inside(self, folder: Path) -> None:
        """Refuses a workspace, which others may have made, that leads elsewhere.

        Libraries open files in it by their names, and would write through a link.
        """
        for place, folders, files in os.walk(folder):
            for path in (Path(place, name) for name in (*folders, *files)):
                if (file_type := irregular_type(path, follow=False)) in (None, "a folder"):
                    continue
                raise ValueError(
                    f"{self._shown(folder) / path.relative_to(folder)} is {file_type}, and nothing "
                    f"is written there: remove it, or give another {self.argument}=."
                )

    def _is_ours(self, folder: Path) -> bool:
        manifest = read_manifest(folder)
        return manifest is not None and manifest.kind == self.kind

    def _argument(self, path: str | Path) -> str:
        return f"{self.argument}={str(path)!r}"

    @property
    def _example(self) -> str:
        return {"run": "run1", "SavedModel": "1"}.get(self.kind, self.kind)

    @contextmanager
    def opened(self, *, overwrite: bool = False, resume: bool = False) -> Iterator[Path]:
        """Checks the place, locks the workspace and yields it, marked as this package's.

        Without `resume`, what an earlier attempt left in the workspace is deleted: only files that
        match `results` or `scratch`.

        Raises:
            FileExistsError, ValueError: See `check`; or an unfinished attempt is there.
            FileNotFoundError: There is nothing to resume.
            BlockingIOError: Another process is writing it.
        """
        self.check(overwrite=overwrite, resume=resume)
        workspace = self.workspace
        if resume and read_manifest(workspace) is None:
            raise FileNotFoundError(
                f"There is no interrupted {self.kind} at {self._shown(workspace)}. Leave resume= "
                "out to start one."
            )
        made = [place for place in workspace.parents if not place.exists()]
        workspace.mkdir(parents=True, exist_ok=True)
        is_new = read_manifest(workspace) is None
        if is_new:  # before the lock: with its file alone the folder would pass for a user's
            write_manifest(workspace, self.kind, complete=False, replaces=overwrite)
        self._check_inside(workspace)
        with _locked(workspace):
            if not resume:
                if self.resumable and not overwrite and self._is_worth_keeping():
                    raise FileExistsError(
                        f"An interrupted {self.kind} lies at {self._shown(workspace)}. Continue it "
                        "with resume=True, or start again with overwrite=True."
                    )
                self._delete(workspace, (*self.results, *self.scratch))
                if not is_new:
                    write_manifest(workspace, self.kind, complete=False, replaces=overwrite)
            try:
                yield workspace
            except Exception:  # an interrupted one may be gone on with
                if not resume and not self._is_worth_keeping():
                    self._discard()
                    for place in made:
                        with suppress(OSError):
                            place.rmdir()
                raise

    def _discard(self) -> None:
        """Deletes what a failed attempt has written; a folder with other files in it stays."""
        self._delete(self.workspace, (*self.results, *self.scratch))
        if {*all_files(self.workspace)} <= {MANIFEST, LOCK}:
            for place, _, _ in os.walk(self.workspace, topdown=False):
                if place != str(self.workspace):
                    os.rmdir(place)
            delete_files(self.workspace, [LOCK, MANIFEST])

    def _is_worth_keeping(self) -> bool:
        has_state = any(_matches(name, self.scratch) for name in all_files(self.workspace))
        return has_state or self.is_finished()

    def _shown(self, path: Path) -> Path:
        """Return a path beside `path`, written as the user wrote that."""
        return self.path.parent / path.name if self.path.name == self.place.name else path

    def finish(self) -> None:
        """Declares the workspace complete: lists its files with their sums.

        From here on `publish` is all that is left, whatever happens in between.
        """
        manifest = read_manifest(self.workspace)
        replaces = manifest is not None and manifest.replaces
        files = [name for name in all_files(self.workspace) if _matches(name, self.results)]
        write_manifest(self.workspace, self.kind, files, complete=True, replaces=replaces)

    def publish(self, notify: Callable[[str], None] = print) -> None:
        """Moves a complete workspace to its place; files in the former one that are not ours stay.

        Args:
            notify: Is called with a sentence about files that could not go back to their place.

        Raises:
            OSError: The place was taken or cannot be written; the complete workspace stays.
        """
        manifest = read_manifest(self.workspace)
        assert manifest is not None
        assert manifest.complete
        self._delete(self.workspace, self.scratch)
        try:
            self.check(overwrite=manifest.replaces)
            if self.place.exists() and any(self.place.iterdir()):
                if self.previous.exists():
                    self._dissolve(notify)
                os.rename(self.place, self.previous)
            try:
                os.rename(self.workspace, self.place)
            except OSError:
                if self.previous.exists() and not self.place.exists():
                    os.rename(self.previous, self.place)
                raise
        except (OSError, ValueError) as error:
            finish = "finish with resume=True" if self.resumable else "try again"
            raise OSError(
                f"{error} The finished files are in {self._shown(self.workspace)}: remove the "
                f"obstacle and {finish}."
            ) from error
        (self.place / LOCK).unlink(missing_ok=True)
        if self.previous.exists():
            self._dissolve(notify)

    def _dissolve(self, notify: Callable[[str], None]) -> None:
        """Deletes what was replaced; files that are not ours go back to where they stood."""
        (self.previous / LOCK).unlink(missing_ok=True)
        delete_files(self.previous, own_files(self.previous))
        if self.previous.exists() and not _move_into(self.previous, self.place):
            notify(
                f"{self._shown(self.previous)} keeps files of the former {self.path} that are not "
                f"of the {self.kind}, or that were changed since."
            )

    def _delete(self, folder: Path, patterns: Sequence[str]) -> None:
        """Deletes files of the workspace by pattern; never what a link points to."""
        patterns = (*patterns, TEMPORARY_FILES, f"*/{TEMPORARY_FILES}")
        names = [name for name in all_files(folder) if _matches(name, patterns)]
        ours = [name for name in names if not (folder / name).is_symlink()]
        delete_files(folder, [name for name in ours if name not in (MANIFEST, LOCK)])


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds a folder's lock; the operating system frees that of a process that has ended."""
    if os.name == "nt":  # where a folder with an open file cannot be moved to its place
        yield
        return
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise BlockingIOError(
            f"Another process is writing {folder}. Wait for it, stop it, or write elsewhere."
        ) from error
    try:
        yield
    finally:
        lock.release()  # wherever the folder was moved meanwhile


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_new(folder: Path) -> bool:
    """Return whether a folder is empty, but for a manifest whose writing was interrupted."""
    return all(fnmatchcase(path.name, f".{MANIFEST}.*.part") for path in folder.iterdir())


def _move_into(source: Path, target: Path) -> bool:
    """Moves a folder's entries where nothing has their name; returns whether all were moved."""
    for entry in source.iterdir():
        place = target / entry.name
        if not os.path.lexists(place):
            os.rename(entry, place)
        elif entry.is_dir() and place.is_dir() and not (entry.is_symlink() or place.is_symlink()):
            _move_into(entry, place)
    if any(source.iterdir()):
        return False
    source.rmdir()
    return True


def _home_folders() -> list[Path]:
    homes = [Path.home()]
    try:
        import pwd
    except ImportError:  # Windows
        return homes
    homes += [Path(entry.pw_dir) for entry in pwd.getpwall()]
    # Accounts of services have homes such as / and /bin, of which only real ones matter here.
    return [home for home in dict.fromkeys(homes) if home.is_dir()]


def _holds(folder: Path, path: Path) -> bool:
    """Return whether `path` is `folder` or lies in it, also through links and other mounts."""
    if not folder.exists():
        return False
    real = Path(os.path.realpath(path))
    return any(
        ancestor.exists() and os.path.samefile(ancestor, folder)
        for ancestor in (real, *real.parents)
    )
