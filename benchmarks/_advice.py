"""Advice from the measurements of `docs/performance.md`: what each choice of a user gains."""

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import _report, merging
from benchmarks._rounds import Result
from benchmarks._work import MOMENTS

Measured = Mapping[str, Mapping[str, Sequence[Result]]]

BACKENDS = ("tensorflow", "jax", "torch")
PAYS = 1.1  # from this gain on, a choice is in bold: less is within the spread of the rounds

# A measurement to the name of the choice, from one of its contestants.
CHOICES: dict[str, Callable[[Result], str]] = {
    "s16": lambda r: "the backend, beside the fastest",
    "s16_bfloat16": lambda r: "bfloat16 instead of float32",
    "batch": lambda r: f"batch {r.work.batch_size} instead of 8",
    "malloc": lambda r: "huge pages on Linux, see below",
    "patch_dropout": lambda r: "`patch_dropout=0.5`",
    "l16_remat": lambda r: f"`remat=True`, by {r.work.optimizer}",
    "l16_remat_sgd": lambda r: f"`remat=True`, by {r.work.optimizer}",
}
# Merged without training, a model may lose so many points of accuracy.
POINTS = 0.5


def advice(folder: Path, measured: Measured) -> str:
    """Tables of speed and memory and sentences about accuracy, of what is in `measured`.

    Token merging is read from `folder`.
    """
    merged = {
        file.parent.name.partition("_")[2]: json.loads(file.read_text())
        for file in sorted(folder.glob("merging_*/merging.json"))
    }
    parts = {
        "Speed": _speed(measured, merged),
        "Memory": _memory(measured),
        "Accuracy": _accuracy(merged),
    }
    return "\n".join(f"### {title}\n\n{text}\n" for title, text in parts.items() if text)


def _speed(measured: Measured, merged: Mapping[str, Any]) -> str:
    """A row per choice, a column per backend."""
    rows: dict[tuple[str, str], dict[str, float]] = {}
    for name, title in CHOICES.items():
        for task, results in measured.get(name, {}).items():
            for r, base in _pairs(name, results):
                where = f"{task}, {base.work.model}"
                if r.work.batch_size == base.work.batch_size:
                    where += f", batch {base.work.batch_size}"
                rows.setdefault((title(r), where), {})[r.work.variant] = _report.ratio(r, base)
    for backend, facts in merged.items():
        for choice, gain, _ in _merging(facts["rows"]):
            rows.setdefault((choice, "inference, ViT-Ti/16, batch 32"), {})[backend] = gain
    backends = [name for name in BACKENDS if any(name in cells for cells in rows.values())]
    if not rows:
        return ""
    lines = [
        "Images per second with a choice, relative to the same run without it; in bold where it "
        f"gains more than {PAYS - 1:.0%}.\n",
        f"| choice | measured in | {' | '.join(backends)} |",
        f"|---|---|{'---:|' * len(backends)}",
    ]
    for (choice, where), gains in rows.items():
        cells = " | ".join(_gain(gains.get(name)) for name in backends)
        lines.append(f"| {choice} | {where} | {cells} |")
    return "\n".join(lines)


def _pairs(name: str, results: Sequence[Result]) -> list[tuple[Result, Result]]:
    """Those with a choice, each with what it is compared with."""
    if name == "s16":
        ours = _report.fastest([r for r in results if r.ours])
        return [(r, ours[0]) for r in ours]
    pairs = _report.option_pairs(results)
    # Huge pages are what all have, and the contestant with an option is the one without them.
    return [(base, r) for r, base in pairs] if name == "malloc" else pairs


def _gain(gain: float | None) -> str:
    if gain is None:
        return "–"
    return f"**{gain:.2f}**" if gain > PAYS else f"{gain:.2f}"


def _memory(measured: Measured) -> str:
    """A row per contestant that recomputes activations."""
    rows = []
    for name in ("l16_remat", "l16_remat_sgd"):
        for task, results in measured.get(name, {}).items():
            for r, base in _report.option_pairs(results):
                # Weights and moments, four bytes each; and what was imported.
                values = (1 + MOMENTS[r.work.optimizer]) * r.work.cost().parameters
                fixed = 4 * values + base.started["import_bytes"]
                saved = max(_report.peak(r) - fixed, 0) / max(_report.peak(base) - fixed, 1)
                rows.append(
                    f"| {task} of {r.work.model} by {r.work.optimizer} on {r.work.variant} "
                    f"| {_report.peak(r) / _report.peak(base):.0%} | {saved:.0%} "
                    f"| {1 / _report.ratio(r, base):.2f} × |"
                )
    if not rows:
        return ""
    return "\n".join(
        [
            "With `remat=True`, relative to the same run without it.\n",
            "| | memory of the process | of it, what is not weights or moments | time of a step |",
            "|---|---:|---:|---:|",
            *rows,
        ]
    )


def _accuracy(merged: Mapping[str, Any]) -> str:
    return "\n".join(
        f"- {choice} on {backend} {_points(lost, facts['images'])}."
        for backend, facts in merged.items()
        for choice, _, lost in _merging(facts["rows"])
    )


def _merging(rows: Sequence[dict]) -> Iterator[tuple[str, float, float]]:
    """Of the fastest merging that costs at most `POINTS`, and of bfloat16: speed, points lost."""
    *several, half = [
        (row, statistics.median(faster), 100 * (rows[0]["accuracy"] - row["accuracy"]))
        for row, faster in zip(rows, merging.speedups(rows), strict=True)
    ]
    row, gain, lost = max((one for one in several if one[2] <= POINTS), key=lambda one: one[1])
    yield f"`token_merging={row['merged']}`", gain, lost
    yield '`model.copy(dtype="mixed_bfloat16")`', *half[1:]


def _points(lost: float, images: int) -> str:
    """Of so few images, a fraction of a point may be a single one."""
    if round(lost, 2) == 0:
        return f"keeps the accuracy of {images} images"
    verb = "loses" if lost > 0 else "gains"
    return f"{verb} {abs(lost):.2f} points, {round(abs(lost) * images / 100)} of {images} images"
