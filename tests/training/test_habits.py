"""Common uses of Keras: each works, or one error names the fix."""

import functools
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.tasks.losses import SigmoidCrossentropy
from tests.backend import reloaded, rows
from tests.bank import pixels
from tests.training.common import BACKEND, JIT, SOURCES, Source, assert_equal

arrays, tensorflow_dataset, generator, py_dataset, torch_loader = SOURCES
CLASSES = 5
IMAGES, LABELS = pixels(8, 16, 16, 3).astype("float32"), np.arange(8) % CLASSES
ROWS = np.eye(CLASSES, dtype="float32")[LABELS]
SPARSE = keras.losses.SparseCategoricalCrossentropy
CATEGORICAL = keras.losses.CategoricalCrossentropy


class OwnLoss(SPARSE):
    def __init__(self) -> None:
        super().__init__(from_logits=True, ignore_class=-1)

    def get_config(self) -> dict[str, Any]:
        return {}


def small_vit(**changes: Any) -> keras_vit.VisionTransformer:
    sizes = {"patch_size": 8, "hidden_dim": 8, "depth": 1, "num_heads": 2, "num_classes": CLASSES}
    return keras_vit.VisionTransformer(**{**sizes, "input_shape": (16, 16, 3), **changes})


def compiled(loss: Any = None, optimizer: Any = "sgd", **changes: Any) -> Any:
    model = small_vit(**changes)
    loss = SPARSE(from_logits=True) if loss is None else loss
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=JIT)
    return model


@pytest.fixture(scope="module")
def survivor() -> keras_vit.VisionTransformer:
    """One model for all that does not look at its weights: JAX takes seconds to compile each."""
    return compiled()


def warned_of(words: str, call: Callable[[], Any]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [one for one in caught if words in str(one.message)]


def expect(message: str | None, call: Callable[[], Any]) -> None:
    """At most one warning of a scale, at the line of the user who compiled."""
    ours = warned_of("expects", call)
    assert len(ours) == (message is not None)
    for warning in ours:
        assert warning.filename == __file__
        assert re.search(message, str(warning.message))


with_logits = functools.partial(functools.partial, from_logits=True)


@pytest.mark.parametrize(
    ("loss", "activation", "message"),
    [
        ("sparse_categorical_crossentropy", None, r"SparseCategoricalCrossentropy\(from_logits=T"),
        ("SparseCategoricalCrossentropy", "linear", 'classifier_activation="softmax"'),
        ("crossentropy", None, "expects probabilities"),
        ("bce", None, 'classifier_activation="sigmoid"'),
        ("kl_divergence", None, r"\.CategoricalCrossentropy\(from_logits=True\)"),
        (keras.losses.KLDivergence(), "softmax", None),
        ("categorical_focal_crossentropy", None, "CategoricalFocalCrossentropy"),
        (keras.losses.BinaryFocalCrossentropy, None, "BinaryFocalCrossentropy"),
        (keras.losses.binary_crossentropy, None, "binary_crossentropy expects probabilities"),
        ([SPARSE()], None, "expects probabilities"),
        ({"head": "sparse_categorical_crossentropy"}, None, "expects probabilities"),
        (SPARSE(from_logits=True), "softmax", "from_logits=False"),
        (with_logits(keras.losses.categorical_crossentropy), "softmax", "returns probabilities"),
        (SPARSE(from_logits=True), None, None),
        (OwnLoss(), None, None),
        (OwnLoss(), "softmax", "OwnLoss expects logits"),
        (SigmoidCrossentropy(), None, None),
        (SigmoidCrossentropy(), "sigmoid", "SigmoidCrossentropy expects logits"),
        ("sparse_categorical_crossentropy", "softmax", None),
        ("mse", None, None),
    ],
)
def test_a_warning_of_losses(loss: Any, activation: Any, message: Any) -> None:
    model = small_vit(classifier_activation=activation)
    expect(message, lambda: model.compile("adam", loss))
    if message is not None and activation in (None, "linear"):  # and `fit` refuses it
        with pytest.raises(ValueError, match=message):
            model.fit(IMAGES, LABELS, verbose=0)


METRICS = keras.metrics


@pytest.mark.parametrize(
    ("metrics", "classes", "activation", "message"),
    [
        (["AUC"], 1, None, r"metric AUC expects probabilities.*from_logits=True.*sigmoid"),
        ([METRICS.AUC()], 5, None, r'AUC expects.*wrong\. Give the model.*activation="softmax"'),
        ([METRICS.AUC(from_logits=True)], 1, "sigmoid", "AUC expects logits"),
        ({"head": [METRICS.Precision()]}, 1, None, r"Precision expects.*thresholds=0\.0"),
        ([METRICS.Recall(thresholds=[0.3, 0.7])], 1, None, "Recall expects probabilities"),
        ([METRICS.Precision(thresholds=0.0), METRICS.Recall(thresholds=0)], 1, None, None),
        ([METRICS.AUC(from_logits=True), METRICS.BinaryAccuracy(threshold=0.0)], 1, None, None),
        ([METRICS.Precision(top_k=1), METRICS.Recall(top_k=1), "acc", "accuracy"], 5, None, None),
        ([[METRICS.TruePositives]], 1, None, "TruePositives expects probabilities"),
        (["binary_accuracy"], 1, None, r"BinaryAccuracy expects.*threshold=0\.0"),
        ([METRICS.binary_accuracy], 1, None, "BinaryAccuracy expects probabilities"),
        (["accuracy"], 1, None, r"'accuracy' expects.*BinaryAccuracy\(threshold=0\.0\)"),
        ([METRICS.F1Score(threshold=0.5)], 5, None, "F1Score expects probabilities"),
        ([METRICS.F1Score(), METRICS.TopKCategoricalAccuracy()], 5, None, None),
        ([METRICS.PrecisionAtRecall(0.5)], 1, None, "PrecisionAtRecall expects probabilities"),
        (["sparse_categorical_crossentropy"], 5, None, "SparseCategoricalCrossentropy expects"),
        ([METRICS.CategoricalCrossentropy()], 5, None, r"CategoricalCrossentropy.*from_logits=T"),
        (["ce"], 5, None, "'ce' expects probabilities"),
        ([keras.losses.categorical_crossentropy], 5, None, "CategoricalCrossentropy expects"),
        (["AUC", METRICS.Precision(), METRICS.KLDivergence()], 5, "softmax", None),
        (["mse", METRICS.MeanAbsoluteError(), "cosine_similarity"], 5, None, None),
    ],
)
def test_a_warning_of_metrics(metrics: Any, classes: int, activation: Any, message: Any) -> None:
    model = small_vit(num_classes=classes, classifier_activation=activation)
    kind = keras.losses.BinaryCrossentropy if classes == 1 else CATEGORICAL
    loss = kind(from_logits=activation is None)
    options = {"weighted_metrics" if classes == 5 else "metrics": metrics}
    expect(message, lambda: model.compile("adam", loss, **options))


def test_the_fix_of_a_warning_and_recipes_take_labels_alike(tmp_path: Path) -> None:
    model = small_vit(num_classes=1)
    model.get_layer("head").set_weights([np.arange(8.0)[:, None] * 3, np.zeros(1)])
    logits = model.predict(IMAGES, verbose=0)
    labels = (np.arange(8) % 2).astype("float32")[:, None]
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    fixed = [METRICS.AUC(from_logits=True), METRICS.BinaryAccuracy(threshold=0.0)]
    model.compile("sgd", loss, metrics=fixed, jit_compile=JIT)
    _, auc, accuracy = model.evaluate(IMAGES, labels, verbose=0)
    expected = METRICS.AUC()
    expected.update_state(labels, 1 / (1 + np.exp(-logits)))
    assert auc == pytest.approx(float(expected.result()), abs=1e-6)
    assert accuracy == pytest.approx(((logits > 0) == (labels > 0)).mean())
    # Who loads a compiled model is not warned again.
    with pytest.warns(UserWarning, match="expects probabilities"):
        model = compiled("sparse_categorical_crossentropy")
    assert not warned_of("expects probabilities", lambda: reloaded(model, tmp_path))
    # Recipes take integers and rows alike.
    recipe = replace(keras_vit.recipes.get("digits"), label_smoothing=0.1).scaled(steps=4)
    model = small_vit()
    keras_vit.training.compile_model(model, recipe, 4, jit_compile=JIT)
    model.fit(IMAGES, LABELS, batch_size=4, epochs=2, verbose=0)
    actual = [model.evaluate(IMAGES, y, verbose=0) for y in (LABELS, LABELS[:, None], ROWS)]
    np.testing.assert_allclose(actual[1:], actual[:1] * 2, rtol=1e-6)
    expected = CATEGORICAL(from_logits=True, label_smoothing=0.1)(ROWS, model(IMAGES))
    np.testing.assert_allclose(actual[0][0], float(expected), rtol=1e-5)


MISMATCHES: dict[str, tuple[Any, np.ndarray, np.ndarray, str]] = {
    "rows, sparse loss": (SPARSE(from_logits=True), IMAGES, ROWS, r"labels\.argmax\(-1\)"),
    "integers, one-hot loss": (CATEGORICAL(from_logits=True), IMAGES, LABELS, "to_categorical"),
    "classes": (CATEGORICAL(from_logits=True), IMAGES, ROWS[:, :3], r"with_classifier\(3\)"),
    "gray": (None, IMAGES[..., :1], LABELS, r"repeat\(images, 3, axis=3\)"),
    "layout": (None, IMAGES.transpose(0, 3, 1, 2), LABELS, r"\(0, 2, 3, 1\)"),
    "size": (None, IMAGES[:, :8], LABELS, r"which takes \(None, 16, 16, 3\)\. Resize them"),
    "above": (None, IMAGES, LABELS + 1, "Label 5 is not a class .* from 0 to 4"),
    "below": (None, IMAGES, LABELS - 1.0, "Label -1.0 is not a class"),
    "column": (None, IMAGES, LABELS[:, None] * 7, "Label 7 is not a class"),
}


@pytest.mark.parametrize("case", MISMATCHES)
@pytest.mark.parametrize("source", [arrays, tensorflow_dataset])
def test_what_does_not_fit_is_one_error(source: Source, case: str) -> None:
    loss, images, labels, message = MISMATCHES[case]
    model = compiled(loss)
    for method in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match=message) as raised:
            method(**source(images, labels), verbose=0)
        assert "\n" not in str(raised.value)
    if images.shape != IMAGES.shape:
        with pytest.raises(ValueError, match=message):
            model.predict(source(images, labels)["x"], verbose=0)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("where", rows([0, 7], [7]))  # in the first batch, and in the second
def test_labels_outside_are_found_in_any_source(source: Source, where: int, survivor: Any) -> None:
    labels = LABELS.copy()
    labels[where] = 9
    before = survivor.get_weights()
    with pytest.raises(ValueError, match="Label 9 is not a class"):
        survivor.fit(**source(IMAGES, labels), verbose=0)
    assert all(np.isfinite(new).all() for new in survivor.get_weights())
    if where == 0 and source is not generator:
        assert_equal(survivor, before)
    if where == 0 and source is arrays:
        validation = IMAGES, LABELS + 1
        with pytest.raises(ValueError, match="Label 5 is not a class"):
            survivor.fit(IMAGES, LABELS, 4, validation_data=validation, verbose=0)


def test_an_ignored_class_is_not_outside() -> None:
    model, labels = compiled(OwnLoss()), np.where(LABELS == 2, -1, LABELS)
    for source in (arrays, tensorflow_dataset):
        assert np.isfinite(model.evaluate(**source(IMAGES, labels), verbose=0)).all()


ERRORS: tuple[type[Exception], ...] = (ValueError, TypeError, RuntimeError, OSError)
if BACKEND == "tensorflow":  # what it makes of an error in the data
    import tensorflow as tf

    ERRORS += (tf.errors.OpError,)


def failing_batches() -> Iterator[Any]:
    yield IMAGES[:4], LABELS[:4]
    raise OSError("the disk is gone")


def broken(where: str) -> dict[str, Any]:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("broken on purpose")

    return {"verbose": 0, "callbacks": [keras.callbacks.LambdaCallback(**{where: fail})]}


# What our checks leave to Keras, and what fails when a step is traced: images without a batch.
ONE, OF_THREE = (IMAGES[0], np.zeros(16)), np.ones((8, 3))
FAILURES: dict[str, Callable[[Any], Any]] = {
    "fit, one image": lambda m: m.fit(*ONE, verbose=0),
    "fit, data that fail": lambda m: m.fit(failing_batches(), verbose=0),
    "fit, weights that fail": lambda m: m.fit(IMAGES, LABELS, sample_weight=OF_THREE, verbose=0),
    "fit, callback": lambda m: m.fit(IMAGES, LABELS, **broken("on_train_batch_end")),
    "evaluate, callback": lambda m: m.evaluate(IMAGES, LABELS, **broken("on_test_batch_end")),
    "predict, one image": lambda m: m.predict(ONE[0], verbose=0),
    "train_on_batch, one image": lambda m: m.train_on_batch(*ONE),
    "fit, rows": lambda m: m.fit(IMAGES, ROWS, verbose=0),
    "test_on_batch, rows": lambda m: m.test_on_batch(IMAGES, ROWS),
}
TRACED = ("fit, one image", "train_on_batch, one image")


@pytest.mark.parametrize("case", rows(FAILURES, [*TRACED, "fit, data that fail"]))
def test_a_failure_leaves_a_model_that_trains(case: str, survivor: Any) -> None:
    before = survivor.get_weights()
    with pytest.raises(ERRORS):
        FAILURES[case](survivor)
    if not case.startswith("fit, "):
        assert_equal(survivor, before)
    assert survivor.predict(IMAGES, verbose=0).shape == (8, CLASSES)
    assert np.isfinite(survivor.fit(IMAGES, LABELS, verbose=0).history["loss"]).all()
    assert np.isfinite(survivor.evaluate(IMAGES, LABELS, verbose=0)).all()


@pytest.mark.parametrize("case", rows(TRACED, TRACED[:1]))
def test_a_failure_leaves_a_model_that_has_never_trained(case: str) -> None:
    model = compiled()
    with pytest.raises(ERRORS):
        FAILURES[case](model)
    history = model.fit(IMAGES, LABELS, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert 0 <= history["accuracy"][0] <= 1


@pytest.fixture(scope="module")
def trained_on_arrays(survivor: Any) -> tuple[list[np.ndarray], list[float]]:
    start = survivor.get_weights()
    return start, survivor.fit(IMAGES, LABELS, 4, shuffle=False, verbose=0).history["loss"]


@pytest.mark.every_backend
@pytest.mark.parametrize("source", SOURCES[1:])
def test_every_source_of_batches_trains_alike(
    source: Source, survivor: Any, trained_on_arrays: Any
) -> None:
    start, expected = trained_on_arrays
    survivor.set_weights(start)
    loss = survivor.fit(**source(IMAGES, LABELS), shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
