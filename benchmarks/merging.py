"""Accuracy and images per second of a trained ViT under token merging, and in bfloat16.

`python -m benchmarks merging runs/flowers --data FLOWERS`: merges 0, 4, 8, ... patches in every
block, without training, and computes in bfloat16 without merging. All models are in one process
and take turns; predictions are compiled.
Prints a table, and writes `merging.json` and `merging.png`.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]


BFLOAT16 = "mixed_bfloat16"


def measure(
    model: Any, images: np.ndarray, labels: np.ndarray, merged: Sequence[int], **turns: int
) -> list[Row]:
    """Accuracy, and the rate of every round, per number of merged patches.

    The last row is bfloat16 without merging.

    Args:
        model: A trained `VisionTransformer`.
        images: Held-out pixels `(images, height, width, channels)`.
        labels: Integer classes `(images,)`.
        merged: Patches that each block merges; 0 comes first, as the reference.
        **turns: `rounds`, `batch_size`, and `batches`, the number of batches per round.
    """
    import keras

    rounds, batch_size = turns.get("rounds", 7), turns.get("batch_size", 32)
    batches = turns.get("batches", 3)
    batch = keras.ops.convert_to_tensor(images[:batch_size])
    variants = [model.with_token_merging(number) for number in merged]
    rows: list[Row] = [{"merged": number, "dtype": str(model.dtype)} for number in merged]
    variants.append(model.copy(token_merging=0, dtype=BFLOAT16))
    rows.append({"merged": 0, "dtype": BFLOAT16})
    pairs = list(zip(rows, variants, strict=True))
    for row, variant in pairs:
        variant.compile()
        scores = variant.predict(images, batch_size=batch_size, verbose=0)
        row["accuracy"] = float((scores.argmax(-1) == labels).mean())
        variant.predict_on_batch(batch)
    for turn in range(rounds):
        for row, variant in pairs if turn % 2 == 0 else pairs[::-1]:
            began = time.perf_counter()
            for _ in range(batches):  # `predict` may wait for tf.data's autotuner at its end
                variant.predict_on_batch(batch)
            rate = batches * len(batch) / (time.perf_counter() - began)
            row.setdefault("images_per_second", []).append(rate)
    return rows


def title_of(row: Row) -> str:
    return "bfloat16" if row["dtype"] == BFLOAT16 else f"r = {row['merged']}"


def speedups(rows: Sequence[Row]) -> list[list[float]]:
    """Speed relative to the first row, round by round."""
    first = rows[0]["images_per_second"]
    return [[a / b for a, b in zip(r["images_per_second"], first, strict=True)] for r in rows]


def table(rows: Sequence[Row]) -> str:
    lines = ["          accuracy  points lost  images/s  of r = 0"]
    for row, faster in zip(rows, speedups(rows), strict=True):
        lost = 100 * (rows[0]["accuracy"] - row["accuracy"])
        lines.append(
            f"{title_of(row):<8}  {row['accuracy']:8.2%}  {lost:11.2f}  "
            f"{statistics.median(row['images_per_second']):8.1f}  {statistics.median(faster):8.2f}"
        )
    return "\n".join(lines)


def plot(rows: Sequence[Row], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5, 3.8), layout="constrained")
    faster = [statistics.median(rounds) for rounds in speedups(rows)]
    accuracies = [100 * row["accuracy"] for row in rows]
    axis.plot(faster[:-1], accuracies[:-1], "o-", label="r patches merged per block")
    axis.plot(faster[-1:], accuracies[-1:], "s", label="bfloat16, r = 0")
    for number, (row, x, y) in enumerate(zip(rows[:-1], faster, accuracies, strict=False)):
        # Away from the line; on a level stretch by turns, as points are close to each other.
        level = statistics.fmean(accuracies[:-1][max(number - 1, 0) : number + 2])
        above = y > level or (y == level and number % 2 == 1)
        axis.annotate(
            str(row["merged"]),
            (x, y),
            (0, 6 if above else -6),
            textcoords="offset points",
            ha="center",
            va="bottom" if above else "top",
            fontsize=9,
        )
    axis.margins(y=0.15)
    axis.set_xlabel("times the images per second without merging", fontsize=9)
    axis.set_ylabel("accuracy, %", fontsize=9)
    axis.tick_params(labelsize=9)
    axis.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=2, fontsize=9, frameon=False)
    figure.savefig(file, dpi=144)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks merging",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, help="what `keras-vit train --out` wrote")
    parser.add_argument("--data", required=True, help="the data it was trained on")
    parser.add_argument("--merged", type=int, nargs="+", default=[0, 4, 8, 10, 12, 13, 16])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("runs/merging"), help="folder to write")
    options = parser.parse_args(arguments)
    import keras

    import keras_vit
    from keras_vit.evaluation.prediction import pipeline_arguments

    model = keras.saving.load_model(options.run / "model.keras", compile=False)
    model = model.copy(dtype="float32")  # it may have been trained in bfloat16
    split = keras_vit.data.load(options.data).val
    batches = keras_vit.data.pipeline(
        split, batch_size=options.batch_size, **pipeline_arguments(model)
    ).as_numpy_iterator()
    images, labels = map(np.concatenate, zip(*batches, strict=True))
    rows = measure(
        model,
        images,
        labels,
        [0, *(number for number in options.merged if number)],
        rounds=options.rounds,
        batch_size=options.batch_size,
    )
    title = (
        f"{model.name} on {len(images)} images, {keras.backend.backend()}, "
        f"batch {options.batch_size}, {options.rounds} rounds"
    )
    print(f"{title}\n{table(rows)}")
    options.out.mkdir(parents=True, exist_ok=True)
    record = {"title": title, "images": len(images), "rows": rows}
    (options.out / "merging.json").write_text(json.dumps(record, indent=1) + "\n")
    plot(rows, options.out / "merging.png")
    print(f"Written: {options.out}: merging.json, merging.png")
    return 0
