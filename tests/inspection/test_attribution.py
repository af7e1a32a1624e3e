"""Attribution of a class: its gradients, against finite differences; its definition; its errors."""

from typing import Any

import keras
import numpy as np
import pytest

from keras_vit import inspection
from keras_vit.inspection import class_attribution
from keras_vit.inspection.attribution import run_gradients
from keras_vit.layers.observation import Observer, observed_by
from tests import bank
from tests.inspection.models import (
    KINDS,
    array,
    everywhere,
    images_for,
    model_of,
    randomized,
    untrained,
)

WITH_CLASSES = [kind for kind in KINDS if kind != "all_tokens"]


def nested(vit: Any) -> keras.Model:
    """Two classes on a rescaled image and a ViT."""
    images = keras.Input(vit.input_shape[1:])
    scores = keras.layers.Dense(2)(vit(keras.layers.Rescaling(0.5)(images)))
    return randomized(keras.Model(images, scores))


def merging(vit: Any) -> Any:
    return vit.with_token_merging((4, 2))


class Moved(Observer):
    """Adds an array to the attention of one block."""

    def __init__(self, block: int, added: np.ndarray) -> None:
        self.block, self.added, self.calls = block, added, 0

    def attended(self, probabilities: Any) -> Any:
        self.calls += 1
        if self.calls - 1 != self.block:
            return probabilities
        return probabilities + keras.ops.convert_to_tensor(self.added)


WRAPS = {"itself": lambda vit: vit, "nested": nested, "merging": merging}
WRAPPED = [f"{kind} {wrap}" for kind in ("token", "gap", "map") for wrap in WRAPS]


@pytest.mark.parametrize(
    "name",
    everywhere(WRAPPED, "token itself", "gap itself", "map itself", "token nested", "map merging"),
)
def test_gradients_equal_finite_differences(name: str) -> None:
    """The score along the gradient, and along a random direction, of the attention of a block."""
    kind, wrap = name.split()
    model, images = WRAPS[wrap](model_of(kind)), images_for(kind).astype("float32")
    (each,) = run_gradients(model, images, classes=1, batch_size=3)

    def score(block: int, added: np.ndarray) -> float:
        with observed_by(Moved(block, added.astype("float32"))):
            return float(array(model(images))[:, 1].astype("float64").sum())

    for block, gradient in enumerate(each.gradients):
        assert np.abs(gradient).max() > 1e-4
        random = np.random.default_rng(block).normal(size=gradient.shape)
        for direction in (gradient, random):
            direction, step = direction / np.linalg.norm(direction), 1e-2
            slope = score(block, step * direction) - score(block, -step * direction)
            expected = float((gradient * direction).sum())
            scale = float(np.linalg.norm(gradient))
            assert slope / (2 * step) == pytest.approx(expected, abs=0.02 * scale)


@pytest.mark.parametrize("kind", everywhere(WITH_CLASSES, "map"))
def test_it_equals_the_definition(kind: str) -> None:
    """Chefer et al., equations 5 and 6: all rows of the relevance, one matrix product a layer."""
    model, images = model_of(kind), images_for(kind)
    maps = class_attribution(model, images, classes=2)
    (each,) = run_gradients(model, images, classes=2, batch_size=3)
    prefix = model.num_prefix_tokens
    for i in range(3):
        length = each.attention[0].shape[-1]
        relevance = np.eye(length)
        for attention, gradient in zip(each.attention, each.gradients, strict=True):
            mean = np.maximum(attention[i] * gradient[i], 0).mean(axis=0).astype("float64")
            rows = np.zeros((length, length))  # the last block has the class token's alone
            rows[: len(mean)] = mean
            relevance = relevance + rows @ relevance
        if model.pooling == "token":
            row = relevance[0]
        else:
            assert each.readout[i].sum() == pytest.approx(1, abs=1e-5)
            row = each.readout[i] @ relevance
        row = row[prefix:] / row[prefix:].sum()
        np.testing.assert_allclose(maps[i].ravel(), row, atol=1e-6)


def test_a_mean_is_read_as_an_attention_with_equal_weights() -> None:
    model, images = model_of("gap"), images_for("gap")
    (each,) = run_gradients(model, images, classes=2, batch_size=3)
    tokens = array(model.feature_model("encoder_norm")(images))
    # The head is linear: the score's gradient by the pooled features is its kernel's column.
    kernel = array(model.get_layer("head").kernel)[:, 2]
    speaks = np.maximum(tokens @ kernel, 0)
    expected = speaks / speaks.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(each.readout, expected, atol=1e-5)


def test_classes() -> None:
    model, images = model_of("token").copy(), images_for("token")
    model.class_names = tuple("abcde")
    predicted = array(model(images)).argmax(axis=1)
    default = class_attribution(model, images)
    np.testing.assert_array_equal(default, class_attribution(model, images, list(predicted)))
    both = np.stack([class_attribution(model, images, "b"), class_attribution(model, images, 3)])
    assert np.abs(both[0] - both[1]).max() > 0.01
    mixed = class_attribution(model, images, ["b", 3, "b"], batch_size=2)
    np.testing.assert_allclose(mixed, both[[0, 1, 0], [0, 1, 2]], atol=1e-6)
    assert default.dtype == np.float32
    assert (default >= 0).all()
    np.testing.assert_allclose(default.sum(axis=(1, 2)), 1, atol=1e-5)


@pytest.mark.every_backend
def test_probabilities_give_what_their_logits_give() -> None:
    """Also where the probability of the class has rounded to 1, and its gradient to 0."""
    vit, images = model_of("token"), images_for("token")
    features = vit.get_layer("pooling").output
    kernel = np.random.default_rng(0).normal(0, 15, (16, 3)).astype("float32")
    logits = keras.Model(vit.input, keras.layers.Dense(3)(features))
    softmax = keras.Model(vit.input, keras.layers.Dense(3, "softmax")(features))
    for model in (logits, softmax):
        model.layers[-1].set_weights([kernel, np.zeros(3, "float32")])
    centered = keras.layers.Dense(3, use_bias=False)
    center = (np.eye(3) * 3 - 1) / 2  # a score less the mean of the two others
    expected = keras.Model(vit.input, centered(logits.output))
    centered.set_weights([center.astype("float32")])
    assert array(softmax(images)).max() > 1 - 1e-7
    for number in range(3):
        np.testing.assert_allclose(
            class_attribution(softmax, images, number),
            class_attribution(expected, images, number),
            atol=2e-4,
        )


@pytest.mark.slow
def test_merged_twins_are_explained_as_the_patches_that_they_are() -> None:
    random = np.random.default_rng(0)
    images = np.repeat(random.uniform(0, 255, (2, 32, 2, 8, 3)), 2, axis=2).reshape(2, 32, 32, 3)
    for pooling in ("token", "gap", "map"):
        plain = bank.fresh(hidden_dim=16, position_embedding="none", pooling=pooling)
        expected = class_attribution(randomized(plain), images, 1)
        merged = class_attribution(plain.with_token_merging((8, 0)), images, 1)
        np.testing.assert_allclose(merged, expected, atol=2e-4)


@pytest.mark.every_backend
@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16", "int8"])
def test_other_precisions(precision: str) -> None:
    model, images = model_of("token"), images_for("token")
    if precision == "int8":
        other = model.copy()
        other.quantize("int8")
    else:
        other = type(model).from_config({**model.get_config(), "dtype": precision})
        other.set_weights(model.get_weights())
    maps = class_attribution(other, images, 1)
    assert maps.dtype == np.float32
    assert np.abs(maps - class_attribution(model, images, 1)).max() < 0.02


@pytest.mark.parametrize("pooling", ["token", "gap", "map"])
def test_a_head_of_zeros_is_not_a_map(pooling: str) -> None:
    with pytest.warns(UserWarning, match=r"in 3 of 3 images: their maps are zeros"):
        maps = class_attribution(untrained(pooling=pooling), images_for("token"))
    assert maps.shape == (3, 4, 3)
    assert not maps.any()


@pytest.mark.every_backend
def test_the_model_stays_as_it_is() -> None:
    model, images = model_of("token"), images_for("token")
    before = array(model(images))
    class_attribution(model, images)
    np.testing.assert_array_equal(array(model(images)), before)


def test_errors() -> None:
    model, images = model_of("token"), images_for("token")
    for classes, reason in (
        (5, r"classes=5 is not a class.*0 to 4"),
        ([0, 1], r"2 entries for 3 images"),
        ("rose", r"no class 'rose'.*not have names"),
    ):
        with pytest.raises(ValueError, match=reason):
            class_attribution(model, images, classes)
    np.testing.assert_array_equal(
        class_attribution(model, images, "2"), class_attribution(model, images, 2)
    )


def test_models_without_scores_of_classes() -> None:
    model, images = model_of("token"), images_for("token")
    for each in (
        untrained(representation_size=8).feature_model("pre_logits"),  # by tanh
        model.feature_model("pre_logits"),
        model.feature_model("encoder_norm"),
        untrained(num_classes=0),
        keras.Sequential([untrained(num_classes=0)]),
        keras.Model(model.input, [model.get_layer("encoder_norm").output, model.output]),
    ):
        with pytest.raises(ValueError, match=r"not one score per class.*attention_rollout"):
            class_attribution(each, images)
    one = keras.Model(model.input, keras.layers.Dense(1)(model.output))
    with pytest.raises(ValueError, match=r"one score per image.*classes=0.*-model\.output"):
        class_attribution(one, images)
    larger = class_attribution(one, images, 0)
    smaller = class_attribution(keras.Model(one.input, -one.output), images, 0)
    assert np.abs(larger - smaller).max() > 0.01
    assert inspection.attention_rollout(one, images).shape == (3, 4, 3)
