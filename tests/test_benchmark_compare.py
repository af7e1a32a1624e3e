"""The benchmarks take turns, count, skip what is missing, and fail when they should."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _quick, _report, compare
from benchmarks._rounds import Result
from benchmarks._work import Work


def result(name: str, seconds: list[float], **changes: Any) -> Result:
    started = {"macs": 10**9, "product_size": 1000, "import_seconds": 1.0, "import_bytes": 2**29}
    started |= {"build_seconds": 1.0, "first_step_seconds": 1.0}
    work = Work(**{"task": "training", "batch_size": 4, **compare.parse_contestant(name)[0]})
    return Result(work, seconds, [started], {"peak_bytes": 2**30}, **changes)


def test_ratios_are_taken_within_a_round_and_limits_by_operations_and_dtype() -> None:
    ours, hub = result("keras_vit/jax", [1.0, 2.0, 4.0]), result("keras_hub/jax", [2.0, 4.0, 8.0])
    other = result("keras_hub/torch", [1.0] * 3)
    limit = result("limit/jax", [0.1] * 3)
    # A thousand cubed operations in 0.1 s, three billion an image and training step.
    assert limit.images_per_second == pytest.approx([10 / 3] * 3)
    assert _report.keras_hub_pairs([ours, hub, other, limit]) == [(ours, hub)]
    table = _report.table("training", [ours, hub, other, limit])
    assert "keras_vit/jax is 2.00 x keras_hub/jax (2.00 to 2.00)" in table
    assert "1024 MiB" in table
    names = ("keras_vit/jax", "keras_vit/torch:dtype=bfloat16", "limit/jax")
    results = [result(name, [time]) for name, time in zip(names, (2.0, 1.0, 0.2), strict=True)]
    lines = _report.table("training", results).splitlines()
    starts = ("keras_vit/jax ", "bfloat16 ", "limit/jax ")
    plain, half, _ = (next(line for line in lines if start in line) for start in starts)
    assert re.search(r"2\.00 .* 0\.50 +120\.0% ", plain)
    assert re.search(r"4\.00 .* 1\.00 +- ", half)


def test_the_small_form_fails_when_a_recorded_ratio_is_lost(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "quick.json"
    hub = result("keras_hub/jax", [2.0])
    before, after = ({"training": [result("keras_vit/jax", [one]), hub]} for one in (1.0, 1.2))
    alone = {"training": [result("keras_vit/jax", [9.0])]}
    for results, record, again, words in (
        (before, False, [], "nothing is recorded"),
        (before, True, [], ""),
        (before, False, [], ""),
        (after, False, ["keras_vit/jax", "keras_hub/jax"], "LOST"),
        (alone, False, [], "not installed"),
    ):
        assert _quick.verdict(results, record=record, file=file) == again
        assert words in capsys.readouterr().out
        if record:
            assert json.loads(file.read_text()) == {"training jax": 2.0}
