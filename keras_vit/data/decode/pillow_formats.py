"""Formats that Pillow reads and TensorFlow does not: photographs of phones, and scans."""

from __future__ import annotations

import re
from typing import NamedTuple

from keras_vit._base.version import install_command


class PillowFormat(NamedTuple):
    """A format that Pillow reads.

    Attributes:
        name: What its users call it.
        pillow: Pillow's name of it.
        suffixes: Of its files, in lower case.
        begins: A regular expression for the first bytes of a file.
    """

    name: str
    pillow: str
    suffixes: tuple[str, ...]
    begins: bytes


PILLOW_FORMATS = (
    PillowFormat("TIFF", "TIFF", (".tif", ".tiff"), rb"II[*+]\0|MM\0[*+]"),
    PillowFormat("AVIF", "AVIF", (".avif",), rb".{4}ftypavi[fs]"),
    PillowFormat("HEIC", "HEIF", (".heic", ".heif"), rb".{4}ftyp(hei|hev|mif1|msf1)"),
)
PILLOW_SUFFIXES = tuple(suffix for kind in PILLOW_FORMATS for suffix in kind.suffixes)
_BYTES = 16


def pillow_format(contents: bytes) -> PillowFormat | None:
    """The format of a file's first bytes, if it is one of these.

    >>> pillow_format(b"II*\\0...").name
    'TIFF'
    """
    begin = contents[:_BYTES]
    return next((k for k in PILLOW_FORMATS if re.match(k.begins, begin, re.DOTALL)), None)


def missing_plugin(kind: PillowFormat) -> str | None:
    """Registers what Pillow reads a format with; what to install where it is missing."""
    from PIL import Image

    if kind.pillow == "HEIF":
        try:
            from pillow_heif import register_heif_opener
        except ImportError:
            return f"a HEIC file, which pillow-heif reads: {install_command('heic')}"
        register_heif_opener()
    Image.init()
    if kind.pillow in Image.OPEN:
        return None
    return f"a file of {kind.name}, which this Pillow does not read: pip install --upgrade pillow"
