"""The loss of matched queries: transformers' numbers and gradients, of the same random points."""

from typing import Any

import keras
import numpy as np
import pytest

from keras_vit.ops import assigned_rows
from keras_vit.tasks.pixel_losses import IGNORED
from keras_vit.tasks.query_losses import QueryLoss

CLASSES, QUERIES, POINTS = 4, 6, 24
WEIGHTS = {"loss_cross_entropy": 2.0, "loss_mask": 5.0, "loss_dice": 5.0}


def points(shape: Any) -> np.ndarray:
    """The same uniform numbers for a shape, whoever asks."""
    shape = tuple(map(int, shape))
    return np.random.default_rng(shape).uniform(size=shape).astype("float32")


def examples(queries: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels of two images, the second with unknown pixels and without a class; and logits."""
    random = np.random.default_rng(3)
    labels = random.integers(0, CLASSES, (2, 3, 5)).repeat(4, 1).repeat(4, 2).astype("int32")
    labels[1][labels[1] == 2] = IGNORED
    masks = random.normal(size=(2, 6, 10, queries)).astype("float32")
    return labels, 3 * masks, random.normal(size=(2, queries, CLASSES + 1)).astype("float32")


def theirs(queries: int) -> tuple[float, np.ndarray, np.ndarray]:
    """The loss of transformers and its gradients."""
    torch = pytest.importorskip("torch")
    eomt = pytest.importorskip("transformers.models.eomt.modeling_eomt", exc_type=ImportError)
    config = eomt.EomtConfig(train_num_points=POINTS, num_labels=CLASSES)
    loss = eomt.EomtLoss(config, WEIGHTS)
    labels, *logits = examples(queries)
    masks, classes = (torch.tensor(x, requires_grad=True) for x in logits)
    present = [[c for c in range(CLASSES) if (image == c).any()] for image in labels]
    targets = [
        torch.tensor(np.stack([image == c for c in ids]).astype("float32"))
        for image, ids in zip(labels, present, strict=True)
    ]
    images, matched, match = iter(points((2, POINTS, 2))), [], loss.matcher.forward

    def remember(*args: Any) -> Any:
        matched.extend(match(*args))
        return matched

    def rand(count: int, number: int, two: int, **_: Any) -> Any:
        if not matched:
            return torch.tensor(next(images)[None])
        values = points((2, CLASSES, number, two))  # of matched masks, in the order of queries
        rows = [values[i, present[i][j]] for i, (_, ids) in enumerate(matched) for j in ids]
        assert len(rows) == count
        return torch.tensor(np.stack(rows))

    loss.matcher.forward = remember
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "rand", rand)
        ids = [torch.tensor(x) for x in present]
        parts = loss(masks.permute(0, 3, 1, 2), classes, targets, ids)
    total = sum(WEIGHTS[name] * value for name, value in parts.items())
    total.backward()
    return total.item(), masks.grad.numpy(), classes.grad.numpy()


class Logits(keras.Model):
    """A model whose weights are the logits themselves, so that a step of SGD shows gradients."""

    def __init__(self, loss: QueryLoss, *logits: np.ndarray) -> None:
        super().__init__()
        self.of_queries = loss
        for number, values in enumerate(logits):
            weight = self.add_weight(shape=values.shape, name=f"logits_{number}")
            weight.assign(values)

    def call(self, images: Any) -> Any:
        return [weight + 0.0 for weight in self.weights]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return self.of_queries(y, *y_pred)


@pytest.mark.every_backend
@pytest.mark.parametrize("queries", [QUERIES, 3])  # fewer than the classes of an image
def test_a_step_of_training_has_the_numbers_of_transformers(queries: int) -> None:
    expected, *slopes = theirs(queries)
    labels, *logits = examples(queries)
    draw = lambda shape: keras.ops.convert_to_tensor(points(shape))  # noqa: E731
    model = Logits(QueryLoss(POINTS, draw), *logits)
    # Compiled on JAX and TensorFlow; XLA does not call the host on TensorFlow.
    model.compile(keras.optimizers.SGD(1.0), jit_compile=keras.backend.backend() == "jax")
    seen = model.fit(np.zeros((2, 1), "float32"), labels, batch_size=2, shuffle=False, verbose=0)
    assert seen.history["loss"][0] == pytest.approx(expected, rel=1e-5)
    for before, after, slope in zip(logits, model.get_weights(), slopes, strict=True):
        np.testing.assert_allclose(before - after, slope, atol=1e-5 * np.abs(slope).max() + 5e-7)


@pytest.mark.every_backend
def test_what_is_not_finite_is_assigned_last() -> None:
    costs = np.array([[[0.0, np.nan], [np.inf, 1.0], [5.0, 5.0]]], "float32")
    rows = assigned_rows(*map(keras.ops.convert_to_tensor, (costs, np.array([[True, True]]))))
    assert keras.ops.convert_to_numpy(rows).tolist() == [[0, 1]]
