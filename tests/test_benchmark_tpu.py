"""The table of compiled costs compares with the best of the others."""

import json
from pathlib import Path
from typing import Any

from benchmarks import _page, performance, tpu


def row(contestant: str, gib: float, model: str = "ViT-B/16", task: str = "training") -> Any:
    counts = {"state": 2**30, "temporaries": 2**29, "flops": 3e12, "moved": gib * 2**30}
    counts |= {"least_seconds": 0.5, "recomputed": False}
    return {"model": model, "task": task, "contestant": contestant, **counts}


COUNTED = {
    "topology": "v5e:2x4",
    "versions": {"jax": "1.2.3"},
    "rows": [
        row("keras_vit", 30),
        row("keras_vit, remat", 20),
        row("keras_hub", 80),
        row("flax", 60),
        row("flax", 10, model="ViT-L/16"),
        row("keras_vit", 9, task="inference"),
    ],
}


def test_bytes_are_compared_with_the_best_peer() -> None:
    lines = tpu.table(COUNTED).splitlines()
    shares = [line.split()[-3] for line in lines if line.startswith("ViT")]
    # A peer of another model is none, and what recomputes is no peer of its own.
    assert shares == ["0.50", "0.33", "1.33", "1.00", "1.00", "-"]
    words = "ViT-B/16 1024 keras_vit 3.00 30.0 0.50 1.50 500.0"
    assert lines[2].split() == words.split()


def test_the_page_shows_the_table(tmp_path: Path) -> None:
    folder = tmp_path / "performance"
    (folder / "tpu").mkdir(parents=True)
    (folder / "tpu" / "tpu.json").write_text(json.dumps(COUNTED))
    page = _page.page(folder, performance.MEASUREMENTS)
    assert tpu.table(COUNTED) in page
    assert "python -m benchmarks tpu" in page
    assert "jax 1.2.3" in page
