"""The loss of matched queries: transformers' numbers and gradients, of the same random points."""

from collections.abc import Iterator
from contextlib import contextmanager
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

CLASSES, POINTS = 4, 24


def points(shape: Any) -> np.ndarray:
    """The same uniform numbers for a shape, whoever asks."""
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
