"""Does `--balance` help where some classes have a hundred times the images of others?

    python examples/imbalance.py --data FOLDER --weights FILE --markdown docs/imbalance.md

For each seed, draws a long tail from the training images: of K classes in random order, class k
has `n / ratio ** (k / (K - 1))` images (Cui et al. 2019, section 5.1). Fits a head to frozen
features at 224 pixels, as `keras-vit train --freeze-backbone` does, and fine-tunes the last blocks
and the head at a smaller size, by the recipe finetune_small, from what the blocks before return,
which is computed once: so there is no augmentation. Each with every way of --balance.

Prints balanced accuracies on the validation split as means over the seeds with their standard
deviation, and the mean difference to "none" of the same seed with its 95 % interval (paired t).
Interrupted, it goes on with what is missing. Needs keras3-vit[train].
"""

import argparse
import statistics
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
from scipy import stats
from study import Row, command_line, data_name, finished, mean_and_spread, pages, to_markdown

import keras_vit
from keras_vit import data, evaluation, recipes
from keras_vit._base.files import cache_folder, write_text
from keras_vit.data.sources.array_splits import ArraySplit
from keras_vit.evaluation.prediction import pipeline_arguments
from keras_vit.tasks.balance import BALANCES, imbalance, sampling_rates

FROZEN, TUNED = "frozen", "fine-tuned"
PROBE_SIZE = 224
RECIPE = "finetune_small"

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--data", default="cifar10", help="a folder, or a TFDS name")
parser.add_argument(
    "--weights", default="ViT-Ti/16:augreg_in21k_ft_in1k", help="a file, or MODEL:TAG"
)
parser.add_argument("--ratio", type=float, default=100.0, help="largest to smallest class")
parser.add_argument("--image-size", type=int, default=128, help="pixels of the fine-tuning")
parser.add_argument("--blocks", type=int, default=2, help="last blocks that are fine-tuned")
parser.add_argument("--epochs", type=int, default=8, help="of the fine-tuning")
parser.add_argument("--seeds", type=int, default=5, help="how many draws of the images")
parser.add_argument("--modes", nargs="+", default=[FROZEN, TUNED], choices=[FROZEN, TUNED])
parser.add_argument("--out", type=Path, default=Path("runs/imbalance"))
parser.add_argument("--markdown", type=Path, help="another file for the page")


def long_tail(labels: np.ndarray, ratio: float, seed: int) -> np.ndarray:
    """The places of the images of a long tail, in their order."""
    random, classes = np.random.default_rng(seed), int(labels.max()) + 1
    largest = np.bincount(labels).min()
    chosen = []
    for rank, label in enumerate(random.permutation(classes)):
        count = max(round(largest / ratio ** (rank / (classes - 1))), 1)
        chosen.append(random.permutation(np.flatnonzero(labels == label))[:count])
    return np.sort(np.concatenate(chosen))


def build(options: argparse.Namespace, splits: data.Splits, size: int) -> Any:
    shape = (size, size, splits.train.channels)
    model = keras_vit.load(options.weights, num_classes=splits.num_classes, input_shape=shape)
    model.eval_transform = "stretch"  # such small images do not have a border to crop
    return model


def recalls(labels: np.ndarray, scores: np.ndarray) -> list[float]:
    """The recall of each class."""
    right = scores.argmax(axis=-1) == labels
    return [float(right[labels == label].mean()) for label in np.unique(labels)]


def frozen(
    options: argparse.Namespace, splits: data.Splits, tail: np.ndarray, way: str, seed: int
) -> list[float]:
    """A head on frozen features, which are computed once for all seeds."""
    model, cache = build(options, splits, PROBE_SIZE), cache_folder() / "features"
    x, y = evaluation.features(model, splits.train, cache)
    test_x, test_y = evaluation.features(model, splits.val, cache)
    probe = evaluation.linear_probe(x[tail], y[tail], test_x, test_y, balance=way)
    return recalls(test_y, test_x @ probe.kernel + probe.bias)


def fine_tuned(
    options: argparse.Namespace, splits: data.Splits, tail: np.ndarray, way: str, seed: int
) -> list[float]:
    """The last blocks and the head, trained on the tokens that the others return."""
    keras.utils.set_random_seed(seed)
    model = build(options, splits, options.image_size)
    before = model.feature_model(f"block_{model.depth - options.blocks - 1}")
    network = keras.Model(before.output, model.output)
    x, test_x = (tokens(options, model, before, splits[name]) for name in ("train", "val"))
    x, y = x[tail], splits.train.labels()[tail]
    # The order of the images is that of `keras_vit.fit`.
    places = ArraySplit("train", splits.class_names, np.zeros((len(y), 1, 1, 1), np.uint8), y)
    passes: Any = places
    if way == "sampling":
        passes = places.resampled(sampling_rates(splits.task.counts(y)))
    epochs = (passes.dataset(seed, epoch).as_numpy_iterator() for epoch in range(options.epochs))
    order = np.array([int(place) for epoch in epochs for place, _ in epoch])
    recipe = replace(recipes.get(RECIPE), layer_decay=1.0, balance=way)
    steps = -(-len(order) // recipe.batch_size)
    keras_vit.training.compile_model(network, recipe, steps, targets=y)
    network.fit(x[order], y[order], batch_size=recipe.batch_size, shuffle=False, verbose=0)
    return recalls(splits.val.labels(), network.predict(test_x, batch_size=250, verbose=0))


def tokens(
    options: argparse.Namespace, model: Any, before: keras.Model, split: data.Split
) -> np.ndarray:
    """What the blocks before the trained ones return, computed once for all seeds."""
    source = zlib.crc32(f"{options.data} {options.weights}".encode())
    words = f"{split.name}-{options.image_size}-{options.blocks}-{source:08x}"
    path = options.out / f"{words}.npy"
    if not path.is_file():
        batches = data.pipeline(split, batch_size=50, **pipeline_arguments(model))
        values = before.predict(batches, verbose=0)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, values)
    return np.load(path)


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """The mean, and the ends of its 95 % interval by Student's t."""
    mean, count = statistics.fmean(differences), len(differences)
    if count < 2:
        return mean, float("-inf"), float("inf")
    half = stats.t.ppf(0.975, count - 1) * statistics.stdev(differences) / count**0.5
    return mean, mean - half, mean + half


def summary(rows: list[Row]) -> list[dict[str, Any]]:
    """A line per mode and way, with the difference to no balance, paired by seed."""
    by_key: dict[Any, Any] = {(row["mode"], row["way"], row["seed"]): row for row in rows}
    lines = []
    for mode, way in dict.fromkeys((mode, way) for mode, way, _ in by_key):
        group = [row for key, row in by_key.items() if key[:2] == (mode, way)]
        plain = [by_key[mode, "none", row["seed"]] for row in group]
        pairs = zip(group, plain, strict=True)
        mean, low, high = interval([a["balanced"] - b["balanced"] for a, b in pairs])
        of = {name: [row[name] for row in group] for name in ("balanced", "rarest", "frequent")}
        lines.append(
            {
                **{name: mean_and_spread(values) for name, values in of.items()},
                "mode": mode,
                "way": way,
                "helps": low > 0,
                "difference": "" if way == "none" else f"{mean:+.1%} ({low:+.1%} to {high:+.1%})",
            }
        )
    return lines


def verdict(lines: Sequence[dict[str, Any]]) -> str:
    """What does not help, and what does, by the intervals."""
    sentences = []
    for mode in dict.fromkeys(line["mode"] for line in lines):
        ways = [line for line in lines if line["mode"] == mode and line["way"] != "none"]
        useless = [f"`{line['way']}`" for line in ways if not line["helps"]]
        useful = [f"`{line['way']}` {line['difference']}" for line in ways if line["helps"]]
        where = "On frozen features" if mode == FROZEN else "Where the last blocks are fine-tuned"
        if useless:
            sentences.append(f"{where}, `--balance` does not help as {', '.join(useless)}.")
        if useful:
            sentences.append(f"{where}, `--balance` raises balanced accuracy: {', '.join(useful)}.")
    return " ".join(sorted(sentences, key=lambda sentence: "not help" not in sentence))


def run(
    options: argparse.Namespace, splits: data.Splits, tail: Any, mode: str, way: str, seed: int
) -> Row:
    """Fits once; returns the row."""
    counts = np.bincount(splits.train.labels()[tail], minlength=splits.num_classes)
    recall = (frozen if mode == FROZEN else fine_tuned)(options, splits, tail, way, seed)
    return {
        **{"mode": mode, "way": way, "seed": seed},
        "balanced": statistics.fmean(recall),
        "frequent": float(np.average(recall, weights=counts)),
        "rarest": float(np.mean(np.array(recall)[np.argsort(counts)[:3]])),
    }


def made_with(options: argparse.Namespace, mode: str) -> dict[str, Any]:
    """The options that a row depends on."""
    tuning = ("image_size", "blocks", "epochs") if mode == TUNED else ()
    return {name: getattr(options, name) for name in ("data", "weights", "ratio", *tuning)}


def main() -> None:
    options = parser.parse_args()
    splits = data.load(options.data)
    labels, classes = splits.train.labels(), splits.num_classes
    rows: list[Row] = []
    for seed in range(options.seeds):
        tail = long_tail(labels, options.ratio, seed)
        counts = np.bincount(labels[tail], minlength=classes)
        for mode in options.modes:
            for way in BALANCES:
                path = options.out / f"{mode}-{way}-{seed}" / "row.json"
                fitted = partial(run, options, splits, tail, mode, way, seed)
                rows.append(finished(path, made_with(options, mode), fitted))
                print(f"seed {seed}, {mode}, {way}: {rows[-1]['balanced']:.2%}", flush=True)
    lines = summary(sorted(rows, key=lambda row: options.modes.index(row["mode"])))
    columns = {
        "trained": "{mode}",
        "`--balance`": "{way}",
        "balanced accuracy": "{balanced:}",
        "difference (95 % interval)": "{difference:}",
        "three rarest classes": "{rarest:}",
        "accuracy at the frequencies of training": "{frequent:}",
    }
    trained = {
        FROZEN: f"Frozen: a linear probe at {PROBE_SIZE} pixels.",
        TUNED: f"Fine-tuned: the last {options.blocks} blocks and the head at {options.image_size} "
        f"pixels for {options.epochs} epochs, without augmentation.",
    }
    about = " ".join(trained[mode] for mode in options.modes)
    text = (
        f"# Rare classes: {data_name(splits.source)}\n\n{verdict(lines)}\n\n"
        f"`{command_line()}`: {classes} classes of {counts.max()} to {counts.min()} training "
        f"images, {counts.sum():,} in all, {imbalance(counts):.0f} times as many of the largest; "
        f"evaluated on {len(splits.val):,} other images. {about} Means of {options.seeds} "
        "seeds, each with its own images and order of classes, and their standard deviation; "
        "differences to no balance are paired by seed.\n\n"
        f"{to_markdown(lines, columns)}\n"
    )
    print(f"\n{text}")
    for page in pages(options):
        write_text(page, text)


if __name__ == "__main__":
    main()
