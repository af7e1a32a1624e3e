"""Images per second of `embed` beside `predict`, and its memory for many files.

    python -m benchmarks embedding --photos FOLDER [--model ViT-Ti/16] [--images 512] [--rounds 3]
    python -m benchmarks embedding --files 100000

The first command takes turns, in one process: both decode, prepare and encode the same files in the
same batches, from the call to its end; what each compiles it has compiled before. On a busy machine
compare images per second of the processors, which do not count that `embed` decodes while it
computes. The second command embeds as many hard links of 100 small images by a tiny model, and
prints the peak memory of the process after the first thousand files and after all.
"""

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

import keras_vit
from keras_vit.curation import embed, embedding
from keras_vit.curation.embedding import Progress
from keras_vit.curation.photo_sources import find_photos
from keras_vit.evaluation.prediction import predict_files

BATCH = 32


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks embedding", description=__doc__)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--model", default="ViT-Ti/16")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--files", type=int)
    options = parser.parse_args(arguments)
    if options.files is not None:
        print_memory(options.files)
    else:
        compare_speed(options.photos, options.model, options.images, options.rounds)
    return 0


def compare_speed(photos: Path, name: str, images: int, rounds: int) -> None:
    model = keras_vit.create(name)
    listed = find_photos(photos)
    files = [listed.root / photo.name for photo in listed.walk()][:images]
    embedding.Encoder = cache(embedding.Encoder)
    calls = (lambda files: predict_all(model, files), lambda files: embed_all(model, files))
    for call in calls:
        call(files[:BATCH])  # compiles
    print(f"{name}, {len(files)} photographs in batches of {BATCH}")
    print("images per second: predict, embed, ratio     per second of the processors")
    ratios = []
    for _ in range(rounds):
        predict, embedded = (rates_of(call, files) for call in calls)
        ratios.append([mine / peer for mine, peer in zip(embedded, predict, strict=True)])
        both = zip(predict, embedded, ratios[-1], strict=True)
        print(*(f"{p:20.1f} {e:7.1f} {r:7.3f}" for p, e, r in both), flush=True)
    medians = map(statistics.median, zip(*ratios, strict=True))
    print("median ratios:", *(f"{median:.3f}" for median in medians))


def rates_of(call: Callable[[Sequence[Path]], None], files: Sequence[Path]) -> tuple[float, float]:
    began, used = time.perf_counter(), time.process_time()
    call(files)
    seconds, busy = time.perf_counter() - began, time.process_time() - used
    return len(files) / seconds, len(files) / busy


def predict_all(model: keras_vit.VisionTransformer, files: Sequence[Path]) -> None:
    for _ in predict_files(model, files, BATCH):
        pass


def embed_all(model: keras_vit.VisionTransformer, files: Sequence[Path]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        embed(model, files, Path(folder) / "index", batch_size=BATCH)


def print_memory(count: int) -> None:
    model = keras_vit.VisionTransformer(
        patch_size=4, hidden_dim=16, depth=1, num_heads=2, input_shape=(8, 8, 3)
    )
    random = np.random.default_rng(0)

    def report(progress: Progress) -> None:
        if progress.files in (1024, count):
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"{progress.files:>9,} files: peak {peak:,.0f} MiB", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        first, photos = Path(folder) / "first", Path(folder) / "photos"
        first.mkdir()
        for i in range(100):
            pixels = random.integers(0, 256, (10, 10, 3), np.uint8)
            Image.fromarray(pixels).save(first / f"{i}.png")
        for i in range(count):
            place = photos / f"{i // 10_000:04d}"
            if i % 10_000 == 0:
                place.mkdir(parents=True)
            os.link(first / f"{i % 100}.png", place / f"{i:07d}.png")
        began = time.perf_counter()
        index = embed(model, photos, Path(folder) / "index", batch_size=256, report=report)
        print(f"{len(index):,} rows in {time.perf_counter() - began:.0f} s")
        began = time.perf_counter()
        embed(model, photos, index.folder, batch_size=256)
        print(f"again, nothing new: {time.perf_counter() - began:.0f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"the whole process, the open index included: peak {peak:,.0f} MiB")
