"""What makes up for rare classes: formulas and losses against scikit-learn, torch, the papers."""

from typing import Any

import keras
import numpy as np
import pytest

from keras_vit.tasks import TASKS, Classification, Multilabel, Ordinal, Regression
from keras_vit.tasks.balance import (
    class_weights,
    describe_counts,
    differs_much,
    effective_number,
    log_priors,
    positive_weights,
    sampling_rates,
)
from keras_vit.tasks.losses import (
    BalancedLoss,
    BinaryCrossentropy,
    SoftmaxCrossentropy,
)
from tests.tasks.test_losses import value_and_gradient

COUNTS = np.array([400, 52, 11, 4])
LOGITS = np.random.default_rng(0).normal(0, 2, (6, 4)).astype("float32")
LABELS = np.array([0, 3, 1, 2, 0, 0])
ROWS = np.eye(4, dtype="float32")[LABELS] * 0.75 + np.eye(4, dtype="float32")[LABELS[::-1]] * 0.25


def softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def test_weights_are_those_of_the_paper_and_of_scikit_learn() -> None:
    # The authors' code: github.com/richardaecn/class-balanced-loss, src/cifar_main.py.
    for beta in (0.9, 0.999, 0.9999):
        effective = 1.0 - np.power(beta, COUNTS)
        theirs = (1.0 - beta) / np.array(effective)
        theirs = theirs / np.sum(theirs) * len(COUNTS)
        ours = class_weights(COUNTS, beta)
        np.testing.assert_allclose(ours / ours.sum() * len(COUNTS), theirs)
        np.testing.assert_allclose((ours * COUNTS).sum() / COUNTS.sum(), 1)
    compute = pytest.importorskip("sklearn.utils.class_weight").compute_class_weight
    labels = np.repeat(range(4), COUNTS)
    balanced = compute("balanced", classes=np.arange(4), y=labels)
    np.testing.assert_allclose(class_weights(COUNTS, 1.0), balanced)
    np.testing.assert_allclose(sampling_rates(COUNTS), balanced)
    np.testing.assert_array_equal(class_weights(COUNTS, 0.0), np.ones(4))
    assert effective_number(1) == pytest.approx(1)
    assert class_weights([5, 0, 1])[1] == class_weights([5, 0, 1])[2]  # counts as one


def test_formulas_refuse_what_does_not_count() -> None:
    for function in (class_weights, log_priors, sampling_rates):
        for counts in ([], [0, 0], [1, -1], [1, np.nan], [[1]]):
            with pytest.raises(ValueError, match="must be the examples of each class"):
                function(counts)
    with pytest.raises(ValueError, match="beta=2"):
        class_weights([1, 2], 2)


def by_hand(kind: str, loss: str, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """Value and gradient, in NumPy: the mean of `w_i CE(y_i, x_i + log p)`."""
    x = LOGITS.astype(np.float64) + (np.log(COUNTS / COUNTS.sum()) if kind == "logits" else 0)
    weights = labels @ class_weights(COUNTS) if kind == "weights" else np.ones(6)
    if loss == "softmax":
        each = -(labels * np.log(softmax(x))).sum(-1)
        gradient = softmax(x) - labels
    else:
        p = 1 / (1 + np.exp(-x))
        each = -(labels * np.log(p) + (1 - labels) * np.log(1 - p)).sum(-1)
        gradient = p - labels
    return float((weights * each).mean()), weights[:, None] * gradient / 6


@pytest.mark.parametrize(
    ("kind", "loss"), [("weights", "softmax"), ("weights", "sigmoid"), ("logits", "softmax")]
)
@pytest.mark.parametrize("labels", ["integers", "rows"])
def test_losses_of_classes_are_those_by_hand(kind: str, loss: str, labels: str) -> None:
    task = Classification(size=4)
    targets = np.repeat(range(4), COUNTS)
    given = LABELS if labels == "integers" else ROWS
    expected, gradient = by_hand(kind, loss, ROWS if labels == "rows" else np.eye(4)[LABELS])
    balanced = task.balanced(task.loss(loss), kind, targets)
    restored = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(balanced))
    for one in (balanced, restored):
        actual, slope = value_and_gradient(lambda x, one=one: one(given, x), LOGITS)
        np.testing.assert_allclose(actual, expected, rtol=2e-6)
        np.testing.assert_allclose(slope, gradient, atol=1e-6)
    assert isinstance(restored, BalancedLoss)
    assert (restored.weights, restored.log_priors) == (balanced.weights, balanced.log_priors)


def test_losses_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    weights = class_weights(COUNTS)
    theirs = functional.cross_entropy(
        torch.tensor(LOGITS),
        torch.tensor(LABELS),
        torch.tensor(weights, dtype=torch.float32),
        reduction="none",
    ).mean()
    ours = BalancedLoss(SoftmaxCrossentropy(), weights=weights)(LABELS, LOGITS)
    np.testing.assert_allclose(float(ours), float(theirs), rtol=1e-5)

    present = (ROWS > 0).astype("float32")
    weights = positive_weights([5, 90, 3, 0], 100)
    tensor = torch.tensor(LOGITS, requires_grad=True)
    theirs = functional.binary_cross_entropy_with_logits(
        tensor, torch.tensor(present), pos_weight=torch.tensor(weights, dtype=torch.float32)
    )
    theirs.backward()
    loss = BinaryCrossentropy(positive_weights=weights)
    restored = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
    for one in (loss, restored):
        actual, slope = value_and_gradient(lambda x, one=one: one(present, x), LOGITS)
        np.testing.assert_allclose(actual, theirs.item(), rtol=1e-5)
        np.testing.assert_allclose(slope, tensor.grad.numpy(), atol=1e-6)
    smooth = BinaryCrossentropy(0.2, positive_weights=(1.0,) * 4)
    plain = BinaryCrossentropy(0.2)
    np.testing.assert_allclose(smooth(present, LOGITS), plain(present, LOGITS), rtol=1e-5)


def test_adjusted_logits_are_trained_to_those_of_equal_classes() -> None:
    """Menon et al., theorem 1: the minimum of the adjusted loss ranks by p(y | x) / p(y)."""
    joint = np.array([[0.60, 0.02], [0.20, 0.18]])  # of two kinds of images and two classes
    prior = joint.sum(0)
    optimum = np.log(joint / joint.sum(1, keepdims=True)) - np.log(prior)
    loss = BalancedLoss(SoftmaxCrossentropy(reduction="sum"), log_priors=np.log(prior))

    def risk(x: Any) -> Any:
        cells = [(i, label) for i in range(2) for label in range(2)]
        parts = [
            joint[cell] * loss(np.array([cell[1]]), x[cell[0] : cell[0] + 1]) for cell in cells
        ]
        return sum(parts[1:], parts[0])

    _, slope = value_and_gradient(risk, optimum.astype("float32"))
    np.testing.assert_allclose(slope, 0, atol=1e-6)
    assert optimum.argmax(1).tolist() == [0, 1]  # where the frequent class is always likelier
    assert joint.argmax(1).tolist() == [0, 0]


def test_positive_weights() -> None:
    np.testing.assert_allclose(positive_weights([1, 50, 0, 100], 100, 1.0), [99, 1, 1, 1])
    expected = (1 - 0.999**99) / (1 - 0.999)
    np.testing.assert_allclose(positive_weights([1], 100), [expected])
    task = Multilabel(("a", "b"))
    loss = task.balanced(task.loss(label_smoothing=0.1), "weights", [["a"], [], [], ["a"]])
    assert loss.positive_weights == pytest.approx((1.0, 1.0))
    assert loss.label_smoothing == 0.1
    np.testing.assert_array_equal(task.counts([["a"], [], ["a", "b"]]), [2, 1])


@pytest.mark.parametrize(
    ("task", "balance", "loss", "words"),
    [
        (Regression(size=1), "weights", "squared_error", "numbers, of which none is rare"),
        (Ordinal(size=3), "logits", "cumulative_crossentropy", "the limits of the others"),
        (Multilabel(size=3), "sampling", "binary_crossentropy", "give 'weights', or leave it out"),
        (Multilabel(size=3), "weights", "zlpr", "changes the loss binary_crossentropy, and this"),
        (Classification(size=3), "logits", "sigmoid", "changes the loss softmax, and this one"),
        (Classification(size=3), "weight", "softmax", "weights"),
    ],
)
def test_what_does_not_suit_a_task_is_refused(
    task: Any, balance: str, loss: str, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        task.check_balance(balance, loss)


def test_every_task_goes_without() -> None:
    for kind in TASKS.values():
        task = kind(size=3)
        loss = task.loss()
        task.check_balance("none", next(iter(task.losses)))
        assert task.balanced(loss, "none", None) is loss
    assert Regression(size=1).counts([1.0]) is None
    assert Ordinal(size=3).counts([0, 2, 2]).tolist() == [1, 0, 2]
    assert Classification(size=2).counts([[0.75, 0.25], [1, 0]]).tolist() == [1.75, 0.25]


def test_the_printed_counts_are_bounded() -> None:
    assert describe_counts(["a", "b"], [4, 40]) == (
        "b 40, a 4: 10 times as many of the largest as of the smallest"
    )
    names = [f"c{i}" for i in range(1000)]
    assert describe_counts(names, np.arange(1000) + 1) == (
        "c999 1,000, c998 999, c997 998, ..., c2 3, c1 2, c0 1: 1,000 times as many of the largest "
        "as of the smallest"
    )
    assert describe_counts(["a", "b", "c"], [3, 0, 1]).startswith("a 3, c 1: 3 times")
    assert differs_much([100, 10])
    assert not differs_much([100, 11])
    assert not differs_much([100, 0])  # not tested, rather than rare
