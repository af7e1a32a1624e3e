"""Accuracy of one fine-tuning by either reader, and from the cache of photographs, over seeds.

`python -m benchmarks readers --data FLOWERS --weights FILE`: a quarter of an hour on two cores;
prints the mean and standard deviation of each, and of their differences to the first by seed.
"""

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import keras

import keras_vit
from keras_vit import data, evaluation


def accuracy(options: argparse.Namespace, reader: str, cache: int | None, seed: int) -> float:
    """Of the validation images, after fine-tuning."""
    keras.utils.set_random_seed(seed)
    keras.utils.clear_session()
    splits = data.load(options.data, reader=reader)
    size = options.image_size
    model = keras_vit.load(
        options.weights, num_classes=splits.num_classes, input_shape=(size, size, 3)
    )
    recipe = replace(
        keras_vit.recipes.get("finetune_small"), epochs=options.epochs, image_size=size
    )
    with tempfile.TemporaryDirectory() as folder:
        keras_vit.fit(model, recipe, splits, folder, seed=seed, cache=cache)
    labels, scores = evaluation.predict_split(model, splits.val)
    return float((scores.argmax(-1) == labels).mean())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks readers")
    parser.add_argument("--data", type=Path, required=True, help="folder of photographs")
    parser.add_argument("--weights", required=True, help="tag or file of a ViT")
    parser.add_argument("--image-size", type=int, default=96)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    ways = {
        "tensorflow": ("tensorflow", None),
        "grain": ("grain", None),
        f"cache {2 * options.image_size}": ("tensorflow", 2 * options.image_size),
    }
    reached: dict[str, list[float]] = {name: [] for name in ways}
    for seed in range(options.seeds):
        for name, (reader, cache) in ways.items():
            reached[name].append(accuracy(options, reader, cache, seed))
            print(f"seed {seed}  {name:10}  {reached[name][-1]:.2%}", flush=True)
    first = next(iter(reached.values()))
    for name, values in reached.items():
        differences = [value - other for value, other in zip(values, first, strict=True)]
        print(f"{name:10}  {_mean(values)}  difference {_mean(differences)}")


def _mean(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.2%} ± {100 * statistics.stdev(values):.2f}"


if __name__ == "__main__":
    main()
