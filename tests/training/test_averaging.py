"""Averages of weights against their papers' equations."""

from typing import Any

import numpy as np

from keras_vit import average_weights, model_stock
from tests.bank import TINY, fill, fresh
from tests.training.common import assert_equal, refused


def build(seed: int, **options: Any) -> Any:
    model = fresh(**{**TINY, "num_classes": 3, **options}, filled=False)
    fill(model, seed, scale=0.3)
    return model


def combined(weight: float, first: Any, other_weight: float, second: Any) -> list[np.ndarray]:
    pairs = zip(first.get_weights(), second.get_weights(), strict=True)
    return [weight * a + other_weight * b for a, b in pairs]


def test_a_soup_is_the_mean_and_leaves_its_parts_alone() -> None:
    models = [build(seed) for seed in range(3)]
    before = [model.get_weights() for model in models]
    soup = average_weights(models)
    means = [np.mean(parts, axis=0) for parts in zip(*before, strict=True)]
    assert_equal(soup, means, atol=1e-6)
    for model, weights in zip(models, before, strict=True):
        assert_equal(model, weights)


def test_shares_are_wise_ft() -> None:
    start, tuned = build(0), build(1)
    wise = average_weights([start, tuned], (0.3, 0.7))
    assert_equal(wise, combined(0.3, start, 0.7, tuned), atol=1e-6)


def test_model_stock_is_the_point_of_the_plane_nearest_to_the_center() -> None:
    """The paper derives equation 5 from geometry: the foot of the perpendicular on the line.

    For two runs of equal length at an angle, the point t * mean + (1 - t) * start at which a
    straight line to the center, equidistant from both, is perpendicular to both changes.
    """
    start, first, second = build(0), build(1), build(2)
    origin, changes, rng = start.get_weights(), [], np.random.default_rng(3)
    for tensor in origin:
        # Orthogonal directions and a common one: a known angle.
        a, b, c = (rng.normal(size=tensor.size) for _ in range(3))
        basis, _ = np.linalg.qr(np.stack([a, b, c], 1)) if tensor.size > 2 else (np.eye(3), None)
        changes.append([(basis[:, 2] + basis[:, i]).reshape(tensor.shape) for i in (0, 1)])
    for i, run in enumerate((first, second)):
        run.set_weights([o + c[i] for o, c in zip(origin, changes, strict=True)])
    stock = model_stock(start, [first, second])
    cosine = 0.5  # of (common + one) and (common + other), all of length 1
    ratio = 2 * cosine / (1 + cosine)
    expected = [o + ratio * (x + y) / 2 for o, (x, y) in zip(origin, changes, strict=True)]
    assert_equal(stock, expected, atol=1e-5)


def test_equal_runs_stay_and_opposed_ones_go_back() -> None:
    start, tuned, opposed = build(0), build(1), build(2)
    assert_equal(model_stock(start, [tuned, tuned]), tuned, atol=1e-6)
    opposed.set_weights(combined(2, start, -1, tuned))
    assert_equal(model_stock(start, [tuned, opposed]), start, atol=1e-6)


def test_a_head_that_starts_from_zeros_is_the_mean() -> None:
    start, first, second = build(0), build(1), build(2)
    start.get_layer("head").set_weights([np.zeros((16, 3)), np.zeros(3)])
    head = model_stock(start, [first, second]).get_layer("head")
    first, second = first.get_layer("head"), second.get_layer("head")
    assert_equal(head, combined(0.5, first, 0.5, second), atol=1e-6)


def test_errors() -> None:
    wider, headless = build(1, num_classes=4), build(0, num_classes=0)
    for call, *words in (
        (lambda: average_weights([]), "no model"),
        (lambda: average_weights([build(0), wider]), "Model 1", "'head/bias' ((3,) and (4,))"),
        (lambda: average_weights([build(0), build(1)], (0.5, 0.6)), "shares=(0.5, 0.6)", "sum 1"),
        (lambda: average_weights([build(0)], (float("nan"),)), "shares[0]=nan"),
        (lambda: model_stock(build(0), [build(1)]), "two or more", "not 1"),
        (lambda: model_stock(headless, [build(1), build(2)]), "differs", "head/"),
    ):
        with refused(*words):
            call()
