"""What a step of keras_vit spends its time on, by torch's own profiler.

`python -m benchmarks costs --model ViT-S/16 --tasks inference training`: a minute on two cores;
prints the largest operators of each task, and writes `costs.json`. On a GPU it counts the GPU's
time. Compilers fuse what stands here in lines of its own; the products are the same.
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import _contestants as contestants

STEPS = 3
# An operator counts where the first of these is in its name.
GROUPS = {
    "scaled_dot_product": "attention, the fused operator",
    "flash": "attention, the fused operator",
    "mm": "products of dense layers",
    "gelu": "GELU",
    "layer_norm": "layer norm",
    "conv": "patch embedding",
    "foreach": "optimizer",
    "add": "additions: biases, shortcuts, optimizer",
    "mul": "additions: biases, shortcuts, optimizer",
    "copy": "copies",
    "clone": "copies",
    "sum": "sums: gradients of biases",
}
Shares = dict[str, float]


def group_of(operator: str) -> str:
    return next((group for part, group in GROUPS.items() if part in operator), "other")


def shares(work: contestants.Work) -> Shares:
    """The share of a step's time by group, the largest first."""
    from torch.profiler import ProfilerActivity, profile

    contestants.import_modules(work)
    step = contestants.SYSTEMS[work.system].build(work)
    on_gpu = contestants.accelerator("torch") is not None
    step(), step()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as found:
        for _ in range(STEPS):
            step()
    times: Shares = {}
    for event in found.key_averages():
        own = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        times[group_of(event.key)] = times.get(group_of(event.key), 0) + own
    whole = sum(times.values())
    return {name: t / whole for name, t in sorted(times.items(), key=lambda one: -one[1])}


def table(found: Shares) -> str:
    return "\n".join(f"{share:6.1%}  {name}" for name, share in found.items())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks costs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="ViT-S/16", help="a ViT of keras_vit.list_models()")
    parser.add_argument("--tasks", nargs="+", default=["inference", "training"])
    parser.add_argument("--batch-size", type=int, default=8, help="images a step")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--dropout", type=float, default=0.0, help="rate, in training")
    parser.add_argument("--out", type=Path, default=Path("runs/costs"), help="folder to write")
    options: dict[str, Any] = vars(parser.parse_args(arguments))
    out, tasks = options.pop("out"), options.pop("tasks")
    os.environ["KERAS_BACKEND"] = "torch"
    works = {task: contestants.Work("keras_vit", "torch", task, **options) for task in tasks}
    found = {task: shares(work) for task, work in works.items()}
    for task, own in found.items():
        print(f"{task}: {options['model']}, batch {options['batch_size']}\n{table(own)}\n")
    out.mkdir(parents=True, exist_ok=True)
    (out / "costs.json").write_text(json.dumps(found, indent=1) + "\n")
    print(f"Written: {out / 'costs.json'}")
    return 0
