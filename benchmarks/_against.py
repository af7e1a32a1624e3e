"""keras_vit beside itself: today's code and that of a commit, in turns in one run."""

import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from benchmarks._rounds import REPOSITORY, Result
from benchmarks._work import Work

SLOWEST = 0.97  # of the other's images per second


@contextmanager
def tree_of(revision: str | None) -> Iterator[str]:
    """A temporary folder with the code of a commit; empty without one."""
    if revision is None:
        yield ""
        return
    archive = subprocess.run(
        ["git", "archive", revision], cwd=REPOSITORY, capture_output=True, check=False
    )
    if archive.returncode:
        reason = archive.stderr.decode(errors="replace").strip().splitlines()[:1]
        raise SystemExit(
            f"--against {revision!r} is not a commit of {REPOSITORY} ({' '.join(reason)}). "
            "`git log --oneline` lists them."
        )
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield folder


def twins(works: Sequence[Work], revision: str | None, tree: str) -> list[Work]:
    """Our contestants once more, with the code in `tree`."""
    if revision is None:
        return []
    return [
        replace(work, label=f"{work.label} of {revision}", tree=tree)
        for work in works
        if work.system == "keras_vit"
    ]


def verdict(results: dict[str, list[Result]], revision: str) -> int:
    """Prints how fast today's code is beside the other; 1 where it is slower than `SLOWEST`."""
    status = 0
    for task, of_task in results.items():
        measured = {result.name: result for result in of_task if result.seconds}
        for name, now in measured.items():
            before = measured.get(f"{name} of {revision}")
            if before is None:
                continue
            pairs = zip(now.images_per_second, before.images_per_second, strict=True)
            ratios = [new / old for new, old in pairs]
            ratio = statistics.median(ratios)
            status |= ratio < SLOWEST
            print(
                f"{task}, {name}: {ratio:.3f} of {revision} "
                f"({min(ratios):.3f} to {max(ratios):.3f} in {len(ratios)} rounds)"
            )
    return status
