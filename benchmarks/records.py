"""What reading ArrayRecord files by index costs, beside reading TFRecord files in their order.

`python -m benchmarks records`: a minute; writes 4,000 records of 110 KB, the mean of ImageNet, in
eight files of each format, into a temporary folder. Contestants take turns; times are medians of
the rounds. The files are in the machine's memory: what disks and networks add is not measured.
"""

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

IMAGENET_21K = 14_197_122
SHARDS = 8


def write_files(folder: Path, count: int, size: int) -> dict[str, list[str]]:
    """The paths of the files of each format; both hold the same records, of random bytes."""
    import tensorflow as tf
    from array_record.python.array_record_module import ArrayRecordWriter

    writers: dict[str, Callable[[str], Any]] = {
        "tfrecord": tf.io.TFRecordWriter,
        "array_record": lambda file: ArrayRecordWriter(file, "group_size:1"),
    }
    files: dict[str, list[str]] = {}
    for kind, writer in writers.items():
        random = np.random.default_rng(0)
        files[kind] = [str(folder / f"{i}.{kind}") for i in range(SHARDS)]
        for file in files[kind]:
            opened = writer(file)
            for _ in range(count // SHARDS):
                opened.write(random.bytes(size))
            opened.close()
    return files


def measure(folder: Path, count: int, size: int, rounds: int) -> None:
    """Prints microseconds per record of each way to read them."""
    import tensorflow as tf

    from keras_vit.data.sources.records import RecordSplit, open_records

    files = write_files(folder, count, size)
    records = open_records(files["array_record"])
    split = RecordSplit("train", ("a", "b"), records, lambda record: (record, 0))

    def by_index(shuffle_seed: int | None) -> Any:
        def read(example: Any, label: Any) -> Any:
            return tf.strings.length(split.read(example, label)[0][0])

        examples = split.dataset(shuffle_seed)
        return examples.map(read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    contestants: dict[str, Callable[[], Any]] = {
        "tfrecord, sequential": lambda: tf.data.TFRecordDataset(files["tfrecord"]).map(
            tf.strings.length, num_parallel_calls=tf.data.AUTOTUNE
        ),
        "array_record, by index": lambda: by_index(None),
        "array_record, by index, shuffled": lambda: by_index(0),
    }
    wall: dict[str, list[float]] = {name: [] for name in contestants}
    cpu: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds + 1):  # the first one fills the machine's file cache
        for name, make in contestants.items():
            dataset = make()
            began, used = time.perf_counter(), time.process_time()
            assert sum(1 for _ in dataset.batch(100)) == -(-count // 100)
            wall[name].append((time.perf_counter() - began) / count)
            cpu[name].append((time.process_time() - used) / count)
    print(f"{count} records of {size} bytes                     microseconds per record")
    for name in contestants:
        medians = [statistics.median(times[name][1:]) * 1e6 for times in (wall, cpu)]
        print(f"  {name:<34}{medians[0]:8.1f} elapsed{medians[1]:8.1f} CPU")


def measure_millions(indices: int = 300_000) -> None:
    """Prints what the order of as many records as ImageNet-21k's takes."""
    import tensorflow as tf

    from keras_vit.data.sources.records import Records, RecordSplit, Shard

    list(tf.data.Dataset.range(2).batch(2))  # what TensorFlow itself takes is not counted
    before = _memory()
    records = Records([Shard("none", 0, IMAGENET_21K, IMAGENET_21K)], [])  # not read
    split = RecordSplit("train", ("a", "b"), records, lambda record: (record, 0))
    began = time.perf_counter()
    examples = split.dataset(shuffle_seed=0, epoch=3, start=IMAGENET_21K // 2)
    iterator = iter(examples.batch(100))
    next(iterator)
    seconds = time.perf_counter() - began
    grown = _memory() - before
    used = time.process_time()
    for _ in range(indices // 100):
        next(iterator)
    each = (time.process_time() - used) / indices
    print(
        f"{IMAGENET_21K:,} records take {grown:.0f} MiB; the order of a pass begins in its middle "
        f"after {seconds * 1e3:.0f} ms, and takes {each * 1e6:.1f} microseconds of CPU per record"
    )


def _memory() -> float:
    """MiB of this process in memory, now (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks records")
    parser.add_argument("--count", type=int, default=4000, help="records per format")
    parser.add_argument("--size", type=int, default=110_000, help="bytes per record")
    parser.add_argument("--rounds", type=int, default=5, help="number of turns of each contestant")
    options = parser.parse_args(arguments)
    measure_millions()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), options.count, options.size, options.rounds)


if __name__ == "__main__":
    main()
