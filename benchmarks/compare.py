"""Images per second, memory and start of keras_vit, its peers and the machine's limit.

`python -m benchmarks compare --model ViT-S/16 --batch-size 8`: a quarter of an hour on two cores;
prints a table for inference and one for training, and writes `compare.json` and `compare.png`.

Every contestant runs in its own process, and all wait while one of them is measured. They take
turns for several rounds, so that a busy machine is busy for all; ratios are taken within a round.
The limit is the machine's own rate of matrix products in the same dtype, divided by the model's
count of operations: a training step counts three times its forward pass.

`--contestants` takes systems (`keras_vit`), variants (`keras_vit/jax`, `timm/compiled`), and
options of a single contestant, values as JSON: arguments of its model, or those that the options
below set for all (`keras_vit/jax:token_merging=8;dtype=bfloat16`). What is not installed is
skipped. All contestants are in memory at once: give fewer where models are large, or `--alone`,
which restarts each for every turn and so measures start and memory as well.

`--against REVISION` adds a twin of each keras_vit contestant that runs the code of a commit of this
repository, and fails when today's is slower than 0.97 of it.

`--quick` is the small form for continuous integration: it fails when keras_vit has lost more than
15 % of its recorded ratio to KerasHub in three runs; `--quick --record` records.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import _against, _quick, _report
from benchmarks._contestants import SYSTEMS
from benchmarks._rounds import Result, compete, compete_alone
from benchmarks._work import OPTIMIZERS, Work

TASKS = ("inference", "training")


# Options that a contestant may override, beside arguments of its model.
OF_WORK = ("model", "image_size", "batch_size", "dtype", "malloc", "dropout", "optimizer")


def parse_contestant(text: str) -> list[dict[str, Any]]:
    """`SYSTEM[/VARIANT][:NAME=VALUE;...]` as arguments of `Work`, for each variant."""
    name, _, overrides = text.partition(":")
    system, _, variant = name.partition("/")
    if system not in SYSTEMS:
        raise SystemExit(f"No contestant {system!r}. Known: {', '.join(SYSTEMS)}.")
    known = SYSTEMS[system].variants
    if variant and variant not in known:
        raise SystemExit(
            f"{system} does not have a variant {variant!r}. Known: {', '.join(known)}."
        )
    work: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for pair in filter(None, overrides.split(";")):
        key, _, value = pair.partition("=")
        target = work if key in OF_WORK else options
        try:
            target[key] = json.loads(value)
        except json.JSONDecodeError:
            target[key] = value
    variants = (variant,) if variant else known[: SYSTEMS[system].usual]
    return [
        {
            "system": system,
            "variant": variant,
            "options": options,
            "label": f"{system}/{variant}" + (f":{overrides}" if overrides else ""),
            **work,
        }
        for variant in variants
    ]


def arguments_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--contestants",
        nargs="+",
        default=[name for name, system in SYSTEMS.items() if system.usual],
        metavar="SYSTEM[/VARIANT][:ARGUMENT=VALUE;...]",
        help="default: all that train, of "
        + ", ".join(f"{k}/{{{','.join(v.variants)}}}" for k, v in SYSTEMS.items()),
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument(
        "--model", default="ViT-S/16", help="a ViT of keras_vit.list_models(), or tiny"
    )
    parser.add_argument("--image-size", type=int, default=224, help="image size in pixels")
    parser.add_argument("--batch-size", type=int, default=8, help="images per step")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument(
        "--malloc", choices=("huge", "default"), default="huge", help="memory pages on Linux"
    )
    parser.add_argument("--dropout", type=float, default=0.0, help="dropout rate in training")
    parser.add_argument(
        "--optimizer", choices=OPTIMIZERS, default="AdamW", help="optimizer (SGD with momentum)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="number of turns of each contestant")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a turn in seconds")
    parser.add_argument("--alone", action="store_true", help="restart each contestant for its turn")
    parser.add_argument(
        "--against", metavar="REVISION", help="keras_vit as of this commit takes part, too"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/compare"), help="folder to write")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="the small form for continuous integration, which can fail",
    )
    parser.add_argument("--record", action="store_true", help="with --quick: record the ratios")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    parser = arguments_parser()
    options = parser.parse_args(arguments)
    if options.record and not options.quick:
        parser.error("--record belongs to --quick")
    if options.quick:
        parser.set_defaults(**_quick.SETTINGS)
        options = parser.parse_args(arguments)
    # A busy moment lowers a ratio once, a slower model every time.
    for remaining in reversed(range(_quick.ATTEMPTS if options.quick else 1)):
        results = run(options)
        failed = [r.name for task in results.values() for r in task if r.failed and r.ours]
        if failed:
            print(f"Failed: {', '.join(failed)}", file=sys.stderr)
            return 1
        lost = _quick.verdict(results, record=options.record) if options.quick else []
        status = int(bool(lost))
        if options.against:
            status |= _against.verdict(results, options.against)
        if not (status and remaining):
            break
        options.contestants = lost or options.contestants
        print(f"Measuring again: {', '.join(options.contestants)}")
    return status


def run(options: argparse.Namespace) -> dict[str, list[Result]]:
    """Measures every task, prints its table, and writes all of them."""
    chosen = [one for text in options.contestants for one in parse_contestant(text)]
    common = {name: getattr(options, name) for name in OF_WORK}
    turns = options.rounds, options.seconds
    results: dict[str, list[Result]] = {}
    with _against.tree_of(options.against) as tree:
        for task in options.tasks:
            works = [Work(**{**common, "task": task, **one}) for one in chosen]
            works += _against.twins(works, options.against, tree)
            # Those of one backend are compared: they run in succession, under the same load.
            works.sort(key=lambda work: (work.backend, work.system))
            results[task] = (compete_alone if options.alone else compete)(works, *turns)
            print("\n" + _report.table(task, results[task]) + "\n")
    _report.write(results, options.out, vars(options))
    return results
