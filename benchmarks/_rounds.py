"""Contestants in separate processes that take turns."""

import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from benchmarks._work import Work

REPOSITORY = Path(__file__).parent.parent

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


@dataclasses.dataclass
class Result:
    """The measurements of one contestant.

    Attributes:
        work: Its task.
        seconds: Seconds per step, one number per round.
        starts: Per start: seconds of importing, building and the first step, and the count of
            operations.
        memory: Peaks in bytes: `peak_bytes` of the process, `accelerator_peak_bytes` of a GPU.
        skipped: The missing package, or None.
        failed: The last line of its error, or None.
    """

    work: Work
    seconds: list[float] = dataclasses.field(default_factory=list)
    starts: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    memory: dict[str, Any] = dataclasses.field(default_factory=dict)
    skipped: str | None = None
    failed: str | None = None

    @property
    def name(self) -> str:
        return self.work.label or f"{self.work.system}/{self.work.variant}"

    @property
    def ours(self) -> bool:
        return self.work.ours

    @property
    def started(self) -> dict[str, Any]:
        """The last of its starts."""
        return self.starts[-1]

    def seconds_of(self, *parts: str) -> float:
        """The median of its starts: of `"import"`, `"build"` and `"first_step"`, or their sum."""
        return statistics.median(sum(one[f"{p}_seconds"] for p in parts) for one in self.starts)

    @property
    def images_per_second(self) -> list[float]:
        """For each round; of the limit, what the model would do at the rate of its products."""
        if self.work.system != "limit":
            return [self.work.batch_size / seconds for seconds in self.seconds]
        # Backward, every product of the forward pass comes twice: by its inputs, by its weights.
        macs = self.started["macs"] * (3 if self.work.task == "training" else 1)
        return [self.started["product_size"] ** 3 / seconds / macs for seconds in self.seconds]


class _Process:
    def __init__(self, work: Work, log: IO[str]) -> None:
        tree = work.tree or str(REPOSITORY)
        path = os.pathsep.join(filter(None, [tree, os.environ.get("PYTHONPATH")]))
        variables = {
            "KERAS_BACKEND": work.backend,
            "PYTHONPATH": path,
            # Several share a GPU: none may reserve all of its memory at the start.
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        if work.malloc == "huge":
            variables["GLIBC_TUNABLES"] = TUNABLES
        self.log = log
        task = dataclasses.asdict(work)
        del task["tree"]  # older code does not know it
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks._worker", json.dumps(task)],
            cwd=tree,  # where `-m` looks first
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | variables,
        )

    def receive(self) -> dict[str, Any]:
        """The next reply; the error where the process has died instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        code = self.process.wait()
        self.log.seek(0)
        last = self.log.read().strip().splitlines()[-1:] or [f"exit status {code}"]
        return {"failed": last[0]}

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has died: `receive` reports it

    def close(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died without reading a line
            self.process.stdin.close()


T = TypeVar("T")


def there_and_back(all_: Sequence[T], turn: int) -> Sequence[T]:
    """The order of a round, reversed in every other one."""
    return all_ if turn % 2 == 0 else all_[::-1]


def compete(works: Sequence[Work], rounds: int, seconds: float) -> list[Result]:
    """Starts all contestants, one after the other, and lets them take turns.

    Args:
        works: The contestants.
        rounds: Number of turns of each.
        seconds: Length of one turn; at least one step is taken.
    """
    results = [Result(work) for work in works]
    running: list[tuple[Result, _Process]] = []
    with contextlib.ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for i, result in enumerate(results):
            log = stack.enter_context(open(logs / f"{i}.log", "w+"))
            process = _Process(result.work, log)
            reply = process.receive()
            result.skipped, result.failed = reply.get("skipped"), reply.get("failed")
            if result.skipped or result.failed:
                print(f"{result.name}: {result.skipped or result.failed}; skipped", flush=True)
                process.close()
                continue
            result.starts.append(reply)
            running.append((result, process))
            print(f"{result.name}: ready", flush=True)
        for turn in range(rounds):
            for result, process in there_and_back(running, turn):
                if result.failed is None:
                    process.send(str(seconds))
                    reply = process.receive()
                    result.failed = reply.get("failed")
                    result.seconds += [reply["seconds"]] if "seconds" in reply else []
            if rounds > 1:
                print(f"round {turn + 1} of {rounds}", flush=True)
        for result, process in running:
            process.close()
            if result.failed is None:
                result.memory = process.receive()
                result.failed = result.memory.pop("failed", None)
    return results


def compete_alone(works: Sequence[Work], rounds: int, seconds: float) -> list[Result]:
    """As `compete`, but each is restarted for its turn: only one is in memory at a time."""
    results = [Result(work) for work in works]
    for turn in range(rounds):
        for i in there_and_back(range(len(works)), turn):
            before = results[i]
            if before.skipped or before.failed:
                continue
            (now,) = compete([works[i]], 1, seconds)
            now.seconds[:0], now.starts[:0] = before.seconds, before.starts
            now.memory = max(before.memory, now.memory, key=lambda one: one.get("peak_bytes", 0))
            results[i] = now
        print(f"round {turn + 1} of {rounds}", flush=True)
    return results
