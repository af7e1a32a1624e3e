"""Averages of weights against their papers' equations."""

import numpy as np
import pytest

import keras_vit

SIZES = {"patch_size": 8, "hidden_dim": 16, "depth": 1, "num_heads": 2, "input_shape": (16, 16, 3)}


def build(seed: int, **options) -> keras_vit.VisionTransformer:
    model = keras_vit.VisionTransformer(**{**SIZES, "num_classes": 3, **options})
    rng = np.random.default_rng(seed)
    for variable in model.weights:
        variable.assign(rng.normal(0, 0.3, variable.shape))
    return model


def test_a_soup_is_the_mean_and_leaves_its_parts_alone() -> None:
    models = [build(seed) for seed in range(3)]
    before = [model.get_weights() for model in models]
    soup = keras_vit.average_weights(models)
    for tensor, *parts in zip(soup.get_weights(), *before, strict=True):
        np.testing.assert_allclose(tensor, np.mean(parts, axis=0), atol=1e-6)
    for model, weights in zip(models, before, strict=True):
        for tensor, same in zip(model.get_weights(), weights, strict=True):
            np.testing.assert_array_equal(tensor, same)


def test_shares_are_wise_ft() -> None:
    start, tuned = build(0), build(1)
    wise = keras_vit.average_weights([start, tuned], (0.3, 0.7))
    for tensor, first, second in zip(
        wise.get_weights(), start.get_weights(), tuned.get_weights(), strict=True
    ):
        np.testing.assert_allclose(tensor, 0.3 * first + 0.7 * second, atol=1e-6)


def test_model_stock_is_the_point_of_the_plane_nearest_to_the_center() -> None:
    """The paper derives equation 5 from geometry: the foot of the perpendicular on the line.

    For two runs of equal length at an angle, the point t * mean + (1 - t) * start at which a
    straight line to the center, equidistant from both, is perpendicular to both changes.
    """
    start, first, second = build(0), build(1), build(2)
    origin = start.get_weights()
    rng = np.random.default_rng(3)
    changes = []
    for tensor in origin:
        # Orthogonal directions and a common one: a known angle.
        a, b, c = (rng.normal(size=tensor.size) for _ in range(3))
        basis, _ = np.linalg.qr(np.stack([a, b, c], 1)) if tensor.size > 2 else (np.eye(3), None)
        changes.append([(basis[:, 2] + basis[:, i]).reshape(tensor.shape) for i in (0, 1)])
    first.set_weights([o + c[0] for o, c in zip(origin, changes, strict=True)])
    second.set_weights([o + c[1] for o, c in zip(origin, changes, strict=True)])
    stock = keras_vit.model_stock(start, [first, second])
    cosine = 0.5  # of (common + one) and (common + other), all of length 1
    ratio = 2 * cosine / (1 + cosine)
    for tensor, o, (x, y) in zip(stock.get_weights(), origin, changes, strict=True):
        np.testing.assert_allclose(tensor, o + ratio * (x + y) / 2, atol=1e-5)


def test_equal_runs_stay_and_opposed_ones_go_back() -> None:
    start, tuned = build(0), build(1)
    same = keras_vit.model_stock(start, [tuned, tuned])
    opposed = build(2)
    opposed.set_weights(
        [2 * o - t for o, t in zip(start.get_weights(), tuned.get_weights(), strict=True)]
    )
    back = keras_vit.model_stock(start, [tuned, opposed])
    for model, expected in ((same, tuned), (back, start)):
        for tensor, other in zip(model.get_weights(), expected.get_weights(), strict=True):
            np.testing.assert_allclose(tensor, other, atol=1e-6)


def test_a_head_that_starts_from_zeros_is_the_mean() -> None:
    start, first, second = build(0), build(1), build(2)
    start.get_layer("head").set_weights([np.zeros((16, 3)), np.zeros(3)])
    head = keras_vit.model_stock(start, [first, second]).get_layer("head").get_weights()
    parts = [model.get_layer("head").get_weights() for model in (first, second)]
    for tensor, *others in zip(head, *parts, strict=True):
        np.testing.assert_allclose(tensor, np.mean(others, axis=0), atol=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: keras_vit.average_weights([]), ["no model"]),
        (
            lambda: keras_vit.average_weights([build(0), build(1, num_classes=4)]),
            ["Model 1", "'head/bias' ((3,) and (4,))"],
        ),
        (
            lambda: keras_vit.average_weights([build(0), build(1)], (0.5, 0.6)),
            ["shares=(0.5, 0.6)", "sum 1"],
        ),
        (lambda: keras_vit.average_weights([build(0)], (float("nan"),)), ["shares[0]=nan"]),
        (lambda: keras_vit.model_stock(build(0), [build(1)]), ["two or more", "not 1"]),
        (
            lambda: keras_vit.model_stock(build(0, num_classes=0), [build(1), build(2)]),
            ["differs", "head/"],
        ),
    ],
)
def test_errors(call, words: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        call()
    for word in words:
        assert word in str(error.value)
