"""What makes up for rare classes: formulas and losses against scikit-learn, torch, the papers."""

import itertools
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.utils.class_weight import compute_class_weight

from keras_vit.tasks import Classification, Multilabel, Ordinal, Regression, balance
from keras_vit.tasks.balance import class_weights, describe_counts, positive_weights
from keras_vit.tasks.losses import BalancedLoss, BinaryCrossentropy, SoftmaxCrossentropy
from tests.backend import rows
from tests.tasks.test_losses import of_logits, restore, value_and_gradient

COUNTS = np.array([400, 52, 11, 4])
LOGITS = np.random.default_rng(0).normal(0, 2, (6, 4)).astype("float32")
LABELS = np.array([0, 3, 1, 2, 0, 0])
ROWS = np.eye(4, dtype="float32")[LABELS] * 0.75 + np.eye(4, dtype="float32")[LABELS[::-1]] * 0.25


def test_weights_are_those_of_the_paper_and_of_scikit_learn() -> None:
    # The authors' code: github.com/richardaecn/class-balanced-loss, src/cifar_main.py.
    for beta in (0.9, 0.999, 0.9999):
        effective = 1.0 - np.power(beta, COUNTS)
        theirs = (1.0 - beta) / np.array(effective)
        theirs = theirs / np.sum(theirs) * len(COUNTS)
        ours = class_weights(COUNTS, beta)
        np.testing.assert_allclose(ours / ours.sum() * len(COUNTS), theirs)
        np.testing.assert_allclose((ours * COUNTS).sum() / COUNTS.sum(), 1)
    balanced = compute_class_weight("balanced", classes=np.arange(4), y=np.repeat(range(4), COUNTS))
    np.testing.assert_allclose(class_weights(COUNTS, 1.0), balanced)
    np.testing.assert_allclose(balance.sampling_rates(COUNTS), balanced)
    assert class_weights([5, 0, 1])[1] == class_weights([5, 0, 1])[2]  # counts as one


def by_hand(kind: str, loss: str, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """Value and gradient, in NumPy: the mean of `w_i CE(y_i, x_i + log p)`."""
    x = LOGITS.astype(np.float64) + (np.log(COUNTS / COUNTS.sum()) if kind == "logits" else 0)
    weights = labels @ class_weights(COUNTS) if kind == "weights" else np.ones(6)
    p = softmax(x, axis=1) if loss == "softmax" else expit(x)
    each = labels * np.log(p)
    if loss == "sigmoid":
        each += (1 - labels) * np.log(1 - p)
    return float((weights * -each.sum(-1)).mean()), weights[:, None] * (p - labels) / 6


@pytest.mark.parametrize("loss", rows(["softmax", "sigmoid"], ["softmax"]))
def test_losses_of_classes_are_those_by_hand(loss: str) -> None:
    task, targets = Classification(size=4), np.repeat(range(4), COUNTS)
    for kind in ("weights", "logits") if loss == "softmax" else ("weights",):
        balanced = task.balanced(task.loss(loss), kind, targets)
        restored = restore(balanced)
        for given, labels in ((LABELS, np.eye(4)[LABELS]), (ROWS, ROWS)):
            expected, gradient = by_hand(kind, loss, labels)
            for one in (balanced, restored):
                actual, slope = of_logits(one, given, LOGITS)
                np.testing.assert_allclose(actual, expected, rtol=2e-6)
                np.testing.assert_allclose(slope, gradient, atol=1e-6)
        assert isinstance(restored, BalancedLoss)


def test_losses_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    present = (ROWS > 0).astype("float32")
    weights = positive_weights([5, 90, 3, 0], 100)
    tensor, weight = torch.tensor(LOGITS, requires_grad=True), torch.tensor(weights).float()
    pair = tensor, torch.tensor(present)
    theirs = torch.nn.functional.binary_cross_entropy_with_logits(*pair, pos_weight=weight)
    theirs.backward()
    loss = BinaryCrossentropy(positive_weights=weights)
    for one in (loss, restore(loss)):
        actual, slope = of_logits(one, present, LOGITS)
        np.testing.assert_allclose(actual, theirs.item(), rtol=1e-5)
        np.testing.assert_allclose(slope, tensor.grad.numpy(), atol=1e-6)


def test_adjusted_logits_are_trained_to_those_of_equal_classes() -> None:
    """Menon et al., theorem 1: the minimum of the adjusted loss ranks by p(y | x) / p(y)."""
    joint = np.array([[0.60, 0.02], [0.20, 0.18]])  # of two kinds of images and two classes
    prior = joint.sum(0)
    optimum = np.log(joint / joint.sum(1, keepdims=True)) - np.log(prior)
    loss = BalancedLoss(SoftmaxCrossentropy(reduction="sum"), log_priors=np.log(prior))

    def risk(x: Any) -> Any:
        cells = itertools.product(range(2), range(2))
        return sum(joint[i, label] * loss(np.array([label]), x[i : i + 1]) for i, label in cells)

    _, slope = value_and_gradient(risk, optimum.astype("float32"))
    np.testing.assert_allclose(slope, 0, atol=1e-6)
    assert optimum.argmax(1).tolist() == [0, 1]  # where the frequent class is always likelier
    assert joint.argmax(1).tolist() == [0, 0]


def test_positive_weights_and_counts() -> None:
    np.testing.assert_allclose(positive_weights([1, 50, 0, 100], 100, 1.0), [99, 1, 1, 1])
    np.testing.assert_allclose(positive_weights([1], 100), [(1 - 0.999**99) / (1 - 0.999)])
    task = Multilabel(("a", "b"))
    loss = task.balanced(task.loss(label_smoothing=0.1), "weights", [["a"], [], [], ["a"]])
    assert loss.positive_weights == pytest.approx((1.0, 1.0))
    assert loss.label_smoothing == 0.1
    np.testing.assert_array_equal(task.counts([["a"], [], ["a", "b"]]), [2, 1])
    assert Regression(size=1).counts([1.0]) is None
    assert Ordinal(size=3).counts([0, 2, 2]).tolist() == [1, 0, 2]
    assert Classification(size=2).counts([[0.75, 0.25], [1, 0]]).tolist() == [1.75, 0.25]
    # The printed counts are bounded.
    than = "times as many of the largest as of the smallest"
    assert describe_counts(["a", "b"], [4, 40]) == f"b 40, a 4: 10 {than}"
    many = describe_counts([f"c{i}" for i in range(1000)], np.arange(1000) + 1)
    assert many == f"c999 1,000, c998 999, c997 998, ..., c2 3, c1 2, c0 1: 1,000 {than}"
    counts = ([100, 10], [100, 11], [100, 0])  # the last is not tested, rather than rare
    assert list(map(balance.differs_much, counts)) == [True, False, False]
