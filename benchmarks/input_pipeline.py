"""Images per second and core that both readers prepare, and bare chains; what a step waits.

`python -m benchmarks input_pipeline --data FOLDER`: three minutes; prints one line per backend
and policy. Without a folder, images are generated. The bare chains are those of tf.data, Pillow,
and torchvision where it is installed.

`python -m benchmarks input_pipeline --steps 20 --data FOLDER` prints what a training step waits for
its images, by reader and without or with their cache: the time of a step of `fit`, less that of a
step on a batch that is in memory. Where the processors also train, that is what reading takes.

All decode, crop, resize to 224 pixels, flip and batch; they take turns, so that a busy machine is
busy for all, and are measured in CPU time, which other programs do not affect. The chains do what
the tutorials do: they neither shuffle nor take a seed, and fail at a broken file. Pillow's decodes
and resizes bytes in threads.
"""

import argparse
import itertools
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

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
        torchvision: That of torchvision's transforms; not a number where it is not installed.
        grain: As `ours`, read by Grain.
        grain_augmented: As `augmented`, likewise.
        ratio: `ours / bare`, the median of the rounds.
        grain_ratio: `grain / ours`, likewise.
    """

    bare: float
    ours: float
    augmented: float
    pillow: float
    torchvision: float
    grain: float
    grain_augmented: float
    ratio: float
    grain_ratio: float

    def __str__(self) -> str:
        return (
            f"bare {self.bare:5.0f}, ours {self.ours:5.0f} (ratio {self.ratio:.2f}), "
            f"with RandAugment and mixup {self.augmented:4.0f}; bare Pillow {self.pillow:4.0f}, "
            f"torchvision {self.torchvision:4.0f}, Grain {self.grain:4.0f} (ratio "
            f"{self.grain_ratio:.2f} to ours), with RandAugment and mixup "
            f"{self.grain_augmented:4.0f} images/s per core"
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
    if find_spec("torchvision") is not None:
        contestants["torchvision"] = _Torchvision(split, batch_size)
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
    rates.setdefault("torchvision", [math.nan])
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


class _Torchvision:
    """Batches as torchvision's reference scripts make them, without processes beside this one."""

    def __init__(self, split: Any, batch_size: int) -> None:
        self.split, self.batch_size = split, batch_size

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        import torch
        from torch.utils.data import DataLoader
        from torchvision import transforms
        from torchvision.datasets.folder import default_loader

        prepare = transforms.Compose(
            [
                transforms.RandomResizedCrop(224, scale=(0.05, 1.0)),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
            ]
        )
        order = np.random.default_rng(0).permutation(len(self.split))
        files, labels = self.split.files, self.split.labels()
        torch.set_num_threads(1)  # as in DataLoader's processes; more wait for each other
        images = _Mapped(lambda i: (prepare(default_loader(files[i])), int(labels[i])), order)
        while True:
            for batch, of_batch in DataLoader(images, self.batch_size):
                yield batch.numpy(), of_batch.numpy()


class _Mapped(NamedTuple):
    """A function of each of some places: a data set as torch has it."""

    function: Callable[[int], Any]
    places: Any

    def __getitem__(self, index: Any) -> Any:
        return self.function(self.places[index])

    def __len__(self) -> int:
        return len(self.places)


def waits(folder: Path, steps: int, cache: int, model: str, batch_size: int = 32) -> Iterator[str]:
    """A line per way to read: how long a training step takes, and how long it waits."""
    import keras

    import keras_vit
    from keras_vit import data
    from keras_vit.data.image_readers import READERS

    splits = data.load(folder)
    network = keras_vit.create(model, num_classes=splits.num_classes)
    network.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    def seconds(batches: Any) -> float:
        """Of a step, the median of three turns."""
        times = []
        for _ in range(4):  # the first one compiles
            start = time.perf_counter()
            network.fit(batches, steps_per_epoch=steps, verbose=0)
            times.append((time.perf_counter() - start) / steps)
        return statistics.median(times[1:])

    options: dict[str, Any] = {"training": True, "repeat": True, "augment": "inception"}
    for reader in READERS:
        split = data.load(folder, reader=reader).train
        split = split.take(np.arange(min(len(split), steps * batch_size)))
        kept = data.cached_photographs(split, cache)
        ways = {"files": (split, False), f"cache={cache}": (kept, False), "memory": (kept, True)}
        for name, (source, in_memory) in ways.items():
            batches = data.pipeline(source, 224, batch_size, cache=in_memory, **options)
            if reader == "tensorflow":
                one = batches.take(1).cache().repeat()
            else:
                first = next(iter(batches))
                one = (first for _ in itertools.count())
            step, read = seconds(one), seconds(batches)
            yield (
                f"{keras.backend.backend():<10} {reader:<10} {name:<10} step {1000 * read:6.0f} ms,"
                f" of which it waits {1000 * (read - step):6.0f} ms ({1 - step / read:.0%})"
            )


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


def write_images(folder: Path, count: int = 400, width: int = 320) -> Path:
    """Writes JPEG files of 4 x 3 proportions in two classes, as detailed as photographs."""
    import tensorflow as tf

    height = width * 3 // 4
    random = np.random.default_rng(0)
    for i in range(count):
        coarse = tf.image.resize(random.uniform(0, 255, (12, 16, 3)), (height, width), "bicubic")
        pixels = np.clip(coarse + random.normal(0, 8, (height, width, 3)), 0, 255).astype(np.uint8)
        file = folder / "ab"[i % 2] / f"{i}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(tf.io.encode_jpeg(pixels, quality=85).numpy())
    return folder


def _measure_here(folder: str, policy: str, rounds: str) -> None:
    """Runs in its own process."""
    import keras

    keras.config.set_dtype_policy(policy)
    speed = measure(Path(folder), rounds=int(rounds))
    print(f"{keras.backend.backend():<10} {policy:<14} {speed}")


def _wait_here(folder: str, policy: str, steps: str, cache: str, model: str) -> None:
    """Runs in its own process."""
    import keras

    keras.config.set_dtype_policy(policy)
    for line in waits(Path(folder), int(steps), int(cache), model):
        print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks input_pipeline")
    parser.add_argument("--data", type=Path, help="folder of images, as for keras-vit train")
    parser.add_argument("--rounds", type=int, default=5, help="number of turns of each contestant")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--policies", nargs="+", default=POLICIES, help="dtype policies")
    parser.add_argument("--width", type=int, default=320, help="of images that are generated")
    parser.add_argument("--steps", type=int, help="measure what so many training steps wait")
    parser.add_argument("--model", default="ViT-Ti/16", help="that --steps train")
    parser.add_argument("--cache", type=int, default=448, help="pixels, with --steps")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as made:
        count = 400 if options.width < 1000 else 80
        folder = options.data or write_images(Path(made), count, options.width)
        function, numbers = "_measure_here", [str(options.rounds)]
        if options.steps:
            function = "_wait_here"
            numbers = [str(options.steps), str(options.cache), options.model]
        code = f"import sys; from benchmarks.input_pipeline import {function} as run;"
        code += "run(*sys.argv[1:])"
        for backend in options.backends:
            for policy in options.policies:
                command = [sys.executable, "-c", code, str(folder), policy, *numbers]
                environment = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
                subprocess.run(command, env=os.environ | environment, check=True)


if __name__ == "__main__":
    main()
