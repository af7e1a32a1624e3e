"""Whether `export --quantize auto` keeps its bound on images that took no part in its choice.

    python -m benchmarks flips --data FOLDER --weights FILE [--format onnx] [--seeds 5]
        [--max-flips 0.01] [--images 450]

Per seed: draws so many training images that choose, and as many again that nothing sees; fits a
logistic regression on the features of the others as the model's head; lets `export_smallest` choose
on the former; and counts the other answers of what it chose, and of each way that it tried, on the
images that nothing saw and the validation images together. Prints what each was chosen of, with
sizes, and then a table with 95 % intervals (Wilson), and the counts of all seeds. Run it with
`KERAS_BACKEND=tensorflow`.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import keras_vit
from keras_vit import data
from keras_vit._base.files import cache_folder
from keras_vit.evaluation import features, predict_split
from keras_vit.evaluation.markdown import table
from keras_vit.exporting import export_smallest, load_exported
from keras_vit.exporting.comparison import compare
from keras_vit.exporting.format_table import check_format
from keras_vit.tasks import Classification
from keras_vit.tasks.scores import wilson_interval


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks flips", description=__doc__)
    parser.add_argument("--data", required=True, help="a folder, or a TFDS name")
    parser.add_argument("--weights", required=True, help="a file or folder, or MODEL:TAG")
    parser.add_argument("--format", default="onnx")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--max-flips", type=float, default=0.01)
    parser.add_argument("--images", type=int, default=450, help="that choose")
    options = parser.parse_args(arguments)
    splits = data.load(options.data)
    model = keras_vit.load(options.weights).with_classifier(splits.num_classes)
    model.task = Classification(splits.class_names)
    x, y = features(model, splits.train, cache_folder() / "features")
    totals, seen, lines = Counter[str](), Counter[str](), []
    for seed in range(options.seeds):
        order = np.random.default_rng(seed).permutation(len(y))
        fit_head(model, x[order[2 * options.images :]], y[order[2 * options.images :]])
        train: Any = splits.train
        chooses, unseen = (train.take(np.sort(part)) for part in parts(order, options.images))
        for row in measure(model, chooses, [unseen, splits.val], options):
            way, found, flips, images = row
            totals[way] += flips
            seen[way] += images
            lines.append((str(seed), way, f"{found:.2%}", *shown(flips, images)))
            print(*lines[-1], flush=True)
    for way in totals:
        # Without an interval: the validation images are the same for every seed.
        lines.append(("all", way, "", shown(totals[way], seen[way])[0], ""))
    header = ("seed", "", "changed where it chose", "changed on others", "95 % interval")
    print(table(header, lines, "rlrrr"))
    return 0


def parts(order: np.ndarray, images: int) -> tuple[np.ndarray, np.ndarray]:
    return order[:images], order[images : 2 * images]


def fit_head(model: Any, x: np.ndarray, y: np.ndarray) -> None:
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(max_iter=2000).fit(x, y)
    model.get_layer("head").set_weights([fitted.coef_.T, fitted.intercept_])


def measure(
    model: Any, chooses: Any, others: list[Any], options: argparse.Namespace
) -> list[tuple[str, float, int, int]]:
    """Return per way: its name, its flips where it chose, and flips and images of the others."""
    rows, predicted = [], [predict_split(model, split) for split in others]
    suffix = check_format(options.format, "int8").suffix or ""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / f"auto{suffix}"
        smallest = export_smallest(
            model, place, options.format, split=chooses, max_flips=options.max_flips
        )
        print(smallest, flush=True)
        for trial in smallest.trials:
            if trial.name == "float32" or trial.comparison is None:
                continue
            file = Path(folder) / f"{trial.name}{suffix}"
            keras_vit.export(model, file, options.format, quantize=trial.name)
            found = [
                compare(model, load_exported(file), split, before)
                for split, before in zip(others, predicted, strict=True)
            ]
            flips = sum(round(each.flips * each.images) for each in found)
            way = trial.name + ("*" if trial is smallest.chosen else "")
            images = sum(each.images for each in found)
            rows.append((way, trial.comparison.flips, flips, images))
    return rows


def shown(flips: int, images: int) -> tuple[str, str]:
    low, high = wilson_interval(flips / images, images)
    return f"{flips} of {images:,}", f"{max(low, 0):.2%} to {high:.2%}"
