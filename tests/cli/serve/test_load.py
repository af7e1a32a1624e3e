"""The server under an hour's load in five minutes; KERAS_VIT_LOAD_SECONDS makes it shorter."""

import os
from pathlib import Path

import pytest

from tests.cli.serve.helpers import jpeg, save, tiny_model

serving = pytest.importorskip("benchmarks.serving")


@pytest.mark.slow
def test_load_kill_and_restart(shared: Path) -> None:
    weights = shared / "weights" / "vit_tiny_patch16_224.augreg_in21k_ft_in1k" / "model.safetensors"
    files = sorted((shared / "photos" / "flowers").rglob("*.jpg"))[::40]
    figures = serving.measure(weights, files, float(os.environ.get("KERAS_VIT_LOAD_SECONDS", 300)))
    print(figures)
    assert (figures["wrong"], figures["crashes"]) == (0, 0)
    assert figures["throughput_ratio"] >= 0.85
    assert figures["p99_over_single"] < 20
    assert figures["memory_growth"] <= 0.1


@pytest.mark.slow
def test_two_seconds_of_load(tmp_path: Path) -> None:
    for seed in range(4):
        (tmp_path / f"{seed}.jpg").write_bytes(jpeg(seed))
    model = save(tiny_model(), tmp_path / "model.keras")
    figures = serving.measure(model, sorted(tmp_path.glob("*.jpg")), 2, 4, restarts=False)
    assert (figures["wrong"], figures["crashes"]) == (0, 0)
    assert figures["right"] > 50
