"""What a step costs a TPU's chip, by the TPU's compiler: ours beside KerasHub and Flax.

`python -m benchmarks tpu --models ViT-B/16 ViT-L/16` needs `libtpu`, and no TPU. Every contestant
is compiled in a process of its own, with the same images (uint8), labels, AdamW, bfloat16 with
weights in float32, the batch cut over the chips, and the state donated. It prints, for one chip,
operations, bytes between chip and memory and the memory in use, as XLA counts them, and the least
time that these take; and writes `tpu.json`. What that has already is not compiled again.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks._contestants import keras_hub_classifier, vision_transformer
from benchmarks._work import Work

# Images of a step on all chips: as many as fit without recomputing activations.
BATCHES = {"ViT-Ti/16": 1024, "ViT-B/16": 1024, "ViT-L/16": 256, "ViT-H/14": 128}
# By name: system, and more arguments of its model.
CONTESTANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "keras_vit": ("keras_vit", {}),
    "keras_vit, remat": ("keras_vit", {"remat": True}),
    "keras_hub": ("keras_hub", {}),
    "flax": ("flax", {}),
}
TASKS = ("training", "inference")
PACKAGES = ("keras", "jax", "libtpu", "keras-hub", "flax")
Row = dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks tpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", nargs="+", default=list(BATCHES), choices=list(BATCHES))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument(
        "--contestants", nargs="+", default=list(CONTESTANTS), choices=list(CONTESTANTS)
    )
    parser.add_argument("--topology", default="v5e:2x4", help="kind and shape of the TPU")
    parser.add_argument("--out", type=Path, default=Path("runs/tpu"), help="folder to write")
    options = parser.parse_args(arguments)
    file = options.out / "tpu.json"
    measured = json.loads(file.read_text()) if file.exists() else {"rows": []}
    rows: list[Row] = measured["rows"]
    for model in options.models:
        for task in options.tasks:
            for name in options.contestants:
                row = {"model": model, "task": task, "contestant": name}
                known = any(row.items() <= other.items() for other in rows)
                if known or (task == "inference" and CONTESTANTS[name][1]):
                    continue
                rows.append(row | _compiled(row, options.topology))
                measured |= {"topology": options.topology}
                measured |= {"versions": {package: version(package) for package in PACKAGES}}
                options.out.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(measured, indent=1) + "\n")
    print(table(measured))
    return 0


def _compiled(row: Row, topology: str) -> Row:
    """Compiles one contestant in a process of its own."""
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    command = [sys.executable, "-m", "benchmarks.tpu", json.dumps(row), topology]
    printed = subprocess.run(
        command, env=environment, cwd=Path(__file__).parents[1], capture_output=True, text=True
    )
    if printed.returncode:
        raise SystemExit(f"{row}: {printed.stderr[-3000:]}")
    print(f"{row['model']}, {row['task']}, {row['contestant']}: done", flush=True)
    return json.loads(printed.stdout.splitlines()[-1])


def compile_contestant(row: Row, topology: str) -> Any:
    """The compiled step of a row of the table."""
    import keras

    from benchmarks._steps import compile_step, tpu_devices
    from keras_vit.distribution.kinds import distribution_over

    system, options = CONTESTANTS[row["contestant"]]
    work = Work(
        system,
        "jax",
        row["task"],
        row["model"],
        batch_size=BATCHES[row["model"]],
        dtype="bfloat16",
        options=options,
    )
    devices = tpu_devices(topology)
    if system == "flax":
        from benchmarks._flax_vit import flax_program

        return flax_program(work, work.sizes(), devices)
    if system == "keras_hub":
        model = keras_hub_classifier(work)  # with values: it makes an optimizer at once
    else:
        with keras.StatelessScope(initialize_variables=False):
            model = vision_transformer(work, include_preprocessing=False)
    distribution = distribution_over("data_parallel", devices)
    return compile_step(model, distribution, work.batch_size, row["task"] == "training")


def _cost(row: Row, topology: str) -> Row:
    from benchmarks._steps import CHIPS, program_cost

    program = compile_contestant(row, topology)
    cost = program_cost(program, 1, CHIPS[topology.partition(":")[0]])
    counted = {
        name: value for name, value in asdict(cost).items() if name not in ("chip", "devices")
    }
    counted |= {"least_seconds": cost.least_seconds, "recomputed": ".remat" in program.as_text()}
    return counted


def best_peer(rows: Sequence[Row], row: Row) -> Row | None:
    """The contestant that is not ours and moves the fewest bytes for the same model and task."""
    same = [r for r in rows if (r["model"], r["task"]) == (row["model"], row["task"])]
    others = [r for r in same if CONTESTANTS[r["contestant"]][0] != "keras_vit"]
    return min(others, key=lambda r: r["moved"], default=None)


def table(measured: Row) -> str:
    """Training, then inference: one line per contestant, for one chip."""
    order = list(BATCHES), list(CONTESTANTS)
    rows = sorted(
        measured["rows"],
        key=lambda row: (order[0].index(row["model"]), order[1].index(row["contestant"])),
    )
    lines: list[str] = []
    for task in (task for task in TASKS if any(row["task"] == task for row in rows)):
        lines += [f"{task}, bfloat16, on {measured['topology']}, for one chip"]
        lines += [
            f"{'model':10} {'batch':>5}  {'contestant':17} {'Tflop':>7} {'GiB moved':>10} "
            f"{'of best peer':>13} {'GiB memory':>11} {'least ms':>9}"
        ]
        for row in (r for r in rows if r["task"] == task):
            peer = best_peer(rows, row)
            share = f"{row['moved'] / peer['moved']:.2f}" if peer else "-"
            memory = row["state"] + row["temporaries"]
            lines += [
                f"{row['model']:10} {BATCHES[row['model']]:5}  {row['contestant']:17} "
                f"{row['flops'] / 1e12:7.2f} {row['moved'] / 2**30:10.1f} {share:>13} "
                f"{memory / 2**30:11.2f} {1e3 * row['least_seconds']:9.1f}"
            ]
        lines += [""]
    return "\n".join(lines).rstrip()


if __name__ == "__main__":
    print(json.dumps(_cost(json.loads(sys.argv[1]), sys.argv[2])))
