"""Inspection of models that a Vision Transformer is in: what it gets is what is inspected."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from keras_vit import inspection
from tests import bank
from tests.backend import refused, rows
from tests.inspection.models import SHAPE, images_for, model_of

MAPS = (
    *(inspection.attention_maps, inspection.readout_attention),
    *(inspection.attention_rollout, inspection.attention_distance),
)


def classified(images: Any, features: Any) -> keras.Model:
    return keras.Model(images, layers.Dense(2)(features))


def around(model: Any, *before: Any, shape: tuple[int, ...] = SHAPE) -> keras.Model:
    images = x = keras.Input(shape)
    for layer in (*before, model):
        x = layer(x)
    return classified(images, x)


class Subclass(keras.Model):
    """As many people write their models."""

    def __init__(self, vit: keras.Model) -> None:
        super().__init__()
        self.scale, self.vit, self.head = layers.Rescaling(0.5), vit, layers.Dense(2)

    def call(self, images: Any) -> Any:
        return self.head(self.vit(self.scale(images)))


class NotCalled(Subclass):
    def call(self, images: Any) -> Any:
        return self.head(layers.Flatten()(images))


SHAPES: dict[str, Callable[[Any], keras.Model]] = {
    "on its output": lambda m: classified(m.input, m.output),
    "on its pooled token": lambda m: classified(m.inputs, m.get_layer("pooling").output),
    "its features": lambda m: m.feature_model("pre_logits"),
    "inside": around,
    "its features inside": lambda m: around(m.feature_model("pre_logits")),
    "inside, two deep": lambda m: around(around(m)),
    "behind a rescaling": lambda m: around(m, layers.Rescaling(0.5)),
    "in a Sequential": lambda m: keras.Sequential([layers.Rescaling(0.5), m, layers.Dense(2)]),
    "augmented": lambda m: keras.Sequential([layers.RandomFlip(), layers.RandomRotation(0.2), m]),
    "in a subclass": Subclass,
}
RESCALED = ("behind a rescaling", "in a Sequential", "in a subclass")


@pytest.mark.parametrize("shape", rows(SHAPES, ["augmented", "in a subclass"]))
def test_it_is_that_of_the_transformer_inside(shape: str) -> None:
    vit, images = model_of("token"), images_for("token").astype("float32")
    model, scale = SHAPES[shape](vit), np.float32(0.5 if shape in RESCALED else 1)
    for measure in MAPS:
        expected = measure(vit, images * scale)
        np.testing.assert_allclose(measure(model, images), expected, atol=2e-5, rtol=1e-4)
    filters, similarity = inspection.embedding_filters, inspection.position_similarity
    np.testing.assert_array_equal(filters(model, 4), filters(vit, 4))
    np.testing.assert_array_equal(similarity(model), similarity(vit))


@pytest.mark.parametrize("kind", ["map", "channels_first", "registers"])
def test_other_kinds_inside(kind: str) -> None:
    vit, images = model_of(kind), images_for(kind).astype("float32")
    model = around(vit, shape=vit.input_shape[1:])
    for measure in (*MAPS, *[inspection.pooling_attention] * (kind == "map")):
        np.testing.assert_allclose(measure(model, images), measure(vit, images), atol=2e-5)


def test_blocks_up_to_the_third_and_of_a_hybrid() -> None:
    vit, images = model_of("token"), images_for("token")
    maps = inspection.attention_maps(vit.feature_model("block_0"), images)
    np.testing.assert_allclose(maps, inspection.attention_maps(vit, images, layers=[0]), atol=1e-6)
    hybrid = bank.small(resnet=(1,), resnet_width=32, patch_size=1, input_shape=(32, 24, 3))
    pixels = bank.pixels(1, 32, 24, 3)
    expected = inspection.attention_distance(hybrid, pixels)
    distances = inspection.attention_distance(classified(hybrid.input, hybrid.output), pixels)
    np.testing.assert_allclose(distances, expected, atol=1e-4)
    assert 4 < expected.mean() < 40  # patches are of 4 pixels, not 1


def test_the_overlay_lies_on_the_image_that_is_resized() -> None:
    pytest.importorskip("matplotlib")
    model = around(model_of("token"), layers.Resizing(32, 12), shape=(64, 48, 3))
    images = bank.pixels(1, 64, 48, 3).astype("float32")
    for plot in (inspection.plot_rollout, inspection.plot_attribution):
        original, darkened = (axes.images[0].get_array() for axes in plot(model, images).axes)
        assert original.shape == darkened.shape == (64, 48, 3)
        assert (darkened > 0).any(axis=2).mean() > 0.9  # no strip is left out


def test_what_is_ambiguous_is_named() -> None:
    vit, other = model_of("token"), model_of("gap").copy(name="other")
    inputs, images = keras.Input(SHAPE), images_for("token").astype("float32")
    two = keras.Model(inputs, vit(inputs) + other(inputs))
    siamese = keras.Model(inputs, vit(inputs) - vit(layers.Rescaling(0.5)(inputs)))
    frames = keras.Input((2, *SHAPE))
    of_frames = keras.Model(frames, layers.TimeDistributed(vit)(frames))
    with pytest.raises(ValueError, match=r"sequences for 3 images|several times"):
        inspection.attention_maps(of_frames, bank.pixels(3, 2, *SHAPE).astype("float32"))
    for model, reason in (
        (two, r"several Vision Transformers.*get_layer\('vision.*\(a Vis.*, model\."),
        (siamese, r"several times.*get_layer\('vision_transformer.*with the images that it gets"),
        (NotCalled(vit), r"did not call them"),
    ):
        for measure in (*MAPS, inspection.class_attribution):
            refused(reason, measure, model, images)


def test_poolings_of_others_and_without_attention() -> None:
    vit, images = model_of("token"), images_for("token")
    tokens = vit.get_layer("encoder_norm").output
    model = classified(vit.input, layers.GlobalAveragePooling1D()(tokens))
    assert inspection.attention_maps(model, images).shape == (3, 2, 2, 13, 13)
    assert inspection.class_attribution(model, images).shape == (3, 4, 3)
    for measure in (inspection.attention_rollout, inspection.readout_attention):
        refused(r"layers that are not of keras_vit.*MeanPooling", measure, model, images)
    for kind in ("mixer", "bit"):
        for measure in (inspection.attention_maps, inspection.class_attribution):
            with pytest.raises(ValueError, match=r"without encoder blocks.*Grad-CAM"):
                measure(bank.small_kind(kind), np.zeros((1, 32, 32, 3)))
