"""The first image of the README, of a small model."""

from pathlib import Path

import numpy as np
import pytest

import keras_vit

pytest.importorskip("matplotlib")


def test_the_five_panels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    from examples import what_it_sees

    model = keras_vit.VisionTransformer(
        patch_size=16, hidden_dim=16, depth=2, num_heads=2, num_classes=6, input_shape=(48, 32, 3)
    )
    random = np.random.default_rng(0)
    model.set_weights([w + random.normal(0, 0.1, w.shape) for w in model.get_weights()])
    model.class_names = ("a", "b", "c", "d", "e", "f")
    model.save(tmp_path / "model.keras")
    photo = tmp_path / "photo.png"
    Image.fromarray(random.integers(0, 256, (60, 60, 3), "uint8")).save(photo)
    words = ["--weights", str(tmp_path / "model.keras"), "--out", str(tmp_path / "out.png")]
    what_it_sees.main([*words, "--photo", str(photo)])
    assert "written to" in capsys.readouterr().out
    assert Image.open(tmp_path / "out.png").size == (1200, 264)
    figure = what_it_sees.draw(model, np.zeros((48, 32, 3), "float32"))
    titles = [panel.get_title() for panel in figure.axes]
    assert titles[:3] == ["a photograph", "3 x 2 patches", "where the class token looks"]
    assert len(figure.axes[4].patches) == 5
    with pytest.raises(SystemExit, match="No such file"):
        what_it_sees.main([*words, "--photo", str(tmp_path / "nowhere.png")])
