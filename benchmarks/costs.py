"""What a step of keras_vit spends its time on, by torch's profiler.

`python -m benchmarks costs --model ViT-S/16 --tasks inference training`: a minute on two cores;
prints the largest operators of each task, and writes `costs.json`. On a GPU it counts the GPU's
time. Compilers fuse operators that are listed separately here; the products are the same.
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import _contestants as contestants

STEPS = 3
# An operator belongs to the first group whose key is in its name.
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
    with profile(activities=activities) as profiler:
        for _ in range(STEPS):
            step()
    times: Shares = {}
    for event in profiler.key_averages():
        seconds = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        times[group_of(event.key)] = times.get(group_of(event.key), 0) + seconds
    whole = sum(times.values())
    return {name: t / whole for name, t in sorted(times.items(), key=lambda one: -one[1])}


def table(by_group: Shares) -> str:
    return "\n".join(f"{share:6.1%}  {name}" for name, share in by_group.items())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks costs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="ViT-S/16", help="a ViT of keras_vit.list_models()")
    parser.add_argument("--tasks", nargs="+", default=["inference", "training"])
    parser.add_argument("--batch-size", type=int, default=8, help="images per step")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--dropout", type=float, default=0.0, help="dropout rate in training")
    parser.add_argument("--out", type=Path, default=Path("runs/costs"), help="folder to write")
    options: dict[str, Any] = vars(parser.parse_args(arguments))
    out, tasks = options.pop("out"), options.pop("tasks")
    os.environ["KERAS_BACKEND"] = "torch"
    works = {task: contestants.Work("keras_vit", "torch", task, **options) for task in tasks}
    by_task = {task: shares(work) for task, work in works.items()}
    for task, by_group in by_task.items():
        print(f"{task}: {options['model']}, batch {options['batch_size']}\n{table(by_group)}\n")
    out.mkdir(parents=True, exist_ok=True)
    (out / "costs.json").write_text(json.dumps(by_task, indent=1) + "\n")
    print(f"Written: {out / 'costs.json'}")
    return 0
