"""Accuracy against the number of labels: `next_to_label` beside a random choice of images.

    python -m benchmarks labelling --weights FILE --data digits FLOWERS CIFAR10 [--seeds 5]

The training images are the pool, whose labels are uncovered `--step` at a time, and the validation
images measure a ridge probe on the frozen features, whose penalty is chosen on the labeled images
alone. Both begin without a label. Features are computed once, and kept in the cache. Prints the
mean accuracy and its standard error over seeds, and with which part of the labels `next_to_label`
reaches what a random choice reaches after a quarter, a half and all of the labels.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from keras_vit import data, load
from keras_vit._base.files import cache_folder
from keras_vit.curation.labelling import fit_probe, next_to_label
from keras_vit.curation.nearest import unit_rows
from keras_vit.evaluation import features
from keras_vit.evaluation.markdown import table

Choice = Callable[[np.ndarray, np.ndarray, int, int], np.ndarray]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks labelling", description=__doc__)
    parser.add_argument("--weights", required=True, help="a file, or MODEL:TAG")
    parser.add_argument("--data", required=True, nargs="+", help="folders, or digits")
    parser.add_argument("--step", type=int, default=20, help="labels between two choices")
    parser.add_argument("--most", type=int, default=400, help="labels at the end")
    parser.add_argument("--seeds", type=int, default=5, help="how many repetitions")
    options = parser.parse_args(arguments)
    model = load(options.weights)
    for source in options.data:
        splits, cache = data.load(source), cache_folder() / "features"
        pool_x, pool_y = features(model, splits.train, cache)
        test_x, test_y = features(model, splits.val, cache)
        pool, test = (unit_rows(pool_x), pool_y), (unit_rows(test_x), test_y)
        curves = {
            name: [
                curve(choose, pool, test, options.step, options.most, seed)
                for seed in range(options.seeds)
            ]
            for name, choose in (("random", at_random), ("next_to_label", by_features))
        }
        every = range(options.step, options.most + 1, options.step)
        title = f"{Path(source).name}: {len(pool_y):,} images, {splits.num_classes} classes"
        print(f"\n{title}\n\n{shown(curves, list(every))}", flush=True)
    return 0


def at_random(x: np.ndarray, known: np.ndarray, count: int, seed: int) -> np.ndarray:
    unlabeled = np.flatnonzero(known < 0)
    # Another seed in each round, which the number of labels tells apart.
    random = np.random.default_rng([seed, int((known >= 0).sum())])
    return random.permutation(unlabeled)[:count]


def by_features(x: np.ndarray, known: np.ndarray, count: int, seed: int) -> np.ndarray:
    return next_to_label(x, known, count, seed=1000 * seed + int((known >= 0).sum())).rows


def curve(
    choose: Choice,
    pool: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    step: int,
    most: int,
    seed: int,
) -> list[float]:
    """Return the accuracy after each choice of `step` labels."""
    known, accuracies = np.full(len(pool[1]), -1), []
    for _ in range(step, most + 1, step):
        rows = choose(pool[0], known, step, seed)
        known[rows] = pool[1][rows]
        labeled = np.flatnonzero(known >= 0)
        probe = fit_probe(pool[0][labeled], known[labeled])
        accuracies.append(float((probe.scores(test[0]).argmax(axis=1) == test[1]).mean()))
    return accuracies


def shown(curves: dict[str, list[list[float]]], labels: list[int]) -> str:
    """Return the curves as a table, and the part of the labels that the last one needs."""
    means = {name: np.mean(rows, axis=0) for name, rows in curves.items()}
    lines = []
    for place in sorted({0, *range(1, 5), *range(4, len(labels), 5), len(labels) - 1}):
        if place >= len(labels):
            continue
        cells = []
        for rows in curves.values():
            of_seeds = [100 * row[place] for row in rows]
            error = statistics.stdev(of_seeds) / len(of_seeds) ** 0.5 if len(of_seeds) > 1 else 0.0
            cells.append(f"{statistics.fmean(of_seeds):.1f} ± {error:.1f}")
        lines.append((f"{labels[place]:,}", *cells))
    text = table(("labels", *(f"{name}, %" for name in curves)), lines, "rrr")
    random, chosen = means.values()
    for place in sorted({max(len(labels) // n - 1, 0) for n in (4, 2, 1)}):
        reached = np.flatnonzero(chosen >= random[place])
        needs = f"{labels[reached[0]]:,} labels" if len(reached) else "more labels than were tried"
        part = f", {labels[reached[0]] / labels[place]:.2f} of these" if len(reached) else ""
        text += (
            f"\n{random[place]:.1%}, as random has with {labels[place]:,} labels, is reached by "
            f"next_to_label with {needs}{part}"
        )
    return text
