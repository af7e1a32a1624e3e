"""How a field of a dataclass becomes an option of a command: `name: type = in_run(help, ...)`."""

import argparse
import dataclasses
import math
import runpy
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from functools import partial
from inspect import get_annotations
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

LAST_GROUP = "run"


class UsageError(ValueError):
    """Arguments that the command line does not accept."""


def escaped(text: str) -> str:
    """Return a text on one line, without control sequences.

    As keras_vit._base.errors.printable, which cannot be imported without Keras.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _number(text: str) -> float:
    """Return the number that a text is, NaN for another text: NaN is not in any range."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def library_version() -> dict[str, Any]:
    """Return the names in keras_vit's version.py, which is run: to import it would import Keras."""
    return runpy.run_path(str(Path(__file__).parents[2] / "keras_vit" / "_base" / "version.py"))


@dataclass(frozen=True)
class Integers:
    """Integers from `low` to `high`, both included, as the type of an option."""

    low: int
    high: int
    metavar: str = "N"

    def __call__(self, text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = self.low - 1
        if not self.low <= number <= self.high:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not accepted. Give an integer from {self.low} to {self.high:,}."
            )
        return number


@dataclass(frozen=True)
class Numbers:
    """Numbers between `low` and `high`, both excluded, as the type of an option.

    With `or_low`, `low` itself is accepted, too, and so is a `word`.
    """

    low: float
    high: float
    or_low: bool = False
    metavar: str = "N"
    word: str | None = None

    def __call__(self, text: str) -> float | str:
        if text == self.word:
            return text
        number = _number(text)
        is_low = self.or_low and number == self.low
        if not (is_low or self.low < number < self.high):
            begin = f"from {self.low:g} to" if self.or_low else f"above {self.low:g} and"
            other = f" Or give {self.word}." if self.word else ""
            raise argparse.ArgumentTypeError(
                f"{text!r} is not accepted. Give a number {begin} below {self.high:g}.{other}"
            )
        return number


SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
SHORTEST, LONGEST = 1, 30 * SECONDS["d"]


def duration(text: str) -> float:
    """Return the seconds of a time as the type of an option: 90, 90s, 10m, 1.5h or 2d.

    >>> duration("10m"), duration("90")
    (600.0, 90.0)
    """
    number, unit = (text[:-1], text[-1]) if text[-1:] in SECONDS else (text, "s")
    seconds = _number(number) * SECONDS[unit]
    if not SHORTEST <= seconds <= LONGEST:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not accepted. Give a time from 1s to 30d, such as 90s, 10m or 2h."
        )
    return seconds


def percent(text: str) -> float:
    """Return the part that a percentage is, above 0 and at most 100, as the type of an option.

    >>> percent("1%"), percent("0.5")
    (0.01, 0.005)
    """
    number = _number(text.removesuffix("%"))
    if not 0 < number <= 100:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not accepted. Give a percentage above 0 and at most 100, such as 1%."
        )
    return number / 100


def band_numbers(text: str) -> str:
    """Bands as the type of an option: "all", or different numbers from 1 on between commas."""
    numbers = text.split(",")
    fits = all(n.strip().isdecimal() and int(n) for n in numbers)
    if text != "all" and not (fits and len(set(map(int, numbers))) == len(numbers)):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not accepted. Give 'all', or different numbers of bands from 1 on, such "
            "as 4,3,2."
        )
    return text


def nodata_rule(text: str) -> str:
    """Return the type of an option: "mean", "refuse", or a number."""
    if text not in ("mean", "refuse") and not math.isfinite(_number(text)):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not accepted. Give mean, refuse, or a number, such as 0."
        )
    return text


# Of files that commands write under a name, which a folder would be taken for.
FILES = (".html", ".htm", ".pdf", ".png", ".jpg", ".json", ".csv", ".md", ".zip", ".keras", ".onnx")


def folder_to_write(text: str) -> Path:
    """Return the path of a folder to write, as the type of an option: not the name of a file.

    >>> folder_to_write("runs/v1.0").name
    'v1.0'
    """
    path = Path(text)
    if path.suffix.lower() in FILES and not path.is_dir():
        raise argparse.ArgumentTypeError(
            f"{text!r} is the name of a file, and a folder is written: give its name, such "
            f"as {str(path.with_suffix(''))!r}."
        )
    return path


@dataclass(frozen=True)
class Option:
    """What a parser has to know of a field besides its name, type and default.

    Attributes:
        group: Heading of the help under which it stands: data, model, recipe or run.
        help: What it does, as a phrase that stands alone.
        range: The accepted numbers.
        name: `--name`, where that is not the field's; `POSITIONAL` for an argument without dashes.
        exclusive: Options of a command with the same word here exclude each other.
        optional: The command finds a value where none is given; its field does not have a default.
        settings: Others of `argparse.add_argument`, in place of those that range and field give.
    """

    group: str
    help: str
    range: Integers | Numbers | None = None
    name: str | None = None
    exclusive: str | None = None
    optional: bool = False
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)


def option(
    group: str,
    help: str,
    default: Any = MISSING,
    range: Integers | Numbers | None = None,
    *,
    name: str | None = None,
    exclusive: str | None = None,
    optional: bool = False,
    **settings: Any,
) -> Any:
    """Return a field of a command's options; see `Option`."""
    row = Option(group, help, range, name, exclusive, optional, settings)
    return dataclasses.field(default=default, metadata={"option": row})


in_data, in_model, in_recipe, in_run = (
    partial(option, group) for group in ("data", "model", "recipe", "run")
)
POSITIONAL = ""


@dataclass(frozen=True)
class Row:
    """One argument as `argparse.add_argument` and the documentation take it."""

    name: str
    option: Option
    settings: dict[str, Any]


@dataclass(frozen=True)
class Command:
    """One command: its options, what it does, and a line to copy.

    Attributes:
        check: Refuses values that do not go together, and fills in what depends on others.
        has_config: Whether `--config` reads its options from a file.
    """

    options: type[Any]
    help: str
    example: str
    check: Callable[[dict[str, Any]], None] = lambda options: None
    has_config: bool = False

    @property
    def rows(self) -> list[Row]:
        """The arguments in the order of the fields, a command's own before those that it shares."""
        hints, first = get_type_hints(self.options), get_annotations(self.options)
        fields = sorted(dataclasses.fields(self.options), key=lambda field: field.name not in first)
        return [_row(field, hints[field.name]) for field in fields]

    @property
    def groups(self) -> dict[str, list[Row]]:
        """The arguments by heading, in the order of the fields, and those of the run at last."""
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row.option.group, []).append(row)
        last = groups.pop(LAST_GROUP, [])
        return {**groups, LAST_GROUP: last} if last else groups


def _row(field: dataclasses.Field[Any], hint: Any) -> Row:
    option: Option = field.metadata["option"]
    kind = get_args(hint)[0] if isinstance(hint, UnionType) else hint  # T of `T | None`
    several = get_origin(kind) is tuple
    kind = get_args(kind)[0] if several else kind
    is_written = option.group == LAST_GROUP and option.settings.get("metavar") == "FOLDER"
    to_path = folder_to_write if is_written else Path
    if kind is bool:
        settings: dict[str, Any] = {"action": "store_true"}
    else:
        settings = {
            "type": option.range or (to_path if kind is Path else None),
            "metavar": option.range.metavar if option.range else None,
            "nargs": "+" if several else None,
            "default": None if field.default is MISSING else field.default,
            **option.settings,
        }
    is_positional = option.name == POSITIONAL
    if not is_positional:
        settings["dest"] = field.name
        settings["required"] = (field.default is MISSING and not option.optional) or None
    name = field.name if is_positional else option.name or f"--{field.name.replace('_', '-')}"
    settings = {key: value for key, value in settings.items() if value is not None}
    return Row(name, option, {"help": option.help, **settings})
