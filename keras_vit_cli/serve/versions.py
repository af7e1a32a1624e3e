"""Which version of a model is the newest, and the switch to it while requests are answered."""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from keras_vit._base.errors import printable
from keras_vit._base.manifest import MANIFEST
from keras_vit.weights.containers.checkpoint_file import FILES_IN_FOLDER
from keras_vit_cli.serve.model import ServedModel, load_served, warm_up

POLL_SECONDS = 1.0
FIRST_TRIES, MOST_MISSES = 3, 5


class ReplacedError(ValueError):
    """A model that was replaced while it was loaded."""


@dataclass(frozen=True)
class ModelVersion:
    """A model on disk.

    Attributes:
        path: The file or folder to load.
        stamp: The inode, size and time of its files: another stamp is another model.
        name: The number of its folder, or a short hash of the stamp.
    """

    path: Path
    stamp: tuple[tuple[str, int, int, int], ...]
    name: str


def newest_version(path: Path) -> ModelVersion:
    """Return the highest-numbered folder of a folder of numbered ones, or the path itself."""
    if path.is_dir() and not _run_files(path):
        numbered = [p for p in path.iterdir() if p.name.isdecimal() and p.is_dir()]
        if numbered:
            newest = max(numbered, key=lambda p: int(p.name))
            return ModelVersion(newest, _stamp(newest), newest.name)
    stamp = _stamp(path)
    return ModelVersion(path, stamp, hashlib.sha256(repr(stamp).encode()).hexdigest()[:12])


def _run_files(folder: Path) -> list[Path]:
    return [folder / name for name in FILES_IN_FOLDER if (folder / name).exists()]


def _stamp(path: Path) -> tuple[tuple[str, int, int, int], ...]:
    if path.is_dir():  # of a run, the file that is loaded and its sum: plots may join it later
        # Another package's weights have names and preparation in files beside them.
        weights = [file for file in _run_files(path)[:1] if file.suffix == ".keras"]
        every = [path / MANIFEST] if weights else sorted(p for p in path.rglob("*") if p.is_file())
        files = weights + every
    else:
        files = [path]
    states = [(str(file), file.stat()) for file in files if file.exists()]
    return tuple((name, s.st_ino, s.st_size, s.st_mtime_ns) for name, s in states)


class Versions:
    """The version that answers, and the search for a newer one.

    A version that cannot be loaded leaves the old one in its place: `error` has the reason until a
    later version has been loaded.

    Raises:
        ValueError: The first version cannot be loaded.
        FileNotFoundError: There is none.
    """

    def __init__(self, path: Path, batch_size: int, report: Callable[[str], None]) -> None:
        self.path, self._batch_size, self._report = path, batch_size, report
        self.version, self.model = self._load_first()
        self.error: str | None = None
        self._last_tried = self.version
        self.reload_requested = asyncio.Event()

    def _load_first(self, tries: int = FIRST_TRIES) -> tuple[ModelVersion, ServedModel]:
        version = newest_version(self.path)
        try:
            return version, self._load(version)
        except ReplacedError:
            if tries == 1:
                raise
            return self._load_first(tries - 1)

    def _load(self, version: ModelVersion) -> ServedModel:
        model = load_served(version.path)
        # Of which was it loaded, or of both?
        if _stamp(version.path) != version.stamp:
            raise ReplacedError(
                f"{version.path} was replaced while it was loaded. Move a finished model there."
            )
        warm_up(model, self._batch_size)
        return model

    async def watch(self, on_reload: Callable[[bool], None]) -> None:
        """Looks for another version every second, or when a reload is requested; never returns."""
        seen, misses = self.version, 0
        while True:
            requested = await self._wait()
            try:
                newest = await asyncio.to_thread(newest_version, self.path)
            except OSError as error:
                misses += 1  # replaced at this moment, or gone, as the folder of a mount is
                if misses == MOST_MISSES:
                    self.error = printable(f"{self.path} cannot be read any more: {error}")
                    self._report(f"{self.error}; version {self.version.name} stays")
                continue
            misses = 0
            # Twice the same: nobody is still copying it.
            if requested or (newest == seen and newest.stamp and newest != self._last_tried):
                on_reload(await self._switch(newest))
            seen = newest

    async def _wait(self) -> bool:
        try:
            await asyncio.wait_for(self.reload_requested.wait(), POLL_SECONDS)
        except TimeoutError:
            return False
        self.reload_requested.clear()
        return True

    async def _switch(self, version: ModelVersion) -> bool:
        self._last_tried = version
        try:
            model = await asyncio.to_thread(self._load, version)
        except Exception as error:  # of any file, by any library: the old version goes on
            reason = f"{type(error).__name__}: {error}"
            self.error = printable(f"version {version.name} cannot be loaded: {reason}")
            self._report(f"{self.error}; version {self.version.name} stays")
            return False
        self.model, self.version, self.error = model, version, None
        self._report(f"now serving version {version.name}")
        return True
