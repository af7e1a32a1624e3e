"""Images per second of `embed` beside `predict`, and its memory for many files.

    python -m benchmarks embedding --photos FOLDER [--model ViT-Ti/16] [--images 512] [--rounds 3]
    python -m benchmarks embedding --files 100000
    python -m benchmarks embedding --files 100000 --audit

The first command takes turns, in one process: both decode, prepare and encode the same files in the
same batches, from the call to its end; what each compiles it has compiled before. On a busy machine
compare images per second of the processors, which do not count that `embed` decodes while it
computes. The second command embeds as many small images of noise by a tiny model, and prints the
peak memory of the process after the first thousand files and after all. The third one then measures
them twice, of which the second time reads what was kept, and audits them.
"""

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

import keras_vit
from keras_vit.curation import embed, embedding, measure_photos
from keras_vit.curation.embedding import Progress
from keras_vit.curation.photo_sources import find_photos
from keras_vit.evaluation.prediction import predict_files
from keras_vit_cli.audit.audit_page import write_audit_page
from keras_vit_cli.audit.findings import audit_photos

BATCH = 32


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks embedding", description=__doc__)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--model", default="ViT-Ti/16")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--files", type=int)
    parser.add_argument("--audit", action="store_true")
    options = parser.parse_args(arguments)
    if options.files is not None:
        print_memory(options.files, options.audit)
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


def print_memory(count: int, audit: bool) -> None:
    model = keras_vit.VisionTransformer(
        patch_size=4, hidden_dim=16, depth=1, num_heads=2, input_shape=(8, 8, 3)
    )

    def report(progress: Progress) -> None:
        if progress.files in (1024, count):
            print(f"{progress.files:>9,} files: peak {peak()}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        photos, out = Path(folder) / "photos", Path(folder) / "index"
        make_files(photos, count)
        with timed(f"{count:,} rows"):
            embed(model, photos, out, batch_size=256, report=report)
        with timed("again, nothing new"):
            index = embed(model, photos, out, batch_size=256)
        if not audit:
            return
        for _ in range(2):
            with timed("measures of all photographs"):
                measure_photos(index, keep=True)
        with timed("the whole audit, with its page"):
            results = audit_photos(index, seed=0, keep=True)
            write_audit_page(Path(folder) / "index.html", Path(folder), index, results, most=100)


def make_files(photos: Path, count: int) -> None:
    random = np.random.default_rng(0)
    for i in range(count):
        place = photos / f"{10 * i // count}"
        place.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (10, 10, 3), np.uint8)
        Image.fromarray(pixels).save(place / f"{i:07d}.png")


@contextmanager
def timed(what: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    print(f"{what}: {time.perf_counter() - began:.0f} s, peak {peak()}", flush=True)


def peak() -> str:
    """Of the process, from its start."""
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB"
