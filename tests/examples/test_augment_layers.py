"""The example of layers in place of the recipe's augmentation."""

from typing import Any

import pytest

from keras_vit import data
from tests.examples import load_example

pytest.importorskip("tensorflow")


def test_each_augmentation_makes_batches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load_example("augment_layers")

    def accuracy(splits: data.Splits, augment: Any, epochs: int) -> float:
        options = {"training": True, "channels": 1, "num_classes": 10, "augment": augment}
        images, labels = next(iter(data.pipeline(splits.train, 8, 4, **options)))
        assert (images.shape, labels.shape) == ((4, 8, 8, 1), (4, 10))
        return epochs / 100

    monkeypatch.setattr(example, "accuracy", accuracy)
    example.main(["--epochs", "2"])
    printed = capsys.readouterr().out.split()
    assert printed[:4] == ["recipe", "2.00%", "keras", "2.00%"]
