"""Why an engine failed, without the parts of an error that only its writers can use."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from keras_vit.weights.checkpoint_error import CheckpointError, reason

# Reasons are shown to users: a page, not a book.
LONGEST = 2000
# What Keras, TensorFlow's AutoGraph and torch put around the error of the code that they ran.
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_CALLING = re.compile(r"^Exception encountered when calling .*\n+", re.MULTILINE)
_ARGUMENTS = re.compile(r"\n+Arguments received by [^\n]*:\n.*", re.DOTALL)
_USER_CODE = re.compile(r'^in user code:\n.*\n    (?=\w+(Error|Exception)?: )(?!File ")', re.DOTALL)
_STACKS = re.compile(r"\n+(While executing|Original traceback:|from user code:).*", re.DOTALL)


def failure_reason(error: BaseException) -> str:
    """Return an error's message without the stacks and arguments that frameworks add to it.

    >>> failure_reason(TypeError("Exception encountered when calling Dense.call().\\n\\nno axis"
    ...     "\\n\\nArguments received by Dense.call():\\n  x=1"))
    'TypeError: no axis'
    """
    message = _COLORS.sub("", str(error))
    for surroundings in (_CALLING, _USER_CODE, _ARGUMENTS, _STACKS):
        message = surroundings.sub("", message)
    message = message.strip()
    if len(message) > LONGEST:
        message = f"{message[:LONGEST]} ..."
    # What this package raises itself is a sentence; what others raise is called by its type, too.
    is_ours = type(error) in (RuntimeError, ValueError) and message
    kind = type(error).__name__
    return message if is_ours or message.startswith(f"{kind}: ") else f"{kind}: {message}"


@contextmanager
def engine_errors(what: str) -> Iterator[None]:
    """Makes a `CheckpointError` of what an engine raises: every one has errors of its own."""
    try:
        yield
    except (ImportError, MemoryError, CheckpointError):
        raise
    except Exception as error:
        raise CheckpointError(f"{what}: {reason(error)}") from error
