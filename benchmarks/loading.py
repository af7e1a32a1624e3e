"""Time and memory of loading ViT-B/16, compared with reading its arrays with NumPy.

`python -m benchmarks loading`: half a minute; prints one line per format.
"""

import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Cost:
    """The cost of loading one file: its size as float32, and ratios to NumPy's time and to it."""

    file: str
    weights_bytes: int
    seconds: float
    times_numpy: float
    peak_ratio: float

    def __str__(self) -> str:
        return (
            f"{self.file}: {self.weights_bytes / 1e6:.0f} MB, loaded in {self.seconds:.2f} s "
            f"({self.times_numpy:.2f} x NumPy), peak {self.peak_ratio:.2f} x the weights"
        )


def loading_costs(folder: Path, name: str = "ViT-B/16", rounds: int = 5) -> Iterator[Cost]:
    """Loads and reads in turn, so that a busy machine is busy for both; the best of each counts.

    The variables of the model count in the peak as well: loading needs them.
    """
    import keras_vit

    model = keras_vit.create(name)
    size = sum(int(np.prod(weight.shape)) * 4 for weight in model.weights)
    for file, layout, read in (
        ("m.npz", "google", _read_npz),
        ("m.safetensors", "timm", _read_safetensors),
    ):
        path = folder / file
        keras_vit.save_weights(model, path, layout=layout)
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(_measured(lambda path=path: keras_vit.load_weights(model, path)))
            theirs.append(_measured(lambda path=path, read=read: read(path))[0])
        path.unlink()
        seconds = min(seconds for seconds, _ in ours)
        peak = max(peak for _, peak in ours) / size + 1
        yield Cost(file, size, seconds, seconds / min(theirs), peak)


def _resident_bytes() -> int:
    line = next(li for li in STATUS.read_text().splitlines() if li.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def _measured(work: Callable[[], Any]) -> tuple[float, int]:
    """Seconds, and bytes above the start at the peak."""
    start, peak, done = _resident_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, _resident_bytes() - start)

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    done.set()
    watcher.join()
    return seconds, peak


def _read_npz(file: Path) -> None:
    with np.load(file) as arrays:
        _ = [arrays[name] for name in arrays.files]


def _read_safetensors(file: Path) -> None:
    from safetensors.numpy import load_file

    # The library returns views of a mapped file: only a copy reads it.
    _ = [np.array(values) for values in load_file(file).values()]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks loading", description=__doc__)
    parser.add_argument("--model", default="ViT-B/16", help="a name of keras_vit.list_models()")
    parser.add_argument(
        "--rounds", type=int, default=5, help="number of times that each file is loaded"
    )
    options = parser.parse_args(arguments)
    if not STATUS.exists():
        raise SystemExit("Memory is measured through /proc, which this system does not have.")
    with tempfile.TemporaryDirectory() as folder:
        for cost in loading_costs(Path(folder), options.model, options.rounds):
            print(cost)
