"""Argument validation and error messages: each says what was given, what is accepted, the fix."""

import difflib
import inspect
import math
import os
import sys
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from typing import Any

# Format characters that words need (Persian, Indic scripts, emoji); others can deceive.
_JOINERS = "\u200c\u200d"


def printable(text: str | os.PathLike[str]) -> str:
    """Return a name that is safe to print: on one line, without terminal control sequences.

    Control characters, terminal escape sequences, line breaks, marks that turn the direction of
    writing, other invisible format characters and undecodable bytes of a file's name become
    backslash escapes. Everything printed that comes from a user's files or arguments passes through
    this function.

    >>> print(printable("red\\x1b[31m\\n"), printable(Path("Blüte.jpg")))
    red\\x1b[31m\\n Blüte.jpg
    """
    decoded = os.fsdecode(text)
    return decoded if decoded.isprintable() else "".join(map(_printable_character, decoded))


def _printable_character(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # os.fsdecode's stand-in for a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    category = unicodedata.category(character)
    if category in ("Cc", "Cs", "Zl", "Zp") or (category == "Cf" and character not in _JOINERS):
        return character.encode("unicode_escape").decode()
    return character


@contextmanager
def naming_file(
    path: str | os.PathLike[str], kind: type[ValueError] = ValueError
) -> Iterator[None]:
    """Puts the name of a file before an error of this very class that does not have it.

    >>> with naming_file("labels.csv"):
    ...     raise ValueError("The column 'age' is empty.")
    Traceback (most recent call last):
    ...
    ValueError: labels.csv: The column 'age' is empty.
    """
    name = printable(path)
    try:
        yield
    except kind as error:
        if type(error) is not kind or name in str(error):
            raise
        raise kind(f"{name}: {error}") from error


def counted(count: int, singular: str, plural: str | None = None) -> str:
    """Return a number with its noun: `"1 epoch"`, `"2 epochs"`.

    Example:

    >>> from keras_vit._base.errors import counted
    >>> counted(1, "epoch"), counted(21_843, "class", "classes")
    ('1 epoch', '21,843 classes')
    """
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def listed(names: Sequence[str], most: int = 10) -> str:
    """Return names in one line: all, or the first ones and how many more there are.

    Example:

    >>> from keras_vit._base.errors import listed
    >>> listed(["daisy", "rose", "tulip"], most=2)
    'daisy, rose and 1 more'
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def did_you_mean(name: str, known: Iterable[str], listed: Iterable[str] | None = None) -> str:
    """`"Did you mean ...?"` for a misspelled name, or a list of names if none is similar.

    The list has the names of `listed`; None for all that are known.
    """
    names = list(known)
    if close := similar_names(name, names):
        return f"Did you mean {' or '.join(map(repr, close))}?"
    return "Known: " + ", ".join(names if listed is None else listed) + "."


def similar_names(name: str, known: Iterable[str]) -> list[str]:
    """Up to three of the known names, the most similar first, whatever their case."""
    folded = {name.lower(): name for name in known}
    return [folded[near] for near in difflib.get_close_matches(name.lower(), folded)]


def similar_paths(path: Path, names: Iterable[str]) -> list[str]:
    """Paths beside `path` of up to three of the names, the most similar first."""
    return [str(path.with_name(near)) for near in difflib.get_close_matches(path.name, names)]


def check_choice(value: Any, argument: str, known: Iterable[Any]) -> Any:
    """Returns `value` if it is one of the known ones; otherwise a ValueError lists those."""
    names = list(known)
    if value not in names:
        raise ValueError(
            f"{argument}={value!r} is not known. Give one of: {', '.join(map(repr, names))}."
        )
    return value


def as_pair(value: int | tuple[int, int], argument: str) -> tuple[int, int]:
    """Return a positive number, or a pair of them, as `(height, width)`."""
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2 or not all(isinstance(side, int) and side > 0 for side in pair):
        raise ValueError(
            f"{argument}={value!r} is not a size. "
            f"Give one positive integer, or a pair (height, width), such as (16, 16)."
        )
    return pair[0], pair[1]


def check_positive(**sizes: int) -> None:
    """Raises a ValueError for the first of the named sizes that is not a positive integer."""
    for name, size in sizes.items():
        if not isinstance(size, Integral) or size < 1:
            raise ValueError(f"{name}={size!r} must be an integer of at least 1.")


def check_non_negative(**sizes: int) -> None:
    """Raises a ValueError for the first of the named sizes that is not an integer of at least 0."""
    for name, size in sizes.items():
        if not isinstance(size, Integral) or size < 0:
            raise ValueError(f"{name}={size!r} must be an integer of at least 0.")


def check_finite(**values: float) -> None:
    """Raises a ValueError for the first of the named values that is not a finite number."""
    for name, value in values.items():
        if not isinstance(value, Real) or not math.isfinite(value):
            raise ValueError(f"{name}={value!r} must be a finite number, such as 1e-6.")


def check_above_zero(**values: float) -> None:
    """Raises a ValueError for the first of the named values that is not finite or not above 0."""
    check_finite(**values)
    for name, value in values.items():
        if value <= 0:
            raise ValueError(f"{name}={value!r} must be above 0, such as 1e-6.")


def check_rate(**values: float) -> None:
    """Raises a ValueError for the first of the named rates that is outside [0, 1)."""
    for name, rate in values.items():
        if not isinstance(rate, Real) or not 0 <= rate < 1:
            raise ValueError(
                f"{name}={rate!r} is not a rate. Give a number in [0, 1), such as 0.1."
            )


def check_arguments(cls: type, arguments: Iterable[str]) -> None:
    """Raises a ValueError for an argument that the constructor of `cls` does not have."""
    accepted = accepted_arguments(cls)
    for name in arguments:
        if name not in accepted:
            raise ValueError(
                f"{cls.__name__} does not have an argument {name!r}. "
                f"{did_you_mean(name, accepted)} Accepted: {', '.join(accepted)}."
            )


def accepted_arguments(cls: type) -> list[str]:
    """Return the argument names of a class, and of its base classes where it takes `**kwargs`."""
    names: list[str] = []
    # `Model.__new__` accepts anything: only the signature of `__init__` counts.
    for initializer in [vars(c)["__init__"] for c in cls.__mro__ if "__init__" in vars(c)]:
        parameters = list(inspect.signature(initializer).parameters.values())
        names += [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return [name for name in names if name != "self"]


class DataRangeWarning(UserWarning):
    """Images or labels lie outside the range that the model or its loss takes, or lose some of it.

    Who knows better silences it, and who wants to be stopped makes it an error.

    Example:

    >>> import warnings, keras_vit
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", keras_vit.data.DataRangeWarning)
    """


class ReportedWarning(UserWarning):
    """Files that are left out, or corrected paths: `keras_vit.data.Splits` has them as well."""


class ReadingWarning(UserWarning):
    """How files were read, which is not a reason to doubt the images or their labels."""


def warn_of_data(message: str) -> None:
    """Issues a `DataRangeWarning` at the line that led here: see `warn_at_caller`."""
    warn_at_caller(message, DataRangeWarning)


def warn_at_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Issues a warning at the line outside of this package and Keras that led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and _package(frame) in ("keras_vit", "keras", "contextlib"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _package(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
