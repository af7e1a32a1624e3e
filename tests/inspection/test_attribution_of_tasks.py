"""Attribution of models of other tasks: which output it is of, and with what sign."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit.inspection import class_attribution
from keras_vit.tasks import Classification, Multilabel, Ordinal, Regression
from keras_vit_cli.inspect.inspect_files import inspect_files
from tests.bank import outputs, pixels
from tests.inspection.models import images_for, randomized, untrained

IMAGES = images_for("token")
LABELS = Multilabel(("beach", "night", "people"))
NUMBERS = Regression(("height", "width"))
GRADES = Ordinal(("none", "mild", "severe"))


def model_with(task: Any, **changes: Any) -> Any:
    return randomized(untrained(num_classes=task.outputs, task=task, **changes))


@pytest.mark.parametrize(
    ("task", "name", "which", "sign"),
    [
        (LABELS, "night", 1, 1),
        (Regression(("angle",), offset=(5.0,), scale=(2.0,)), None, 0, 1),  # what makes it larger
        (NUMBERS, "width", 1, 1),
        (GRADES, "none", 0, -1),
        (GRADES, "mild", 0, 1),  # what makes it at least that grade
        (GRADES, "severe", 1, 1),
    ],
)
def test_it_is_that_of_an_output(task: Any, name: str | None, which: int, sign: int) -> None:
    """Of the same graph, of which nobody said what its outputs mean."""
    model = model_with(task)
    expected = class_attribution(keras.Model(model.input, sign * model.output), IMAGES, which)
    np.testing.assert_allclose(class_attribution(model, IMAGES, name), expected, atol=1e-6)


def test_the_default_is_the_prediction() -> None:
    labels, grades = model_with(LABELS), model_with(GRADES)
    graded = GRADES.grades(grades.task.answers(outputs(grades, IMAGES)))
    for model, predicted in ((labels, outputs(labels, IMAGES).argmax(axis=1)), (grades, graded)):
        expected = class_attribution(model, IMAGES, predicted.tolist())
        np.testing.assert_allclose(class_attribution(model, IMAGES), expected, atol=1e-6)
    with pytest.raises(ValueError, match=r"2 numbers to explain.*height.*width"):
        class_attribution(model_with(NUMBERS), IMAGES)
    with pytest.raises(ValueError, match=r"classes=3 is not a grade.*Give 0 to 2"):
        class_attribution(grades, IMAGES, 3)


def test_two_labels_whose_probabilities_happen_to_sum_to_one_are_not_classes() -> None:
    model = model_with(Multilabel(("a", "b")), classifier_activation="sigmoid")
    kernel, bias = model.get_layer("head").get_weights()
    kernel[:, 1], bias[1] = -kernel[:, 0], -bias[0]
    model.get_layer("head").set_weights([kernel, bias])
    np.testing.assert_allclose(outputs(model, IMAGES).sum(axis=1), 1, atol=1e-5)
    column = keras.Model(model.input, model.output[:, :1])  # which cannot be taken for classes
    np.testing.assert_allclose(
        class_attribution(model, IMAGES, "a"), class_attribution(column, IMAGES, 0), atol=1e-6
    )


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
    keras.utils.save_img(tmp_path / "a.png", pixels(32, 24, 3))
    model = model_with(task)
    kernel, bias = model.get_layer("head").get_weights()
    model.get_layer("head").set_weights([kernel, bias + 50 * np.arange(1, len(bias) + 1)])
    inspect_files(model, [tmp_path / "a.png"], tmp_path / "page")
    page = (tmp_path / "page" / "index.html").read_text("utf-8")
    assert f"where nothing speaks for {text}: attention" in page
    assert f'"explained": "{text}"' in page
