"""Each plot is one call, shows every part, and needs no pyplot."""

import io
import sys

import numpy as np
import pytest

from keras_vit import inspection
from keras_vit.inspection.plots import draw_maps
from tests.backend import refused
from tests.inspection.models import images_for, model_of, untrained

pytest.importorskip("matplotlib")


def png(figure) -> np.ndarray:
    """The pixels of the figure as a PNG file, `(height, width, 3)`."""
    from PIL import Image

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return np.asarray(Image.open(buffer).convert("RGB"))


@pytest.mark.parametrize("kind", ["token", "channels_first"])
def test_every_plot_is_one_call(kind: str) -> None:
    model, images = model_of(kind), images_for(kind)
    figures = {
        "attention": (inspection.plot_attention(model, images[0]), 2 * 2),
        "attribution": (inspection.plot_attribution(model, images), 3 * 2),
        "rollout": (inspection.plot_rollout(model, images), 3 * 2),
        "distance": (inspection.plot_attention_distance(model, images), 1),
        "similarity": (inspection.plot_position_similarity(model), 4 * 3 + 1),
        "filters": (inspection.plot_embedding_filters(model), 3 * 7),
    }
    for name, (figure, axes) in figures.items():
        assert len(figure.axes) == axes, name
        height, width, _ = png(figure).shape
        assert (width >= 600, 100 < height < 4000) == (True, True), name
    refused("8 channels", inspection.plot_embedding_filters, untrained(input_shape=(32, 12, 8)))
    axes = figures["distance"][0].axes[0]
    shown = np.array([dots.get_offsets()[:, 1] for dots in axes.collections]).T
    assert np.abs(shown - inspection.attention_distance(model, images)).max() < 1e-5
    assert "of 12" in axes.get_ylabel()


def test_patches_without_attention_are_dark() -> None:
    rollout = np.zeros((1, 4, 3))
    rollout[0, 1, 2] = 0.5
    figure = draw_maps(np.ones((1, 34, 13, 3)), rollout, (32, 12), "rollout")
    original, darkened = (axes.images[0].get_array() for axes in figure.axes)
    assert (original == 1).all()
    assert darkened[12, 11, 0] > 0.9
    assert not darkened[:, :4].any()
    assert not darkened[32:].any()  # no patch covers the last two rows
    # A hybrid's patches may extend beyond the image.
    assert len(draw_maps(np.ones((1, 30, 11, 3)), rollout, (32, 12), "rollout").axes) == 2
    # One patch far above all others does not leave the rest black.
    maps = np.ones((5, 14, 14))
    maps[:, 0, 0] = 50
    figure = draw_maps(np.ones((5, 28, 28, 3)), maps, (28, 28), "attribution")
    assert figure.axes[1].images[0].get_array().min() > 0.9
    assert all(len(axes.images) == 1 for axes in figure.axes)  # no place is left empty


def test_without_matplotlib_only_plots_fail_and_name_the_extra(monkeypatch) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    model, images = model_of("token"), images_for("token")
    assert inspection.attention_rollout(model, images).shape == (3, 4, 3)
    refused(r"keras3-vit\[plots\]", inspection.plot_rollout, model, images, error=ImportError)
