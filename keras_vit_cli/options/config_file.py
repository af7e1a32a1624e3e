"""The options of a command from a file, for `--config`, and as one, for `--print-config`."""

import difflib
import json
import reprlib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_vit_cli.options.option import Command, Row, UsageError

# Of a run's own config.json: how that run was started, not what it is.
OF_THE_START = ("resume", "overwrite")
MOST_BYTES = 2**24  # a run's has the names of its classes
_BRIEF = reprlib.Repr()
_BRIEF.maxlevel = 2  # of YAML, few bytes are lists in lists without end


def read_config(path: Path, command: Command) -> dict[str, list[str]]:
    """Return the words that a file stands for, by the name of the option.

    Raises:
        UsageError: The file cannot be read, or has an option that the command does not have.
    """
    rows = {row.name: row for row in command.rows}
    names = {**{row.settings["dest"]: name for name, row in rows.items()}, **{n: n for n in rows}}
    words: dict[str, list[str]] = {}
    for key, value in _read(path).items():
        name = names.get(key) or names.get(f"--{str(key).replace('_', '-')}")
        if name is None:
            near = difflib.get_close_matches(f"--{key}".replace("_", "-"), rows, n=1)
            proposal = f" Did you mean {near[0].removeprefix('--')}?" if near else ""
            raise UsageError(f"{path} has the unknown option {key!r}.{proposal}")
        words[name] = _words(path, rows[name], value)
    return words


def besides(config: dict[str, list[str]], command: Command, words: Sequence[str]) -> list[str]:
    """Return the words of `read_config`, without those options that `words` give otherwise."""
    rows = {row.name: row for row in command.rows}
    names = (word.split("=")[0] for word in words)
    on_line = [rows[name] for name in names if name in rows]
    exclusive = {row.option.exclusive for row in on_line} - {None}
    return [
        word
        for name, of_file in config.items()
        if rows[name] not in on_line and rows[name].option.exclusive not in exclusive
        for word in of_file
    ]


def _words(path: Path, row: Row, value: Any) -> list[str]:
    if value is None:
        return []
    is_flag, several = "action" in row.settings, "nargs" in row.settings
    wrong = isinstance(value, dict) or (isinstance(value, list) and not several)
    if wrong or isinstance(value, bool) != is_flag:
        accepted = "true or false" if is_flag else "values" if several else "one value"
        raise UsageError(f"{path}: {row.name[2:]} takes {accepted}, and is {_shown(value)}.")
    if is_flag:
        return [row.name] if value else []
    if isinstance(value, list):
        for item in value:
            if isinstance(item, list | dict | bool | None):
                raise UsageError(f"{path}: {row.name[2:]} takes values, and has {_shown(item)}.")
            if str(item).startswith("-") and isinstance(item, str):  # it would be an option
                raise UsageError(f"{path}: {row.name[2:]} has {item!r}, which begins with a dash.")
        return [row.name, *map(str, value)]
    return [f"{row.name}={value}"]


def _shown(value: Any) -> str:
    """Return a value of the file for a message, cut where it is long."""
    if isinstance(value, list | dict):
        return _BRIEF.repr(value)
    return json.dumps(value, default=str)[:100]


def _read(path: Path) -> dict[str, Any]:
    suffix = path.suffix.lower()
    try:
        if path.exists() and not path.is_file():  # reading it might never end
            raise UsageError(f"--config {path} is not a regular file.")
        if (size := path.stat().st_size) > MOST_BYTES:
            raise UsageError(
                f"--config {path} has {size:,} bytes, and at most {MOST_BYTES:,} are read: give "
                "a file of options alone."
            )
        text = path.read_text("utf-8")
        if suffix in (".yaml", ".yml"):
            content = _yaml(path, text)
        elif suffix in (".toml", ".json"):
            content = tomllib.loads(text) if suffix == ".toml" else json.loads(text)
        else:
            raise UsageError(f"--config {path}: give a file that ends in .toml, .json or .yaml.")
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"--config {path} is not {suffix[1:].upper()}: {error}.") from error
    if isinstance(content, dict) and isinstance(content.get("job"), dict):  # a run's config.json
        content = {key: v for key, v in content["job"].items() if key not in OF_THE_START}
    if not isinstance(content, dict):
        raise UsageError(f"--config {path} does not hold options: give lines such as epochs = 3.")
    return content


def _yaml(path: Path, text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise UsageError(
            f"--config {path}: PyYAML is not installed: pip install pyyaml, or give .toml or .json."
        ) from None
    try:
        return yaml.safe_load(text)
    # PyYAML's own for tags such as "!!int ''" and "!!timestamp x".
    except (yaml.YAMLError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(error) from None


def to_toml(command: Command, options: dict[str, Any]) -> str:
    """Return the options that are not None as lines that `--config` reads."""
    values = {row.name[2:]: options[row.settings["dest"]] for row in command.rows}
    lines = [
        f"{name} = {json.dumps(value, ensure_ascii=False, default=str)}\n"
        for name, value in values.items()
        if value is not None
    ]
    return "".join(lines)
