"""Files of every format, damaged by Hypothesis and read in a process of their own.

`python -m tests.damage FORMAT COUNT SEED` reads so many files of a row of `tests.damaged_formats`,
in an empty folder. What is not a typed error with the file's name ends it: another exception, a
crash of a library in C, more than `MOST_SECONDS` of a processor or `MOST_BYTES` for a file, waiting
for `LONGEST_WAIT` seconds, a file that is written. Of files with the same bytes one is read.
Hypothesis prints the smallest such damage; what ended the process at once is in the file `DAMAGE`.
"""

import faulthandler
import gc
import hashlib
import re
import resource
import signal
import sys
import time
import warnings
from functools import reduce
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import strategies as st

from tests.damaged_formats import FORMATS, Format, Parts

MOST_SECONDS, LONGEST_WAIT, MOST_BYTES, LONGEST = 10, 100, 2**28, 2**18
DAMAGE = "damage.txt"
# Of a text: its words, and its innermost lists and objects.
_WORDS = (rb'"[^"\n]*"|[\w./|+-]+', rb"\[[^\[\]]*\]|\{[^{}]*\}")
_TEXTS = (b'"%b"', b"%b", b"[%b]", b'{"%b": 1}')
_VALUES = (b"", b"0", b"-1", b"1e999", b"NaN", b"9" * 5000, b"9" * 12, b"null", b"true", b"\xff")
_VALUES += (b"[" * 10**5, b"\\ud800", b"\0", b"../../x", b"\x1b[31m\n", b",", b'"', b"a" * 10**5)
_NUMBERS = [-2, -1, 0, 1, *(2**power - less for power in (7, 8, 15, 16, 31, 63) for less in (0, 1))]
_PLACES = st.one_of(st.integers(0, 99), st.integers(0, 2**16))


def _step(kind: str, *draws: Any) -> Any:
    return st.tuples(st.just(kind), _PLACES, *draws)


_ORDERS, _TIMES = st.sampled_from(["big", "little"]), st.sampled_from([1, 1, 2, 40, 5000])
_STEPS = st.one_of(
    _step("cut"),
    _step("flip", st.integers(0, 7)),
    _step("drop", _PLACES),
    _step("number", st.sampled_from([1, 2, 4, 8]), st.sampled_from(_NUMBERS), _ORDERS),
    _step("copy", _PLACES, _PLACES, _TIMES, st.booleans()),
    _step("word", *map(st.sampled_from, (_WORDS, _TEXTS, range(len(_VALUES))))),
)
# Of which file of a format, of which part of it (0 is the whole), and what.
_CHANGES = st.lists(st.tuples(st.integers(0, 7), _STEPS), min_size=1, max_size=4)
DAMAGES = st.tuples(st.integers(0, 63), _CHANGES)


def damaged(content: bytes, step: Any) -> bytes:
    """The bytes after one step: truncated, spliced, with another length, chunks or words."""
    at, new, end = step[1] % (len(content) + 1), b"", len(content)
    match step:
        case "flip", _, bit:
            new, end = bytes(b ^ 1 << bit for b in content[at : at + 1]), at + 1
        case "drop", _, size:
            end = at + size
        case "number", _, width, number, order:
            new, end = (number % 2 ** (8 * width)).to_bytes(width, order), at + width
        case "copy", _, to, size, times, replaces:
            new, at = content[at : at + size], to % (len(content) + 1)
            new *= min(times, LONGEST // max(1, len(new)) + 1)
            end = at + replaces * len(new)
        case "word", _, pattern, text, value:
            if not (words := [*re.finditer(pattern, content)]):
                return content
            at, end = words[step[1] % len(words)].span()
            new = text.replace(b"%b", _VALUES[value])
    return (content[:at] + new + content[end:])[:LONGEST]


def laid(kind: Format, folder: Path, seeds: list[Parts], damage: Any) -> Path:
    """Writes one file, or folder, with its damage."""
    parts, whole = dict(seeds[damage[0] % len(seeds)]), []
    for target, step in damage[1]:
        if name := ["", *parts][target % (len(parts) + 1)]:
            parts[name] = damaged(parts[name], step)
        else:
            whole.append(step)
    path = kind.write(folder, parts)
    if path.is_file():
        path.write_bytes(reduce(damaged, whole, path.read_bytes()))
    return path


def _peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def read_within_limits(kind: Format, path: Path) -> None:
    """Reads a file; raises for what a reader may not do, and ends the process after a while."""
    before, most = sorted(path.parent.rglob("*")), _peak() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))  # nothing is written
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    faulthandler.dump_traceback_later(LONGEST_WAIT, exit=True)
    try:
        kind.read(path)
    except kind.errors as error:
        is_named = path.name in str(error) and str(error).replace("\n", "").isprintable()
        if type(error) not in kind.errors or not is_named:
            raise AssertionError("of another class, without the file, or not printable") from error
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
    assert sorted(path.parent.rglob("*")) == before
    assert _peak() <= most, f"{_peak() - most + MOST_BYTES:,} bytes of memory"


def main(name: str, count: int, seed: int) -> None:
    warnings.simplefilter("ignore")
    kind, folder, times, seen = FORMATS[name], Path("files").absolute(), [], set()
    folder.mkdir()
    seeds = kind.seeds()
    for number in range(len(seeds)):
        kind.read(laid(kind, folder, seeds, (number, ())))  # whole: and memory that all reads need
    gc.freeze()  # a million objects of TensorFlow and Keras are not looked through again
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 16 * MOST_BYTES,) * 2)
    faulthandler.register(signal.SIGPROF, chain=True)  # and then it ends the process
    every = list(hypothesis.HealthCheck)
    settings = {"max_examples": count, "database": None, "deadline": None}

    @hypothesis.settings(**settings, suppress_health_check=every)
    @hypothesis.seed(seed)
    @hypothesis.given(DAMAGES)
    def check(damage: Any) -> None:
        Path(DAMAGE).write_text(repr(damage))
        path, begin = laid(kind, folder, seeds, damage), time.perf_counter()
        # A third of all damage has the effect of another.
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        content = b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)
        if content not in seen:
            read_within_limits(kind, path)
            seen.add(content)
        times.append(time.perf_counter() - begin)

    check()
    print(
        f"{name}: {len(times):,} files, {len(seen):,} different ones, {sum(times):.1f} s, at most "
        f"{max(times):.2f} s each"
    )


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
