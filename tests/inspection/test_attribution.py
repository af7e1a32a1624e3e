"""Attribution of a class: its gradients, against finite differences; its definition; its errors."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit.inspection import class_attribution
from keras_vit.inspection.attribution import run_gradients
from keras_vit.layers.observation import Observer, observed_by
from keras_vit.tasks import Multilabel, Ordinal, Regression
from tests import bank
from tests.backend import numpy, refused, rows
from tests.inspection.models import (
    KINDS,
    images_for,
    inspect_files,
    model_of,
    randomized,
    untrained,
)

WITH_CLASSES = [kind for kind in KINDS if kind != "all_tokens"]
IMAGES = images_for("token")


def nested(vit: Any) -> keras.Model:
    images = keras.Input(vit.input_shape[1:])
    scores = keras.layers.Dense(2)(vit(keras.layers.Rescaling(0.5)(images)))
    return randomized(keras.Model(images, scores))


class Moved(Observer):
    def __init__(self, block: int, added: np.ndarray) -> None:
        self.block, self.added, self.calls = block, added, 0

    def attended(self, probabilities: Any) -> Any:
        self.calls += 1
        if self.calls - 1 != self.block:
            return probabilities
        return probabilities + keras.ops.convert_to_tensor(self.added)


WRAPS = {"itself": lambda vit: vit, "nested": nested}
WRAPS["merging"] = lambda vit: vit.with_token_merging((4, 2))
WRAPPED = [f"{kind} {wrap}" for kind in ("token", "gap", "map") for wrap in WRAPS]


@pytest.mark.parametrize("name", rows(WRAPPED, ["token itself", "token nested"]))
def test_gradients_equal_finite_differences(name: str) -> None:
    kind, wrap = name.split()
    model, images = WRAPS[wrap](model_of(kind)), images_for(kind).astype("float32")
    (each,) = run_gradients(model, images, classes=1, batch_size=3)

    def score(block: int, added: np.ndarray) -> float:
        with observed_by(Moved(block, added.astype("float32"))):
            return float(numpy(model(images))[:, 1].astype("float64").sum())

    for block, gradient in enumerate(each.gradients):
        assert np.abs(gradient).max() > 1e-4
        random = np.random.default_rng(block).normal(size=gradient.shape)
        for direction in (gradient, random):
            direction, step = direction / np.linalg.norm(direction), 1e-2
            slope = score(block, step * direction) - score(block, -step * direction)
            expected = float((gradient * direction).sum())
            scale = float(np.linalg.norm(gradient))
            assert slope / (2 * step) == pytest.approx(expected, abs=0.02 * scale)


@pytest.mark.parametrize("kind", rows(WITH_CLASSES, ["map"]))
def test_it_equals_the_definition(kind: str) -> None:
    """Chefer et al., equations 5 and 6: all rows of the relevance, one matrix product a layer."""
    model, images = model_of(kind), images_for(kind)
    maps = class_attribution(model, images, classes=2)
    (each,) = run_gradients(model, images, classes=2, batch_size=3)
    length, prefix = each.attention[0].shape[-1], model.num_prefix_tokens
    for i in range(3):
        relevance = np.eye(length)
        for attention, gradient in zip(each.attention, each.gradients, strict=True):
            mean = np.maximum(attention[i] * gradient[i], 0).mean(axis=0).astype("float64")
            padded = np.zeros((length, length))  # the last block has the class token's alone
            padded[: len(mean)] = mean
            relevance = relevance + padded @ relevance
        row = relevance[0]
        if model.pooling != "token":
            assert each.readout[i].sum() == pytest.approx(1, abs=1e-5)
            row = each.readout[i] @ relevance
        row = row[prefix:] / row[prefix:].sum()
        np.testing.assert_allclose(maps[i].ravel(), row, atol=1e-6)
    if kind == "gap":  # a mean is read as an attention with equal weights
        tokens = numpy(model.feature_model("encoder_norm")(images))
        # The head is linear: the score's gradient by the pooled features is its kernel's column.
        speaks = np.maximum(tokens @ numpy(model.get_layer("head").kernel)[:, 2], 0)
        expected = speaks / speaks.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(each.readout, expected, atol=1e-5)


def test_classes() -> None:
    model = model_of("token").copy()
    model.class_names, default = tuple("abcde"), class_attribution(model, IMAGES)
    b, third = (class_attribution(model, IMAGES, which) for which in ("b", 3))
    assert np.abs(b - third).max() > 0.01
    mixed = class_attribution(model, IMAGES, ["b", 3, "b"], batch_size=2)
    np.testing.assert_allclose(mixed, np.stack([b[0], third[1], b[2]]), atol=1e-6)
    assert default.dtype == np.float32
    assert (default >= 0).all()
    np.testing.assert_allclose(default.sum(axis=(1, 2)), 1, atol=1e-5)


@pytest.mark.every_backend
def test_probabilities_give_what_their_logits_give() -> None:
    """Also where the probability of the class has rounded to 1, and its gradient to 0."""
    vit = model_of("token")
    features = vit.get_layer("pooling").output
    kernel = np.random.default_rng(0).normal(0, 15, (16, 3)).astype("float32")
    logits = keras.Model(vit.input, keras.layers.Dense(3)(features))
    softmax = keras.Model(vit.input, keras.layers.Dense(3, "softmax")(features))
    for model in (logits, softmax):
        model.layers[-1].set_weights([kernel, np.zeros(3, "float32")])
    centered = keras.layers.Dense(3, use_bias=False)
    center = (np.eye(3) * 3 - 1) / 2  # a score less the mean of the two others
    less_others = keras.Model(vit.input, centered(logits.output))
    centered.set_weights([center.astype("float32")])
    assert numpy(softmax(IMAGES)).max() > 1 - 1e-7
    for number in range(3):
        expected = class_attribution(less_others, IMAGES, number)
        np.testing.assert_allclose(class_attribution(softmax, IMAGES, number), expected, atol=2e-4)


PRECISIONS = ("mixed_bfloat16", "mixed_float16", "int8")


@pytest.mark.parametrize("precision", rows(PRECISIONS, PRECISIONS[:1]))
def test_other_precisions(precision: str) -> None:
    model = model_of("token")
    before, expected = numpy(model(IMAGES)), class_attribution(model, IMAGES, 1)
    np.testing.assert_array_equal(numpy(model(IMAGES)), before)  # the model stays as it is
    if precision == "int8":
        other = model.copy()
        other.quantize("int8")
    else:
        other = type(model).from_config({**model.get_config(), "dtype": precision})
        other.set_weights(model.get_weights())
    maps = class_attribution(other, IMAGES, 1)
    assert maps.dtype == np.float32
    assert np.abs(maps - expected).max() < 0.02


def test_errors_and_a_head_of_zeros() -> None:
    model = model_of("token")
    refused(r"classes=5 is not a class.*0 to 4", class_attribution, model, IMAGES, 5)
    refused(r"2 entries for 3 images", class_attribution, model, IMAGES, [0, 1])
    refused(r"no class 'rose'.*not have names", class_attribution, model, IMAGES, "rose")
    for each in (  # models without scores of classes
        untrained(representation_size=8).feature_model("pre_logits"),  # by tanh
        model.feature_model("encoder_norm"),
        untrained(num_classes=0),
        keras.Sequential([untrained(num_classes=0)]),
        keras.Model(model.input, [model.get_layer("encoder_norm").output, model.output]),
    ):
        refused(r"not one score per class.*attention_rollout", class_attribution, each, IMAGES)
    one = keras.Model(model.input, keras.layers.Dense(1)(model.output))
    refused(r"one score per image.*classes=0.*-model\.output", class_attribution, one, IMAGES)
    larger = class_attribution(one, IMAGES, 0)
    smaller = class_attribution(keras.Model(one.input, -one.output), IMAGES, 0)
    assert np.abs(larger - smaller).max() > 0.01
    for pooling in ("token", "gap", "map"):
        with pytest.warns(UserWarning, match=r"in 3 of 3 images: their maps are zeros"):
            assert not class_attribution(untrained(pooling=pooling), IMAGES).any()


LABELS = Multilabel(("beach", "night", "people"))
NUMBERS = Regression(("height", "width"))
GRADES = Ordinal(("none", "mild", "severe"))


def model_with(task: Any, **changes: Any) -> Any:
    return randomized(untrained(num_classes=task.outputs, task=task, **changes))


def test_it_is_that_of_an_output(tmp_path: Path) -> None:
    """Of the same graph, of which nobody said what its outputs mean; and the page says which."""
    for task, name, which, sign in (
        (LABELS, "night", 1, 1),
        (Regression(("angle",), offset=(5.0,), scale=(2.0,)), None, 0, 1),  # what makes it larger
        (NUMBERS, "width", 1, 1),
        (GRADES, "none", 0, -1),
        (GRADES, "mild", 0, 1),  # what makes it at least that grade
        (GRADES, "severe", 1, 1),
    ):
        model = model_with(task)
        expected = class_attribution(keras.Model(model.input, sign * model.output), IMAGES, which)
        maps = class_attribution(model, IMAGES, name)
        np.testing.assert_allclose(maps, expected, atol=1e-6, err_msg=str(name))
    keras.utils.save_img(tmp_path / "a.png", bank.pixels(32, 24, 3))
    for task, text in (
        (Regression(("angle",)), "a larger angle"),
        (Ordinal(("none", "severe")), "at least severe"),
    ):
        model = model_with(task)
        kernel, bias = model.get_layer("head").get_weights()
        model.get_layer("head").set_weights([kernel, bias + 50])
        inspect_files(model, [tmp_path / "a.png"], tmp_path / text)
        page = (tmp_path / text / "index.html").read_text("utf-8")
        assert f"where nothing speaks for {text}: attention" in page
        assert f'"explained": "{text}"' in page


def test_the_default_is_the_prediction() -> None:
    classes, labels, grades = model_of("token"), model_with(LABELS), model_with(GRADES)
    graded = GRADES.grades(grades.task.answers(bank.outputs(grades, IMAGES)))
    largest = [bank.outputs(model, IMAGES).argmax(axis=1) for model in (classes, labels)]
    for model, predicted in zip((classes, labels, grades), (*largest, graded), strict=True):
        expected = class_attribution(model, IMAGES, predicted.tolist())
        np.testing.assert_allclose(class_attribution(model, IMAGES), expected, atol=1e-6)
    refused(r"2 numbers to explain.*height.*width", class_attribution, model_with(NUMBERS), IMAGES)
    refused(r"classes=3 is not a grade.*Give 0 to 2", class_attribution, grades, IMAGES, 3)


def test_two_labels_whose_probabilities_happen_to_sum_to_one_are_not_classes() -> None:
    model = model_with(Multilabel(("a", "b")), classifier_activation="sigmoid")
    kernel, bias = model.get_layer("head").get_weights()
    kernel[:, 1], bias[1] = -kernel[:, 0], -bias[0]
    model.get_layer("head").set_weights([kernel, bias])
    np.testing.assert_allclose(bank.outputs(model, IMAGES).sum(axis=1), 1, atol=1e-5)
    column = keras.Model(model.input, model.output[:, :1])  # which cannot be taken for classes
    expected = class_attribution(column, IMAGES, 0)
    np.testing.assert_allclose(class_attribution(model, IMAGES, "a"), expected, atol=1e-6)
