"""Attention distance, against the definition in the ViT paper (figure 11)."""

import math
from pathlib import Path

import numpy as np
import pytest

from keras_vit import from_checkpoint
from keras_vit.inspection import attention_distance
from keras_vit.inspection.forward_pass import ForwardPass
from tests.golden_cases import golden_case
from tests.inspection.models import images_for, maps_of, model_of
from tests.weights.test_golden import CASES


def definition(maps: np.ndarray, columns: int, patch: tuple[int, int]) -> np.ndarray:
    """Number by number: `(images, depth, heads, patches, patches)` to pixels per layer and head."""
    distances = np.zeros(maps.shape[:-1])
    for *which, query in np.ndindex(distances.shape):
        weights = maps[(*which, query)].astype("float64")
        for key, weight in enumerate(weights):
            down = (query // columns - key // columns) * patch[0]
            right = (query % columns - key % columns) * patch[1]
            distances[(*which, query)] += weight / weights.sum() * math.hypot(down, right)
    return distances.mean(axis=(0, 3))


def test_distance_equals_the_definition_on_recorded_maps(shared: Path) -> None:
    case = golden_case("vit_nonsquare_patch", shared)
    model = from_checkpoint(case.file, include_preprocessing=False, **CASES[case.folder.name])
    recorded, columns = case.outputs(), 48 // model.patch_size[1]
    prefix = model.num_prefix_tokens
    maps = np.stack([recorded[f"attn_{i}"] for i in range(model.depth)], axis=1)
    expected = definition(maps[..., prefix:, prefix:], columns, model.patch_size)
    assert np.abs(attention_distance(model, recorded["images"]) - expected).max() < 1e-3


@pytest.mark.parametrize("kind", ["token", "registers", "map", "any_size"])
def test_distance_equals_the_definition(kind: str) -> None:
    model, images = model_of(kind), images_for(kind)
    prefix = model.num_prefix_tokens
    maps = maps_of(kind)[..., prefix:, prefix:]
    distances = attention_distance(model, images)
    assert np.abs(distances - definition(maps, 3, (8, 4))).max() < 1e-4


def test_patches_without_attention_are_not_nan() -> None:
    class Nothing:
        """A forward pass whose attention is all on the class token."""

        patch_pixels, grid, prefix, blocks = (8, 4), (2, 2), 1, [None]

        def attention(self, layer: int) -> np.ndarray:
            return np.eye(5, dtype="float32")[np.zeros((1, 2, 5), int)]

    assert not ForwardPass.distances(Nothing()).any()
