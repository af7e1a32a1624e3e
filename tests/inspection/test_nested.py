"""Inspection of models that a Vision Transformer is in: what it gets is what is inspected."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection
from keras_vit.models import ImageModel
from tests import bank
from tests.inspection.models import everywhere, images_for, model_of

MAPS = (
    inspection.attention_maps,
    inspection.readout_attention,
    inspection.attention_rollout,
    inspection.attention_distance,
)


def around(model: Any, *layers: Any, shape: tuple[int, ...] = (32, 12, 3)) -> keras.Model:
    """A functional model that ends in two classes: layers, then a model, then `Dense`."""
    images = x = keras.Input(shape)
    for layer in (*layers, model):
        x = layer(x)
    return keras.Model(images, keras.layers.Dense(2)(x))


class Subclass(keras.Model):
    """As many people write their models."""

    def __init__(self, vit: keras.Model) -> None:
        super().__init__()
        self.scale = keras.layers.Rescaling(0.5)
        self.vit = vit
        self.head = keras.layers.Dense(2)

    def call(self, images: Any) -> Any:
        return self.head(self.vit(self.scale(images)))


# A model around a ViT, and by how much its images are scaled before they get there.
SHAPES: dict[str, tuple[Callable[[Any], keras.Model], float]] = {
    "on its output": (lambda m: keras.Model(m.input, keras.layers.Dense(3)(m.output)), 1),
    "on its pooled token": (
        lambda m: keras.Model(m.inputs, keras.layers.Dense(2)(m.get_layer("pooling").output)),
        1,
    ),
    "its features": (lambda m: m.feature_model("pre_logits"), 1),
    "its tokens": (lambda m: m.feature_model("encoder_norm"), 1),
    "inside": (around, 1),
    "its features inside": (lambda m: around(m.feature_model("pre_logits")), 1),
    "inside, two deep": (lambda m: around(around(m)), 1),
    "behind a rescaling": (lambda m: around(m, keras.layers.Rescaling(0.5)), 0.5),
    "in a Sequential": (
        lambda m: keras.Sequential([keras.layers.Rescaling(0.5), m, keras.layers.Dense(2)]),
        0.5,
    ),
    "behind augmentation": (
        lambda m: keras.Sequential(
            [keras.layers.RandomFlip(), keras.layers.RandomRotation(0.2), m]
        ),
        1,
    ),
    "in a subclass": (Subclass, 0.5),
}


@pytest.mark.parametrize("shape", everywhere(SHAPES, "behind augmentation", "in a subclass"))
def test_it_is_that_of_the_transformer_inside(shape: str) -> None:
    vit, images = model_of("token"), images_for("token").astype("float32")
    build, scale = SHAPES[shape]
    model = build(vit)
    for measure in MAPS:
        expected = measure(vit, images * np.float32(scale))
        np.testing.assert_allclose(measure(model, images), expected, atol=2e-5, rtol=1e-4)
    for of_weights in (
        lambda m: inspection.embedding_filters(m, 4),
        inspection.position_similarity,
    ):
        np.testing.assert_array_equal(of_weights(model), of_weights(vit))


@pytest.mark.parametrize("kind", ["map", "channels_first", "registers"])
def test_other_kinds_inside(kind: str) -> None:
    vit, images = model_of(kind), images_for(kind).astype("float32")
    model = around(vit, shape=vit.input_shape[1:])
    for measure in (*MAPS, *[inspection.pooling_attention] * (kind == "map")):
        np.testing.assert_allclose(measure(model, images), measure(vit, images), atol=2e-5)


def test_blocks_up_to_the_third_and_of_a_hybrid() -> None:
    vit, images = model_of("token"), images_for("token")
    first = vit.feature_model("block_0")
    maps = inspection.attention_maps(first, images)
    np.testing.assert_allclose(maps, inspection.attention_maps(vit, images, layers=[0]), atol=1e-6)
    hybrid = bank.small(resnet=(1,), resnet_width=32, patch_size=1, input_shape=(32, 24, 3))
    model = keras.Model(hybrid.input, keras.layers.Dense(2)(hybrid.output))
    pixels = bank.pixels(1, 32, 24, 3)
    expected = inspection.attention_distance(hybrid, pixels)
    np.testing.assert_allclose(inspection.attention_distance(model, pixels), expected, atol=1e-4)
    assert 4 < expected.mean() < 40  # patches are of 4 pixels, not 1


def test_the_overlay_lies_on_the_image_that_is_resized() -> None:
    pytest.importorskip("matplotlib")
    model = around(model_of("token"), keras.layers.Resizing(32, 12), shape=(64, 48, 3))
    images = bank.pixels(1, 64, 48, 3).astype("float32")
    for plot in (inspection.plot_rollout, inspection.plot_attribution):
        original, darkened = (axes.images[0].get_array() for axes in plot(model, images).axes)
        assert original.shape == darkened.shape == (64, 48, 3)
        assert (darkened > 0).any(axis=2).mean() > 0.9  # no strip is left out


def two_transformers() -> keras.Model:
    images, other = keras.Input((32, 12, 3)), model_of("gap").copy(name="other")
    return keras.Model(images, model_of("token")(images) + other(images))


def siamese() -> keras.Model:
    images, vit = keras.Input((32, 12, 3)), model_of("token")
    return keras.Model(images, vit(images) - vit(keras.layers.Rescaling(0.5)(images)))


def not_called() -> keras.Model:
    class Teacher(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.teacher = model_of("token")
            self.head = keras.layers.Dense(2)

        def call(self, images: Any) -> Any:
            return self.head(keras.layers.Flatten()(images))

    return Teacher()


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (two_transformers, r"several Vision Transformers.*get_layer\('vision.*\(a Vis.*, model\."),
        (siamese, r"several times.*get_layer\('vision_transformer.*with the images that it gets"),
        (not_called, r"did not call them"),
    ],
)
def test_what_is_ambiguous_is_named(build: Callable[[], keras.Model], reason: str) -> None:
    model, images = build(), images_for("token").astype("float32")
    for measure in (*MAPS, inspection.class_attribution):
        with pytest.raises(ValueError, match=reason):
            measure(model, images)
    if build is not not_called:  # the advice works
        inner = next(x for x in model.layers if isinstance(x, keras_vit.VisionTransformer))
        assert inspection.attention_maps(inner, images).shape[0] == 3


def test_frames_of_a_video_are_not_one_image() -> None:
    frames = keras.Input((2, 32, 12, 3))
    model = keras.Model(frames, keras.layers.TimeDistributed(model_of("token"))(frames))
    with pytest.raises(ValueError, match=r"sequences for 3 images|several times"):
        inspection.attention_maps(model, bank.pixels(3, 2, 32, 12, 3).astype("float32"))


def test_poolings_of_others() -> None:
    vit, images = model_of("token"), images_for("token")
    tokens = vit.get_layer("encoder_norm").output
    mean = keras.layers.GlobalAveragePooling1D()(tokens)
    model = keras.Model(vit.input, keras.layers.Dense(2)(mean))
    assert inspection.attention_maps(model, images).shape == (3, 2, 2, 13, 13)
    assert inspection.class_attribution(model, images).shape == (3, 4, 3)
    for measure in (inspection.attention_rollout, inspection.readout_attention):
        with pytest.raises(ValueError, match=r"layers that are not of keras_vit.*MeanPooling"):
            measure(model, images)


OTHERS: dict[str, tuple[type[ImageModel], dict[str, Any]]] = {
    "mixer": (keras_vit.MLPMixer, {"patch_size": 8, "hidden_dim": 16, "depth": 1}),
    "resnet": (keras_vit.BiTResNet, {"depths": (1,), "width": 32}),
}


@pytest.mark.parametrize("family", OTHERS)
def test_without_attention_the_error_names_what_to_use(family: str) -> None:
    kind, sizes = OTHERS[family]
    model = kind(**sizes, num_classes=3, input_shape=(32, 32, 3))
    for measure in (inspection.attention_maps, inspection.class_attribution):
        with pytest.raises(ValueError, match=r"without encoder blocks.*Grad-CAM"):
            measure(model, np.zeros((1, 32, 32, 3)))
