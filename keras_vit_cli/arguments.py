"""Parses the command line, from the options of `options/`. Imports neither Keras nor keras_vit."""

import argparse
import difflib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from keras_vit_cli.options import COMMANDS
from keras_vit_cli.options.config_file import besides, read_config, to_toml
from keras_vit_cli.options.option import Command, UsageError, escaped, library_version
from keras_vit_cli.options.shared import check_table

# From this ratio on (of `difflib`), a misspelled option is like another.
SIMILAR = 0.75

# What other training scripts call an option.
NAMES_ELSEWHERE = {
    "-b": "--batch-size",
    "--bs": "--batch-size",
    "-d": "--data",
    "--dataset": "--data",
    "--img-size": "--image-size",
    "--input-size": "--image-size",
    "--lr": "--learning-rate",
    "-o": "--out",
    "--output": "--out",
    "--output-dir": "--out",
    "--pretrained": "--weights",
    "--checkpoint": "--weights",
}


def parse(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the options of one command by name, the command itself as `"command"`.

    Raises:
        UsageError: An option is unknown, missing, out of range, or has no effect.
        SystemExit: `--help`, `--version`, or no command at all.

    >>> parse(["list", "ViT-B*"])
    {'command': 'list', 'pattern': 'ViT-B*', 'weights': False}
    """
    parser = make_parser()
    words = list(sys.argv[1:] if arguments is None else arguments)
    known, unknown = parser.parse_known_args(_with_config(parser, words))
    command, options = known.command, vars(known)
    if unknown:
        raise UsageError(_unrecognized(command, unknown))
    if command is None:
        # Status 2, as for every incomplete command: a script whose words came out empty has not
        # done its work.
        parser.exit(2, parser.format_help())
    for name, value in options.items():
        if isinstance(value, list):
            options[name] = tuple(value)
    check_table(command, options)
    COMMANDS[command].check(options)
    options.pop("config", None)
    if options.pop("print_config", False):
        print(to_toml(COMMANDS[command], options), end="")
        parser.exit()
    return options


def _with_config(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """Return the words, preceded by those that the file of `--config` stands for, if given."""
    command = COMMANDS.get(words[0]) if words else None
    if command is None or not command.has_config:
        return words
    search = _Parser(prog=f"keras-vit {words[0]}", add_help=False)
    search.add_argument("--config", type=Path)
    path = search.parse_known_args(words[1:])[0].config
    if path is None:
        return words
    config = read_config(path, command)
    try:
        parser.parse_known_args([words[0], "--data=?", *besides(config, command, [])])
    except UsageError as error:
        raise UsageError(str(error) if str(path) in str(error) else f"{path}: {error}") from error
    return [words[0], *besides(config, command, words), *words[1:]]


def _unrecognized(command: str | None, words: Sequence[str]) -> str:
    """Return the message for unknown arguments of a command, with similar names proposed."""
    program = f"keras-vit {command}" if command else "keras-vit"
    names = [row.name for row in COMMANDS[command].rows if row.name[0] == "-"] if command else []
    near: list[str] = []
    for word in (word.split("=")[0] for word in words):
        elsewhere = NAMES_ELSEWHERE.get(word)
        near += [elsewhere] if elsewhere in names else _similar(word, names)
    proposal = f" Did you mean {' or '.join(dict.fromkeys(near))}?" if near else ""
    if "--data" in names and not any(word.startswith("-") for word in words):
        proposal = " Photographs are given as --data FOLDER; a path with spaces, in quotes."
    shown = escaped(" ".join(words))
    return f"unrecognized arguments: {shown} (see {program} --help).{proposal}"


def _similar(word: str, names: Sequence[str]) -> list[str]:
    """Return the most similar option, if any: for `--epocs`, `--num-epochs` or `--lora-rank`.

    It compares names without the dashes, which all options have in common.
    """
    bare = {name.lstrip("-"): name for name in names}
    word = word.lstrip("-").replace("_", "-").lower()
    near = difflib.get_close_matches(word, bare, n=1, cutoff=SIMILAR)
    near += [name for name in bare if name == word.split("-")[0] or name.startswith(f"{word}-")]
    return [bare[name] for name in near[:1]]


class _Parser(argparse.ArgumentParser):
    """Reports a usage error in one line, without the usage of all options before it.

    A part of an option's name is not that option: `--depth 3` would be `--depth-scale 3`.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        choices = re.findall(r"[\w-]+", wrong[2]) if wrong else []
        near = difflib.get_close_matches(wrong[1], choices) if wrong else []
        proposal = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise UsageError(
            f"{escaped(message.removesuffix('.'))} (see {self.prog} --help).{proposal}"
        )


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Prints the defaults that are values: `None`, `False` and `()` mean nothing to a reader."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False or action.default == ():
            return action.help
        return super()._get_help_string(action)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `keras-vit` with all its commands."""
    parser = _Parser(
        prog="keras-vit",
        description="The Vision Transformer for Keras 3: train it, use it, ship it.",
        epilog="environment:\n"
        "  KERAS_BACKEND=tensorflow|jax|torch  chooses the backend\n"
        "  KERAS_VIT_TRACEBACK=1               shows where an error came from\n"
        "  KERAS_VIT_PLAIN=1                   shows what libraries write as well",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"keras-vit {library_version()['__version__']}"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    for name, command in COMMANDS.items():
        _add_command(commands, name, command)
    return parser


def _add_command(commands: Any, name: str, command: Command) -> None:
    parser = commands.add_parser(
        name,
        help=command.help,
        description=f"{command.help[0].upper()}{command.help[1:]}.",
        epilog=f"example: {command.example}",
        formatter_class=_HelpFormatter,
    )
    if command.has_config:
        parser.add_argument(
            "--config",
            type=Path,
            metavar="FILE",
            help="read options from this TOML, JSON or YAML file, such as config.json of a run; "
            "words on the command line win",
        )
        parser.add_argument(
            "--print-config", action="store_true", help="print the options as TOML, and stop"
        )
    for title, rows in command.groups.items():
        group = parser.add_argument_group(title)
        exclusive: dict[str, Any] = {}
        for row in rows:
            target = group
            if (word := row.option.exclusive) is not None:
                if word not in exclusive:
                    exclusive[word] = group.add_mutually_exclusive_group()
                target = exclusive[word]
            target.add_argument(row.name, **row.settings)
