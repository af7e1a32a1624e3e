"""The study of prediction sets and of novelty."""

from pathlib import Path

import numpy as np
import pytest

from keras_vit.layers.novelty_score import unit_rows
from tests.examples import load_example

pytest.importorskip("sklearn")
GOLDEN = dict(np.load(Path(__file__).parents[1] / "golden" / "novelty.npz"))


def flowers() -> tuple[np.ndarray, np.ndarray]:
    """Features of three classes that overlap a little."""
    random, labels = np.random.default_rng(0), np.arange(450) % 3
    return (2 * np.eye(3, 6)[labels] + random.normal(0, 0.7, (450, 6))).astype("float32"), labels


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_of_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_example("coverage_and_novelty")
    monkeypatch.setattr(script, "PROBED", 150)
    monkeypatch.setattr(script, "HALVES", 5)
    lines = script.table_of_sets(*flowers()).splitlines()
    assert len(lines) == 2 + 2 * len(script.METHODS)
    for line in lines[2:]:
        promised, covered = (float(cells(line)[i].rstrip("%")) for i in (0, 2))
        assert covered > promised - 5


def test_the_table_of_novelty(monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_example("coverage_and_novelty")
    monkeypatch.setattr(script, "FITTED", 250)
    monkeypatch.setattr(script, "THRESHOLD", 100)
    monkeypatch.setattr(script, "DRAWS", 2)
    features, labels = flowers()
    lines = script.table_of_novelty(features, labels, {"far": -4 * np.ones((50, 6))}).splitlines()
    assert cells(lines[0]) == ["score", "false alarms", "far"]
    assert len(lines) == 2 + 5
    for line in lines[2:5]:  # the last two are of a probe, which may be sure of anything
        assert cells(line)[2] == "1.000, 100%"


def test_the_distance_to_a_class_is_pytorch_oods() -> None:
    script = load_example("coverage_and_novelty")
    train, new = unit_rows(GOLDEN["train"]), unit_rows(GOLDEN["new"])
    score = script.mahalanobis_per_class(train, np.zeros(len(train), int))
    np.testing.assert_allclose(score(new) / 2, GOLDEN["mahalanobis"], rtol=1e-5)
