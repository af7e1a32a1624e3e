"""Advice from the measurements of `docs/performance.md`: sentences for each choice of a user."""

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import _report, merging
from benchmarks._contestants import MOMENTS
from benchmarks._rounds import Result


def advice(folder: Path, measured: Mapping[str, Mapping[str, Sequence[Result]]]) -> list[str]:
    """All sentences whose measurement is in `measured`, or for merging in `folder`."""
    lines = [
        line
        for name, sentences in SENTENCES.items()
        for task, results in measured.get(name, {}).items()
        for line in sentences(task, results)
    ]
    for file in sorted(folder.glob("merging_*/merging.json")):
        backend = file.parent.name.partition("_")[2]
        lines += _merging(backend, json.loads(file.read_text())["rows"])
    return lines


def _backend(task: str, results: Sequence[Result]) -> Iterator[str]:
    ours = _report.fastest([r for r in results if r.ours])
    if ours:
        rest = (f", then {r.work.variant} ({_report.ratio(r, ours[0]):.2f})" for r in ours[1:])
        yield f"Backend for {task}: {ours[0].work.variant}{''.join(rest)}."


def _bfloat16(task: str, results: Sequence[Result]) -> Iterator[str]:
    for r, base in _report.option_pairs(results):
        gain = _report.ratio(r, base)
        kind = "pays" if gain > 1.1 else "does not pay"
        yield f"bfloat16 {kind} in {task} on {r.work.variant}: {gain:.2f} × float32."


def _batch(task: str, results: Sequence[Result]) -> Iterator[str]:
    rates: dict[str, list[str]] = {}
    for r, base in _report.option_pairs(results):
        rate = f"{_report.ratio(r, base):.2f} with batch {r.work.batch_size}"
        rates.setdefault(r.work.variant, []).append(rate)
    listed = "; ".join(f"on {variant} {' and '.join(each)}" for variant, each in rates.items())
    if listed:
        yield f"Images per second in {task}, relative to batch 8: {listed}."


def _remat(task: str, results: Sequence[Result]) -> Iterator[str]:
    for r, base in _report.option_pairs(results):
        memory = _report.peak(r) / _report.peak(base)
        # Weights and moments, four bytes each; and what was imported.
        values = (1 + MOMENTS[r.work.optimizer]) * r.work.cost().parameters
        fixed = 4 * values + base.started["import_bytes"]
        saved = max(_report.peak(r) - fixed, 0) / max(_report.peak(base) - fixed, 1)
        yield (
            f"`remat=True` on {r.work.variant}, in {task} of {r.work.model} by "
            f"{r.work.optimizer}: {memory:.0%} of the "
            f"process's memory, {saved:.0%} of what is not weights or moments, at "
            f"{1 / _report.ratio(r, base):.2f} × the time of a step."
        )


def _patch_dropout(task: str, results: Sequence[Result]) -> Iterator[str]:
    for r, base in _report.option_pairs(results):
        gain = _report.ratio(r, base)
        yield f"`patch_dropout=0.5` trains {gain:.2f} × as fast on {r.work.variant}."


def _malloc(task: str, results: Sequence[Result]) -> Iterator[str]:
    for default, huge in _report.option_pairs(results):
        yield (
            f"Huge pages (see below) on {huge.work.variant} on Linux's CPUs: "
            f"{_report.ratio(huge, default):.2f} × as fast in {task}."
        )


def _merging(backend: str, rows: Sequence[dict]) -> Iterator[str]:
    *merged, half = [
        (row, statistics.median(faster), 100 * (rows[0]["accuracy"] - row["accuracy"]))
        for row, faster in zip(rows, merging.speedups(rows), strict=True)
    ]
    row, gain, lost = max((one for one in merged if one[2] <= 0.5), key=lambda one: one[1])
    yield (
        f"`token_merging={row['merged']}` on {backend} predicts {gain:.2f} × as fast and "
        f"{_points(lost)} of accuracy."
    )
    _, gain, lost = half
    yield (
        f'`model.copy(dtype="mixed_bfloat16")` on {backend} predicts {gain:.2f} × as fast and '
        f"{_points(lost)}."
    )


def _points(lost: float) -> str:
    return f"{'loses' if lost >= 0 else 'gains'} {abs(lost):.2f} points"


# Name of a measurement to the advice that follows from it for a task.
SENTENCES: dict[str, Callable[[str, Sequence[Result]], Iterator[str]]] = {
    "s16": _backend,
    "s16_bfloat16": _bfloat16,
    "batch": _batch,
    "l16_remat": _remat,
    "l16_remat_sgd": _remat,
    "patch_dropout": _patch_dropout,
    "malloc": _malloc,
}
