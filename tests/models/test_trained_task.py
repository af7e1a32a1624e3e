"""A model answers what it was trained for: its loss says what, and other data do not pass."""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import data, tasks
from keras_vit.data import DataRangeWarning
from keras_vit.models.answers import task_of
from keras_vit.tasks import Classification, Multilabel, Ordinal, Regression, losses
from keras_vit.training.compilation import check_task
from tests.backend import reloaded, rows
from tests.bank import TINY, fresh, pixels
from tests.training.common import SOURCES, Source, splits_of

KERAS = keras.losses
BINARY = KERAS.BinaryCrossentropy(from_logits=True)
IMAGES = pixels(8, 16, 16, 3).astype("float32")
SEVERAL = np.array([[0, 1, 1], [1, 0, 0]] * 4, "float32")
NUMBERS = np.random.default_rng(0).normal((70, 1.75), (12, 0.1), (64, 2))
BODY = Regression(("weight", "height"), units=("kg", "m"))


def vit(num_classes: int = 3, **options: Any) -> Any:
    sizes = {**TINY, "num_classes": num_classes, **options}
    if isinstance(options.get("task"), tasks.Task):
        del sizes["num_classes"]
    return fresh(**sizes)


def own_loss(y: Any, outputs: Any) -> Any:
    return keras.ops.mean((y - outputs) ** 2, axis=-1)


def warned(call: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    ours = [w for w in caught if w.category is DataRangeWarning or w.filename == __file__]
    return [str(one.message) for one in ours if one.category is not DeprecationWarning]


@pytest.mark.parametrize(("loss", "classes", "activation", "kind"), [
    (BINARY, 3, None, "multilabel"),
    (BINARY, 1, None, "multilabel"),
    ("bce", 3, "sigmoid", "multilabel"),
    ({"head": KERAS.BinaryFocalCrossentropy}, 3, "sigmoid", "multilabel"),
    (losses.AsymmetricLoss(), 3, None, "multilabel"),
    ("mse", 2, None, "regression"),
    (["MeanSquaredLogarithmicError"], 1, "relu", "regression"),
    (partial(KERAS.huber, delta=2.0), 2, None, "regression"),
    (losses.CumulativeCrossentropy(), 2, None, "ordinal"),
    (KERAS.SparseCategoricalCrossentropy(from_logits=True), 3, None, "classification"),
    ("crossentropy", 3, "softmax", "classification"),
    ("mse", 3, "softmax", "classification"),
    (losses.SigmoidCrossentropy(), 3, None, "classification"),
    (losses.BalancedLoss(losses.SoftmaxCrossentropy(), [1, 2, 3]), 3, None, "classification"),
    (own_loss, 3, None, None),
    (KERAS.Poisson(), 3, None, None),
    ("categorical_crossentropy", 3, "sigmoid", None),
])  # fmt: skip
def test_the_loss_says_the_task(loss: Any, classes: int, activation: Any, kind: Any) -> None:
    model = vit(classes, classifier_activation=activation)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model.compile("sgd", loss)
    assert (model.task and model.task.kind) == kind
    assert kind is None or model.task.outputs == classes


def test_what_no_loss_says_is_refused_until_somebody_does(tmp_path: Path) -> None:
    model = vit()
    model.class_names = "abc"
    model.compile("sgd", own_loss)
    model.save(tmp_path / "model.keras")
    file = keras_vit.load(tmp_path / "model.keras")
    for each in (model, file, model.copy(), keras_vit.load(tmp_path / "model.keras")):
        assert each.task is None
        for call in (
            lambda each=each: task_of(each),
            lambda each=each: keras_vit.export(each, tmp_path / "1"),
            lambda each=each: keras_vit.save_weights(each, tmp_path / "f", layout="huggingface"),
            lambda each=each: keras_vit.training.compile_model(
                each, keras_vit.recipes.get("digits"), 99
            ),
        ):
            with pytest.raises(ValueError, match=r"is not known.*model\.task = .*\"multilabel"):
                call()
    assert model.with_classifier(3).task == Classification(size=3)
    model.task = "multilabel"
    assert model.copy().task == model.task == Multilabel(("a", "b", "c"))
    model.compile("sgd", own_loss)
    assert model.task == Multilabel(("a", "b", "c"))
    file.task = None
    assert (file.task, reloaded(file, tmp_path).is_task_unknown) == (None, False)


def test_the_last_loss_counts_and_what_the_user_said() -> None:
    model, said = vit(), vit(task="multilabel")
    softmax = KERAS.CategoricalCrossentropy(from_logits=True)
    for loss, kind in ((BINARY, "multilabel"), (own_loss, None), (softmax, "classification")):
        assert warned(lambda loss=loss: model.compile("sgd", loss)) == []
        assert (model.task and model.task.kind) == kind
    (message,) = warned(lambda: said.compile("sgd", softmax))
    assert "answers multilabel, as its task says, and the loss is for classification" in message
    assert said.task.kind == "multilabel"
    assert warned(lambda: said.compile("sgd", own_loss)) == []


@pytest.mark.parametrize("source", rows(SOURCES, SOURCES[:1]))
def test_numbers_in_their_units_are_seen_before_the_first_step(source: Source) -> None:
    task = BODY.fitted(NUMBERS)
    model, raw = vit(task=task), NUMBERS[:8].astype("float32")
    model.compile("sgd", "mse", run_eagerly=keras.backend.backend() != "jax")
    scaled = task.check_targets(NUMBERS[:8])
    assert warned(lambda: model.fit(**source(IMAGES, scaled), verbose=0)) == []
    for method in (model.fit, model.evaluate):
        (message,) = warned(lambda method=method: method(**source(IMAGES, raw), verbose=0))
        assert "as weight in its unit, and the task scales" in message
        assert "Train on model.task.check_targets(targets)" in message
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataRangeWarning)
        before = model.get_weights()
        with pytest.raises(DataRangeWarning, match="would become"):
            model.fit(**source(IMAGES, raw), verbose=0)
        assert all(map(np.array_equal, before, model.get_weights()))


def test_a_scale_that_comes_after_training_on_units_is_a_warning(tmp_path: Path) -> None:
    model, task = vit(2), BODY.fitted(NUMBERS)
    model.compile("sgd", "mse")
    model.fit(IMAGES, NUMBERS[:8], verbose=0)
    assert model.task == Regression(size=2)
    model.save(tmp_path / "model.keras")
    for each in (model, model.copy(), keras_vit.load(tmp_path / "model.keras")):
        (message,) = warned(lambda each=each: setattr(each, "task", task))
        assert "was trained on targets with mean" in message
        assert "model.task = keras_vit.tasks.Regression(('weight', 'height'))" in message
        assert warned(lambda each=each: setattr(each, "task", BODY)) == []
    assert warned(lambda: model.with_classifier(task=task)) == []


WEIGHTS = {0: 1.0, 1: 2.0}
CCE, SPARSE = KERAS.CategoricalCrossentropy, KERAS.SparseCategoricalCrossentropy
ROWS = np.eye(3, dtype="float32")[np.arange(8) % 3]
WRONG: dict[str, tuple[Any, Any, Any, Any, str | None]] = {
    "names": ("sparse", None, ROWS.argmax(1), {"cat": 1.0, "dog": 2.0}, r"\{0: 1.0, 1: 2.0\}\."),
    "other names": ("sparse", None, ROWS.argmax(1), {"Cat": 2.0}, "keys 'Cat', .* from 0 to 2"),
    "from 1": ("sparse", None, ROWS.argmax(1), {1: 1, 2: 2, 3: 9}, "keys 3, "),
    "a list": ("sparse", None, ROWS.argmax(1), [1.0, 2.0], "Give class_weight={0: 1.0"),
    "labels": (BINARY, None, SEVERAL, WEIGHTS, r"balanced\(model\.task\.loss\(\), \"weights\""),
    "numbers": ("mse", None, NUMBERS[:8, [0, 0, 0]], WEIGHTS, "sample_weight per image"),
    "own loss": (own_loss, "multilabel", SEVERAL, WEIGHTS, "of a row of multilabel"),
    # Those that Keras follows.
    "integers": ("sparse", None, ROWS.argmax(1), {np.int64(0): 1.0, 1: 2.0}, None),
    "one-hot rows": (CCE(from_logits=True), None, ROWS, WEIGHTS, None),
}


@pytest.mark.parametrize("case", WRONG)
def test_weights_of_classes_that_keras_would_ignore(case: str) -> None:
    loss, task, targets, weights, message = WRONG[case]
    model = vit()
    model.class_names = ["cat", "dog", "cow"]
    if task:
        model.task = task
    model.compile("sgd", SPARSE(from_logits=True) if loss == "sparse" else loss)
    for call in (partial(model.fit, verbose=0), model.train_on_batch):
        with pytest.raises(ValueError, match=message) if message else nullcontext():
            call(IMAGES, targets, class_weight=weights)


@pytest.mark.parametrize(("options", "loss", "targets", "message"), [
    ({}, CCE(from_logits=True), SEVERAL, "sums to 2, several classes at once.*multilabel"),
    ({"classifier_activation": "softmax"}, "mse", SEVERAL, "sums to 2, several classes"),
    ({"task": Ordinal(size=4)}, BINARY, np.arange(8) % 4, r"compile with model\.task\.loss"),
    ({"num_classes": 1}, "mse", NUMBERS[:8], r"2 numbers per image, and .* returns 1.*size=2"),
    ({"num_classes": 1}, "mae", np.full(8, np.inf), "targets hold inf, "),
    ({"task": Ordinal(size=3)}, losses.CumulativeCrossentropy(), np.arange(8) % 4, "3 classes"),
    ({"task": Ordinal(size=3)}, losses.CumulativeCrossentropy(), ROWS, r"labels\.argmax\(-1\)\.$"),
])  # fmt: skip
@pytest.mark.parametrize("source", SOURCES[:2])
def test_targets_of_another_task(
    options: Any, loss: Any, targets: Any, message: str, source: Source
) -> None:
    model = vit(**options)
    model.compile("sgd", loss)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataRangeWarning)
        with pytest.raises((ValueError, DataRangeWarning), match=message):
            model.fit(**source(IMAGES, targets), verbose=0)


PIXELS = IMAGES.astype("uint8")
CLASSES = splits_of(Classification(("a", "b", "c")), PIXELS, ROWS.argmax(1))
LABELS = splits_of(Multilabel(("a", "b", "c")), PIXELS, SEVERAL)
GRADES = splits_of(Ordinal(("a", "b", "c", "d")), PIXELS, np.arange(8) % 4)
SCALED = splits_of(BODY.fitted(NUMBERS), PIXELS, NUMBERS[:8])
PLAIN = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])


@pytest.mark.parametrize(("options", "splits", "message"), [
    ({}, LABELS, r"classification of 3, and the data has multilabel of 3 \(a, b, c\)\. Give model"),
    ({}, GRADES, "classification of 3, and the data has ordinal of 4"),
    ({"num_classes": 1}, SCALED, "a single output may be a number or a label"),
    ({"task": "multilabel"}, CLASSES, "multilabel of 3, and the data has classification of 3"),
    ({"task": BODY}, SCALED, r"scale \(0\.0, 0\.0, 1\.0, 1\.0\), and .*model\.task = splits\.task"),
    ({"task": Classification(("c", "b", "a"))}, CLASSES, r"\(c, b, a\), and .* \(a, b, c\)"),
    ({"task": Classification(size=2)}, CLASSES, "of 2, and the data has classification of 3"),
    ({"num_classes": 5}, CLASSES, None),
    (PLAIN, LABELS, "A Keras model is trained as a classifier"),
])  # fmt: skip
def test_fit_wants_a_model_of_the_same_task(
    options: Any, splits: data.Splits, message: str | None, tmp_path: Path
) -> None:
    model = vit(**options) if isinstance(options, dict) else options
    recipe = keras_vit.recipes.get("digits").scaled(steps=1)
    call = partial(keras_vit.fit, model, recipe, splits, tmp_path, print_fn=lambda line: None)
    if message is None:
        check_task(model, splits.task)
        return
    with pytest.raises(ValueError, match=message):
        call()
    assert not list(tmp_path.iterdir())
