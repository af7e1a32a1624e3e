"""The study of rare classes: its long tails, its intervals and what it says of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_vit import data
from tests.examples import load_example

pytest.importorskip("tensorflow")
stats = pytest.importorskip("scipy.stats")


def test_a_long_tail_falls_by_the_ratio() -> None:
    script = load_example("imbalance")
    labels = np.random.default_rng(0).permutation(np.repeat(range(10), 400))
    tail = script.long_tail(labels, 100, seed=0)
    counts = np.bincount(labels[tail])
    # The long-tailed CIFAR-10 of Cui et al., of 400 in place of 5,000 images per class.
    assert sorted(counts, reverse=True) == [400, 240, 144, 86, 52, 31, 19, 11, 7, 4]
    assert len(set(tail)) == len(tail)
    np.testing.assert_array_equal(tail, script.long_tail(labels, 100, seed=0))
    assert (np.bincount(labels[script.long_tail(labels, 100, seed=1)]) != counts).any()


def test_the_interval_is_scipys() -> None:
    differences = [0.01, 0.03, 0.02, 0.05, 0.02]
    mean, low, high = load_example("imbalance").interval(differences)
    theirs = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    np.testing.assert_allclose([mean, low, high], [0.026, theirs.low, theirs.high])


def test_the_page_begins_with_what_does_not_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = load_example("imbalance")
    gains = {"none": 0.0, "weights": 0.2, "logits": 0.1, "sampling": 0.0}
    calls = []

    def train(options: Any, splits: Any, tail: Any, way: str, seed: int) -> list[float]:
        calls.append((way, seed))
        noise = 0.01 * seed * (way == "sampling")
        return [0.5 + gains[way] + 0.05 * seed - noise] * 10

    monkeypatch.setattr(script, "frozen", train)
    monkeypatch.setattr(script, "fine_tuned", train)
    words = ["imbalance.py", "--data", "digits", "--seeds", "3", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", [*words, "--modes", "frozen"])
    script.main()
    text = (tmp_path / "table.md").read_text()
    assert text in capsys.readouterr().out
    first = text.split("\n\n")[1]
    assert first.startswith("On frozen features, `--balance` does not help as `sampling`.")
    assert "raises balanced accuracy: `weights` +20.0% (+20.0% to +20.0%), `logits` +10" in first
    assert "| frozen | none | 55.00% ± 5.00 |  |" in text
    assert len(calls) == 12
    script.main()  # all rows are there
    assert len(calls) == 12
    row = json.loads((tmp_path / "frozen-weights-1" / "row.json").read_text())
    assert row["balanced"] == pytest.approx(0.75)


def test_both_trainings_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import keras_vit

    script = load_example("imbalance")
    model = keras_vit.VisionTransformer(
        patch_size=8, hidden_dim=16, depth=2, num_heads=2, input_shape=(16, 16, 1), num_classes=2
    )
    model.save(tmp_path / "start.keras")
    splits = data.load("digits")
    monkeypatch.setattr(script, "PROBE_SIZE", 16)
    monkeypatch.setattr(script, "cache_folder", lambda: tmp_path)
    words = ["--weights", str(tmp_path / "start.keras"), "--image-size", "16", "--blocks", "1"]
    options = script.parser.parse_args([*words, "--epochs", "1", "--out", str(tmp_path)])
    tail = script.long_tail(splits.train.labels(), 10, seed=0)
    for train in (script.frozen, script.fine_tuned):
        for way in ("none", "sampling"):
            recall = train(options, splits, tail, way, 0)
            assert len(recall) == 10
            assert 0 < np.mean(recall) < 1
