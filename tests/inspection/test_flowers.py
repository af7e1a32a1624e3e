"""Real weights on real images: rollout lies on the flower, inside boxes drawn by hand."""

import importlib.util
from pathlib import Path

import pytest

from keras_vit import from_checkpoint
from tests.conftest import REPOSITORY

pytest.importorskip("matplotlib")


def test_the_rollouts_mass_lies_on_the_flower(shared: Path) -> None:
    file = REPOSITORY / "docs" / "inspection" / "contact_sheet.py"
    spec = importlib.util.spec_from_file_location("contact_sheet", file)
    sheet = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sheet)
    flowers = shared / "photos" / "flowers"
    weights = shared / "weights" / "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    boxes = sheet.boxes()
    classes = [name.split("/")[0] for name in boxes]
    assert classes == ["daisy", "dandelion", "roses", "sunflowers", "tulips"]
    others = sheet.others(flowers, 4)
    assert len(others) == 20
    model = from_checkpoint(weights / "model.safetensors")
    maps = sheet.rollouts(model, flowers, [*boxes, *others])
    baseline = maps[len(boxes) :].mean(axis=0)
    for rollout, (name, box) in zip(maps, boxes.items(), strict=False):
        mass, area = sheet.fractions(rollout, box, 16)
        baseline_mass, _ = sheet.fractions(baseline, box, 16)
        assert mass >= 1.3 * area, name
        assert mass >= 1.15 * baseline_mass, name
