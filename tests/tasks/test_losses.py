"""Losses against the official code's, timm's and finite differences; metrics; queries; balance."""

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.special import expit, softmax
from sklearn.metrics import jaccard_score, mean_pinball_loss
from sklearn.utils.class_weight import compute_class_weight

import keras_vit
from keras_vit.models import eomt_training
from keras_vit.ops import assigned_rows
from keras_vit.tasks import (
    TASKS,
    Classification,
    Multilabel,
    Ordinal,
    Regression,
    Segmentation,
    balance,
    losses,
)
from keras_vit.tasks.balance import class_weights, describe_counts, positive_weights
from keras_vit.tasks.pixel_losses import IGNORED, PixelCrossentropy
from keras_vit.tasks.query_losses import QueryLoss
from tests.backend import refused, rows

# Except that of queries, which has a test of its own.
NAMED = [(kind, name, {}) for kind in TASKS for name in TASKS[kind].losses if name != "queries"]
EVERY_LOSS = [
    *NAMED,
    ("multilabel", "asymmetric", {"gamma_positive": 0.5, "gamma_negative": 0.0, "clip": 0.1}),
    ("regression", "quantile", {"quantile": 0.9}),
    ("depth", "silog", {"balance": 1.0}),
    ("relative_depth", "affine_invariant", {"gradients": 0.1}),
    *(("classification", name, {"label_smoothing": 0.1}) for name in ("softmax", "sigmoid")),
]
LOSSES = {"sigmoid": losses.SigmoidCrossentropy, "softmax": losses.SoftmaxCrossentropy}


@pytest.mark.every_backend
@pytest.mark.parametrize("name", LOSSES)
def test_losses_equal_the_official_ones(name: str, shared: Path) -> None:
    recorded = np.load(shared / "golden" / "losses" / "ref.npz")
    for labels in ("onehot", "soft", "multi"):
        for reduction, part in ((None, ""), ("sum_over_batch_size", "mean_")):
            actual = LOSSES[name](reduction=reduction)(recorded[labels], recorded["logits"])
            actual, expected = np.asarray(actual), recorded[f"{name}_xent_{part}{labels}"]
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6, err_msg=labels)


def test_values_of_the_sigmoid_and_the_quantile_loss() -> None:
    # Under low precision and large logits.
    logits = keras.ops.convert_to_tensor([[90.0, -90.0], [-90.0, 90.0]], "bfloat16")
    loss = losses.SigmoidCrossentropy(reduction=None)(np.eye(2), logits)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(loss), [0, 0], atol=1e-6)
    smooth = losses.SigmoidCrossentropy(0.2)(np.array([[1.0, 0.0]]), np.array([[3.0, 3.0]]))
    np.testing.assert_allclose(float(smooth), 2 * np.log1p(np.exp(3)) - 3, rtol=1e-5)
    targets, outputs = np.random.default_rng(0).normal(size=(2, 50, 1)).astype("float32")
    for q in (0.1, 0.5, 0.9):
        expected = mean_pinball_loss(targets, outputs, alpha=q)
        found = losses.QuantileLoss(q)(targets, outputs)
        np.testing.assert_allclose(float(found), expected, rtol=1e-6)


@pytest.mark.every_backend
def test_integer_labels_are_one_hot_rows() -> None:
    logits = np.random.default_rng(0).normal(size=(6, 300)).astype("float32")
    integers = np.array([0, 299, 257, 1, 2, 258])  # bfloat16 does not have 257 and more
    for kind, label_smoothing in itertools.product(LOSSES.values(), (0.0, 0.1)):
        loss = kind(label_smoothing=label_smoothing, reduction=None)
        expected = np.asarray(loss(np.eye(300, dtype="float32")[integers], logits))
        for labels in (integers, integers[:, None], integers.astype("uint16")):
            np.testing.assert_array_equal(np.asarray(loss(labels, logits)), expected)


# `golden/task_losses.json` is of timm 1.0.31: BinaryCrossEntropy(smoothing=0),
# AsymmetricLossMultiLabel, ZlprLoss, and of torch 2.13 huber_loss: the loss and its gradient.
GOLDEN = json.loads((Path(__file__).parents[1] / "golden/task_losses.json").read_text())
ROWS = [[0.5, -1.25, 3.0, -4.0], [-0.1, 0.0, -2.75, 1.5], [6.0, -7.0, 2.0, -0.5]]
LOGITS = np.array(ROWS, "float32")
HARD = np.array([[1, 0, 0, 1], [0, 1, 0, 1], [1, 0, 0, 0]], "float32")
SOFT = np.array([[0.75, 0, 0.25, 1], [0, 0.5, 0.1, 0.9], [1, 0.05, 0, 0.4]], "float32")
GRADES = np.array([1, 4, 0])  # for timm, rows of whether the grade is above each
RECORDED = {
    "binary, hard": (losses.BinaryCrossentropy(), HARD),
    "binary, soft": (losses.BinaryCrossentropy(), SOFT), "zlpr, hard": (losses.ZLPRLoss(), HARD),
    "asymmetric, hard": (losses.AsymmetricLoss(), HARD),
    "asymmetric, soft": (losses.AsymmetricLoss(), SOFT),
    "asymmetric, no clip": (losses.AsymmetricLoss(2, 0, 0), HARD),
    "asymmetric, smooth": (losses.AsymmetricLoss(label_smoothing=0.2), HARD),
    "cumulative": (losses.CumulativeCrossentropy(), GRADES),
    "huber": (TASKS["regression"](size=4).loss("huber", delta=1.5), SOFT),
}  # fmt: skip
ONE_PER_LOSS = ("binary, soft", "asymmetric, smooth", "zlpr, hard", "cumulative", "huber")


def value_and_gradient(function: Callable[[Any], Any], x: np.ndarray) -> tuple:
    tensor = keras.ops.convert_to_tensor(x)
    if keras.backend.backend() == "jax":
        import jax

        value, gradient = jax.jit(jax.value_and_grad(function))(tensor)
    elif keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(tensor)
            value = function(tensor)
        gradient = tape.gradient(value, tensor)
    else:
        tensor.requires_grad_()
        value = function(tensor)
        value.backward()
        gradient = tensor.grad
    return keras.ops.convert_to_numpy(value), keras.ops.convert_to_numpy(gradient)


def restore(loss: keras.losses.Loss) -> Any:
    return keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))


def of_logits(loss: keras.losses.Loss, targets: Any, logits: np.ndarray) -> tuple:
    return value_and_gradient(lambda x: loss(targets, x), logits)


@pytest.mark.parametrize("name", rows(RECORDED, ONE_PER_LOSS))
def test_values_and_gradients_are_those_of_timm(name: str) -> None:
    actual, by_logits = of_logits(*RECORDED[name], LOGITS)
    np.testing.assert_allclose(actual, GOLDEN[name]["loss"], rtol=2e-6)
    np.testing.assert_allclose(by_logits, GOLDEN[name]["gradient"], rtol=2e-5, atol=2e-7)


@pytest.mark.every_backend
@pytest.mark.parametrize("kind", TASKS)
def test_gradients_are_those_of_finite_differences(kind: str) -> None:
    """In float32, of steps that no kink lies in; they are finite for extreme logits, too."""
    task = TASKS[kind](size=min(4 + (kind == "ordinal"), TASKS[kind].most))
    logits, targets = {
        "classification": (LOGITS, np.array([3, 0, 1])),
        "ordinal": (LOGITS, GRADES),
        "segmentation": (LOGITS[:, None, None], np.array([[[3]], [[0]], [[1]]])),
        "depth": (LOGITS[:, None, :, None], SOFT[:, None]),
    }.get(kind.removeprefix("relative_"), (LOGITS, SOFT))
    logits = logits + 0.01
    targets = task.check_targets(targets)
    for name, options in [row[1:] for row in EVERY_LOSS if row[0] == kind]:
        loss = task.loss(name, **options)
        differences = np.zeros_like(logits, "float64")
        for at in np.ndindex(logits.shape):
            step = np.zeros_like(logits)
            step[at] = 2e-3
            upper, lower = (float(loss(targets, logits + way)) for way in (step, -step))
            differences[at] = (upper - lower) / 4e-3
        _, gradient = of_logits(loss, targets, logits)
        np.testing.assert_allclose(gradient, differences, rtol=5e-3, atol=5e-4, err_msg=name)
        for scale in (0.0, 50.0, 1e4):
            value, gradient = of_logits(loss, targets, scale * logits)
            assert np.isfinite([value, *gradient.reshape(-1)]).all(), name
        assert float(restore(loss)(targets, logits)) == float(loss(targets, logits))


def dice_loss(truth: np.ndarray, answered: np.ndarray) -> float:
    return 1 - (2 * answered[truth].sum() + 1) / (truth.sum() + answered.sum() + 1)


def lovasz_loss(truth: np.ndarray, answered: np.ndarray) -> float:
    """Berman et al. 2018, algorithm 1, in float64."""
    errors = np.abs(truth - answered)
    order = np.argsort(-errors)
    of_class = truth[order].astype(float)
    union = of_class.sum() + (1 - of_class).cumsum()
    jaccard = 1 - (of_class.sum() - of_class.cumsum()) / union
    return float(np.diff(jaccard, prepend=0) @ errors[order])


# `golden/pixel_losses.npz` is of segmentation_models_pytorch 0.6.0: LovaszLoss("multiclass",
# per_image=True), and DiceLoss("multiclass", smooth=0.5) times all classes by those of an image:
# the loss of each image, and its gradient by the logits.
@pytest.mark.every_backend
@pytest.mark.parametrize("name", ["dice", "lovasz"])
def test_dice_and_lovasz_are_recorded_ones_and_their_formulas(name: str) -> None:
    recorded = np.load(Path(__file__).parents[1] / "golden/pixel_losses.npz")
    labels, logits = recorded["labels"], recorded["logits"]
    plain = PixelCrossentropy(reduction=None)
    options = {name: 1e4}  # beside which the cross-entropy of wrong answers does not round
    loss = Segmentation(size=4).loss(f"crossentropy_{name}", reduction=None, **options)

    def alone(x: Any, labels: Any = labels) -> Any:
        return (loss(labels, x) - plain(labels, x)) / 1e4

    _, gradient = value_and_gradient(lambda x: keras.ops.sum(alone(x)), logits)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(alone(logits)), recorded[name], rtol=2e-6)
    np.testing.assert_allclose(gradient, recorded[f"{name}_gradient"], rtol=1e-4, atol=2e-7)
    sure = 300 * np.eye(4, dtype="float32")[(labels * 7 + 3) % 4]
    expected, formula = [], {"dice": dice_loss, "lovasz": lovasz_loss}[name]
    for y, p in ((labels, logits), (labels, sure)):
        for i, known in enumerate(y != IGNORED):
            truth, answered = y[i][known], softmax(p[i][known].astype(float), axis=-1)
            each = [formula(truth == c, answered[:, c]) for c in np.unique(truth)]
            expected.append(np.mean(each))
            if p is sure and name == "lovasz":  # answers that are sure
                iou = jaccard_score(truth, answered.argmax(-1), average=None)
                np.testing.assert_allclose(each, 1 - iou[: len(each)], atol=1e-12)
    both = keras.ops.concatenate([alone(logits), alone(sure)])
    np.testing.assert_allclose(keras.ops.convert_to_numpy(both), expected, rtol=2e-6)
    # No label at all, and half precision.
    unknown = np.full_like(labels, IGNORED)
    value, gradient = value_and_gradient(lambda x: keras.ops.sum(loss(unknown, x)), logits)
    np.testing.assert_array_equal([value, *gradient.ravel()], 0)
    low = keras.ops.cast(logits, "bfloat16")
    assert keras.backend.standardize_dtype(alone(low).dtype) == "float32"
    refused(f"{name}=-1 must be at least 0", PixelCrossentropy, **{name: -1})


@pytest.mark.every_backend
def test_metrics() -> None:
    rng = np.random.default_rng(0)
    numbers, outputs = rng.normal(size=(2, 20, 2)).astype("float32")
    weights, grades = rng.random(20).astype("float32"), rng.integers(0, 3, (20, 1))
    for metric, y, errors in (
        (losses.UnitError(3.0, 1), numbers, 3 * np.abs(numbers - outputs)[:, 1]),
        (losses.GradeError(), grades, np.abs(grades[:, 0] - (outputs > 0).sum(axis=1))),
    ):
        metric.update_state(y[:5], outputs[:5], weights[:5])
        metric.update_state(y[5:], outputs[5:], weights[5:])
        expected = np.average(errors, weights=weights)
        np.testing.assert_allclose(float(metric.result()), expected, rtol=1e-5)
        assert type(metric).from_config(metric.get_config()).get_config() == metric.get_config()
    # Those of a task are its main scores.
    for kind in ("classification", "ordinal", "regression"):
        y = numbers if kind == "regression" else grades[:, 0]
        task = TASKS[kind](size=2 + (kind != "regression")).fitted(y)
        found = rng.normal(size=(20, task.outputs)).astype("float32")
        (metric, *_), scores = task.metrics(), task.scores(y, task.answers(found), 0)
        metric.update_state(task.check_targets(y), found)
        expected = scores[next(iter(scores))].value
        np.testing.assert_allclose(float(metric.result()), expected, rtol=1e-5)


CLASSES, POINTS = 4, 24


def points(shape: Any) -> np.ndarray:
    shape = tuple(map(int, shape))
    return np.random.default_rng(shape).uniform(size=shape).astype("float32")


@contextmanager
def same_numbers(loss: Any, present: list[list[int]], blocks: int = 0) -> Iterator[None]:
    """Meanwhile torch draws what `points` returns to us, in the order in which transformers asks.

    For each prediction the points of costs, image by image, then those of matched masks; and before
    a block whose masks are opened, the numbers of its queries.
    """
    import torch

    match, matched, asked = loss.matcher.forward, [], []

    def remember(*args: Any) -> Any:
        asked.clear()
        matched[:] = match(*args)
        return matched

    def rand(count: int, number: int, *two: int, **_: Any) -> Any:
        if not two:
            freed.append(len(freed))
            return torch.tensor(points((2, blocks, number))[:, freed[-1]])
        if count == 1:
            asked.append(points((2, POINTS, 2))[len(asked)])
            return torch.tensor(asked[-1][None])
        values = points((2, CLASSES, number, *two))  # of matched masks, in the order of queries
        rows = [values[i, present[i][j]] for i, (_, ids) in enumerate(matched) for j in ids]
        assert len(rows) == count
        return torch.tensor(np.stack(rows))

    freed: list[int] = []
    loss.matcher.forward = remember
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "rand", rand)
        yield


@pytest.mark.every_backend
def test_what_is_not_finite_is_assigned_last() -> None:
    costs = np.array([[[0.0, np.nan], [np.inf, 1.0], [5.0, 5.0]]], "float32")
    rows = assigned_rows(*map(keras.ops.convert_to_tensor, (costs, np.array([[True, True]]))))
    assert keras.ops.convert_to_numpy(rows).tolist() == [[0, 1]]


@pytest.mark.every_backend
@pytest.mark.parametrize("queries", [6, 3])  # fewer than the classes of an image
def test_a_step_of_eomt_is_that_of_transformers(queries: int, tmp_path, monkeypatch) -> None:
    """Every tensor after a step of SGD: one block without masks, one half freed, one masked."""
    torch = pytest.importorskip("torch")
    eomt = pytest.importorskip("transformers.models.eomt.modeling_eomt", exc_type=ImportError)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "patch_size": 4}
    sizes |= {"image_size": 20, "num_upscale_blocks": 1, "num_blocks": 3, "num_register_tokens": 2}
    sizes |= {"num_queries": queries, "num_labels": CLASSES, "train_num_points": POINTS}
    theirs = eomt.EomtForUniversalSegmentation(eomt.EomtConfig(**sizes))
    for tensor in theirs.parameters():
        tensor.data = 0.2 * torch.randn_like(tensor) + (tensor.data == 1)
    theirs.attn_mask_probs.zero_()
    theirs.save_pretrained(tmp_path / "before")
    model = keras_vit.load(tmp_path / "before")
    images = np.random.default_rng(0).integers(0, 256, (2, 20, 20, 3)).astype("uint8")
    labels = np.random.default_rng(1).integers(0, CLASSES, (2, 5, 5)).repeat(4, 1).repeat(4, 2)
    labels[1][labels[1] == 2] = IGNORED
    present = [[c for c in range(CLASSES) if (image == c).any()] for image in labels]
    pixels = keras.ops.convert_to_numpy(model.feature_model("images")(images)).copy()
    theirs.attn_mask_probs[:] = torch.tensor([0.0, 0.6**0.9, 1.0])
    theirs.train()
    with same_numbers(theirs.criterion, present, blocks=3):
        loss = theirs(
            torch.tensor(pixels).permute(0, 3, 1, 2),
            [torch.tensor(np.stack([x == c for c in ids]), dtype=torch.float32)
             for x, ids in zip(labels, present, strict=True)],
            [torch.tensor(ids) for ids in present],
        ).loss  # fmt: skip
    loss.backward()

    def uniform(shape: Any, seed: Any) -> Any:
        return keras.ops.convert_to_tensor(points(shape))

    monkeypatch.setattr(eomt_training, "_uniform", uniform)
    rate = 1e-3
    model.compile(keras.optimizers.SGD(rate), QueryLoss(POINTS, steps=50))
    model.annealing_seed.state.assign(np.array([1, 24]))  # of 5 phases of 10 steps
    assert float(model.train_on_batch(images, labels)) == pytest.approx(loss.item(), rel=1e-5)
    keras_vit.save_weights(model, tmp_path / "after", "huggingface")
    before, after = (load_file(tmp_path / f"{x}/model.safetensors") for x in ("before", "after"))
    for name, tensor in theirs.named_parameters():
        # Theirs is the sum of a token and its position, which both learn here.
        slope = tensor.grad.numpy() * (2 if name == "embeddings.cls_token" else 1)
        assert np.abs(slope).max() > 0, name
        error = 1e-5 * np.abs(slope).max() + 1e-6 * np.abs(before[name]).max() / rate
        np.testing.assert_allclose((before[name] - after[name]) / rate, slope, atol=error, rtol=0)


COUNTS = np.array([400, 52, 11, 4])
NORMAL = np.random.default_rng(0).normal(0, 2, (6, 4)).astype("float32")
LABELS = np.array([0, 3, 1, 2, 0, 0])
HOT = np.eye(4, dtype="float32")
SOFT_ROWS = HOT[LABELS] * 0.75 + HOT[LABELS[::-1]] * 0.25


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
    x = NORMAL.astype(np.float64) + (np.log(COUNTS / COUNTS.sum()) if kind == "logits" else 0)
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
        for given, labels in ((LABELS, np.eye(4)[LABELS]), (SOFT_ROWS, SOFT_ROWS)):
            expected, gradient = by_hand(kind, loss, labels)
            for one in (balanced, restored):
                actual, slope = of_logits(one, given, NORMAL)
                np.testing.assert_allclose(actual, expected, rtol=2e-6)
                np.testing.assert_allclose(slope, gradient, atol=1e-6)
        assert isinstance(restored, losses.BalancedLoss)


def test_losses_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    present = (SOFT_ROWS > 0).astype("float32")
    weights = positive_weights([5, 90, 3, 0], 100)
    tensor, weight = torch.tensor(NORMAL, requires_grad=True), torch.tensor(weights).float()
    pair = tensor, torch.tensor(present)
    theirs = torch.nn.functional.binary_cross_entropy_with_logits(*pair, pos_weight=weight)
    theirs.backward()
    loss = losses.BinaryCrossentropy(positive_weights=weights)
    for one in (loss, restore(loss)):
        actual, slope = of_logits(one, present, NORMAL)
        np.testing.assert_allclose(actual, theirs.item(), rtol=1e-5)
        np.testing.assert_allclose(slope, tensor.grad.numpy(), atol=1e-6)


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
    than = "times as many of the largest as of the smallest"
    assert describe_counts(["a", "b"], [4, 40]) == f"b 40, a 4: 10 {than}"
    many = describe_counts([f"c{i}" for i in range(1000)], np.arange(1000) + 1)
    assert many == f"c999 1,000, c998 999, c997 998, ..., c2 3, c1 2, c0 1: 1,000 {than}"
    counts = ([100, 10], [100, 11], [100, 0])  # the last is not tested, rather than rare
    assert list(map(balance.differs_much, counts)) == [True, False, False]
