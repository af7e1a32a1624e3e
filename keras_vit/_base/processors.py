"""How many processors this process may use."""

import os


def available_processors() -> int:
    """Those that this process is allowed to run on: a batch system may give it a part.

    >>> available_processors() >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):  # neither on macOS nor on Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
