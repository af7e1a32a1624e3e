"""Frozen features before and after training on images without labels: k-NN and linear probe.

    python -m benchmarks pretraining --weights FILE [--data FOLDER] [--texture 0] [--images 400]

Without `--data`, the images are unlike photographs: scikit-learn's handwritten digits, enlarged, on
black, or with `--texture 0.3` on faint pieces of its two sample images. With it, they are those of
a folder of classes. Each seed draws the images to train on and, half as many, those that are
scored, and trains by `keras_vit.training.pretrain`; weights before and after are compared on the
same images by `keras_vit.curation.compare_features`, and the table has the mean of the paired
differences and its standard error. What is finished lies in --out, and is not computed again.
"""

import argparse
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_vit
from examples.study import finished
from keras_vit import data
from keras_vit.curation import compare_features
from keras_vit.data.sources.array_splits import ArraySplit
from keras_vit.evaluation import features
from keras_vit.evaluation.markdown import table
from keras_vit.training import pretrain

PIXELS = 96  # of a digit on its texture
# What results depend on, beside what is in their names.
DEPENDS = ("data", "weights", "batch_size", "learning_rate", "image_size")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks pretraining", description=__doc__)
    parser.add_argument("--weights", required=True, help="a file, or MODEL:TAG")
    parser.add_argument("--data", help="a folder of classes (default: digits on textures)")
    parser.add_argument("--texture", type=float, default=0, help="how light it is, from 0 to 1")
    parser.add_argument("--images", type=int, default=400, help="images to train on")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--image-size", type=int, default=96)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/pretraining"))
    options = parser.parse_args(arguments)
    images = digits(options.texture) if options.data is None else whole(options.data)
    rows: list[Any] = []
    for seed in range(options.seeds):
        file = options.out / f"{images.name}-{options.images}-{options.epochs}-{seed}.json"
        depends = {name: getattr(options, name) for name in DEPENDS}
        trained = partial(run, options, images, seed, file.with_suffix(""))
        rows.append(finished(file, depends, trained))
        print(f"{images.name}, seed {seed}: {rows[-1]}", flush=True)
    print(table(("", "before", "after", "difference"), map(cells_of, ("knn", "probe"), [rows] * 2)))
    return 0


def whole(folder: str) -> Any:
    """All images of a folder of classes; of one with splits, its training images."""
    split: Any = next(iter(data.load(folder, val_fraction=None).values()))
    split.name = Path(folder).name
    return split


def digits(strength: float, seed: int = 0) -> ArraySplit:
    """1,797 light digits of random size and place, perhaps on pieces of two photographs."""
    from PIL import Image
    from sklearn.datasets import load_digits, load_sample_images

    random, source = np.random.default_rng(seed), load_digits()
    textures = load_sample_images().images
    images = []
    for digit in source.images:
        texture = textures[random.integers(len(textures))]
        y, x = (random.integers(side - PIXELS) for side in texture.shape[:2])
        image = 14 + strength * texture[y : y + PIXELS, x : x + PIXELS]
        size = int(random.integers(7 * PIXELS // 10, PIXELS))
        enlarged = Image.fromarray(np.uint8(digit * 15)).resize(
            (size, size), Image.Resampling.BICUBIC
        )
        ink = np.asarray(enlarged, "float32")[..., None] / 240
        y, x = random.integers(PIXELS - size, size=2)
        place = (slice(y, y + size), slice(x, x + size))
        image[place] = (1 - ink) * image[place] + ink * 240
        images.append(np.uint8(image.clip(0, 255)))
    names = [str(digit) for digit in range(10)]
    name = f"textures-{strength:g}" if strength else "digits"
    return ArraySplit(name, names, np.stack(images), source.target)


def run(options: argparse.Namespace, images: Any, seed: int, folder: Path) -> dict[str, Any]:
    """Trains once; returns the scores before and after, and the differences."""
    keras.utils.set_random_seed(seed)
    order = np.random.default_rng(seed).permutation(len(images))
    train, scored = (
        images.take(np.sort(places))
        for places in np.split(order[: options.images * 3 // 2], [options.images])
    )
    size = options.image_size
    before = keras_vit.load(options.weights, num_classes=0, input_shape=(size, size, 3))
    after = before.copy()
    recipe = keras_vit.recipes.get("diet_cp")
    changes = {name: getattr(options, name) for name in ("epochs", "batch_size", "learning_rate")}
    recipe = replace(recipe, image_size=size, **changes)
    pretrain(after, train, folder, recipe=recipe, seed=seed, progress=False)
    shutil.rmtree(folder)
    rows = [
        np.concatenate([features(model, part)[0] for part in (train, scored)])
        for model in (before, after)
    ]
    labels = np.concatenate([train.labels(), scored.labels()])
    places = np.arange(len(train), len(labels))
    changed = compare_features(*rows, labels, images.task, places)
    return {
        name: {
            "before": getattr(changed.before, name)["accuracy"].value,
            "after": getattr(changed.after, name)["accuracy"].value,
            "difference": getattr(changed, name)._asdict(),
        }
        for name in ("knn", "probe")
    }


def cells_of(name: str, rows: list[dict[str, Any]]) -> tuple[str, ...]:
    before, after = (
        statistics.fmean(row[name][when] for row in rows) for when in ("before", "after")
    )
    changes = [100 * (row[name]["after"] - row[name]["before"]) for row in rows]
    error = statistics.stdev(changes) / len(changes) ** 0.5 if len(changes) > 1 else 0.0
    change = f"{statistics.fmean(changes):+.1f} ± {error:.1f}"
    return {"knn": "k-NN", "probe": "linear probe"}[name], f"{before:.1%}", f"{after:.1%}", change
