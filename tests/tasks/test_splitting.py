"""Splits: every label in proportion, groups on one side, the same for the same seed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_vit.data.sources.folder import _stratified
from keras_vit.tasks import Classification, Multilabel, Ordinal, Regression, Task

EXAMPLES = 1000
RATES = np.geomspace(0.01, 0.4, 12)  # of labels, from rare to frequent


def labels(seed: int = 0) -> np.ndarray:
    """Labels that come together: an example has few or many."""
    rng = np.random.default_rng(seed)
    return (rng.random((EXAMPLES, 12)) < RATES * rng.uniform(0, 2, (EXAMPLES, 1))).astype(int)


def worst(rows: np.ndarray, mask: np.ndarray, fraction: float) -> float:
    """By how many examples the label that is farthest off is off."""
    return float(np.abs(rows[mask].sum(axis=0) - fraction * rows.sum(axis=0)).max())


def best_at_random(rows: np.ndarray, fraction: float, sizes: Any = None) -> float:
    sizes = np.ones(len(rows), int) if sizes is None else sizes
    chosen = [np.random.default_rng(s).random(len(sizes)) < fraction for s in range(20)]
    return min(worst(rows, np.repeat(c, sizes), fraction) for c in chosen)


@pytest.mark.parametrize("seed", range(3))
def test_several_labels_with_and_without_groups(seed: int) -> None:
    rows = labels(seed)
    for fraction in (0.1, 0.25, 0.5):
        mask = Multilabel(size=12).split(rows, fraction, seed)
        assert abs(mask.mean() - fraction) <= 2 / EXAMPLES
        assert worst(rows, mask, fraction) <= 2
        assert worst(rows, mask, fraction) < best_at_random(rows, fraction) / 2
    # Groups of 1 to 30 examples, which share most of their labels.
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 31, 80)
    groups = np.repeat([f"patient {i}" for i in range(80)], sizes)
    of_group = rng.random((80, 12)) < RATES
    rows = np.repeat(of_group, sizes, axis=0) ^ (rng.random((len(groups), 12)) < 0.02)
    mask = Multilabel(size=12).split(rows, 0.25, seed, groups)
    assert not set(groups[mask]) & set(groups[~mask])
    assert abs(mask.mean() - 0.25) < 0.02
    assert worst(rows, mask, 0.25) < best_at_random(rows, 0.25, sizes) / 2


@pytest.mark.parametrize("task", [Classification(size=4), Ordinal(size=4)])
def test_classes_with_and_without_groups(task: Task) -> None:
    rng = np.random.default_rng(0)
    targets = rng.choice(4, EXAMPLES, p=[0.6, 0.3, 0.08, 0.02])
    mask = task.split(targets, 0.2)
    expected = [round(0.2 * n) for n in np.bincount(targets)]
    np.testing.assert_array_equal(np.bincount(targets[mask]), expected)
    groups = np.argsort(np.argsort(targets + rng.normal(0, 0.5, EXAMPLES))) // 10
    mask = task.split(targets, 0.2, 0, groups)
    assert not set(groups[mask]) & set(groups[~mask])
    assert (np.abs(np.bincount(targets[mask]) - expected) <= 2).all()


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.4])
def test_classes_are_split_as_folders_are(fraction: float) -> None:
    names = ("a", "b", "c", "only one")
    targets = [names[k] for k in np.repeat(range(4), [3, 40, 11, 1])]
    files = [(Path(f"{i:03d}.png"), name) for i, name in enumerate(targets)]
    parts = _stratified(files, names, fraction, seed=5)
    mask = Classification(names).split(list(map(names.index, targets)), fraction, seed=5)
    assert {file for file, _ in parts["val"]} == {files[i][0] for i in np.flatnonzero(mask)}
    np.testing.assert_array_equal(Classification(names).split(targets, fraction, seed=5), mask)


def test_numbers_and_examples_without_labels() -> None:
    rng = np.random.default_rng(0)
    one = rng.lognormal(size=EXAMPLES)
    mask = Regression(size=1).split(one, 0.2)
    assert mask.mean() == 0.2
    tenths = np.arange(0.1, 1, 0.1)  # each of which has its part
    below = one[mask, None] < np.quantile(one, tenths)
    assert (np.abs(below.mean(axis=0) - tenths) < 0.01).all()
    several = np.stack([one, rng.normal(size=EXAMPLES), one + rng.normal(size=EXAMPLES)], axis=1)
    mask = Regression(size=3).split(several, 0.2)
    assert abs(mask.mean() - 0.2) < 0.005
    below = several[mask] < np.quantile(several, 0.3, axis=0)
    np.testing.assert_allclose(below.mean(axis=0), 0.3, atol=0.02)
    assert Regression(size=1).split([1.0, 2, 3], 0.1).sum() == 1
    assert Regression(size=1).split(np.ones(50), 0.2).sum() == 10
    # Of examples most of which are without any label.
    mask = Multilabel(size=3).split((np.arange(100)[:, None] < [10, 0, 0]).astype(int), 0.2)
    assert (mask[:10].sum(), mask.sum()) == (2, 20)


def test_seeds() -> None:
    rows = labels()
    for task, targets in ((Multilabel(size=12), rows), (Regression(size=1), rows @ RATES)):
        first = task.split(targets, 0.2, 1)
        np.testing.assert_array_equal(task.split(targets, 0.2, 1), first)
        assert (task.split(targets, 0.2, 2) != first).any()
