"""`SHA256SUMS`: the files of a folder that this package wrote, and their checksums.

The file has the format of `sha256sum`, whose `--check` verifies it, under a first line that says
who wrote it. Only what is listed there and still has its checksum is ever deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from keras_vit.files import write_bytes
from keras_vit.version import __version__

MANIFEST = "SHA256SUMS"
_MARK = "# keras_vit "


@dataclass(frozen=True)
class Manifest:
    """What `SHA256SUMS` says of its folder.

    Attributes:
        kind: What the folder is, such as `"run"` or `"SavedModel"`.
        complete: False while the folder is being written.
        replaces: Whether the finished folder may replace a former one.
        folders: Folders inside that were written with it and have manifests of their own.
        sums: SHA-256 in hexadecimal by path relative to the folder, with forward slashes.
    """

    kind: str
    complete: bool
    replaces: bool = False
    folders: tuple[str, ...] = ()
    sums: Mapping[str, str] = field(default_factory=dict, repr=False)


def write_manifest(
    folder: Path, kind: str, files: Iterable[str] = (), *, complete: bool, replaces: bool = False
) -> None:
    """Marks a folder as this package's, with the checksums of `files`, relative to it.

    Files of a folder inside that has a manifest of its own stay with that one, which may change.

    Raises:
        OSError: A file cannot be read, or the manifest cannot be written.
    """
    files = sorted(files)
    folders = [str(PurePosixPath(name).parent) for name in files if name.endswith(f"/{MANIFEST}")]
    files = [name for name in files if not any(name.startswith(f"{f}/") for f in folders)]
    head = {
        "version": __version__,
        "kind": kind,
        "complete": complete,
        "replaces": replaces,
        "folders": folders,
    }
    lines = [_MARK + json.dumps(head)]
    lines += [_line(sha256(folder / name), name) for name in files]
    write_bytes(folder / MANIFEST, os.fsencode("".join(f"{line}\n" for line in lines)))


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder; None where there is none that this package wrote."""
    path = folder / MANIFEST
    if not path.is_file() or path.is_symlink():
        return None
    first, *lines = os.fsdecode(path.read_bytes()).split("\n")
    if not first.startswith(_MARK):
        return None
    try:
        head: dict[str, Any] = json.loads(first[len(_MARK) :])
        return Manifest(
            str(head["kind"]),
            bool(head["complete"]),
            bool(head["replaces"]),
            tuple(map(_inside, head.get("folders", ()))),
            dict(_entry(line) for line in lines if line),
        )
    except (KeyError, TypeError, ValueError):
        return None  # changed by someone else: then what lies here is theirs


def own_files(folder: Path) -> list[str]:
    """Files in a folder that its manifest lists and nobody changed since; the manifest comes last.

    Links are never followed. What is not marked as this package's has none.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        return []
    own = [name for name, digest in manifest.sums.items() if is_unchanged(folder, name, digest)]
    for name in manifest.folders:
        if not _is_linked(folder, name):
            own += [f"{name}/{inner}" for inner in own_files(folder / name)]
    return [*own, MANIFEST]


def is_unchanged(folder: Path, name: str, digest: str) -> bool:
    """Whether a listed file is a regular file in this very folder and has its checksum."""
    path = folder / name
    return not _is_linked(folder, name) and path.is_file() and sha256(path) == digest


def _is_linked(folder: Path, name: str) -> bool:
    """Whether a link stands anywhere between a folder and what is listed in it."""
    return os.path.realpath(folder / name) != os.path.join(
        os.path.realpath(folder), *PurePosixPath(name).parts
    )


def delete_files(folder: Path, names: Iterable[str]) -> None:
    """Deletes these files in order, and the folders that are empty then, `folder` included.

    Raises:
        OSError: One cannot be deleted.
    """
    names = list(names)
    for name in names:
        (folder / name).unlink(missing_ok=True)
    parents = {parent for name in names for parent in PurePosixPath(name).parents}
    for parent in sorted(parents, key=lambda path: -len(path.parts)):
        place = folder / parent
        if place.is_dir() and not any(place.iterdir()):
            place.rmdir()


def all_files(folder: Path) -> list[str]:
    """Everything in a folder that is not itself a folder, links included, relative to it."""
    found = []
    for place, folders, files in os.walk(folder):
        links = [name for name in folders if Path(place, name).is_symlink()]
        found += [Path(place, name).relative_to(folder).as_posix() for name in files + links]
    return sorted(found)


def sha256(path: Path) -> str:
    """The SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _line(digest: str, name: str) -> str:
    """A line as sha256sum writes it: a name with a line break is escaped, behind a backslash."""
    escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"{'' if escaped == name else chr(92)}{digest}  {escaped}"


def _entry(line: str) -> tuple[str, str]:
    escaped = line.startswith("\\")
    digest, name = line.removeprefix("\\").split("  ", 1)
    if escaped:
        parts = name.split("\\\\")
        name = "\\".join(part.replace("\\n", "\n").replace("\\r", "\r") for part in parts)
    return _inside(name), digest


def _inside(name: Any) -> str:
    """A name that lies in its folder; anything else is nothing that `write_manifest` wrote."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"{name!r} is not in its folder.")
    return str(name)
