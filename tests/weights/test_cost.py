"""What loading ViT-B/16 costs in memory and time, beside reading its arrays with NumPy."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import loading


@pytest.mark.slow
@pytest.mark.skipif(not loading.STATUS.exists(), reason="needs /proc")
def test_loading_vit_b_16(tmp_path: Path, capsys: Any) -> None:
    for cost in loading.loading_costs(tmp_path):
        with capsys.disabled():
            print(f"\n{cost}")
        assert cost.peak_ratio < 2.2
        assert cost.times_numpy < 2
