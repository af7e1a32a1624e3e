"""Which map finds the patches that a prediction depends on? Deletion and insertion of patches.

    python docs/inspection/deletion.py --weights model.safetensors --photographs flowers/

puts a linear probe of the training photographs on AugReg's ViT-Ti/16 and explains, on photographs
that it has not seen, the class that it predicts. Deletion replaces patches by the image's mean
color, those first that a map calls important, and insertion puts them into a blurred image; what
is compared is the mean probability of the class on the way. Interrupted, it prints what it has.

Source: "RISE" (Petsiuk et al. 2018), section 4.3.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

import keras_vit
from keras_vit import data, inspection
from keras_vit.evaluation import features, linear_probe
from keras_vit.evaluation.prediction import pipeline_arguments
from keras_vit.models.answers import answers_of

BATCH = 20
MEASURES = ("deletion", "insertion")


def random_map(model: Any, images: np.ndarray) -> np.ndarray:
    """The baseline: patches in any order."""
    shape = inspection.attention_rollout(model, images[:1]).shape[1:]
    return np.random.default_rng(len(images)).random((len(images), *shape))


MAPS: dict[str, Callable[[Any, np.ndarray], np.ndarray]] = {
    "attribution": inspection.class_attribution,
    "rollout": inspection.attention_rollout,
    "random": random_map,
}


def probed(weights: Path, splits: data.Splits, pooling: str, cache: Path | None) -> Any:
    """The model of a file with a linear probe as its head."""
    backbone = keras_vit.load(weights, pooling=pooling)
    train, val = (features(backbone, s, cache) for s in (splits.train, splits.val))
    probe = linear_probe(*train, *val)
    print(f"linear probe: {probe.accuracy:.1%} of {len(splits.val)} held-out photographs")
    model = backbone.with_classifier(splits.num_classes)
    model.get_layer("head").set_weights([probe.kernel, probe.bias])
    return model


def blurred(images: np.ndarray) -> np.ndarray:
    """Nothing is left of an image but what colors are where."""
    blur = ImageFilter.GaussianBlur(images.shape[1] / 20)
    return np.stack([np.asarray(Image.fromarray(x).filter(blur)) for x in images])


def areas(
    predict: Callable[[np.ndarray], np.ndarray],
    images: np.ndarray,
    maps: np.ndarray,
    steps: int,
) -> dict[str, np.ndarray]:
    """The area below the curve of the predicted class's probability, by measure and image."""
    images = images.round().astype("uint8")
    mean = np.broadcast_to(images.mean(axis=(1, 2), keepdims=True), images.shape).astype("uint8")
    before_after = {"deletion": (images, mean), "insertion": (blurred(images), images)}
    rows = np.arange(len(images))
    classes = predict(images).argmax(axis=1)
    rank = (-maps.reshape(len(maps), -1)).argsort(axis=1, kind="stable").argsort(axis=1)
    rank = rank.reshape(maps.shape)
    patch = images.shape[1] // maps.shape[1], images.shape[2] // maps.shape[2]
    fractions = np.linspace(0, 1, steps + 1)
    integrals = {}
    for measure, (before, after) in before_after.items():
        curve = []
        for fraction in fractions:
            replaced = (rank < round(fraction * maps[0].size)).repeat(patch[0], axis=1)
            replaced = replaced.repeat(patch[1], axis=2)[..., None]
            curve.append(predict(np.where(replaced, after, before))[rows, classes])
        integrals[measure] = np.trapezoid(np.stack(curve), fractions, axis=0)
    return integrals


def photographs(model: Any, split: data.Split, count: int) -> Iterator[np.ndarray]:
    """Batches of `count` of its photographs, the same ones in each run."""
    chosen = np.sort(np.random.default_rng(0).permutation(len(split))[:count])
    batches = data.pipeline(split.take(chosen), batch_size=BATCH, **pipeline_arguments(model))
    for images, _ in batches.as_numpy_iterator():
        yield np.asarray(images)


def table(areas_by_map: dict[str, dict[str, np.ndarray]]) -> str:
    """Means and their spread over images, and paired differences to the attribution."""
    lines = ["| map | deletion (less is better) | insertion (more is better) |", "|---|---:|---:|"]
    for name, values in areas_by_map.items():
        cells = [f"{values[m].mean():.3f} ± {values[m].std(ddof=1):.3f}" for m in MEASURES]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    first, *others = areas_by_map
    for name in others:
        cells = []
        for measure, sign in zip(MEASURES, (-1, 1), strict=True):
            difference = areas_by_map[first][measure] - areas_by_map[name][measure]
            error = difference.std(ddof=1) / len(difference) ** 0.5
            better = (sign * difference > 0).mean()
            cells.append(f"{difference.mean():+.3f} ± {error:.3f}, better in {better:.0%}")
        lines.append(f"| {first} less {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, required=True, help="ViT-Ti/16 of AugReg")
    parser.add_argument("--photographs", type=Path, required=True, help="the flowers' folder")
    parser.add_argument("--images", type=int, default=200, help="held-out photographs (200)")
    parser.add_argument("--steps", type=int, default=10, help="steps from 0 to all patches (10)")
    parser.add_argument("--pooling", default="token", choices=("token", "gap"))
    parser.add_argument("--cache", type=Path, help="folder in which features are cached")
    options = parser.parse_args()
    splits = data.load(str(options.photographs))
    model = probed(options.weights, splits, options.pooling, options.cache)

    def predict(images: np.ndarray) -> np.ndarray:
        missing = BATCH - len(images)  # another number of images would be compiled again
        padded = np.pad(images, ((0, missing), (0, 0), (0, 0), (0, 0)), mode="edge")
        return answers_of(model, model.predict_on_batch(padded))[: len(images)]

    parts: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in MAPS}
    with suppress(KeyboardInterrupt):
        for images in photographs(model, splits.val, options.images):
            maps = {name: explain(model, images) for name, explain in MAPS.items()}
            each = {n: areas(predict, images, m, options.steps) for n, m in maps.items()}
            for name, part in each.items():
                parts[name].append(part)
            print(f"{len(parts['random'])} batches of {BATCH}", file=sys.stderr)
    areas_by_map = {
        name: {m: np.concatenate([part[m] for part in each]) for m in MEASURES}
        for name, each in parts.items()
    }
    count = len(areas_by_map["random"]["deletion"])
    print(f'pooling="{options.pooling}", {count} photographs, area below the probability of the')
    print("predicted class; mean and standard deviation over photographs, and paired differences")
    print(f"with the standard error of their mean\n\n{table(areas_by_map)}")


if __name__ == "__main__":
    main()
