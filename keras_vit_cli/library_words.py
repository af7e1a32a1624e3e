"""Messages of the library in the words of a command: `cache=100` is printed as `--cache 100`."""

import re
import shlex
from functools import cache

from keras_vit_cli.options import COMMANDS
from keras_vit_cli.options.option import Row

# Arguments that are called otherwise than the option, wherever a command has that option.
OTHER_NAMES = {"k": "knn", "path": "out", "shots": "fewshot"}
# Calls of the library, and the words that stand for them.
CALLS = {
    r"keras_vit\.curation\.embed\(.*?\)": "keras-vit embed PHOTOS --model MODEL --out INDEX",
    r"keras_vit\.export\b(?!\()": "keras-vit export",
    r"keras_vit\.exporting\.load_exported\b": "keras-vit predict or compare",
    r"keras_vit\.list_weights\(\)": "keras-vit list --weights",
    r"instead: linear probe, k-NN or few-shot": "by keras-vit evaluate --probe, --knn or --fewshot",
    r"or another folder, or delete its checkpoints": "or --overwrite to start again",
    r"; if both are meant, give a task .*\.Classification\(names\)": "",
    r"load\(bands='all'\)": "keras-vit train --bands all",
    r"keras_vit\.load\(file\)": "--weights without --model",
    r"model\.trainable = False before model\.with_classifier": "keras-vit train --freeze-backbone",
    r"recipe\.scaled\((.*?)\)": r"\1",
    r", in task=keras_vit\.tasks\.Depth\(\)": "",
    r"task=keras_vit\.tasks\.Ordinal\((\(.*?\))\)": r"order=\1",
    r"task\.with_coverage\b(?!\()": "keras-vit calibrate",
    r"views='one' in the recipe": "--views one",
    r"[,;:] see splits\.report(\.ignored)?": "",
}
# What stands between the parentheses of a call is left as it is.
ARGUMENT = re.compile(
    r"""\w\([^()\n]*\)
    |(?:^|(?<=\s)|(?<=\s\())(?P<name>[a-z][a-z_]*)
    (?P<given>=(?P<value>'[^'\\\n]*'|"[^"\\\n]*"|\([^()\\\n]*\)|[-+.\w]*\w)?)?
    (?=[,;:.)]*(?:\s|$))""",
    re.VERBOSE | re.MULTILINE,
)
VALUES = re.compile(r"""'([^']*)'|"([^"]*)"|([-+.\w]+)""")


@cache
def _options(command: str) -> dict[str, Row]:
    """Return the options of a command by the arguments that they are for."""
    return {r.settings["dest"]: r for r in COMMANDS[command].rows if "dest" in r.settings}


def in_options(text: str, command: str | None) -> str:
    """Return a message with a command's options in place of the library's arguments.

    A word with an underscore that is an argument becomes an option, too. None changes nothing.

    >>> in_options("cache=100 is below image_size: give 448, or leave cache= out.", "train")
    '--cache 100 is below --image-size: give 448, or leave --cache out.'
    """
    options = {} if command is None else _options(command)

    def option(match: re.Match[str]) -> str:
        name, value = match["name"], match["value"]
        row = options.get(name) or options.get(OTHER_NAMES.get(name, ""))
        if row is None or not (match["given"] or "_" in name):
            return match[0]
        is_flag = "action" in row.settings
        if value is None or (is_flag and value == "True"):
            return row.name
        if is_flag or value in ("None", "True", "False"):
            return match[0]
        values = ["".join(parts) for parts in VALUES.findall(value)]
        words = values if "nargs" in row.settings else [",".join(values)]
        return shlex.join([row.name, *words])

    for call, words in CALLS.items() if command is not None else ():
        text = re.sub(call, words, text)
    return ARGUMENT.sub(option, text)
