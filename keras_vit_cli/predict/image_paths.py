"""The image files that the words of a command line stand for, one after another."""

import codecs
import glob
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

from keras_vit._base.errors import printable
from keras_vit.data.decode.image_kinds import PILLOW, is_hidden, is_image, suffixes_of
from keras_vit.data.sources.label_table import read_file_table
from keras_vit.data.sources.listings import marked_encoding
from keras_vit.data.sources.other_formats import note_left_out, shown_left_out
from keras_vit.data.sources.table_files import SUFFIXES as TABLE_SUFFIXES

STANDARD_INPUT = "-"
LIST = "@"
# Entries of a folder that are sorted; those of a larger one come as the disk has them.
MOST_SORTED = 10_000
_BLOCK = 2**16


def image_paths(words: Iterable[Path], left_out: Counter[str] | None = None) -> Iterator[Path]:
    """Return the files that are meant, one at a time: there may be more than memory holds names of.

    Args:
        words: Files; folders, of which every image at any depth is taken, but hidden ones, sorted
            within a folder of up to 10,000 entries; patterns such as `photos/**/*.jpg`; tables
            with a column of files, relative to their folder; `@list.txt`, a file with a path per
            line; and `-` for such a list on standard input.
        left_out: Where files of folders that are not images are counted by their suffix.

    Raises:
        ValueError: A folder is without images, a pattern does not match any file, a table is
            without a column of files, or a list is in UTF-16 without a byte order mark. Raised
            before the first path.
        OSError: A folder or list cannot be read.
    """
    words = list(words)
    for word in words:
        _check(word)
    counts = Counter() if left_out is None else left_out
    return (path for word in words for path in _paths(word, counts))


def is_one_file(word: Path) -> bool:
    """Return whether a word means one file, existing or not: no folder, table, list or pattern."""
    return _kind(word) == "file"


def _kind(word: Path) -> str:
    if str(word) == STANDARD_INPUT:
        return "input"
    if str(word).startswith(LIST) and not word.exists():
        return "list"
    if word.is_dir():
        return "folder"
    if word.suffix.lower() in TABLE_SUFFIXES and word.is_file():
        return "table"
    return "pattern" if glob.has_magic(str(word)) and not os.path.lexists(word) else "file"


def _paths(word: Path, left_out: Counter[str]) -> Iterator[Path]:
    kind = _kind(word)
    if kind == "file":
        yield word
    elif kind == "input":
        yield from _names(sys.stdin.buffer)
    elif kind == "list":
        with Path(str(word).removeprefix(LIST)).open("rb") as file:
            yield from _names(file)
    elif kind == "folder":
        yield from _images_in(word, left_out)
    elif kind == "table":
        rows = read_file_table(word, only_files=True)
        yield from (word.parent / name for name, *_ in rows)
    else:
        yield from _matches(word)


def _check(word: Path) -> None:
    """Raises an error for a word that does not stand for any file, which is a slip."""
    kind = _kind(word)
    if kind in ("file", "input"):
        return
    if kind == "folder":
        os.scandir(word).close()
    left_out: Counter[str] = Counter()
    if next(_paths(word, left_out), None) is not None:
        return
    if kind == "folder":
        others = f"It has {shown_left_out(left_out)}. " if left_out else ""
        raise ValueError(
            f"No image is in the folder {printable(word)}. {others}Give one with files such "
            f"as {', '.join(suffixes_of(PILLOW))}."
        )
    if kind == "pattern":
        raise ValueError(
            f"The pattern {printable(word)} does not match any file. * stands for a part of a "
            "name, and ** for folders at any depth: 'photos/**/*.jpg'."
        )


def _matches(pattern: Path) -> Iterator[Path]:
    paths = map(Path, glob.iglob(str(pattern), recursive=True))
    return (path for path in paths if not path.is_dir())


def _images_in(folder: Path, left_out: Counter[str]) -> Iterator[Path]:
    """Yield every image below a folder, without following links to folders, which may be circular.

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
                if is_hidden(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    yield from _images_in(path, left_out)
                elif is_image(path):
                    yield path
                else:
                    note_left_out(path, left_out)


def _names(file: BinaryIO) -> Iterator[Path]:
    """Yield the paths in a list: one per line, or ended by NUL bytes as by `find -print0`."""
    rest, end = b"", b""
    for block in _blocks(file):
        end = end or (b"\0" if b"\0" in block else b"\n" if b"\n" in block else b"")
        rest += block
        if end:
            *names, rest = rest.split(end)
            yield from _as_paths(names, end)
    yield from _as_paths([rest], end)


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """Yield a list's contents in blocks, as bytes of file names whatever encoding its mark says."""
    read = getattr(file, "read1", file.read)
    first = read(_BLOCK)
    while 0 < len(first) < 4 and (more := read(_BLOCK)):  # a pipe may give a byte at a time
        first += more
    encoding = marked_encoding(first)
    if encoding is None:
        _check_is_bytes(first)
    errors = "surrogateescape" if encoding == "utf-8-sig" else "replace"
    decoder = None if encoding is None else codecs.getincrementaldecoder(encoding)(errors)
    for block in chain([first], iter(lambda: read(_BLOCK), b"")):
        yield os.fsencode(decoder.decode(block)) if decoder else block


def _check_is_bytes(first: bytes) -> None:
    """Raises a ValueError for UTF-16 without its mark, whose NUL bytes would end names."""
    for names, others in ((first[::2], first[1::2]), (first[1::2], first[::2])):
        if others and not others.strip(b"\0") and b"." in names:
            raise ValueError(
                "The list of images is UTF-16 text without a byte order mark. Save it as UTF-8, or "
                "as UTF-16 with a byte order mark."
            )


def _as_paths(names: Iterable[bytes], end: bytes) -> Iterator[Path]:
    for name in names:
        if name := name if end == b"\0" else _without_quotes(name.removesuffix(b"\r")):
            yield Path(os.fsdecode(name))


def _without_quotes(line: bytes) -> bytes:
    """Strip blanks and quotes around the name in a line, unless a file is named with them.

    >>> _without_quotes(b'"a b.jpg" ')
    b'a b.jpg'
    """
    name = line.strip()
    if len(name) > 1 and name[:1] == name[-1:] and name[:1] in (b'"', b"'"):
        name = name[1:-1]
    return line if name != line and os.path.lexists(line) else name
