"""The pipeline keeps up with a bare tf.data chain."""

from pathlib import Path
from typing import Any

import pytest
from benchmarks import input_pipeline

pytest.importorskip("tensorflow")


def test_the_benchmark_runs(tmp_path: Path) -> None:
    folder = input_pipeline.write_images(tmp_path, count=12)
    speed = input_pipeline.measure(folder, batches=2, batch_size=4, rounds=1)
    assert min(speed.bare, speed.ours, speed.augmented) > 0
    assert speed.ratio == pytest.approx(speed.ours / speed.bare)


@pytest.mark.slow
def test_the_pipeline_is_not_slower_than_a_bare_chain(tmp_path: Path, capsys: Any) -> None:
    speed = input_pipeline.measure(input_pipeline.write_images(tmp_path), rounds=7)
    with capsys.disabled():
        print(f"\n{speed}")
    assert speed.ratio >= 0.9
