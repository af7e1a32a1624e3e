"""Inspection of models that a Vision Transformer is in: what it gets is what is inspected."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection
from tests.inspection.models import images_for, model_of

MAPS = (
    inspection.attention_maps,
    inspection.readout_attention,
    inspection.attention_rollout,
    inspection.attention_distance,
)


def image_input(size: tuple[int, int] = (32, 12)) -> Any:
    return keras.Input((*size, 3))


def around(model: Any, *layers: Any, size: tuple[int, int] = (32, 12)) -> keras.Model:
    """A functional model that ends in two classes: layers, then a model, then `Dense`."""
    images = x = image_input(size)
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


def half(images: np.ndarray) -> np.ndarray:
    return images * np.float32(0.5)


def same(images: np.ndarray) -> np.ndarray:
    return images


# A model around a ViT, and what that feeds it.
SHAPES: dict[str, tuple[Callable[[Any], keras.Model], Callable[[np.ndarray], np.ndarray]]] = {
    "on its output": (lambda m: keras.Model(m.input, keras.layers.Dense(3)(m.output)), same),
    "on its pooled token": (
        lambda m: keras.Model(m.inputs, keras.layers.Dense(2)(m.get_layer("pooling").output)),
        same,
    ),
    "its features": (lambda m: m.feature_model("pre_logits"), same),
    "its tokens": (lambda m: m.feature_model("encoder_norm"), same),
    "inside": (around, same),
    "its features inside": (lambda m: around(m.feature_model("pre_logits")), same),
    "inside, two deep": (lambda m: around(around(m)), same),
    "behind a rescaling": (lambda m: around(m, keras.layers.Rescaling(0.5)), half),
    "in a Sequential": (
        lambda m: keras.Sequential([keras.layers.Rescaling(0.5), m, keras.layers.Dense(2)]),
        half,
    ),
    "behind augmentation": (
        lambda m: keras.Sequential(
            [keras.layers.RandomFlip(), keras.layers.RandomRotation(0.2), m]
        ),
        same,
    ),
    "in a subclass": (Subclass, half),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_that_of_the_transformer_inside(shape: str) -> None:
    vit, images = model_of("token"), images_for("token").astype("float32")
    build, feed = SHAPES[shape]
    model = build(vit)
    for measure in MAPS:
        expected = measure(vit, feed(images))
        np.testing.assert_allclose(measure(model, images), expected, atol=2e-5, rtol=1e-4)
    np.testing.assert_array_equal(
        inspection.embedding_filters(model, 4), inspection.embedding_filters(vit, 4)
    )
    np.testing.assert_array_equal(
        inspection.position_similarity(model), inspection.position_similarity(vit)
    )


@pytest.mark.parametrize("kind", ["map", "channels_first", "registers"])
def test_other_kinds_inside(kind: str) -> None:
    vit, images = model_of(kind), images_for(kind).astype("float32")
    shape = vit.input_shape[1:]
    outer = keras.Input(shape)
    model = keras.Model(outer, keras.layers.Dense(2)(vit(outer)))
    for measure in MAPS:
        np.testing.assert_allclose(measure(model, images), measure(vit, images), atol=2e-5)
    if kind == "map":
        np.testing.assert_allclose(
            inspection.pooling_attention(model, images),
            inspection.pooling_attention(vit, images),
            atol=1e-6,
        )


def test_blocks_up_to_the_third_and_of_a_hybrid() -> None:
    vit, images = model_of("token"), images_for("token")
    first = vit.feature_model("block_0")
    maps = inspection.attention_maps(first, images)
    np.testing.assert_allclose(maps, inspection.attention_maps(vit, images, layers=[0]), atol=1e-6)
    sizes = {"patch_size": 1, "hidden_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 3}
    hybrid = keras_vit.VisionTransformer(
        resnet=(1,), resnet_width=32, input_shape=(32, 24, 3), **sizes
    )
    model = keras.Model(hybrid.input, keras.layers.Dense(2)(hybrid.output))
    pixels = np.random.default_rng(0).uniform(0, 255, (1, 32, 24, 3))
    expected = inspection.attention_distance(hybrid, pixels)
    np.testing.assert_allclose(inspection.attention_distance(model, pixels), expected, atol=1e-4)
    assert 4 < expected.mean() < 40  # patches are of 4 pixels, not 1


def test_the_overlay_lies_on_the_image_that_is_resized() -> None:
    pytest.importorskip("matplotlib")
    model = around(model_of("token"), keras.layers.Resizing(32, 12), size=(64, 48))
    images = np.random.default_rng(0).uniform(0, 255, (1, 64, 48, 3))
    for plot in (inspection.plot_rollout, inspection.plot_attribution):
        original, darkened = (axes.images[0].get_array() for axes in plot(model, images).axes)
        assert original.shape == darkened.shape == (64, 48, 3)
        assert (darkened > 0).any(axis=2).mean() > 0.9  # no strip is left out


def two_transformers() -> keras.Model:
    images, other = image_input(), model_of("gap").copy(name="other")
    return keras.Model(images, model_of("token")(images) + other(images))


def siamese() -> keras.Model:
    images, vit = image_input(), model_of("token")
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


def of_videos() -> keras.Model:
    frames = keras.Input((2, 32, 12, 3))
    return keras.Model(frames, keras.layers.TimeDistributed(model_of("token"))(frames))


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
    frames = np.random.default_rng(0).uniform(0, 255, (3, 2, 32, 12, 3)).astype("float32")
    with pytest.raises(ValueError, match=r"sequences for 3 images|several times"):
        inspection.attention_maps(of_videos(), frames)


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


@pytest.mark.parametrize("family", ["mixer", "resnet"])
def test_without_attention_the_error_names_what_to_use(family: str) -> None:
    if family == "mixer":
        model = keras_vit.MLPMixer(
            num_classes=3, patch_size=8, hidden_dim=16, depth=1, tokens_mlp_dim=8,
            channels_mlp_dim=8, input_shape=(32, 32, 3),
        )  # fmt: skip
    else:
        model = keras_vit.BiTResNet(depths=(1,), width=32, input_shape=(32, 32, 3), num_classes=3)
    images = np.zeros((1, 32, 32, 3))
    for measure in (inspection.attention_maps, inspection.class_attribution):
        with pytest.raises(ValueError, match=r"without encoder blocks.*Grad-CAM"):
            measure(model, images)
