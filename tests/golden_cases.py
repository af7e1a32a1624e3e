"""Recorded runs of the official code: where they lie, and how near they are to be met."""

import json
from pathlib import Path

import numpy as np

COMMITTED = Path(__file__).parent / "golden"


class GoldenCase:
    """One recorded case: weights, inputs, outputs and tolerances."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta = json.loads((folder / "meta.json").read_text())
        self.file = folder / "weights.npz"

    def outputs(self, size: tuple[int, int] | None = None) -> dict[str, np.ndarray]:
        name = "io.npz" if size is None else f"io_{size[0]}x{size[1]}.npz"
        return dict(np.load(self.folder / name))

    def tolerances(self, size: tuple[int, int] | None = None) -> dict[str, float]:
        """Largest differences allowed: as recorded, and logits within 5e-6 of their scale."""
        table = self.meta["tolerance"]["atol"]
        if self.meta["family"] == "interp":
            prefix = "base/" if size is None else f"{size[0]}x{size[1]}/"
            table = {k.removeprefix(prefix): v for k, v in table.items() if k.startswith(prefix)}
        if "logits" not in table:
            return table
        scale = max(1.0, float(np.abs(self.outputs(size)["logits"]).max()))
        return {**table, "logits": min(table["logits"], 5e-6 * scale)}


def golden_case(name: str, shared: Path) -> GoldenCase:
    folder = COMMITTED / name
    return GoldenCase(folder if folder.is_dir() else shared / "golden" / name)
