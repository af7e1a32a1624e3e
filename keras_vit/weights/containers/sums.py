"""Checks weight files against every known SHA-256 sum, and writes the sum that a file carries.

`manifest.py` keeps the list of a whole folder, which is one of these.

What this package writes carries the sum of its own bytes. The text `keras_vit_sha256` stands
twice beside it, as key and in the value, so that no flipped bit can make a file look like one that
carries no sum: it leaves one of the two whole.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from keras_vit._base.errors import similar_paths
from keras_vit._base.files import irregular_type
from keras_vit._base.manifest import MANIFEST, feed, read_sums
from keras_vit._base.manifest import sha256 as sha256_of
from keras_vit.weights.checkpoint_error import CheckpointError

SEAL_KEY = "keras_vit_sha256"
_UNSET = "0" * 64
# The value that stands in a file until `write_seal` puts the sum there.
UNSET_SEAL = f"{SEAL_KEY}:{_UNSET}"
# `.weights.h5` cannot hold a comment: HDF5 knows its own length and reads nothing behind it.
TRAILER = f'{{"{SEAL_KEY}": "{UNSET_SEAL}"}}'.encode()
_SEAL = re.compile(rf"{SEAL_KEY}:([0-9a-f]{{64}})".encode())
# A header begins with the sum, and a zip's comment ends with it.
_SEARCHED = 512
# Ends the name of a list of files that hold one model: see `shards.py`.
INDEX_SUFFIX = ".index.json"


def check_regular(path: Path) -> None:
    """Refuses what is not a regular file: opening a named pipe would wait forever."""
    if not path.exists():
        near = similar_paths(path, [other.name for other in path.absolute().parent.glob("*")])
        hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise FileNotFoundError(f"There is no file {str(path)!r}.{hint}")
    if file_type := irregular_type(path):
        raise CheckpointError(f"{path} is {file_type}: give a regular file.")


@contextmanager
def check_file_in_thread(path: Path, sha256: str | None = None) -> Iterator[Callable[[], str]]:
    """`check_file` in a separate thread while the block reads the file.

    Yields the function that waits for the result; call it before the values are used. An error in
    the block counts for less than a wrong sum, which explains it.
    """
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(check_file, path, sha256).result
        try:
            yield result
        except Exception:
            result()
            raise


def check_file(path: Path, sha256: str | None = None) -> str:
    """Compares a file with every SHA-256 sum that is known of it.

    These are `sha256`, the one in a `SHA256SUMS` beside it, its name in the Hugging Face hub's
    cache, and, where none of these is there, the one that the file carries: hashing a large file
    twice would take as long as loading it.

    Returns:
        The sum of the file; empty for a file that was compared with its own alone, and for the
        index of several files, which `open_shards` compares.
    """
    if sha256 is not None and not re.fullmatch("[0-9a-fA-F]{64}", sha256):
        raise ValueError(f"sha256={sha256!r} is not a SHA-256 sum: give 64 hexadecimal digits.")
    check_regular(path)
    if path.name.endswith(INDEX_SUFFIX):
        if sha256 is not None:
            raise ValueError(
                f"sha256= is the sum of one file, and {path.name} lists several. Leave it out, and "
                f"list the sums of all files in a {MANIFEST} beside them, as sha256sum writes it."
            )
        verify_sums(path)
        return ""
    seal, known = _find_seal(path), [*_known_sums(path)]
    digest = "" if seal and not (sha256 or known) else sha256_of(path)
    if sha256 is not None and digest != sha256.lower():
        raise CheckpointError(
            f"{path} has SHA-256 {digest}, not sha256={sha256!r}: it is damaged, or another file."
        )
    _compare(known, digest)
    if seal and not digest and _sum_without(path, seal[0]) != seal[1]:
        raise CheckpointError(
            f"{path} ({path.stat().st_size:,} bytes) is damaged: the SHA-256 of its content is not "
            "the one that was written into it. Download it again, or take an earlier checkpoint."
        )
    return digest


def verify_sums(file: str | Path) -> None:
    """Compares a file with the `SHA256SUMS` beside it; without one there is nothing to do.

    In the Hugging Face hub's cache, where a large file is called by its sum, with that as well.

    Raises:
        FileNotFoundError: There is no such file.
        CheckpointError: The sum is another, or `SHA256SUMS` is damaged.

    Example:

    >>> import keras_vit, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "report.json").write_text("damaged")
    >>> _ = (folder / "SHA256SUMS").write_text(64 * "0" + "  report.json")
    >>> keras_vit.weights.verify_sums(folder / "report.json")
    Traceback (most recent call last):
    ...
    keras_vit.weights.checkpoint_error.CheckpointError: ...
    """
    path = Path(file)
    check_regular(path)
    if known := [*_known_sums(path)]:
        _compare(known, sha256_of(path))


def write_seal(path: Path) -> None:
    """Puts the sum of a file's bytes where `UNSET_SEAL` stands in it."""
    seal = _find_seal(path)
    assert seal is not None
    place, value = seal
    assert value == _UNSET
    with path.open("r+b") as file:
        file.seek(place)
        file.write(_sum_without(path, place).encode())


def carries_sum(path: Path) -> bool:
    """Return whether a file was written by `save_weights`, whose sum it carries, intact or not."""
    if irregular_type(path) is not None:
        return False
    try:
        return _find_seal(path) is not None
    except CheckpointError:
        return True


def _find_seal(path: Path) -> tuple[int, str] | None:
    """Locate the SHA-256 that a file embeds; return its offset and value, or None without one."""
    start = max(0, path.stat().st_size - _SEARCHED)
    with path.open("rb") as file:
        head = file.read(_SEARCHED)
        file.seek(start)
        tail = file.read()
    for offset, part in ((0, head), (start, tail)):
        if match := _SEAL.search(part):
            return offset + match.start(1), match[1].decode()
        if SEAL_KEY.encode() in part:
            raise CheckpointError(
                f"{path} is damaged: the SHA-256 sum near byte {offset:,} cannot be read. "
                "Download it again, or take an earlier checkpoint."
            )
    return None


def _sum_without(path: Path, seal: int) -> str:
    """Return the SHA-256 of a file as it was before its sum was put at byte `seal`."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        feed(digest, file, seal)
        file.seek(len(_UNSET), os.SEEK_CUR)
        digest.update(_UNSET.encode())
        feed(digest, file)
    return digest.hexdigest()


def _known_sums(path: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield the sums that are known of a file: its name, the sum, and what another one means.

    They are in the `SHA256SUMS` beside it and beside the target of a link, and a large file in the
    hub's cache is called by its own, `blobs/SHA256`.
    """
    target = Path(os.path.realpath(path))
    for file in {path, target}:
        sums = file.with_name(MANIFEST)
        if not sums.is_file() or file == sums:
            continue
        try:
            names = read_sums(sums)
        except ValueError as error:
            raise CheckpointError(
                f"{error} The file is damaged: restore it, or delete it to go on unchecked."
            ) from error
        if file.name in names:
            otherwise = (
                f"{MANIFEST} beside it lists {names[file.name]}: it is damaged or was replaced. "
                f"Restore it, or delete {MANIFEST} if you replaced it."
            )
            yield file, names[file.name], otherwise
            continue
        # The name was damaged, unless all that is listed is there: then the file was added later.
        if missing := [name for name in names if not (sums.parent / name).exists()]:
            raise CheckpointError(
                f"{sums} does not list {file.name}, but {missing[0]}, which is not there: one of "
                f"them is damaged. Delete {MANIFEST} if you renamed the file."
            )
    if target.parent.name == "blobs" and re.fullmatch("[0-9a-f]{64}", target.name):
        otherwise = (
            f"its name in the cache is {target.name}: it is damaged, or was not downloaded to its "
            f"end. Delete {target} and download it again."
        )
        yield path, target.name, otherwise


def _compare(known: Iterable[tuple[Path, str, str]], digest: str) -> None:
    for file, expected, otherwise in known:
        if digest != expected:
            raise CheckpointError(f"{file} has SHA-256 {digest}, and {otherwise}")
