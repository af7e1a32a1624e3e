"""The loss of matched queries: transformers' numbers and gradients, of the same random points."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_vit
from keras_vit.models import eomt_training
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
    with same_numbers(loss, present):
        ids = [torch.tensor(x) for x in present]
        parts = loss(masks.permute(0, 3, 1, 2), classes, targets, ids)
    total = sum(WEIGHTS[name] * value for name, value in parts.items())
    total.backward()
    return total.item(), masks.grad.numpy(), classes.grad.numpy()


class Logits(keras.Model):
    """A model whose weights are the logits themselves, so that a step of SGD shows gradients."""

    def __init__(self, loss: QueryLoss, *logits: np.ndarray) -> None:
        super().__init__()
        self.queries = loss
        for number, values in enumerate(logits):
            weight = self.add_weight(shape=values.shape, name=f"logits_{number}")
            weight.assign(values)

    def call(self, images: Any) -> Any:
        return [weight + 0.0 for weight in self.weights]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        draw = lambda shape: keras.ops.convert_to_tensor(points(shape))  # noqa: E731
        return self.queries.of_queries(y, *y_pred, draw)


@pytest.mark.every_backend
@pytest.mark.parametrize("queries", [QUERIES, 3])  # fewer than the classes of an image
def test_a_step_of_training_has_the_numbers_of_transformers(queries: int) -> None:
    expected, *slopes = theirs(queries)
    labels, *logits = examples(queries)
    model = Logits(QueryLoss(POINTS), *logits)
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


@pytest.mark.every_backend
def test_a_whole_step_of_eomt_has_the_weights_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tensor after a step of SGD: one block without masks, one half freed, one masked."""
    torch = pytest.importorskip("torch")
    eomt = pytest.importorskip("transformers.models.eomt.modeling_eomt", exc_type=ImportError)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "patch_size": 4}
    sizes |= {"image_size": 20, "num_upscale_blocks": 1, "num_blocks": 3, "num_register_tokens": 2}
    sizes |= {"num_queries": QUERIES, "num_labels": CLASSES, "train_num_points": POINTS}
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
