"""The end of a command: an error is a message on standard error, and an exit status."""

import os
import re
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from keras_vit_cli.arguments import parse
from keras_vit_cli.library_words import in_options
from keras_vit_cli.options.early_checks import UNFINISHED, check_needs
from keras_vit_cli.options.option import escaped

# Errors whose message is written for a reader; others are bugs, or damaged files that no check saw.
EXPECTED = (ValueError, OSError, ImportError, RuntimeError, FloatingPointError)
LONGEST_MESSAGE = 8000
CLOSED_PIPE = 141  # as of other programs that `head` has read enough of: 128 and SIGPIPE

# How the backends word that memory is exhausted; TensorFlow adds where each operation was defined.
NO_MEMORY = (
    r"OOM when allocating.*|RESOURCE_EXHAUSTED.*|.*(?:[Oo]ut of memory|can't allocate memory).*"
)
STACK = r"^(?:\s*File \".*\", line \d+, in .*|Detected at node .*|\s*\[\[\{\{node .*)$"


def exit_status(run: Callable[[Any], int], arguments: Sequence[str] | None = None) -> int:
    """Parses and runs a command; an error is a message and status 2, Ctrl-C status 130.

    Where what reads the output has closed it, such as `head`, nothing is printed.
    """
    command, options = None, {}
    try:
        options = parse(arguments)
        command = options["command"]
        check_needs(options)
        with _ended_by_ctrl_c():
            status = run(options)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        is_kept = "resume" in options and os.path.isdir(f"{options['out']}{UNFINISHED}")
        print(
            "keras-vit: stopped" + "; the same command with --resume goes on" * is_kept,
            file=sys.stderr,
        )
        return 130
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_output_closed():
            return CLOSED_PIPE
        if os.environ.get("KERAS_VIT_TRACEBACK"):
            raise
        print(f"keras-vit: {message_of(error, command)}", file=sys.stderr)
        return 2


def ended_by_sigterm() -> AbstractContextManager[None]:
    """Lets SIGTERM end the block as Ctrl-C does: temporary files are removed on the way."""
    return _ended_by(signal.SIGTERM, lambda: SystemExit(128 + signal.SIGTERM))


def _ended_by_ctrl_c() -> AbstractContextManager[None]:
    """Lets Ctrl-C be a KeyboardInterrupt, unless it is ignored, as under `nohup`, or another's."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return nullcontext()
    return _ended_by(signal.SIGINT, KeyboardInterrupt)


@contextmanager
def _ended_by(number: int, ending: Callable[[], BaseException]) -> Iterator[None]:
    """Lets a signal end the block by an exception, whatever a library makes of it.

    Raised within a callback of TensorFlow, a KeyboardInterrupt comes out as a SystemError. Only the
    main thread gets signals: in another one nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = False

    def end(number: int, frame: Any) -> None:
        nonlocal came
        came = True
        raise ending()

    former = signal.signal(number, end)
    try:
        yield
    except Exception as error:
        if came:
            raise ending() from error
        raise
    finally:
        signal.signal(number, former)


def _is_output_closed() -> bool:
    """Return whether standard output's reader is gone; then let what is left go nowhere."""
    try:
        number = sys.stdout.fileno()
        poll = select.poll()
        poll.register(number, 0)
        if not any(event & select.POLLERR for _, event in poll.poll(0)):
            return False  # of another pipe, such as that of a process which was started here
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)  # or Python reports it at its end
    except (AttributeError, OSError, ValueError):  # not a file, or not on this system
        return False
    return True


def message_of(error: Exception, command: str | None = None) -> str:
    """Return an error, in the words of a command, as text that is safe to print.

    Line breaks of a message stay, such as those of a list of files, and its further lines are
    indented: none of them looks like another message.

    >>> print(message_of(ValueError("No class 'a\\x1b[2J'.\\nGive another.")))
    No class 'a\\x1b[2J'.
      Give another.
    """
    text = str(error)
    if isinstance(error, OSError) and error.errno is not None and error.strerror is not None:
        files = [os.fsdecode(f) for f in (error.filename, error.filename2) if isinstance(f, str)]
        text = ": ".join([error.strerror, *map(escaped, files)])
    text = re.sub(STACK, "", text, flags=re.MULTILINE)
    memory = re.search(NO_MEMORY, text)
    if memory or isinstance(error, MemoryError):
        detail = memory[0] if memory else text
        text = f"Out of memory. Give a smaller batch, image size or model. {detail}"
    elif not isinstance(error, EXPECTED) or not text:
        name = type(error).__name__
        text = f"{name}: {text}" if text else name
        text += " (KERAS_VIT_TRACEBACK=1 shows where)"
    text = in_options(text.strip()[:LONGEST_MESSAGE], command)
    first, *more = (escaped(line.rstrip()) for line in text.split("\n"))
    return "\n".join([first, *(f"  {line.removeprefix('  ')}" for line in more if line)])
