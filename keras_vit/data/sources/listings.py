"""train.txt and val.txt: which images of a folder belong to which split."""

import codecs
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from glob import escape
from pathlib import Path

from keras_vit._base.errors import printable
from keras_vit.data.decode.image_files import irregular

MOST_BYTES = 2**28  # of a list or a table; in memory it takes several times that

# UTF-32 first: its little-endian byte order mark begins with that of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}


def read_listing(listing: Path, class_names: Sequence[str]) -> list[tuple[Path, str]]:
    """Return the files of a listing, one path per line as `<class>/1.jpg`, and their classes."""
    examples = []
    for number, line in enumerate(_lines(listing), start=1):
        name = line.strip()
        if not name:
            continue
        place = f"{listing}, line {number}"
        if "\\" in name and not (listing.parent / name).exists():
            name = name.replace("\\", "/")  # as Windows writes it
        # As text: what ".." means must not depend on where a link leads.
        parts = posixpath.normpath(name).split("/")
        if len(parts) < 2 or parts[0] not in class_names:
            raise ValueError(
                f"{place}: {name!r} does not start with a class folder beside the "
                f"listing ({', '.join(class_names)}); write paths such as {class_names[0]}/1.jpg"
            )
        file = listing.parent.joinpath(*parts)
        if not file.exists():
            hint = "Put it there or remove the line."
            near = [file.with_name(re.split(r"[\s,;]", file.name)[0])]
            near += sorted(file.parent.glob(f"{escape(file.name)}.*"))
            if meant := [path.name for path in near if path.is_file()]:
                hint = f"For {parts[0]}/{meant[0]}, write that alone: the folder is the class."
            raise FileNotFoundError(f"{place}: {printable(file)} does not exist. {hint}")
        if kind := irregular(file):
            raise ValueError(f"{place}: {file} is {kind}. Remove the line.")
        examples.append((file, parts[0]))
    if not examples:
        raise ValueError(f"{listing} lists no file: write paths such as {class_names[0]}/1.jpg")
    return examples


def refuse_overlap(
    examples: Mapping[str, Sequence[tuple[Path, str]]], listings: Mapping[str, Path]
) -> None:
    """Raises a ValueError for a file that is listed twice, also by way of a link."""
    listed: dict[tuple[int, int], tuple[Path, str]] = {}
    for split, part in examples.items():
        for file, _ in part:
            status = os.stat(file)
            key = (status.st_dev, status.st_ino)
            if key in listed:
                other, first = listed[key]
                same = "" if other == file else f" as {other}, which is the same file,"
                raise ValueError(
                    f"{file} is listed in {listings[split].name} and{same} in {first}: an image "
                    "belongs to one split, once. Remove one of the two lines."
                )
            listed[key] = (file, listings[split].name)


def _lines(listing: Path) -> list[str]:
    if kind := irregular(listing):
        raise ValueError(f"{listing} is {kind}: a list of images is a text file.")
    return re.split(r"\r\n|\r|\n", read_text(listing, "the list"))


def marked_encoding(contents: bytes) -> str | None:
    """Return the encoding that a byte order mark at the beginning of a text stands for."""
    return next((name for mark, name in _MARKS.items() if contents.startswith(mark)), None)


def read_text(path: Path, what: str) -> str:
    """Return the text of a file in UTF-8, or in UTF-16 or UTF-32 with a byte order mark.

    Args:
        path: Of the file.
        what: It is, for the error.

    Raises:
        ValueError: It is in another encoding, or not a text; the message has the line. It is not a
            regular file, or has more than `MOST_BYTES`.
    """
    if kind := irregular(path):  # reading it might never end
        raise ValueError(f"{printable(path)} is {kind}: give {what} as a file.")
    if (size := path.stat().st_size) > MOST_BYTES:
        raise ValueError(
            f"{printable(path)} has {size:,} bytes, and at most {MOST_BYTES:,} are read: leave out "
            f"of {what} what is not needed, or split it."
        )
    contents = path.read_bytes()
    encoding = marked_encoding(contents) or "utf-8"
    try:
        text = contents.decode(encoding)
    except UnicodeDecodeError as error:
        line = contents[: error.start].count(b"\n") + 1
        raise _unknown_encoding(path, line, encoding.removesuffix("-sig").upper(), what) from None
    if "\0" in text:  # UTF-16 without its mark
        line = text[: text.index("\0")].count("\n") + 1
        raise _unknown_encoding(path, line, "UTF-8", what)
    return text


def _unknown_encoding(path: Path, line: int, encoding: str, what: str) -> ValueError:
    return ValueError(
        f"{path}, line {line} is not {encoding} text. Save {what} as UTF-8, or as UTF-16 with "
        "a byte order mark."
    )
