"""Starts `keras-vit`: options first, since importing keras_vit imports the backend."""

import io
import sys
from importlib.util import find_spec
from typing import Any

from keras_vit_cli.exit_status import exit_status
from keras_vit_cli.quiet import without_noise

# Commands that read their data by tf.data, unless `--reader grain` asks for another.
DATA_COMMANDS = ("train", "pretrain", "evaluate", "augment")


def main() -> int:
    """Runs the command line; `KERAS_VIT_PLAIN=1` shows all that libraries write."""
    return exit_status(_start)  # which help and usage errors do not need


def _start(options: dict[str, Any]) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names that a terminal cannot show
    with without_noise():
        from keras_vit_cli.commands import run

        by_grain = options.get("reader") == "grain" or options.get("bands") is not None
        by_tensorflow = options["command"] in DATA_COMMANDS and not by_grain
        if by_tensorflow and find_spec("tensorflow"):
            from keras_vit.data._imports import require

            require("tensorflow", "")  # with any backend: it reads the data
        return run(options)
