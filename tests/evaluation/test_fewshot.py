"""Few-shot accuracies are the released code's, recorded; and so are its scores and samples."""

import json
from pathlib import Path

import numpy as np
import pytest

from keras_vit.evaluation import fewshot_accuracy, fewshot_table
from keras_vit.evaluation.fewshot import least_squares_scores, sample_shots


@pytest.fixture(params=["fewshot_wide", "fewshot_narrow"])
def case(request: pytest.FixtureRequest, shared: Path) -> tuple[Path, list[np.ndarray]]:
    """A folder, and the features and labels of its training and test examples."""
    folder = shared / "golden" / request.param
    with np.load(folder / "features.npz") as file:
        return folder, [file[name] for name in ("x_train", "y_train", "x_test", "y_test")]


def test_every_recorded_accuracy(case: tuple[Path, list[np.ndarray]]) -> None:
    folder, parts = case
    recorded = json.loads((folder / "accuracies_f64.json").read_text())
    tests = len(parts[-1])
    assert len(recorded) == 4 * 6 * 3
    for setting, expected in recorded.items():
        shots, l2, seed = (part.split("=")[1] for part in setting.split(","))
        base, exponent = map(float, l2.split("^"))
        accuracy = fewshot_accuracy(*parts, shots=int(shots), l2=base**exponent, seed=int(seed))
        # Both are multiples of one test example; the record went through float32.
        assert round(accuracy * tests) == round(expected * tests), setting
        assert expected == pytest.approx(round(expected * tests) / tests, rel=1e-6), setting


def test_scores_and_samples(case: tuple[Path, list[np.ndarray]]) -> None:
    folder, (x, y, test_x, test_y) = case
    meta = json.loads((folder / "meta.json").read_text())
    classes = int(max(y.max(), test_y.max())) + 1
    with np.load(folder / "ref.npz") as reference:
        for shots in meta["shots"]:
            chosen = sample_shots(y, shots, classes, seed=0)
            np.testing.assert_array_equal(chosen, reference[f"idx_seed0_shots{shots}"])
            for exponent in (0, 5, 10, 15):
                name = f"scores_shots{shots}_l2e{exponent}"
                examples = x[chosen].astype(np.float64), y[chosen], test_x
                scores = least_squares_scores(*examples, classes, 2.0**exponent)
                atol = max(1e-3, 8 * meta["f32_vs_f64"]["scores_maxabs"][name])
                np.testing.assert_allclose(scores, reference[name], atol=atol, rtol=0)


def test_scores_solve_the_normal_equations() -> None:
    """With more and with fewer examples than dimensions."""
    random = np.random.default_rng(0)
    for examples, dimension in ((30, 7), (9, 20)):
        x, y = random.normal(size=(examples, dimension)) * 3 + 1, np.arange(examples) % 3
        white = (x - x.mean(0)) / (x.std(0) + 1e-5)
        columns = np.c_[white, np.full(examples, 100.0)]
        penalized = columns.T @ columns + 4.0 * np.eye(dimension + 1)
        weights = np.linalg.solve(penalized, columns.T @ (2 * np.eye(3)[y] - 1))
        scores = least_squares_scores(x, y, x, 3, 4.0)
        np.testing.assert_allclose(scores, columns @ weights, atol=1e-9)


def test_table_has_mean_and_spread() -> None:
    y = np.arange(120) % 4
    x = np.eye(4)[y] + np.random.default_rng(0).normal(size=(120, 4))
    four = x[:80], y[:80], x[80:], y[80:]
    rows = fewshot_table(*four, shots=(1, 5), seeds=(0, 1, 2, 3))
    assert [row.shots for row in rows] == [1, 5]
    for row in rows:
        each = [fewshot_accuracy(*four, row.shots, seed=seed) for seed in range(4)]
        assert row.accuracies == tuple(each)
        assert row.mean == pytest.approx(sum(each) / 4)
        assert row.spread == pytest.approx(np.std(each, ddof=1))
    assert fewshot_table(x, y, x, y, shots=(1,), seeds=(0,))[0].spread == 0.0
