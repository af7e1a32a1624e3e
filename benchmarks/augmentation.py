"""Images per CPU-second of RandAugment and mixup: this package's, Keras's and KerasCV's.

`python -m benchmarks augmentation`: a minute or two; prints a table. Images of 224 pixels are in
memory, so that little but the augmentation takes time. All run in `keras_vit.data.pipeline`; the
line "on batches" maps KerasCV's layer over batches instead, as its guides do. Contestants take
turns, and are measured in CPU time, which other programs do not affect. KerasCV is left out where
it is missing.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

SIZE, BATCH, CLASSES = 224, 16, 10


def contestants() -> dict[str, Any]:
    """Endless data sets of batches by title."""
    import keras

    from keras_vit.data import ArraySplit, Augmentation, pipeline

    images = np.random.default_rng(0).integers(0, 256, (BATCH, SIZE, SIZE, 3), np.uint8)
    labels = np.arange(BATCH) % CLASSES
    split = ArraySplit("train", tuple("0123456789"), images, labels)
    unchanged = {"crop": "resize", "flip": False}
    augments: dict[str, Any] = {
        "nothing": "none",
        "RandAugment, keras_vit": Augmentation(**unchanged, rand_augment=(2, 10)),
        "RandAugment, keras": ["none", keras.layers.RandAugment(num_ops=2)],
        "mixup, keras_vit": Augmentation(**unchanged, mixup=0.2),
        "mixup, keras": ["none", keras.layers.MixUp(0.2)],
    }
    if find_spec("keras_cv"):
        import keras_cv

        policy = keras_cv.layers.RandAugment((0, 255), augmentations_per_image=2)
        augments["RandAugment, keras_cv"] = ["none", policy]
        augments["mixup, keras_cv"] = ["none", keras_cv.layers.MixUp(0.2)]
    options: dict[str, Any] = {"training": True, "repeat": True, "num_classes": CLASSES}
    datasets = {
        title: pipeline(split, SIZE, BATCH, augment=augment, **options)
        for title, augment in augments.items()
    }
    if find_spec("keras_cv"):
        datasets["RandAugment, keras_cv on batches"] = datasets["nothing"].map(
            lambda images, labels: (policy(images, training=True), labels)
        )
    return datasets


def measure(rounds: int = 3, seconds: float = 1.5) -> dict[str, float]:
    """Images per CPU-second by title, the median of the rounds."""
    datasets = contestants()
    rates: dict[str, list[float]] = {title: [] for title in datasets}
    for _ in range(rounds):
        for title, dataset in datasets.items():
            iterator = iter(dataset)
            next(iterator)  # the start is not measured
            start, end, count = time.process_time(), time.monotonic() + seconds, 0
            while not count or time.monotonic() < end:
                count += len(next(iterator)[0])
            rates[title].append(count / (time.process_time() - start))
            del iterator
    return {title: statistics.median(values) for title, values in rates.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks augmentation")
    parser.add_argument("--rounds", type=int, default=3, help="number of turns of each contestant")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of a turn")
    options = parser.parse_args(arguments)
    rates = measure(options.rounds, options.seconds)
    print(f"images of {SIZE} pixels per CPU-second")
    for title, rate in rates.items():
        print(f"{title:<34}{rate:>8,.0f}")


if __name__ == "__main__":
    main()
