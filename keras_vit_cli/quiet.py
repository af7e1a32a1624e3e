"""A command without what the libraries that it uses write to standard error."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec

# What native libraries write: TensorFlow's as they are loaded, whatever TF_CPP_MIN_LOG_LEVEL is;
# and those that decode images, of files whose reason a command gives itself.
NOISE = (
    r"WARNING: All log messages before absl|I0000 |E0000 .* failed call to cuInit"
    r"|_?TIFF\w*: |\w+Decode\w*: |tempfile\.tif: |JPEGLib: "
    r"|libpng (warning|error): |Corrupt JPEG data|Premature end of JPEG file"
    r"|\[.* logging\.cc:\d+: Set ray log level|INFO: Created TensorFlow Lite "
)
# A process of its own: what this one writes before it crashes still reaches the terminal.
FILTER = f"""
import re, sys
for line in iter(sys.stdin.buffer.readline, b""):
    if not re.match({NOISE.encode()!r}, line):
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
"""
WAIT = 0.5  # seconds for its end: processes that this one has started may write for longer


@contextmanager
def without_noise() -> Iterator[None]:
    """Passes on what native code writes to standard error, at once, but for lines like `NOISE`.

    What Python writes there goes to where it went before, a terminal perhaps. Of the loggers of
    TensorFlow (a function that is traced again) and absl (Grain without JAX), errors are shown.
    """
    if os.environ.get("KERAS_VIT_PLAIN"):
        yield
        return
    # TensorFlow reads it when it is imported; it silences all but `NOISE`.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    if find_spec("absl"):
        from absl import logging as absl_logging

        absl_logging.set_verbosity(absl_logging.ERROR)
    before = sys.stderr
    before.flush()
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
    encoding = before.encoding
    sys.stderr = open(terminal, "w", 1, encoding, "backslashreplace", closefd=False)  # noqa: SIM115
    try:
        yield
    finally:
        sys.stderr.flush()
        sys.stderr = before
        os.dup2(terminal, 2)
        with suppress(subprocess.TimeoutExpired):
            lines.wait(WAIT)
