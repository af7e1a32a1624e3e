"""What docs/inspection shows: the blocks of its README, and rollouts of real photographs."""

from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit import load
from tests.conftest import REPOSITORY
from tests.docs.blocks import python_blocks

FOLDER = REPOSITORY / "docs" / "inspection"


@pytest.mark.backends("tensorflow", "torch")  # those of JAX run in tests/docs
def test_the_blocks_of_the_page() -> None:
    names: dict = {}
    for block in python_blocks(FOLDER / "README.md"):
        exec(compile(block.code, str(block), "exec"), names)
    assert names["speaks"].shape == names["rollout"].shape == (2, 4, 4)
    assert names["maps"].shape == (2, 2, 2, 17, 17)
    # Grad-CAM: the mean of the patches is classified linearly, so that the gradient is known.
    kernel = keras.ops.convert_to_numpy(names["classifier"].get_layer("head").kernel)[:, 1]
    np.testing.assert_allclose(names["gradient"], np.broadcast_to(kernel / 16, (2, 16, 32)), 1e-5)
    expected = np.maximum(names["features"] @ kernel / 16, 0).reshape(2, 4, 4)
    np.testing.assert_allclose(names["cam"], expected, atol=1e-6)
    assert names["cam"].max() > 0


def test_the_rollouts_mass_lies_on_the_flower(shared: Path) -> None:
    """Inside boxes drawn by hand."""
    pytest.importorskip("matplotlib")
    from docs.inspection import contact_sheet as sheet

    flowers, boxes = shared / "photos" / "flowers", sheet.boxes()
    weights = shared / "weights" / "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    others = sheet.others(flowers, 4)
    model = load(weights / "model.safetensors")
    maps = sheet.rollouts(model, flowers, [*boxes, *others])
    baseline = maps[len(boxes) :].mean(axis=0)
    for rollout, (name, box) in zip(maps, boxes.items(), strict=False):
        mass, area = sheet.fractions(rollout, box, 16)
        baseline_mass, _ = sheet.fractions(baseline, box, 16)
        assert mass >= 1.3 * area, name
        assert mass >= 1.15 * baseline_mass, name
