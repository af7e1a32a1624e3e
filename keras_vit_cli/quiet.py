"""Imports without what native libraries write to standard error."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

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
