"""The end of a command: an error is one line, and an exit status."""

import os
import re
import sys
from collections.abc import Callable

# Errors whose message is written for a reader; others are bugs, or damaged files that no check saw.
EXPECTED = (ValueError, OSError, ImportError, RuntimeError, FloatingPointError)
LONGEST_MESSAGE = 2000

# How the backends word that memory is exhausted; TensorFlow adds where each operation was defined.
NO_MEMORY = (
    r"OOM when allocating.*|RESOURCE_EXHAUSTED.*|.*(?:[Oo]ut of memory|can't allocate memory).*"
)
STACK = r"^(?:\s*File \".*\", line \d+, in .*|Detected at node .*|\s*\[\[\{\{node .*)$"


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

    >>> from keras_vit_cli.exit_status import one_line
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
    # As keras_vit._base.errors.printable, which cannot be imported without Keras.
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
