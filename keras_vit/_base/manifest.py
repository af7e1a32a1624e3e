"""`SHA256SUMS`: the files of a folder that this package wrote, and their checksums.

The file has the format of `sha256sum`, whose `--check` verifies it, under a first line with the
writer. Only what is listed there and still has its checksum is ever deleted.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from keras_vit._base.files import write_bytes
from keras_vit._base.version import __version__

MANIFEST = "SHA256SUMS"
_MARK = "# keras_vit "
_BLOCK = 2**18
_LINE = re.compile(r"(\\?)([0-9a-f]{64}) [ *](.+)")
_ESCAPES = {"\\n": "\n", "\\r": "\r", "\\\\": "\\"}


@dataclass(frozen=True)
class Manifest:
    """The content of a `SHA256SUMS`.

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

    Files of an inner folder with its own manifest stay with that one, which may change.
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
    for name in files:
        escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        # sha256sum marks a line with an escaped name by a backslash in front.
        mark = "" if escaped == name else "\\"
        lines.append(f"{mark}{sha256(folder / name)}  {escaped}")
    write_bytes(folder / MANIFEST, os.fsencode("".join(f"{line}\n" for line in lines)))


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a folder; None without one that this package wrote."""
    path = folder / MANIFEST
    if not path.is_file() or path.is_symlink():
        return None
    first = os.fsdecode(path.read_bytes()).split("\n")[0]
    if not first.startswith(_MARK):
        return None
    try:
        head: dict[str, Any] = json.loads(first[len(_MARK) :])
        return Manifest(
            str(head["kind"]),
            bool(head["complete"]),
            bool(head["replaces"]),
            tuple(map(_inside, head.get("folders", ()))),
            {_inside(name): digest for name, digest in read_sums(path).items()},
        )
    except (KeyError, TypeError, ValueError, RecursionError):
        return None  # changed by someone else: then what lies here is theirs


def read_sums(path: Path) -> dict[str, str]:
    """SHA-256 in hexadecimal by name, from a file in the format of `sha256sum`, else an error."""
    sums = {}
    for number, line in enumerate(os.fsdecode(path.read_bytes()).split("\n"), 1):
        if not line or line.startswith("# "):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"Line {number} of {path} is not a SHA-256 sum and a name.")
        escaped, digest, name = match.groups()
        if escaped:
            name = re.sub(r"\\[\\nr]", lambda match: _ESCAPES[match[0]], name)
        sums[name] = digest
    return sums


def own_files(folder: Path) -> list[str]:
    """Return the files that a folder's manifest lists and nobody has changed, the manifest last.

    Links are never followed. For a folder without this package's mark the list is empty.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        return []
    files = [
        name
        for name, digest in manifest.sums.items()
        if not _is_linked(folder, name)
        and (folder / name).is_file()
        and sha256(folder / name) == digest
    ]
    for name in manifest.folders:
        if not _is_linked(folder, name):
            files += [f"{name}/{inner}" for inner in own_files(folder / name)]
    return [*files, MANIFEST]


def _is_linked(folder: Path, name: str) -> bool:
    """Return whether a link stands anywhere between a folder and what is listed in it."""
    return os.path.realpath(folder / name) != os.path.join(
        os.path.realpath(folder), *PurePosixPath(name).parts
    )


def delete_files(folder: Path, names: Iterable[str]) -> None:
    """Deletes these files in order, and the folders that are empty then, `folder` included."""
    names = list(names)
    for name in names:
        (folder / name).unlink(missing_ok=True)
    parents = {parent for name in names for parent in PurePosixPath(name).parents}
    for parent in sorted(parents, key=lambda path: -len(path.parts)):
        path = folder / parent
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def all_files(folder: Path) -> list[str]:
    """Everything in a folder that is not itself a folder, links included, relative to it."""
    paths = []
    for place, folders, files in os.walk(folder):
        links = [name for name in folders if Path(place, name).is_symlink()]
        paths += [Path(place, name).relative_to(folder).as_posix() for name in files + links]
    return sorted(paths)


def sha256(path: Path, length: int | None = None) -> str:
    """Return the SHA-256 of a file, or of its first bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        feed(digest, file, length)
    return digest.hexdigest()


def feed(digest: Any, file: BinaryIO, count: int | None = None) -> None:
    """Feeds the next `count` bytes of a file to a digest; None for all that follow."""
    while block := file.read(_BLOCK if count is None else min(count, _BLOCK)):
        digest.update(block)
        if count is not None:
            count -= len(block)


def _inside(name: Any) -> str:
    """Return a name that lies in its folder; `write_manifest` wrote no other."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"{name!r} is not in its folder.")
    return str(name)
