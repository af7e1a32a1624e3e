"""The image files that the words of a command line stand for, one after another."""

import glob
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from keras_vit._base.errors import printable
from keras_vit.data.decode.decoder import IMAGE_SUFFIXES
from keras_vit.data.sources.other_formats import other_format

STANDARD_INPUT = "-"
LIST = "@"
# Entries of a folder that are sorted; those of a larger one come as the disk has them.
MOST_SORTED = 10_000
_BLOCK = 2**16


def image_paths(words: Iterable[Path]) -> Iterator[Path]:
    """The files that are meant, one at a time: there may be more than memory holds names of.

    Args:
        words: Files; folders, of which every image at any depth is taken, but hidden ones, sorted
            within a folder of up to 10,000 entries; patterns such as `photos/**/*.jpg`;
            `@list.txt`, a file with a path per line; and `-` for such a list on standard input.

    Raises:
        ValueError: A folder is without images, or a pattern does not match any file. Raised before
            the first path.
        OSError: A folder or list cannot be read.
    """
    words = list(words)
    for word in words:
        _check(word)
    return (path for word in words for path in _paths(word))


def is_one_file(word: Path) -> bool:
    """Whether a word stands for itself, be there such a file or not."""
    return not (_is_list(word) or str(word) == STANDARD_INPUT or word.is_dir() or _is_pattern(word))


def _paths(word: Path) -> Iterator[Path]:
    if is_one_file(word):
        yield word
    elif str(word) == STANDARD_INPUT:
        yield from _names(sys.stdin.buffer)
    elif _is_list(word):
        with _list_file(word).open("rb") as file:
            yield from _names(file)
    elif word.is_dir():
        yield from _images_in(word)
    else:
        yield from _matches(word)


def _check(word: Path) -> None:
    """Raises an error for a word that does not stand for any file, which is a slip."""
    if _is_list(word):
        _list_file(word).open("rb").close()
    elif is_one_file(word) or str(word) == STANDARD_INPUT:
        pass
    elif word.is_dir():
        os.scandir(word).close()
        if next(_images_in(word), None) is None:
            kinds = ", ".join(IMAGE_SUFFIXES)
            raise ValueError(f"No image is in the folder {printable(word)}: give one with {kinds}.")
    elif next(_matches(word), None) is None:
        raise ValueError(
            f"The pattern {printable(word)} does not match any file. * stands for a part of a "
            "name, and ** for folders at any depth: 'photos/**/*.jpg'."
        )


def _is_list(word: Path) -> bool:
    return str(word).startswith(LIST) and not word.exists()


def _list_file(word: Path) -> Path:
    return Path(str(word).removeprefix(LIST))


def _is_pattern(word: Path) -> bool:
    return glob.has_magic(str(word)) and not os.path.lexists(word)


def _matches(pattern: Path) -> Iterator[Path]:
    paths = map(Path, glob.iglob(str(pattern), recursive=True))
    return (path for path in paths if not path.is_dir())


def _images_in(folder: Path) -> Iterator[Path]:
    """Every image below a folder; links to folders are not followed, as they may lead in circles.

    A folder that cannot be opened is among them, so that it becomes a row with a reason.
    """
    try:
        entries = os.scandir(folder)
    except OSError:
        yield folder
        return
    with entries:
        first = list(islice(entries, MOST_SORTED + 1))
        if len(first) <= MOST_SORTED:
            first.sort(key=lambda entry: entry.name)
        for part in (first, entries):
            for entry in part:
                path = folder / entry.name
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    yield from _images_in(path)
                elif path.suffix.lower() in IMAGE_SUFFIXES or other_format(path):
                    yield path


def _names(file: BinaryIO) -> Iterator[Path]:
    """The paths in a list: one per line, or ended by NUL bytes as `find -print0` writes them."""
    rest, end = b"", b""
    while block := file.read1(_BLOCK) if hasattr(file, "read1") else file.read(_BLOCK):
        end = end or (b"\0" if b"\0" in block else b"\n" if b"\n" in block else b"")
        rest += block
        if end:
            *names, rest = rest.split(end)
            yield from _as_paths(names, end)
    yield from _as_paths([rest], end)


def _as_paths(names: Iterable[bytes], end: bytes) -> Iterator[Path]:
    for name in names:
        if name := name if end == b"\0" else name.removesuffix(b"\r"):
            yield Path(os.fsdecode(name))
