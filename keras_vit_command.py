"""Starts `keras-vit`. A module of its own, since importing keras_vit imports the backend."""

import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec

from keras_vit_arguments import parse

# What TensorFlow's libraries write as they are loaded, whatever TF_CPP_MIN_LOG_LEVEL is.
NOISE = r"WARNING: All log messages before absl|I0000 |E0000 .* failed call to cuInit"
# A process of its own: what this one writes before it crashes still reaches the terminal.
FILTER = f"""
import re, sys
for line in iter(sys.stdin.buffer.readline, b""):
    if not re.match({NOISE.encode()!r}, line):
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
"""

# Commands that read their data by tf.data.
DATA_COMMANDS = ("train", "evaluate", "augment")

# Errors whose message is written for a reader; others are bugs, or damaged files that no check saw.
EXPECTED = (ValueError, OSError, ImportError, RuntimeError, FloatingPointError)
LONGEST_MESSAGE = 2000

# How the backends word that memory is exhausted; TensorFlow adds where each operation was defined.
NO_MEMORY = (
    r"OOM when allocating.*|RESOURCE_EXHAUSTED.*|.*(?:[Oo]ut of memory|can't allocate memory).*"
)
STACK = r"^(?:\s*File \".*\", line \d+, in .*|Detected at node .*|\s*\[\[\{\{node .*)$"


def main() -> int:
    """Runs the command line; `KERAS_VIT_PLAIN=1` shows all that native code writes."""
    return exit_status(_start)


def _start() -> int:
    options = parse()  # help and usage errors need none of what follows
    if options.get("compile") and find_spec("jax"):
        os.environ["KERAS_BACKEND"] = "jax"  # only JAX compiles for a TPU that is elsewhere
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names that a terminal cannot show
    with without_noise():
        from keras_vit.cli import run

        if options["command"] in DATA_COMMANDS and find_spec("tensorflow"):
            from keras_vit.data._imports import require

            require("tensorflow", "")  # with any backend: it reads the data
    return run(options)


def exit_status(command: Callable[[], int]) -> int:
    """Runs a command; an error is one line on standard error and status 2, Ctrl-C status 130."""
    try:
        return command()
    except KeyboardInterrupt:
        print("keras-vit: stopped", file=sys.stderr)
        return 130
    except Exception as error:
        if os.environ.get("KERAS_VIT_TRACEBACK"):
            raise
        print(f"keras-vit: {one_line(error)}", file=sys.stderr)
        return 2


def one_line(error: Exception) -> str:
    """An error in one line that is safe to print, whatever stands in it.

    Example:

    >>> from keras_vit_command import one_line
    >>> one_line(ValueError("No class 'a\\x1b[2J'.\\n  Give another."))
    "No class 'a\\\\x1b[2J'. Give another."
    """
    text = str(error)
    if isinstance(error, OSError) and error.errno is not None and error.strerror is not None:
        files = [os.fsdecode(f) for f in (error.filename, error.filename2) if isinstance(f, str)]
        text = ": ".join([error.strerror, *files])
    text = re.sub(STACK, "", text, flags=re.MULTILINE)
    memory = re.search(NO_MEMORY, text)
    if memory or isinstance(error, MemoryError):
        detail = memory[0] if memory else text
        text = f"Out of memory. Give a smaller batch, image size or model. {detail}"
    elif not isinstance(error, EXPECTED) or not text:
        name = type(error).__name__
        text = f"{name}: {text}" if text else name
        text += " (KERAS_VIT_TRACEBACK=1 shows where)"
    text = re.sub(r"\s*\n\s*", " ", text.strip())[:LONGEST_MESSAGE]
    # As keras_vit.errors.printable, which cannot be imported without Keras.
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@contextmanager
def without_noise() -> Iterator[None]:
    """Passes on what native code writes to standard error, at once, but for lines like `NOISE`."""
    if os.environ.get("KERAS_VIT_PLAIN"):
        yield
        return
    # TensorFlow reads it when it is imported; it silences all but `NOISE`.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    terminal = os.dup(2)
    lines = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", FILTER],
        stdin=subprocess.PIPE,
        stdout=terminal,
        start_new_session=True,  # Ctrl-C in a terminal does not reach it
    )
    assert lines.stdin is not None
    os.dup2(lines.stdin.fileno(), 2)
    lines.stdin.close()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)
        os.close(terminal)
        with suppress(subprocess.TimeoutExpired):  # a child of the imports may still write
            lines.wait(5)


if __name__ == "__main__":
    sys.exit(main())
