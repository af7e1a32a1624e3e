"""Exceptions about data, and what is wrong with the bytes of a JPEG, PNG or other known file."""

import re

from keras_vit._base.errors import printable
from keras_vit.data.decode.image_kinds import PILLOW, TENSORFLOW, kind_of_contents, kinds_of

JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"  # how files of these begin


class BadImageError(ValueError):
    """Image files cannot be decoded; the message names them, with the reasons."""


class DamagedShardError(ValueError):
    """A file of records is truncated or damaged; the message names the file and the byte."""


class DatasetUnavailableError(RuntimeError):
    """A TFDS data set is not prepared on this machine and cannot be downloaded."""


def check_channels(channels: int) -> None:
    """Raises a ValueError for another number than 1 or 3."""
    if channels not in (1, 3):
        raise ValueError(
            f"channels={channels} must be 3 (RGB) or 1 (gray): files of images have one, three or "
            "four channels, of which transparency is left out. Give a model of other channels "
            "arrays, as model.predict(pixels)."
        )


def too_large(size: str, max_pixels: int) -> str:
    """Return the reason for a size such as "10000 x 10000"."""
    return f"the image has {size} pixels, more than max_pixels={max_pixels} in all"


def damaged_reason(kind: str, package: str, error: Exception | None) -> str:
    """Return why a package cannot read a file, with the text of its error where there is one."""
    reason = f"the {kind} file is damaged, incomplete, or of a kind unknown to {package}"
    if error is None:
        return reason
    said = " ".join(str(error).split())[:200] or type(error).__name__
    return f"{reason}: {printable(said)}"


def undecodable_reason(contents: bytes, error: Exception) -> str:
    """Return why a file cannot be decoded, in the same words for all decoders.

    Messages of `decode_image`'s own assertions are kept; other messages of TensorFlow name
    operators and nodes, which do not describe the file.
    """
    # Of Python within a graph; in a graph, and called eagerly.
    if raised := re.search(r"BadImageError: (.*)", str(error)):
        return raised[1]
    if asserted := re.search(r"(?:assertion failed: \[|Summarized data: b')(.*?)[\]']", str(error)):
        return asserted[1]
    kind = kind_of_contents(contents)
    if kind is not None and TENSORFLOW in kind.readers:
        return f"the {kind.name} file is damaged or incomplete"
    by_pillow = kind is not None and PILLOW in kind.readers  # so that TensorFlow was to read it
    *names, last = [kind.name for kind in kinds_of(TENSORFLOW if by_pillow else PILLOW)]
    reason = f"not a {', '.join(names)} or {last} file"
    advice = "; Grain reads it (reader='grain')" if by_pillow else ""
    return f"a {kind.name} file, {reason}{advice}" if kind else reason
