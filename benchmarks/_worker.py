"""The process of one contestant: it builds the model, takes the first step, and waits for rounds.

It reads one line per round, the seconds that the round may take, and writes lines of JSON: first
the cost of starting, then the seconds per step of each round, and at the end of its input the peak
memory.
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import _contestants as contestants


def peak_bytes() -> int:
    """Peak resident memory of this process."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(li for li in status.read_text().splitlines() if li.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def seconds_of_a_step(step: contestants.Step, seconds: float) -> float:
    """The median over the steps that fit into `seconds`, at least one."""
    times: list[float] = []
    while sum(times) < seconds:
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    work = contestants.Work(**json.loads(sys.argv[1]))
    # Whatever libraries print goes elsewhere: this end of the pipe is for JSON.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(**values: Any) -> None:
        print(json.dumps(values), file=answers)

    began = time.perf_counter()
    try:
        contestants.import_modules(work)
    except ImportError as error:
        answer(skipped=str(error))
        return
    imported, imported_bytes = time.perf_counter(), peak_bytes()
    step = contestants.SYSTEMS[work.system].build(work)
    built = time.perf_counter()
    step()
    answer(
        import_seconds=imported - began,
        import_bytes=imported_bytes,
        build_seconds=built - imported,
        first_step_seconds=time.perf_counter() - built,
        accelerator=contestants.accelerator(work.backend),
        product_size=contestants.product_size(work) if work.system == "limit" else None,
        macs=work.cost().macs,
    )
    step()  # some settle on an algorithm in their second step
    for line in sys.stdin:
        step()  # its memory may have been taken out while others had their turns
        answer(seconds=seconds_of_a_step(step, float(line)))
    peak = contestants.accelerator_peak_bytes(work.backend)
    answer(peak_bytes=peak_bytes(), accelerator_peak_bytes=peak)


if __name__ == "__main__":
    main()
