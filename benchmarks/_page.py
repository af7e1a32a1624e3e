"""`docs/performance.md` from the measurements: tables, plots, ratios and advice."""

import json
import math
import shlex
import statistics
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _report, costs, merging, tpu
from benchmarks._advice import advice
from benchmarks._rounds import TUNABLES, Result

Results = dict[str, list[Result]]

HEAD = """# Performance

<!-- scripts not run: they measure for minutes to hours; a short comparison runs in CI -->

Written by `python -m benchmarks performance` from the measurements in `docs/performance`. Every
contestant runs in a process of its own and all take turns; ratios are taken within a round, and
this page shows their median. `of limit` is the share of the rate at which this machine multiplies
matrices in the same run and dtype, by the published model's count of operations (`-` where no such
product of that dtype took part); keras_vit computes 6 % fewer for S/16 and B/16, since the last of
its twelve blocks computes only queries, keys and values for every token. `first step` is building,
tracing and compiling; `start` is that and the import. Nobody normalizes pixels, and every step
waits for its result. On TensorFlow's CPUs, keras_vit computes with XLA here, as its `fit` and
`predict` do when many steps are ahead.
"""

GPU = (
    "One process per contestant, all in the memory of one GPU, bfloat16 with weights in float32: "
    "`mixed_bfloat16` of Keras, `torch.autocast` for timm."
)

# Of each measurement: its title, and what to know before reading its table.
SECTIONS: dict[str, tuple[str, str]] = {
    "s16": ("ViT-S/16 beside its peers", ""),
    "limit": (
        "How near the machine's limit",
        "Only the fastest three: every further contestant in memory slows all of them down.",
    ),
    "b16_inference": ("ViT-B/16, inference", ""),
    "b16_training": ("ViT-B/16, training", ""),
    "costs": (
        "What a step spends its time on",
        "ViT-S/16, batch 8, by torch's profiler: on a CPU, matrix products set the limit.",
    ),
    "s16_dropout": ("Training with dropout 0.1", "On tokens, MLPs and attention probabilities."),
    **{
        f"b16_dropout_{backend}": (f"ViT-B/16, training with dropout 0.1 on {backend}", "")
        for backend in ("tensorflow", "jax", "torch")
    },
    "s16_bfloat16": (
        "bfloat16",
        "Weights stay in float32 (`mixed_bfloat16`). A backend without bfloat16 kernels computes "
        "in float32 and rounds.",
    ),
    "batch": ("Batch size", "ViT-Ti/16; batch 8 where the label does not show another."),
    "merging_tensorflow": (
        "Token merging, and bfloat16's accuracy",
        "A ViT-Ti/16 fine-tuned on photographs, seed 0 of [Your photographs](photographs.md), in "
        "float32; merged without training, `model.with_token_merging(r)`, and in bfloat16, "
        '`model.copy(dtype="mixed_bfloat16")`.',
    ),
    "merging_torch": ("Token merging, and bfloat16's accuracy, on torch", "The same model."),
    "malloc": (
        "Huge pages",
        f"All contestants run with `GLIBC_TUNABLES={TUNABLES}` in their environment: memory comes "
        "in huge pages and is kept when freed. By default, JAX and torch take new pages of 4 KiB "
        "for large arrays in every step. `keras-vit train` leaves the settings alone.",
    ),
    "px384": ("384 pixels", "577 tokens per image."),
    "exported": (
        "The exported model",
        "A SavedModel's signature for pixels, loaded, beside `predict_on_batch`.",
    ),
    "patch_dropout": ("Patch dropout", "Half of the patches are dropped in each training step."),
    "l16_start": (
        "ViT-L/16: time to the first training step, and memory",
        "Batch 1, each contestant started anew for every turn; medians.",
    ),
    "l16_remat": (
        "ViT-L/16: `remat`",
        "Batch 8, each contestant started anew for every turn. The memory of a process holds "
        "weights and AdamW's two moments beside the activations that `remat` spares, and the "
        "compiler's own.",
    ),
    "l16_remat_sgd": (
        "ViT-L/16: `remat`, trained by SGD with momentum",
        "As above, by the optimizer with which the paper fine-tunes: one moment instead of two.",
    ),
    **{
        f"gpu_{short}_{task}": (f"{model} on a GPU, {task}", GPU)
        for short, model in (("b16", "ViT-B/16"), ("l16", "ViT-L/16"))
        for task in ("inference", "training")
    },
    "tpu": (
        "On a TPU, by its compiler",
        "No TPU took part: these are counts of the program that XLA compiles for it. `GiB moved` "
        "is what XLA counts as accessed, for kernels their arguments and results; `least ms` is "
        "what operations or bytes take at the chip's peak rates, whichever is more. Same batch, "
        "optimizer, loss and precision for all; weights stay in float32.",
    ),
}


def page(folder: Path, measurements: Mapping[str, Sequence[str]]) -> str:
    """The whole page and its plots, without the measurements that `folder` lacks."""
    measured = {
        name: _report.read(folder / name / "compare.json")
        for name in measurements
        if (folder / name / "compare.json").exists()
    }
    # Drawn each time, so that a change of the plot needs no measuring.
    for name, results in measured.items():
        _report.plot(results, folder / name / "compare.png")
    sections = [HEAD, _machine(folder, measured)]
    if advised := advice(folder, measured):
        sections.append(f"## Advice\n\n{advised}")
    for name, (title, introduction) in SECTIONS.items():
        if (folder / name).is_dir():
            sections.append(_section(folder, name, title, introduction, measured, measurements))
    growths = {name: results for name, results in measured.items() if name.startswith("growth_")}
    if growths:
        sections.append(_growth(folder, growths, measurements))
    return "\n".join(sections)


def _machine(folder: Path, measured: Mapping[str, Results]) -> str:
    if not measured:
        return "Nothing is measured yet.\n"
    return _measured_on(folder / next(iter(measured)))


def _measured_on(measurement: Path) -> str:
    """The machine and the versions of its packages, in a sentence."""
    facts = json.loads((measurement / "compare.json").read_text())
    starts = [start for task in facts["tasks"].values() for r in task for start in r["starts"]]
    cards = sorted({start.get("accelerator") or "" for start in starts} - {""})
    machine = ", ".join([*cards, facts["machine"]["processor"]])
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return f"Measured on {machine}; {versions}.\n"


def _section(
    folder: Path,
    name: str,
    title: str,
    introduction: str,
    measured: Mapping[str, Results],
    measurements: Mapping[str, Sequence[str]],
) -> str:
    lines = [f"## {title}\n"]
    if introduction:
        lines.append(f"{introduction}\n")
    if name.startswith("merging_"):
        facts = json.loads((folder / name / "merging.json").read_text())
        merging.plot(facts["rows"], folder / name / "merging.png")
        run = f"KERAS_BACKEND={name.partition('_')[2]} python -m benchmarks merging"
        lines.append(f"    {run} runs/flowers --data FLOWERS\n")
        lines.append(f"```text\n{facts['title']}\n{merging.table(facts['rows'])}\n```\n")
        lines.append(f"![Accuracy by speed]({folder.name}/{name}/merging.png)\n")
        return "\n".join(lines)
    if name == "costs":
        lines.append("    python -m benchmarks costs\n")
        for task, shares in json.loads((folder / name / "costs.json").read_text()).items():
            lines.append(f"```text\n{task}\n{costs.table(shares)}\n```\n")
        return "\n".join(lines)
    if name == "tpu":
        counted = json.loads((folder / name / "tpu.json").read_text())
        versions = ", ".join(f"{package} {v}" for package, v in counted["versions"].items())
        lines.append(f"    python -m benchmarks tpu\n\nWith {versions}.\n")
        lines.append(f"```text\n{tpu.table(counted)}\n```\n")
        return "\n".join(lines)
    lines.append(f"{_indented(command(measurements[name]))}\n")
    if introduction == GPU:
        lines.append(_measured_on(folder / name))
    for task, results in measured[name].items():
        lines.append(f"```text\n{_report.table(task, results)}\n```\n")
        lines += [f"{line}\n" for line in conclusions(task, results)]
    lines.append(f"![{title}]({folder.name}/{name}/compare.png)\n")
    return "\n".join(lines)


def command(arguments: Sequence[str], columns: int = 100) -> str:
    """The command of a measurement, continued after a backslash where a line would be too long."""
    words = ["python", "-m", "benchmarks", "compare", *map(shlex.quote, arguments)]
    lines = [words[0]]
    for word in words[1:]:
        # Room for the page's indentation of four and for the backslash.
        if len(lines[-1]) + len(word) + 1 <= columns - 6:
            lines[-1] += f" {word}"
        else:
            lines.append(f"    {word}")
    return " \\\n".join(lines)


def _indented(code: str) -> str:
    return textwrap.indent(code, "    ")


def conclusions(task: str, results: Sequence[Result]) -> list[str]:
    """Per dtype: our best in relation to the best of the others, and to the limit."""
    dtypes = _report.dtypes_of(results)
    sentences = []
    first: Result | None = None  # our best in the first dtype, which other dtypes are compared with
    for dtype in dtypes:
        here = [r for r in results if r.work.dtype == dtype]
        ours = [r for r in here if r.ours and r.name.partition(":")[2] in ("", f"dtype={dtype}")]
        others = [r for r in here if not r.ours and r.work.system != "limit"]
        best, other = (next(iter(_report.fastest(all_)), None) for all_ in (ours, others))
        if best is None:
            continue
        limit = _report.limit_of(results, dtype)
        where = f" in {dtype}" if len(dtypes) > 1 else ""
        parts = [f"{task.capitalize()}{where}: the best of keras_vit is `{best.name}`"]
        if other is not None:
            parts.append(
                f"{_report.ratio(best, other):.2f} × `{other.name}`, the best of the others"
            )
        if limit is not None:
            parts.append(f"{_report.ratio(best, limit):.0%} of the limit (`{limit.name}`)")
        if first is not None:
            faster = _report.ratio(best, first)
            parts.append(f"{faster:.2f} × `{first.name}`, the best in {first.work.dtype}")
        first = first or best
        sentences += [", ".join(parts) + "."] if len(parts) > 1 else []
    return sentences


# What is varied, and by what it is read from a contestant.
VARIED: dict[str, Callable[[Result], float]] = {
    "tokens": lambda r: (r.work.image_size // 16) ** 2 + 1,
    "width": lambda r: r.work.options["hidden_dim"],
    "depth": lambda r: r.work.options["depth"],
}
# Columns of the table; the first two are counted, the others measured.
GROWN = ("operations", "bytes counted", "seconds", "bytes", "start")


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of y over x, both as logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def grown(what: str, results: Sequence[Result]) -> dict[str, list[float]]:
    """What was varied as `"x"`, and each of `GROWN`: operations and bytes as `Cost` counts them,
    seconds of a step, bytes beyond the imports', seconds of building and the first step."""
    done = sorted((r for r in results if r.seconds), key=VARIED[what])
    costs = [r.work.cost() for r in done]
    trains = results[0].work.task == "training"
    return {
        "x": [VARIED[what](r) for r in done],
        "operations": [c.macs for c in costs],
        "bytes counted": [c.training_bytes if trains else c.inference_bytes for c in costs],
        "seconds": [statistics.median(r.seconds) for r in done],
        "bytes": [max(_report.peak(r) - r.started["import_bytes"], 1) for r in done],
        "start": [r.seconds_of("build", "first_step") for r in done],
    }


def _growth(
    folder: Path, growths: Mapping[str, Results], measurements: Mapping[str, Sequence[str]]
) -> str:
    lines = [
        "## How cost grows\n",
        "Exponents: slopes of the logarithms around ViT-S/16, batch 8. Attention's products grow "
        "with the square of the tokens, dense layers' with the square of the width, and what a "
        "step costs beside products with neither. Bytes are counted as by `keras-vit plan`, "
        "weights included, and measured as what the process takes beyond its imports, a compiler "
        "included, whose memory does not grow with tokens or width; first step is building, "
        "tracing and compiling.\n",
    ]
    lines += [_indented(command(measurements[name])) for name in growths]
    lines += ["", f"| | varied | {' | '.join(GROWN)} |", f"|---|---|{'---:|' * len(GROWN)}"]
    for name, tasks in growths.items():
        _, what, backend = name.split("_")
        for task, results in tasks.items():
            growth = grown(what, results)
            values = "–".join(f"{x:g}" for x in (growth["x"][0], growth["x"][-1]))
            cells = " | ".join(f"{exponent(growth['x'], growth[of]):.2f}" for of in GROWN)
            lines.append(f"| {task}, {backend} | {what}, {values} | {cells} |")
    _plot(growths, folder / "growth.png")
    lines.append(f"\n![Cost over tokens, width and depth]({folder.name}/growth.png)\n")
    return "\n".join(lines)


def _plot(growths: Mapping[str, Results], file: Path) -> None:
    """One row per varied size, one column per backend: measured and counted."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    of_backend: dict[str, dict[str, Results]] = {}
    for name, tasks in growths.items():
        _, what, backend = name.split("_")
        of_backend.setdefault(backend, {})[what] = tasks
    rows = [what for what in VARIED if any(what in measured for measured in of_backend.values())]
    figure, axes = plt.subplots(
        len(rows),
        len(of_backend),
        figsize=(2.7 * len(of_backend), 2.3 * len(rows) + 1.2),
        layout="constrained",
        squeeze=False,
        sharey=True,
    )
    for column, (backend, measured) in zip(axes.T, of_backend.items(), strict=True):
        column[0].set_title(backend, fontsize=10)
        for axis, what in zip(column, rows, strict=True):
            axis.set(xscale="log", yscale="log")
            axis.set_xlabel(what, fontsize=9)
            for task, results in measured.get(what, {}).items():
                _lines(axis, task, grown(what, results))
            ticks = (0.25, 0.5, 1, 2, 4)
            axis.set_yticks(ticks, [f"{y:g}" for y in ticks])
            axis.tick_params(labelsize=9)
            axis.minorticks_off()
            axis.grid(alpha=0.3)
    figure.supylabel("relative to the geometric mean", fontsize=9)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, fontsize=9, frameon=False)
    figure.savefig(file, dpi=144)
    plt.close(figure)


def _lines(axis: Any, task: str, growth: Mapping[str, Sequence[float]]) -> None:
    """Measured with marks, counted without; training in color, inference in gray."""
    colors = {"seconds": "tab:blue", "bytes": "tab:orange"}
    for measured, counted in (("seconds", "operations"), ("bytes", "bytes counted")):
        color = colors[measured] if task == "training" else "0.6"
        styles = ("o-", ":") if measured == "seconds" else ("s-", "-.")
        for of, style in zip((measured, counted), styles, strict=True):
            middle = math.exp(statistics.fmean(map(math.log, growth[of])))
            y = [value / middle for value in growth[of]]
            axis.plot(growth["x"], y, style, color=color, label=f"{of}, {task}", markersize=4)
    axis.set_xticks(growth["x"], [f"{x:g}" for x in growth["x"]])
