"""The small form of `compare` for continuous integration, which can fail."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._report import keras_hub_pairs, ratios
from benchmarks._rounds import Result

# Small enough for half a minute a backend, large enough that a step is not all overhead.
SETTINGS: dict[str, Any] = {
    "contestants": ["keras_vit", "keras_hub"],
    "model": "ViT-Ti/16",
    "image_size": 128,
    "batch_size": 4,
    "tasks": ["training"],
    "rounds": 7,
    "seconds": 0.5,
    "out": Path("runs/compare_quick"),
}
RECORDED = Path(__file__).parent / "quick.json"
TOLERATED_LOSS = 0.15
ATTEMPTS = 3


def verdict(
    results: Mapping[str, Sequence[Result]], record: bool = False, file: Path = RECORDED
) -> list[str]:
    """The contestants of each backend on which a recorded ratio to KerasHub is 15 % lower."""
    found = [
        (f"{task} {ours.work.variant}", ours, hub)
        for task, all_ in results.items()
        for ours, hub in keras_hub_pairs(all_)
    ]
    pairs = {case: ratios(ours, hub) for case, ours, hub in found}
    measured = {case: round(statistics.median(rounds), 3) for case, rounds in pairs.items()}
    if not measured:
        print("KerasHub is not installed, or did not finish: nothing to compare with.")
        return []
    recorded = json.loads(file.read_text()) if file.exists() else {}
    if record:
        # The ratio that a busy machine still reaches in three of four rounds.
        measured = {case: round(float(np.quantile(r, 0.25)), 3) for case, r in pairs.items()}
        file.write_text(json.dumps(dict(sorted((recorded | measured).items())), indent=1) + "\n")
        print(f"Recorded: {measured}")
        return []
    again: list[str] = []
    for case, ours, hub in found:
        ratio = measured[case]
        if case not in recorded:
            print(f"{case}: {ratio:.2f} x KerasHub; nothing is recorded, see --record")
            continue
        lost = ratio < recorded[case] * (1 - TOLERATED_LOSS)
        again += [ours.name, hub.name] if lost else []
        outcome = "LOST" if lost else "held"
        print(f"{case}: {ratio:.2f} x KerasHub, recorded {recorded[case]:.2f}: {outcome}")
    return again
