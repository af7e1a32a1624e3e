"""Images per second and core that both readers prepare, and bare chains of tf.data and Pillow.

`python -m benchmarks input_pipeline --data FOLDER`: three minutes; prints one line per backend
and policy. Without a folder, images are generated.

All decode, crop, resize to 224 pixels, flip and batch; they take turns, so that a busy machine is
busy for all, and are measured in CPU time, which other programs do not affect. The chains do what
the tutorials do: they neither shuffle nor take a seed, and fail at a broken file. Pillow's decodes
and resizes bytes in threads.
"""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from keras_vit._base.processors import available_processors

BACKENDS = ("tensorflow", "jax", "torch")
POLICIES = ("mixed_bfloat16", "mixed_float16")


@dataclass(frozen=True)
class Speed:
    """Images per second and core.

    Attributes:
        bare: The bare chain.
        ours: `keras_vit.data.pipeline`, with crop and flip as in the chain.
        augmented: The pipeline with RandAugment (2, 10) and mixup 0.2 as well.
        pillow: The bare chain of Pillow.
        grain: As `ours`, read by Grain.
        grain_augmented: As `augmented`, likewise.
        ratio: `ours / bare`, the median of the rounds.
        grain_ratio: `grain / ours`, likewise.
    """

    bare: float
    ours: float
    augmented: float
    pillow: float
    grain: float
    grain_augmented: float
    ratio: float
    grain_ratio: float

    def __str__(self) -> str:
        return (
            f"bare {self.bare:5.0f}, ours {self.ours:5.0f} (ratio {self.ratio:.2f}), "
            f"with RandAugment and mixup {self.augmented:4.0f}; bare Pillow {self.pillow:4.0f}, "
            f"Grain {self.grain:4.0f} (ratio {self.grain_ratio:.2f} to ours), with RandAugment and "
            f"mixup {self.grain_augmented:4.0f} images/s per core"
        )


def measure(folder: Path, batches: int = 40, batch_size: int = 32, rounds: int = 5) -> Speed:
    """Alternates the contestants over the training images of `folder`."""
    from keras_vit import data

    split = data.load(folder, reader="tensorflow").train
    by_grain = data.load(folder, reader="grain").train
    assert isinstance(split, data.FileSplit)
    options: dict[str, Any] = {"image_size": 224, "batch_size": batch_size, "training": True}
    options |= {"repeat": True, "num_classes": len(split.class_names)}
    mixed = data.Augmentation(rand_augment=(2, 10), mixup=0.2)
    contestants = {
        "bare": _bare_chain(split, batch_size),
        "ours": data.pipeline(split, augment="inception", **options),
        "augmented": data.pipeline(split, augment=mixed, **options),
        "pillow": _BarePillow(split, batch_size),
        "grain": data.pipeline(by_grain, augment="inception", **options),
        "grain_augmented": data.pipeline(by_grain, augment=mixed, **options),
    }
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, dataset in contestants.items():
            iterator = iter(dataset)
            next(iterator)  # the start is not measured
            start = time.process_time()
            count = 0
            for images, _ in itertools.islice(iterator, batches):
                assert np.dtype(images.dtype.name) == np.float32
                count += len(images)
            rates[name].append(count / (time.process_time() - start))
            del iterator  # and what it reads ahead
    return Speed(
        **{name: statistics.median(values) for name, values in rates.items()},
        ratio=statistics.median(np.divide(rates["ours"], rates["bare"])),
        grain_ratio=statistics.median(np.divide(rates["grain"], rates["ours"])),
    )


class _BarePillow:
    """Batches of crops of random files, decoded in threads."""

    def __init__(self, split: Any, batch_size: int) -> None:
        self.split, self.batch_size = split, batch_size

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        random, labels = np.random.default_rng(0), self.split.labels()
        with ThreadPoolExecutor(available_processors()) as pool:
            while True:
                chosen = random.integers(0, len(self.split), self.batch_size)
                images = pool.map(self._image, chosen, random.uniform(0.3, 1, self.batch_size))
                yield np.stack(list(images)), labels[chosen]

    def _image(self, index: int, part: float) -> np.ndarray:
        with Image.open(self.split.files[index]) as image:
            width, height = (round(side * part) for side in image.size)
            box = (0, 0, width, height)
            resized = image.convert("RGB").resize((224, 224), Image.Resampling.BILINEAR, box)
        return np.asarray(resized, "float32")[:, ::-1]


def _bare_chain(split: Any, batch_size: int) -> Any:
    import tensorflow as tf

    classes = len(split.class_names)

    def prepare(file: Any, label: Any) -> Any:
        image = tf.io.decode_jpeg(tf.io.read_file(file), channels=3)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.shape(image),
            tf.zeros((1, 0, 4)),
            min_object_covered=0.0,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.05, 1.0),
            use_image_if_no_bounding_boxes=True,
        )
        image = tf.image.resize(tf.slice(image, begin, size), (224, 224))
        image = tf.image.random_flip_left_right(image)
        image.set_shape((224, 224, 3))
        return image, tf.one_hot(label, classes)

    files = tf.data.Dataset.from_tensor_slices(([str(f) for f in split.files], split.labels()))
    prepared = files.repeat().map(prepare, num_parallel_calls=tf.data.AUTOTUNE)
    return prepared.batch(batch_size).prefetch(tf.data.AUTOTUNE)


def write_images(folder: Path, count: int = 400) -> Path:
    """Writes JPEG files of 320 x 240 pixels in two classes, as detailed as photographs."""
    import tensorflow as tf

    random = np.random.default_rng(0)
    for i in range(count):
        coarse = tf.image.resize(random.uniform(0, 255, (12, 16, 3)), (240, 320), "bicubic")
        pixels = np.clip(coarse + random.normal(0, 8, (240, 320, 3)), 0, 255).astype(np.uint8)
        file = folder / "ab"[i % 2] / f"{i}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(tf.io.encode_jpeg(pixels, quality=85).numpy())
    return folder


def _measure_here(folder: Path, policy: str, rounds: int) -> None:
    """Runs in its own process."""
    import keras

    keras.config.set_dtype_policy(policy)
    print(f"{keras.backend.backend():<10} {policy:<14} {measure(folder, rounds=rounds)}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks input_pipeline")
    parser.add_argument("--data", type=Path, help="folder of images, as for keras-vit train")
    parser.add_argument("--rounds", type=int, default=5, help="number of turns of each contestant")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--policies", nargs="+", default=POLICIES, help="dtype policies")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as made:
        folder = options.data or write_images(Path(made))
        for backend in options.backends:
            for policy in options.policies:
                code = (
                    "import sys, pathlib; from benchmarks.input_pipeline import _measure_here as m;"
                    "m(pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))"
                )
                command = [sys.executable, "-c", code, str(folder), policy, str(options.rounds)]
                environment = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
                subprocess.run(command, env=os.environ | environment, check=True)


if __name__ == "__main__":
    main()
