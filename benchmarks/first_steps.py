"""What a user waits for in a first try: a short `fit` and an `evaluate`, XLA's compiling included.

`python -m benchmarks first_steps --steps 20 100 --rounds 2` trains ViT-Ti/16 on TensorFlow, batch 8
with a last batch of 3, then evaluates 32 images at batch 16: with `jit_compile="auto"` and with
Keras's default, `jit_compile=False`. `--before CHECKOUT` adds another version's "auto",
`--without-keras` leaves Keras's default out. Every run is a process of its own, all take turns, and
ratios are taken within a round. Allow two minutes per process on two cores.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parents[1]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks first_steps", description=__doc__)
    parser.add_argument("--model", default="ViT-Ti/16", help="name of a model")
    parser.add_argument("--steps", type=int, nargs="+", default=[20, 100], help="steps of fit")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each contestant")
    parser.add_argument("--before", type=Path, help="checkout of the version to compare with")
    parser.add_argument("--without-keras", action="store_true", help="only auto and --before")
    options = parser.parse_args(arguments)
    contestants = {"auto": (HERE, "auto")}
    if not options.without_keras:
        contestants["keras"] = (HERE, "off")
    if options.before:
        contestants["before"] = (options.before, "auto")
    for steps in options.steps:
        seconds: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
        for _ in range(options.rounds):
            for name, (tree, compiler) in contestants.items():
                seconds[name].append(_measure(tree, options.model, compiler, steps))
                print(f"{steps} steps, {name}: {seconds[name][-1]}", flush=True)
        for name in contestants:
            if name == "auto":
                continue
            for clock in ("wall", "processor"):
                ratio = statistics.median(
                    ours[clock] / theirs[clock]
                    for ours, theirs in zip(seconds["auto"], seconds[name], strict=True)
                )
                print(f"{options.model}, {steps} steps: auto / {name}, {clock}: {ratio:.2f}")
    return 0


def _measure(tree: Path, model: str, compiler: str, steps: int) -> dict[str, float]:
    """Seconds of one process, from the model's construction on."""
    command = [sys.executable, str(Path(__file__)), model, compiler, str(steps)]
    environment = {
        **os.environ,
        "KERAS_BACKEND": "tensorflow",
        "PYTHONPATH": str(tree),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(printed.stdout.splitlines()[-1])


def _work(name: str, compiler: str, steps: int) -> None:
    import keras
    import numpy as np

    import keras_vit

    random = np.random.default_rng(0)
    # Ten batches an epoch, the last one of 3 images.
    count = 8 * 9 + 3
    images = random.integers(0, 256, (count, 224, 224, 3)).astype("uint8")
    labels = random.integers(0, 10, count)
    wall, processor = time.perf_counter(), time.process_time()
    model = keras_vit.create(name, num_classes=10)
    model.compile(
        "adamw",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile="auto" if compiler == "auto" else False,
    )
    model.fit(images, labels, batch_size=8, epochs=steps // 10, verbose=0)
    model.evaluate(images[:32], labels[:32], batch_size=16, verbose=0)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    print(json.dumps({"wall": round(wall, 1), "processor": round(processor, 1)}))


if __name__ == "__main__":
    _work(sys.argv[1], sys.argv[2], int(sys.argv[3]))
