"""What loading ViT-B/16 costs in memory and time, beside reading its arrays with NumPy."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_vit import ViTB16
from keras_vit.checkpoints import load_weights, save_weights

STATUS = Path("/proc/self/status")


def resident_bytes() -> int:
    line = next(li for li in STATUS.read_text().splitlines() if li.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def measured(work: Callable[[], Any]) -> tuple[float, int]:
    """Seconds, and bytes above the start at the peak."""
    start, peak, done = resident_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, resident_bytes() - start)

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    done.set()
    watcher.join()
    return seconds, peak


def read_npz(file: Path) -> None:
    with np.load(file) as arrays:
        _ = [arrays[name] for name in arrays.files]


def read_safetensors(file: Path) -> None:
    from safetensors.numpy import load_file

    # The library hands out views of a mapped file: only a copy has been read.
    _ = [np.array(values) for values in load_file(file).values()]


@pytest.mark.slow
@pytest.mark.skipif(not STATUS.exists(), reason="needs /proc")
def test_loading_vit_b_16(tmp_path: Path, capsys: Any) -> None:
    model = ViTB16()
    size = sum(int(np.prod(weight.shape)) * 4 for weight in model.weights)
    for file, layout, read in (
        ("m.npz", "google", read_npz),
        ("m.safetensors", "timm", read_safetensors),
    ):
        path = tmp_path / file
        save_weights(model, path, layout=layout)
        ours, theirs = [], []
        for _ in range(5):  # in turn, so that a busy machine is busy for both
            ours.append(measured(lambda path=path: load_weights(model, path)))
            theirs.append(measured(lambda path=path, read=read: read(path))[0])
        seconds, numpy = min(seconds for seconds, _ in ours), min(theirs)
        # The model's own variables count as well: they are part of what loading needs.
        peak = max(peak for _, peak in ours) / size + 1
        with capsys.disabled():
            print(
                f"\n{file}: {size / 1e6:.0f} MB, loaded in {seconds:.2f} s "
                f"({seconds / numpy:.2f} x NumPy), peak {peak:.2f} x the weights"
            )
        assert peak < 2.2
        assert seconds < 2 * numpy
        path.unlink()
