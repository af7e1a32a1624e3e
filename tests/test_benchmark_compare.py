"""The benchmarks take turns, count, skip what is missing, and fail when they should."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _against, _page, _quick, _report, compare, performance, tpu
from benchmarks._rounds import Result
from benchmarks._work import Work


def result(name: str, seconds: list[float], **changes: Any) -> Result:
    started = {"macs": 10**9, "product_size": 1000, "import_seconds": 1.0, "import_bytes": 2**29}
    started |= {"build_seconds": 1.0, "first_step_seconds": 1.0}
    own = compare.parse_contestant(name)[0]
    work = Work(**{"task": "training", "batch_size": 4, **own})
    return Result(work, seconds, [started], {"peak_bytes": 2**30}, **changes)


def test_contestants_are_named() -> None:
    named = [(one["system"], one["variant"]) for one in compare.parse_contestant("keras_hub")]
    assert named == [("keras_hub", b) for b in ("tensorflow", "jax", "torch")]
    text = "keras_vit/jax:token_merging=[8,0];remat=true;activation=gelu;batch_size=2"
    options = {"token_merging": [8, 0], "remat": True, "activation": "gelu"}
    one = {"system": "keras_vit", "variant": "jax", "options": options, "batch_size": 2}
    assert compare.parse_contestant(text) == [{**one, "label": text}]
    for wrong in ("timm2", "timm/jax"):
        with pytest.raises(SystemExit, match="Known: "):
            compare.parse_contestant(wrong)


def test_code_of_a_commit_is_compared_in_turns(capsys: pytest.CaptureFixture[str]) -> None:
    now = result("keras_vit/jax", [1.0, 1.0, 1.0])
    (twin,) = _against.twins([now.work, Work("timm", "eager", "training")], "abc", "/tree")
    assert (twin.label, twin.tree) == ("keras_vit/jax of abc", "/tree")
    slower, equal = Result(twin, [1.1, 1.0, 1.2]), Result(twin, [0.9, 0.99, 1.0])
    assert _against.verdict({"training": [now, slower]}, "abc") == 0
    words = "training, keras_vit/jax: 1.100 of abc (1.000 to 1.200 in 3 rounds)"
    assert words in capsys.readouterr().out
    assert _against.verdict({"training": [now, equal]}, "abc") == 0
    assert _against.verdict({"training": [now, Result(twin, [0.9] * 3)]}, "abc") == 1
    with _against.tree_of(None) as tree:
        assert tree == ""
    with pytest.raises(SystemExit, match="not a commit"), _against.tree_of("no such commit"):
        pass


def test_ratios_are_taken_within_a_round_and_limits_by_operations_and_dtype() -> None:
    ours, hub = result("keras_vit/jax", [1.0, 2.0, 4.0]), result("keras_hub/jax", [2.0, 4.0, 8.0])
    other = result("keras_hub/torch", [1.0] * 3)
    limit = result("limit/jax", [0.1] * 3)
    assert ours.images_per_second == [4, 2, 1]
    # A thousand cubed operations in 0.1 s, three billion an image and training step.
    assert limit.images_per_second == pytest.approx([10 / 3] * 3)
    assert _report.keras_hub_pairs([ours, hub, other, limit]) == [(ours, hub)]
    table = _report.table("training", [ours, hub, other, limit])
    assert "keras_vit/jax is 2.00 x keras_hub/jax (2.00 to 2.00)" in table
    assert "1024 MiB" in table
    assert "no contestant" in _report.table("training", [result("timm/eager", [], skipped="no")])
    # What has something of its own is compared with what has nothing.
    plain, half = result("keras_vit/jax", [2.0]), result("keras_vit/jax:dtype=bfloat16", [1.0])
    assert half.work.dtype == "bfloat16"
    assert _report.option_pairs([plain, half, result("timm/eager", [1.0])]) == [(half, plain)]
    words = "is 2.00 x keras_vit/jax (2.00 to 2.00); 1.00 x its memory, 1.00 x its start"
    assert words in _report.table("training", [plain, half])
    # A rate is compared with the limit of its dtype.
    names = ("keras_vit/jax", "keras_vit/torch:dtype=bfloat16", "limit/jax")
    results = [result(name, [time]) for name, time in zip(names, (2.0, 1.0, 0.2), strict=True)]
    lines = _report.table("training", results).splitlines()
    starts = ("keras_vit/jax ", "bfloat16 ", "limit/jax ")
    plain, half, _ = (next(line for line in lines if start in line) for start in starts)
    assert re.search(r"2\.00 .* 0\.50 +120\.0% ", plain)
    assert re.search(r"4\.00 .* 1\.00 +- ", half)
    words = "training: ViT-S/16, 224 px, batch 4, float32 and bfloat16, dropout 0.0"
    assert words in _report.table("training", results)
    assert _page.conclusions("training", results) == [
        "Training in float32: the best of keras_vit is `keras_vit/jax`, 120% of the limit "
        "(`limit/jax`).",
        "Training in bfloat16: the best of keras_vit is `keras_vit/torch:dtype=bfloat16`, 2.00 × "
        "`keras_vit/jax`, the best in float32.",
    ]
    # Without a limit, no column of dashes.
    assert "of limit" not in _report.table("training", results[:2])


def counted(contestant: str, gib: float, model: str = "ViT-B/16", task: str = "training") -> Any:
    """A row of what is counted for a TPU."""
    counts = {"state": 2**30, "temporaries": 2**29, "flops": 3e12, "moved": gib * 2**30}
    counts |= {"least_seconds": 0.5, "recomputed": False}
    return {"model": model, "task": task, "contestant": contestant, **counts}


ROWS = [("keras_vit", 30), ("keras_vit, remat", 20), ("keras_hub", 80), ("flax", 60)]
ROWS += [("flax", 10, "ViT-L/16"), ("keras_vit", 9, "ViT-B/16", "inference")]
COUNTED: dict[str, Any] = {"topology": "v5e:2x4", "versions": {"jax": "1.2.3"}}
COUNTED["rows"] = [counted(*row) for row in ROWS]


def test_bytes_are_compared_with_the_best_peer() -> None:
    lines = tpu.table(COUNTED).splitlines()
    shares = [line.split()[-3] for line in lines if line.startswith("ViT")]
    # A peer of another model is none, and what recomputes is no peer of its own.
    assert shares == ["0.50", "0.33", "1.33", "1.00", "1.00", "-"]
    words = "ViT-B/16 1024 keras_vit 3.00 30.0 0.50 1.50 500.0"
    assert lines[2].split() == words.split()


def test_the_small_form_fails_when_a_recorded_ratio_is_lost(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "quick.json"
    hub = result("keras_hub/jax", [2.0])
    before, after = ({"training": [result("keras_vit/jax", [one]), hub]} for one in (1.0, 1.2))
    alone = {"training": [result("keras_vit/jax", [9.0])]}
    for results, record, status, words in (
        (before, False, 0, "nothing is recorded"),
        (before, True, 0, ""),
        (before, False, 0, ""),
        (after, False, 1, "LOST"),
        (alone, False, 0, "not installed"),
    ):
        assert _quick.verdict(results, record=record, file=file) == status
        assert words in capsys.readouterr().out
        if record:
            assert json.loads(file.read_text()) == {"training jax": 2.0}


def test_measurements_of_the_page_are_commands_that_are_accepted() -> None:
    for arguments in performance.MEASUREMENTS.values():
        options = compare.arguments_parser().parse_args(arguments)
        assert all(compare.parse_contestant(text) for text in options.contestants)
        # A long command continues on the next line.
        lines = _page.command(arguments).splitlines()
        assert max(map(len, lines)) <= 100
        command = shlex.split("\n".join(lines).replace("\\\n", " "))
        assert command == ["python", "-m", "benchmarks", "compare", *arguments]
