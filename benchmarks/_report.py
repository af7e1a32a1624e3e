"""The results of `compare` as a table, as JSON and as a plot."""

import dataclasses
import json
import math
import platform
import statistics
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks._rounds import Result
from benchmarks._work import Work

PACKAGES = ("keras", "tensorflow", "tensorflow-cpu", "jax", "torch", "keras-hub", "timm")
PACKAGES += ("transformers", "flax", "numpy")


def ratios(ours: Result, theirs: Result) -> list[float]:
    """Round by round, how many times as fast `ours` is."""
    pairs = zip(ours.images_per_second, theirs.images_per_second, strict=False)
    return [a / b for a, b in pairs]


def keras_hub_pairs(results: Sequence[Result]) -> list[tuple[Result, Result]]:
    """Every finished contestant of keras_vit with KerasHub's on the same backend."""
    hub = {r.work.variant: r for r in results if r.work.system == "keras_hub" and r.seconds}
    ours = [r for r in results if r.ours and r.seconds]
    return [(r, hub[r.work.variant]) for r in ours if r.work.variant in hub]


def option_pairs(results: Sequence[Result]) -> list[tuple[Result, Result]]:
    """Every finished contestant with its own options, and the same one without."""
    plain = {r.name: r for r in results if r.seconds}
    named = [(r, plain.get(r.name.partition(":")[0])) for r in results if r.seconds]
    return [(r, base) for r, base in named if base is not None and base is not r]


def ratio(one: Result, other: Result) -> float:
    """How many times as fast `one` is: the median of the rounds."""
    return statistics.median(ratios(one, other))


def fastest(results: Sequence[Result]) -> list[Result]:
    """Those that have finished, by their median rate."""
    done = [r for r in results if r.seconds]
    return sorted(done, key=lambda r: -statistics.median(r.images_per_second))


def limit_of(results: Sequence[Result], dtype: str) -> Result | None:
    """The fastest of the backends' matrix products in a dtype."""
    limits = [r for r in results if r.work.system == "limit" and r.work.dtype == dtype]
    return next(iter(fastest(limits)), None)


def dtypes_of(results: Sequence[Result]) -> list[str]:
    """The dtypes of those that have finished, in their order."""
    return list(dict.fromkeys(r.work.dtype for r in results if r.seconds))


def setting(results: Sequence[Result]) -> str:
    """Image size, batch size and dtype of those that have finished: `224 px, batch 8, float32`."""
    works = [r.work for r in results if r.seconds]
    sizes = _listed(sorted({work.image_size for work in works}))
    batches = _listed(sorted({work.batch_size for work in works}))
    return f"{sizes} px, batch {batches}, {_listed(dtypes_of(results))}"


def _listed(values: Sequence[Any]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} and {last}" if most else last


def table(task: str, results: Sequence[Result]) -> str:
    """One line per contestant, the fastest first, and then the ratios to KerasHub."""
    done = fastest(results)
    if not done:
        return f"{task}: no contestant has finished"
    work = next(r.work for r in results if r.seconds)
    limits = {dtype: limit_of(results, dtype) for dtype in dtypes_of(results)}
    peers = [r for r in done if r.work.system != "limit"]
    width = max(len(r.name) for r in done)
    optimizer = f"{work.optimizer}, " if work.task == "training" else ""
    columns = ("  of best", *(["  of limit"] if any(limits.values()) else []))
    lines = [
        f"{task}: {work.model}, {setting(results)}, dropout {work.dropout}, {optimizer}"
        f"{len(done[0].seconds)} rounds",
        f"{'':<{width}}  images/s   spread{''.join(columns)}  first step  import  peak memory",
    ]
    for r in done:
        rate, limit = r.images_per_second, limits[r.work.dtype]
        cells = [
            f"{statistics.median(rate):8.2f}",
            f"{_spread(rate):7.0%}",
            f"{ratio(r, peers[0]):7.2f}" if peers else " " * 7,
            *([f"{ratio(r, limit):8.1%}" if limit else f"{'-':>8}"] if len(columns) > 1 else []),
            f"{r.seconds_of('build', 'first_step'):8.1f} s",
            f"{r.seconds_of('import'):5.1f} s",
            f"{peak(r) / 2**20:8.0f} MiB",
        ]
        lines.append(f"{r.name:<{width}}  " + "  ".join(cells))
    pairs = [*keras_hub_pairs(results), *option_pairs(results)]
    return "\n".join([*lines, *(compared(one, other) for one, other in pairs)])


def compared(one: Result, other: Result) -> str:
    """A sentence: relative speed with its range over the rounds, memory and start."""
    rounds = ratios(one, other)
    parts = ("import", "build", "first_step")
    start = one.seconds_of(*parts) / other.seconds_of(*parts)
    memory = peak(one) / (peak(other) or math.nan)  # no peak is known of a process that died
    return (
        f"{one.name} is {ratio(one, other):.2f} x {other.name} ({min(rounds):.2f} to "
        f"{max(rounds):.2f}); {memory:.2f} x its memory, {start:.2f} x its start"
    )


def _spread(values: Sequence[float]) -> float:
    """From the slowest to the fastest round, as a share of the median."""
    return (max(values) - min(values)) / statistics.median(values)


def peak(result: Result) -> int:
    """Peak memory in bytes: of the accelerator where there is one, otherwise of the process."""
    memory = result.memory
    return memory.get("accelerator_peak_bytes") or memory.get("peak_bytes") or 0


def write(results: dict[str, list[Result]], folder: Path, options: dict[str, Any]) -> None:
    """Writes `compare.json`, and `compare.png` where matplotlib is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        # But for the folder, whose path says more of the machine than of the run.
        "options": {
            key: str(v) if isinstance(v, Path) else v for key, v in options.items() if key != "out"
        },
        "machine": {"processor": _processor(), "python": platform.python_version()},
        "versions": versions_of(PACKAGES),
        "tasks": {task: [_as_json(r) for r in all_] for task, all_ in results.items()},
    }
    (folder / "compare.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"Written: {folder / 'compare.json'}")
    try:
        plot(results, folder / "compare.png")
    except ModuleNotFoundError:
        print("matplotlib is not installed: no plot.")
        return
    print(f"Written: {folder / 'compare.png'}")


def read(file: Path) -> dict[str, list[Result]]:
    """The results of a `compare.json`, by task."""
    tasks = json.loads(file.read_text())["tasks"]
    fields = [f.name for f in dataclasses.fields(Result) if f.name != "work"]
    return {
        task: [Result(Work(**r["work"]), **{name: r[name] for name in fields}) for r in all_]
        for task, all_ in tasks.items()
    }


def _as_json(result: Result) -> dict[str, Any]:
    rate = result.images_per_second
    return {
        "name": result.name,
        **dataclasses.asdict(result),
        "images_per_second": rate,
        "median": statistics.median(rate) if rate else None,
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    names = [li.split(":")[1].strip() for li in info.read_text().splitlines() if "model name" in li]
    return f"{len(names)} x {names[0]}" if names else platform.machine()


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    """Of those that are installed."""
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def plot(results: Mapping[str, Sequence[Result]], file: Path) -> None:
    """A panel per task, one below the other: a page is read on a phone too."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    bars = {
        task: fastest([r for r in all_ if r.work.system != "limit"])
        for task, all_ in results.items()
    }
    bars = {task: done for task, done in bars.items() if done}
    if not bars:
        return
    counts = [len(done) for done in bars.values()]
    figure, axes = plt.subplots(
        len(bars),
        figsize=(5, sum(0.38 * count + 1.2 for count in counts) + 0.7),
        height_ratios=[count + 1 for count in counts],
        squeeze=False,
        layout="constrained",
    )
    entries: dict[str, Any] = {}  # of the legend, by label
    for axis, (task, done) in zip(axes[:, 0], bars.items(), strict=True):
        _draw_task(axis, task, done, results[task])
        handles, labels = axis.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    figure.get_layout_engine().set(hspace=0.06)
    order = sorted(entries, key=lambda label: (label.startswith("matrix"), label))
    # Outside the axes, where it covers neither bars nor lines.
    figure.legend(
        [entries[label] for label in order],
        order,
        loc="outside upper left",
        ncols=2,
        fontsize=9,
        frameon=False,
    )
    figure.savefig(file, dpi=144)
    plt.close(figure)


def _draw_task(axis: Any, task: str, done: Sequence[Result], all_: Sequence[Result]) -> None:
    """Bars from the fastest down, each below its name, and a line at the limit of each dtype."""
    for place, r in enumerate(done):
        rate = r.images_per_second
        label, color = ("keras_vit", "tab:blue") if r.ours else ("others", "0.7")
        axis.barh(place, statistics.median(rate), 0.34, color=color, label=label)
        axis.plot([min(rate), max(rate)], [place] * 2, color="black", linewidth=1)
        axis.annotate(
            r.name, (0, place - 0.26), (2, 0), textcoords="offset points", fontsize=9, zorder=4
        )
    for dtype, style in zip(dtypes_of(all_), ("--", ":"), strict=False):
        if (limit := limit_of(all_, dtype)) is not None:
            rate, label = statistics.median(limit.images_per_second), f"matrix products, {dtype}"
            axis.axvline(rate, color="tab:red", linestyle=style, label=label)
    axis.set_ylim(len(done) - 0.6, -0.75)
    axis.set_yticks([])
    axis.tick_params(labelsize=9)
    axis.set_xlabel("images per second (black line: slowest to fastest round)", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    work = done[0].work
    dropout = f", dropout {work.dropout}" if work.dropout else ""
    optimizer = f", {work.optimizer}" if work.task == "training" else ""
    title = f"{task}: {work.model}{optimizer}\n{setting(all_)}{dropout}"
    axis.set_title(title, loc="left", fontsize=10)
