"""Starts `keras-vit`. A module of its own, since importing keras_vit imports the backend."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

# Notes that TensorFlow's libraries write before they can be told not to.
NOISE = (b"WARNING: All log messages before absl::InitializeLog()", b"I0000 ")


# Memory in huge pages, kept when freed. Threads' own arenas would return large arrays at once, and
# so would `mmap` what lies above its threshold, as a step's temporaries at batch 32 do.
TUNABLES = ":".join(
    f"glibc.malloc.{name}={value}"
    for name, value in {
        "hugetlb": 1,
        "mmap_threshold": 2**34,
        "trim_threshold": 2**34,
        "arena_max": 1,
    }.items()
)


def main() -> int:
    """Runs the command line, without TensorFlow's notes about processors and plug-ins."""
    _use_huge_pages()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # has no effect once TensorFlow is imported
    with _without_noise():
        from keras_vit.cli import main as run
    return run()


def _use_huge_pages() -> None:
    """Starts this command once more with `TUNABLES`, which glibc reads at a process's start.

    JAX and torch take and return their arrays in every step, JAX on several threads; in new pages
    that is up to a fifth of it (docs/performance.md).
    """
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = TUNABLES
        os.execv(sys.executable, sys.orig_argv)


@contextmanager
def _without_noise() -> Iterator[None]:
    """Holds back what native code writes to standard error, and passes on all but `NOISE`."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            held.seek(0)
            os.write(2, b"".join(line for line in held if not line.startswith(NOISE)))
