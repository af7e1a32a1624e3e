"""Attention rollout, against a recorded one and the definition of Abnar and Zuidema."""

from pathlib import Path

import numpy as np
import pytest

from keras_vit import from_checkpoint
from keras_vit.inspection import attention_rollout, pooling_attention
from tests.golden_cases import golden_case
from tests.inspection.models import KINDS, everywhere, images_for, maps_of, model_of


def joint_attention(maps: np.ndarray) -> np.ndarray:
    """The definition, one image: `(depth, heads, tokens, tokens)` to `(tokens, tokens)`."""
    joint = np.eye(maps.shape[-1])
    for layer in maps.astype("float64"):
        raw = sum(layer) / len(layer) + np.eye(maps.shape[-1])
        joint = (raw / raw.sum(axis=1)[:, None]) @ joint
    return joint


@pytest.mark.every_backend
def test_rollout_equals_the_recorded_one(shared: Path) -> None:
    case = golden_case("vit_token", shared)
    model = from_checkpoint(case.file, include_preprocessing=False)
    rollout = attention_rollout(model, case.outputs()["images"])
    recorded = np.load(case.folder / "rollout.npz")["cls_to_patches"]
    assert rollout.shape == (2, 4, 4)
    assert np.abs(rollout.reshape(2, 16) - recorded).max() <= 1e-5


@pytest.mark.parametrize("kind", everywhere(KINDS, "token", "map"))
def test_rollout_equals_the_definition(kind: str) -> None:
    model, images = model_of(kind), images_for(kind)
    rollout = attention_rollout(model, images)
    assert rollout.shape == (3, 4, 3)
    for i, maps in enumerate(maps_of(kind)):
        joint, prefix = joint_attention(maps), model.num_prefix_tokens
        if kind == "map":
            row = pooling_attention(model, images)[i].mean(axis=0) @ joint
        elif kind in ("gap", "gap_registers", "all_tokens"):
            row = joint[prefix:].mean(axis=0)
        else:
            row = joint[0]
        assert np.abs(rollout[i].ravel() - row[prefix:]).max() < 1e-6
        assert abs(row.sum() - 1) < 1e-6
