"""Attribution of models of other tasks: which output it is of, and with what sign."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer
from keras_vit.inspection import class_attribution
from keras_vit.tasks import Classification, Multilabel, Ordinal, Regression
from keras_vit_cli.inspect.inspect_files import inspect_files
from tests.inspection.models import SIZES, images_for
from tests.inspection.test_attribution import random_weights

IMAGES = images_for("token")
UNNAMED = {name: value for name, value in SIZES.items() if name != "num_classes"}


def model_with(task: Any) -> Any:
    return random_weights(VisionTransformer(**UNNAMED, task=task))


def of_outputs(model: Any, which: int, sign: float = 1.0) -> np.ndarray:
    """The map of one output of the same graph, of which nobody said what it means."""
    return class_attribution(keras.Model(model.input, sign * model.output), IMAGES, which)


def test_several_labels() -> None:
    model = model_with(Multilabel(("beach", "night", "people")))
    named = class_attribution(model, IMAGES, "night")
    np.testing.assert_allclose(named, of_outputs(model, 1), atol=1e-6)
    best = model.predict(IMAGES, verbose=0).argmax(axis=1)
    default = class_attribution(model, IMAGES)
    np.testing.assert_allclose(default, class_attribution(model, IMAGES, best.tolist()), atol=1e-6)


def test_two_labels_whose_probabilities_happen_to_sum_to_one_are_not_classes() -> None:
    model = random_weights(
        VisionTransformer(**UNNAMED, task=Multilabel(("a", "b")), classifier_activation="sigmoid")
    )
    kernel, bias = model.get_layer("head").get_weights()
    kernel[:, 1], bias[1] = -kernel[:, 0], -bias[0]
    model.get_layer("head").set_weights([kernel, bias])
    probabilities = model.predict(IMAGES, verbose=0)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    column = keras.Model(model.input, model.output[:, :1])  # which cannot be taken for classes
    np.testing.assert_allclose(
        class_attribution(model, IMAGES, "a"), class_attribution(column, IMAGES, 0), atol=1e-6
    )


def test_a_number_is_explained_by_what_makes_it_larger() -> None:
    model = model_with(Regression(("angle",), offset=(5.0,), scale=(2.0,)))
    np.testing.assert_allclose(class_attribution(model, IMAGES), of_outputs(model, 0), atol=1e-6)


def test_of_several_numbers_one_must_be_chosen() -> None:
    model = model_with(Regression(("height", "width")))
    np.testing.assert_allclose(
        class_attribution(model, IMAGES, "width"), of_outputs(model, 1), atol=1e-6
    )
    with pytest.raises(ValueError, match=r"2 numbers to explain.*height.*width"):
        class_attribution(model, IMAGES)


def test_a_grade_is_explained_by_what_makes_it_at_least_that_grade() -> None:
    model = model_with(Ordinal(("none", "mild", "severe")))
    for name, (which, sign) in {"none": (0, -1), "mild": (0, 1), "severe": (1, 1)}.items():
        np.testing.assert_allclose(
            class_attribution(model, IMAGES, name), of_outputs(model, which, sign), atol=1e-6
        )
    grades = model.task.grades(model.task.answers(model.predict(IMAGES, verbose=0)))
    default = class_attribution(model, IMAGES)
    np.testing.assert_array_equal(default, class_attribution(model, IMAGES, grades.tolist()))
    with pytest.raises(ValueError, match=r"classes=3 is not a grade.*Give 0 to 2"):
        class_attribution(model, IMAGES, 3)


@pytest.mark.parametrize(
    ("task", "text"),
    [
        (Classification(("cat", "dog")), "dog"),
        (Regression(("angle",)), "a larger angle"),
        (Ordinal(("none", "severe")), "at least severe"),
    ],
    ids=["class", "number", "grade"],
)
def test_the_page_says_what_is_explained(task: Any, text: str, tmp_path: Path) -> None:
    keras.utils.save_img(tmp_path / "a.png", np.random.default_rng(0).integers(0, 256, (32, 24, 3)))
    model = model_with(task)
    kernel, bias = model.get_layer("head").get_weights()
    model.get_layer("head").set_weights([kernel, bias + 50 * np.arange(1, len(bias) + 1)])
    inspect_files(model, [tmp_path / "a.png"], tmp_path / "page")
    page = (tmp_path / "page" / "index.html").read_text("utf-8")
    assert f"where nothing speaks for {text}: attention" in page
    assert f'"explained": "{text}"' in page
