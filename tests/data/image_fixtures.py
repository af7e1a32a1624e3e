"""Synthetic images for the tests, the files that hold them, and what comes out of a pipeline."""

import io
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from PIL import Image

from keras_vit.data import pipeline

_Y, _X = np.mgrid[0:24, 0:32]
# Smooth, so that JPEG keeps it, and different in every corner, so that a turn shows.
PIXELS = np.stack([_Y * 10, _X * 7, (_X + _Y) * 4], axis=-1).astype(np.uint8)
IMAGE = Image.fromarray(PIXELS)


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def one_quick(cases: Iterable[Any], *before: Any) -> list[Any]:
    """Parameters of a table of damage, of which `make test` runs the first for all of them."""
    marks = itertools.chain([()], itertools.repeat(pytest.mark.thorough))
    return [pytest.param(*before, c, marks=m) for c, m in zip(cases, marks, strict=False)]


def plain(level: int, size: tuple[int, int] = (20, 16)) -> bytes:
    """A PNG file of one gray level."""
    return encode(Image.new("RGB", size, (level, level, level)), "PNG")


def orientation(number: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = number
    return exif


IMAGENET = ("image/encoded", "image/class/label")


def example(image: bytes, label: int, names: tuple[str, ...] = IMAGENET) -> bytes:
    """A record of TensorFlow: two features, of these names."""
    import tensorflow as tf

    record = tf.train.Example()
    record.features.feature[names[0]].bytes_list.value.append(image)
    record.features.feature[names[1]].int64_list.value.append(label)
    return record.SerializeToString()


def write_records(file: Path, records: Iterable[bytes]) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(file)) as writer:
        for record in records:
            writer.write(record)


def write_examples(file: Path, records: Iterable[tuple[bytes, int]], *names: str) -> None:
    write_records(file, (example(*pair, names or IMAGENET) for pair in records))


def png_of_twelve_bits(seed: int = 0, size: tuple[int, int] = (40, 30)) -> bytes:
    """A PNG file of 16 bits per channel that fills the lower 12, as X-rays do: it looks black."""
    pixels = np.random.default_rng(seed).integers(0, 4096, size).astype("uint16")
    return encode(Image.fromarray(pixels), "PNG")


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, contents in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents)
    return root


def flat_folder(root: Path, count: int = 10) -> Path:
    """`root/<class>/*.png`, classes a and b; the gray level of an image is its number."""
    names = [f"{'ab'[i % 2]}/{i:03d}.png" for i in range(2 * count)]
    return write(root, {name: plain(i) for i, name in enumerate(names)})


def smooth(random: np.random.Generator, width: int, height: int) -> Image.Image:
    """A picture that JPEG and a resize keep: a few colors, and what lies between them."""
    coarse = random.integers(0, 256, (5, 6, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def photographs(root: Path, sizes: tuple[tuple[int, int], ...], count: int) -> Path:
    """Smooth ones of two classes, of many sizes, formats and orientations, gray ones among them."""
    random = np.random.default_rng(0)
    for number in range(count):
        image = smooth(random, *sizes[number % len(sizes)])
        image = image.convert("L") if number % 5 == 4 else image
        kind = ("jpeg", "png", "webp")[number % 3]
        contents = encode(image, kind, exif=orientation(1 + number % 8), quality=95)
        write(root, {f"{'ab'[number % 2]}/{number}.{kind}": contents})
    return root


def levels(batches: Iterable[Any]) -> list[int]:
    return [round(float(level)) for images, _ in batches for level in images[:, 0, 0, 0]]


def passes(batches: Any, count: int = 1) -> list[np.ndarray]:
    """The images of `count` passes over a data set, labels appended as one more value."""
    return [
        np.concatenate([np.c_[x.reshape(len(x), -1), y] for x, y in batches.as_numpy_iterator()])
        for _ in range(count)
    ]


def check_stopped_run(split: Any, batch: int, steps: int, starts: Any, **options: Any) -> None:
    """Training that goes on behind a step has the batches of one that was not stopped."""

    def stream(start: int) -> np.ndarray:
        batches = pipeline(split, 8, batch, True, repeat=True, start_step=start, **options)
        assert batches.cardinality() == -1  # it never ends
        return passes(batches.take(steps - start))[0]

    whole = stream(0)
    for start in starts:
        keras.utils.set_random_seed(start)  # the global seed does not matter
        np.testing.assert_array_equal(stream(start), whole[batch * start :])
