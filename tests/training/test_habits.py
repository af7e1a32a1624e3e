"""Common uses of Keras and data that cannot be right: each works, or one error names the fix."""

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.data import DataRangeWarning
from keras_vit.tasks.losses import SigmoidCrossentropy
from keras_vit.trainer.compiled_model import CompiledModel
from keras_vit.trainer.pixel_ranges import check_pixels
from tests.backend import numpy, refused, reloaded, rows, warned
from tests.bank import fresh, pixels
from tests.training.common import BACKEND, JIT, SOURCES, Source, assert_equal

arrays, tensorflow_dataset, generator, py_dataset, torch_loader = SOURCES
CLASSES = 5
IMAGES, LABELS = pixels(8, 16, 16, 3).astype("float32"), np.arange(8) % CLASSES
ROWS = np.eye(CLASSES, dtype="float32")[LABELS]
SPARSE = keras.losses.SparseCategoricalCrossentropy
CATEGORICAL = keras.losses.CategoricalCrossentropy
METRICS = keras.metrics
with_logits = partial(partial, from_logits=True)


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
def model() -> keras_vit.VisionTransformer:
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


@pytest.mark.parametrize(("loss", "activation", "message"), [
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
])  # fmt: skip
def test_a_warning_of_losses(loss: Any, activation: Any, message: Any) -> None:
    model = small_vit(classifier_activation=activation)
    expect(message, lambda: model.compile("adam", loss))
    if message is not None and activation in (None, "linear"):  # and `fit` refuses it
        refused(message, model.fit, IMAGES, LABELS, verbose=0)


@pytest.mark.parametrize(("metrics", "classes", "activation", "message"), [
    (["AUC"], 1, None, r"metric AUC expects probabilities.*from_logits=True.*sigmoid"),
    ([METRICS.AUC()], 5, None, r'AUC expects.*wrong\. Give the model.*activation="softmax"'),
    ([METRICS.AUC(from_logits=True)], 1, "sigmoid", "AUC expects logits"),
    ({"head": [METRICS.Precision()]}, 1, None, r"Precision expects.*thresholds=0\.0"),
    ([METRICS.Precision(thresholds=0.0), METRICS.Recall(thresholds=0)], 1, None, None),
    ([METRICS.AUC(from_logits=True), METRICS.BinaryAccuracy(threshold=0.0)], 1, None, None),
    ([METRICS.Precision(top_k=1), METRICS.Recall(top_k=1), "acc", "accuracy"], 5, None, None),
    ([[METRICS.TruePositives]], 1, None, "TruePositives expects probabilities"),
    (["binary_accuracy"], 1, None, r"BinaryAccuracy expects.*threshold=0\.0"),
    ([METRICS.binary_accuracy], 1, None, "BinaryAccuracy expects probabilities"),
    (["accuracy"], 1, None, r"'accuracy' expects.*BinaryAccuracy\(threshold=0\.0\)"),
    ([METRICS.F1Score(threshold=0.5)], 5, None, "F1Score expects probabilities"),
    ([METRICS.F1Score(), METRICS.TopKCategoricalAccuracy()], 5, None, None),
    (["sparse_categorical_crossentropy"], 5, None, "SparseCategoricalCrossentropy expects"),
    ([METRICS.CategoricalCrossentropy()], 5, None, r"CategoricalCrossentropy.*from_logits=T"),
    (["ce"], 5, None, "'ce' expects probabilities"),
    ([keras.losses.categorical_crossentropy], 5, None, "CategoricalCrossentropy expects"),
    (["mse", METRICS.MeanAbsoluteError(), "cosine_similarity"], 5, None, None),
])  # fmt: skip
def test_a_warning_of_metrics(metrics: Any, classes: int, activation: Any, message: Any) -> None:
    model = small_vit(num_classes=classes, classifier_activation=activation)
    kind = keras.losses.BinaryCrossentropy if classes == 1 else CATEGORICAL
    options = {"weighted_metrics" if classes == 5 else "metrics": metrics}
    expect(message, lambda: model.compile("adam", kind(from_logits=activation is None), **options))


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
    model = warned("expects probabilities", compiled, "sparse_categorical_crossentropy")
    assert not warned_of("expects probabilities", lambda: reloaded(model, tmp_path))
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
    "between": (None, IMAGES, LABELS / 2, "Label 0.5 is not a class"),
    "text": (None, IMAGES, LABELS.astype(str), r"text or objects.*np\.unique\(labels, return"),
    "no batch": (None, IMAGES[0], LABELS.repeat(2), r"takes .*\(None, 16, 16, 3\).* Give|give "),
}


@pytest.mark.parametrize("case", MISMATCHES)
@pytest.mark.parametrize("source", [arrays, tensorflow_dataset])
def test_what_does_not_fit_is_one_error(source: Source, case: str) -> None:
    loss, images, labels, message = MISMATCHES[case]
    model = compiled(loss)
    for method in (model.fit, model.evaluate):
        assert "\n" not in refused(message, method, **source(images, labels), verbose=0)
    if images.shape != IMAGES.shape:
        refused(message, model.predict, source(images, labels)["x"], verbose=0)


def test_nothing_at_all_lists_and_weights_that_are_not_are_one_error(model: Any) -> None:
    refused("There are no images", model.predict, IMAGES[:0], verbose=0)
    cases: list[tuple[str, str, Any]] = [("no labels", "y", None), ("a list", "y", [*range(5)])]
    cases += [("0: inf", "class_weight", {0: np.inf}), ("a list.*enumer", "class_weight", [1.0])]
    weights = {"holds nan": np.full(8, np.nan), "per image": ROWS, r"array\(sample": [1.0] * 8}
    cases += [(words, "sample_weight", weight) for words, weight in weights.items()]
    for words, name, value in cases:
        refused(words, model.fit, IMAGES, **{"y": LABELS, name: value}, verbose=0)
    refused("a list", model.fit, ((IMAGES, [*range(8)]) for _ in "1"), verbose=0)
    fit = partial(compiled(CATEGORICAL(from_logits=True)).fit, IMAGES, ROWS * 0, verbose=0)
    assert "is all 0" in ranges(fit)[0]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("where", rows([0, 7], [7]))  # in the first batch, and in the second
def test_labels_outside_are_found_in_any_source(source: Source, where: int, model: Any) -> None:
    labels = LABELS.copy()
    labels[where] = 9
    before = model.get_weights()
    refused("Label 9 is not a class", model.fit, **source(IMAGES, labels), verbose=0)
    assert all(np.isfinite(new).all() for new in model.get_weights())
    if where == 0 and source is not generator:
        assert_equal(model, before)
    if where == 0 and source is arrays:
        wrong = {"validation_data": (IMAGES, LABELS + 1), "verbose": 0}
        refused("Label 5 is not a class", model.fit, IMAGES, LABELS, 4, **wrong)


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


# What our checks leave to Keras, and what fails when a step is traced: weights of other images.
OF_THREE = (IMAGES, LABELS, np.ones(3))
FAILURES: dict[str, Callable[[Any], Any]] = {
    "fit, weights of three": lambda m: m.fit((b for b in [OF_THREE]), verbose=0),
    "fit, data that fail": lambda m: m.fit(failing_batches(), verbose=0),
    "fit, callback": lambda m: m.fit(IMAGES, LABELS, **broken("on_train_batch_end")),
    "evaluate, callback": lambda m: m.evaluate(IMAGES, LABELS, **broken("on_test_batch_end")),
    "train_on_batch, weights of three": lambda m: m.train_on_batch(*OF_THREE),
    "test_on_batch, rows": lambda m: m.test_on_batch(IMAGES, ROWS),
}
TRACED = ("fit, weights of three", "train_on_batch, weights of three")


@pytest.mark.parametrize("case", rows(FAILURES, [*TRACED, "fit, data that fail"]))
def test_a_failure_leaves_a_model_that_trains(case: str, model: Any) -> None:
    before = model.get_weights()
    refused("", FAILURES[case], model, error=ERRORS)
    if not case.startswith("fit, "):
        assert_equal(model, before)
    assert model.predict(IMAGES, verbose=0).shape == (8, CLASSES)
    assert np.isfinite(model.fit(IMAGES, LABELS, verbose=0).history["loss"]).all()
    assert np.isfinite(model.evaluate(IMAGES, LABELS, verbose=0)).all()


@pytest.mark.parametrize("case", rows(TRACED, TRACED[:1]))
def test_a_failure_leaves_a_model_that_has_never_trained(case: str) -> None:
    model = compiled()
    refused("", FAILURES[case], model, error=ERRORS)
    history = model.fit(IMAGES, LABELS, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert 0 <= history["accuracy"][0] <= 1


@pytest.fixture(scope="module")
def trained_on_arrays(model: Any) -> tuple[list[np.ndarray], list[float]]:
    start = model.get_weights()
    return start, model.fit(IMAGES, LABELS, 4, shuffle=False, verbose=0).history["loss"]


@pytest.mark.every_backend
@pytest.mark.parametrize("source", SOURCES[1:])
def test_every_source_of_batches_trains_alike(source: Source, model, trained_on_arrays) -> None:
    start, expected = trained_on_arrays
    model.set_weights(start)
    loss = model.fit(**source(IMAGES, LABELS), shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


SIXTEEN_BITS = IMAGES * 257
BINARY = keras.losses.BinaryCrossentropy(from_logits=True)


def grain_dataset(images: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    source = pytest.importorskip("grain").MapDataset.source
    return {"x": source(list(zip(images, labels, strict=True))).batch(4)}


def ranges(call: Callable[[], Any]) -> list[str]:
    return [str(one.message) for one in warned_of("", call) if one.category is DataRangeWarning]


@pytest.mark.every_backend
@pytest.mark.parametrize("source", [*SOURCES, grain_dataset])
def test_the_first_batch_of_every_source_is_looked_at_once(source: Source, model: Any) -> None:
    (message,) = ranges(lambda: model.fit(**source(SIXTEEN_BITS, LABELS), epochs=1, verbose=0))
    assert re.search(r"from 0 to 65535, and vision_trans.*\.Rescaling\(255 / 65535\)", message)
    (message,) = ranges(lambda: model.evaluate(**source(SIXTEEN_BITS, LABELS), verbose=0))
    assert "65535" in message
    assert ranges(lambda: model.evaluate(**source(IMAGES, LABELS), verbose=0)) == []
    images, before = IMAGES.copy(), model.get_weights()
    images[1, 3, 3] = np.nan
    for method in (model.fit, model.evaluate):
        refused("hold nan, first in image 1", method, **source(images, LABELS), verbose=0)
    assert all(map(np.array_equal, before, model.get_weights()))


@pytest.mark.every_backend  # Keras on JAX does not compare the images with the inputs
def test_predict_and_validation_look_as_well(model: Any) -> None:
    for other in (model.feature_model("pre_logits"), model.with_views("flip")):
        refused("do not fit", other.predict, np.repeat(IMAGES, 2, axis=1))
        assert len(ranges(lambda other=other: other.predict(IMAGES / 255, verbose=0))) == 1
    assert len(ranges(lambda: model.predict(SIXTEEN_BITS, verbose=0))) == 1
    assert ranges(lambda: model.predict(IMAGES, verbose=0)) == []
    bytes_of = tensorflow_dataset(IMAGES.astype("uint8"), LABELS)["x"].map(lambda images, _: images)
    assert ranges(lambda: model.predict(bytes_of, verbose=0)) == []
    refused("hold inf", model.predict, IMAGES / 0.0 + 1, verbose=0)
    for images, validation in ((IMAGES / 255, IMAGES / 290), (IMAGES, IMAGES / 255)):
        fit = partial(model.fit, images, LABELS, 4, validation_data=(validation, LABELS))
        assert len(ranges(partial(fit, verbose=0))) == 1
    with pytest.warns(DataRangeWarning) as caught:
        model.evaluate(SIXTEEN_BITS, LABELS, verbose=0)
    # The line of the user.
    assert [one.filename for one in caught if one.category is DataRangeWarning] == [__file__]
    normalized = compiled(include_preprocessing=False)
    (message,) = ranges(lambda: normalized.predict(IMAGES.astype("uint8"), verbose=0))
    assert "include_preprocessing=True" in message
    assert ranges(lambda: normalized.predict(IMAGES / 127.5 - 1, verbose=0)) == []


def test_the_first_batch_of_ones_own_loop_is_looked_at_once() -> None:
    model, scaled, black = compiled(), IMAGES / 127.5 - 1, np.zeros_like(IMAGES)
    train, test = (partial(way, y=LABELS) for way in (model.train_on_batch, model.test_on_batch))
    for step in (train, test, model.predict_on_batch):
        assert ranges(lambda step=step: step(black)) == []  # shows nothing: the next is asked
        (message,) = ranges(lambda step=step: (step(scaled), step(scaled)))
        assert "scaled to -1..1: build the model with include_preprocessing=False" in message
        refused("do not fit", step, IMAGES[..., :1])  # shapes are checked in each step


def test_workers_do_not_repeat_it_and_models_of_other_data_are_left_alone(model: Any) -> None:
    loader = pytest.importorskip("torch").utils.data.DataLoader
    many = loader(torch_loader(SIXTEEN_BITS, LABELS)["x"].dataset, batch_size=2, num_workers=2)
    assert len(ranges(lambda: model.fit(many, epochs=2, verbose=0))) == 1
    numbers = keras.Input((3,))
    other = CompiledModel(numbers, keras.layers.Dense(1)(numbers))
    other.compile("sgd", "mse", jit_compile=False)
    for _ in range(2):
        other.train_on_batch(np.ones((2, 3)), np.ones((2, 1)))


@pytest.mark.parametrize("source", [arrays, tensorflow_dataset])
def test_maps_have_classes_no_class_weight_and_an_ignored_class(source: Source) -> None:
    model = fresh(task=keras_vit.tasks.Segmentation(size=3))
    model.compile("sgd", model.task.loss(), run_eagerly=True)
    images = np.resize(IMAGES, (4, *model.input_shape[1:]))
    maps = np.resize([0, 1, 2, 255], images.shape[:3])
    model.fit(**source(images, maps), verbose=0)
    match = "Label 3 is not a class .* from 0 to 2, and 255 where none is known"
    refused(match, model.fit, **source(images, np.where(maps == 2, 3, maps)), verbose=0)
    with pytest.raises(ValueError, match=r"of segmentation for it\. Give a sample"):
        model.fit(**source(images, maps), class_weight={0: 1.0, 1: 2.0}, verbose=0)
    ignored = source(IMAGES, np.where(LABELS == 2, -1, LABELS))  # -1 is not outside
    assert np.isfinite(compiled(OwnLoss()).evaluate(**ignored, verbose=0)).all()


@pytest.mark.parametrize("source", [arrays, tensorflow_dataset])
def test_multi_hot_labels_outside_0_1(source: Source) -> None:
    model, several = compiled(BINARY), np.maximum(ROWS, ROWS[::-1])
    (message,) = ranges(lambda: model.fit(**source(IMAGES, several * 2 - 1), verbose=0))
    assert re.search(r"from -1 to 1, and The loss Bin.* 0 to 1.*\(labels \+ 1\) / 2", message)
    for labels in (several, several * 0.8 + 0.1, several.astype("uint8"), several > 0):
        assert ranges(partial(model.fit, **source(IMAGES, labels), verbose=0)) == []
    with pytest.raises(ValueError, match=r"The labels hold nan.*sample_weight"):
        model.evaluate(**source(IMAGES, np.where(several, np.nan, 0)), verbose=0)


SMALLER = [image[: 8 + i] for i, image in enumerate(IMAGES)]
OBJECTS = np.empty(8, object)
OBJECTS[:] = SMALLER


@pytest.mark.parametrize("images", [SMALLER, OBJECTS], ids=["a list", "an array of objects"])
def test_images_of_several_sizes_are_one_error(images: Any, model: Any) -> None:
    message = r"several sizes, such as \(8, 16, 3\), \(9, 16, 3\), \(10, 16, 3\), and .* takes "
    message += r"batches of one, \(None, 16, 16, 3\).*tf\.image\.resize\(image, \(16, 16\)\)"
    whole = small_vit(input_shape=(None, None, 3))  # of any size: it names one to resize to
    refused(message, model.fit, images, LABELS, verbose=0)
    refused(message, model.predict, images, verbose=0)
    refused(message, model.train_on_batch, images, LABELS)
    refused(message, model.predict_on_batch, images)
    refused(r"8 images in a list .*np\.stack\(images\)", model.predict, [*IMAGES], verbose=0)
    refused(r"resize\(image, \(224, 224\)\)", whole.predict, images, verbose=0)
    resized = np.stack([numpy(keras.ops.image.resize(image, (16, 16))) for image in images])
    assert model.predict(resized, verbose=0).shape == (8, 5)


def test_ragged_batches_and_a_dataset_without_batches_are_one_error(model: Any) -> None:
    tf = pytest.importorskip("tensorflow")

    spec = (tf.TensorSpec((None, 16, 3)), tf.TensorSpec((), tf.int64))
    pairs = list(zip(SMALLER, LABELS, strict=True))
    single = tf.data.Dataset.from_generator(lambda: pairs, output_signature=spec)
    for method in (model.fit, model.evaluate):
        refused(r"several sizes.*before its batch", method, single.ragged_batch(4), verbose=0)
    refused("several sizes", model.predict, tf.ragged.stack(SMALLER), verbose=0)
    fixed = single.map(lambda image, label: (tf.image.resize(image, (16, 16)), label))
    with pytest.raises(ValueError, match=r"\(16, 16, 3\), and .* Give dataset\.batch\(32\)"):
        model.fit(tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)), verbose=0)
    model.evaluate(fixed.batch(4), verbose=0)


def of_an_unknown_rank(images: np.ndarray) -> Any:
    tf = pytest.importorskip("tensorflow")
    kinds, batches = [tf.float32, tf.int64], tensorflow_dataset(images, LABELS)["x"]
    return batches.map(lambda *batch: tf.py_function(lambda *loaded: loaded, batch, kinds))


def test_tensorflow_cannot_trace_a_step_of_batches_of_an_unknown_rank(model: Any) -> None:
    tf = pytest.importorskip("tensorflow")

    unknown, shape = of_an_unknown_rank(IMAGES), (None, 16, 16, 3)
    images = unknown.map(lambda images, labels: (tf.ensure_shape(images, shape), labels))
    known = images.map(lambda images, labels: (images, tf.ensure_shape(labels, (None,))))
    model.fit(known, verbose=0)
    for method in (model.fit, model.evaluate):
        refused(r"ensure_shape\(images, \(None, 16, 16, 3\)\)", method, unknown, verbose=0)
        refused(r"ensure_shape\(labels, \(None,\)\)", method, images, verbose=0)
    assert model.predict(unknown.map(lambda images, _: images), verbose=0).shape == (8, 5)


@pytest.mark.backends("jax", "torch")
def test_others_see_each_batch_of_an_unknown_rank_and_its_range(model: Any) -> None:
    unknown = of_an_unknown_rank(IMAGES)
    model.fit(unknown, verbose=0)
    assert len(ranges(lambda: model.fit(of_an_unknown_rank(SIXTEEN_BITS), verbose=0))) == 1
    assert model.predict(unknown.map(lambda images, _: images), verbose=0).shape == (8, 5)


UNIT = IMAGES / 255
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
DIGITS = np.round(UNIT[..., :1] * 16)


def warnings_of(images: Any, **options: Any) -> list[str]:
    return ranges(partial(check_pixels, images, "vit", **options))


# What is given, what is seen, and the fix.
WRONG: dict[str, tuple[np.ndarray, str, str]] = {
    "0..1": (UNIT, "from 0 to 1,.* scaled to 0..1", r"multiply them by 255.*Rescaling\(255\)"),
    "0..1, one image": (UNIT[:1], "scaled to 0..1", "multiply them by 255"),
    "-1..1": (UNIT * 2 - 1, "from -1 to 1", r"Rescaling\(127.5, offset=127.5\)"),
    "ImageNet": ((UNIT - MEAN) / STD, "from -2.12 to 2.64", "include_preprocessing=False"),
    "0..16": (DIGITS, "from 0 to 16,.* scikit-learn's digits", r"Rescaling\(255 / 16\)"),
    "flat": (100 + UNIT * 9, "from 100 to 109,.* flat: they differ by no more than 16", "stretch"),
    "mean subtracted": (IMAGES - 120, "from -120 to 135,.* centered", "offset=128"),
    "12 bit": (UNIT * 4095, "from 0 to 4095,.* 12 bits", r"Rescaling\(255 / 4095\)"),
    "16 bit": (UNIT * 65535, "from 0 to 65535,.* 16 bits", r"Rescaling\(255 / 65535\)"),
    "dark uint16": ((UNIT * 300).astype("uint16"), "from 0 to 300", "12 bits, or dark ones in 16"),
    "Hounsfield": (UNIT * 4095 - 1024, "from -1024 to 3071,.* Hounsfield", "np.clip"),
    "micrograms": (UNIT * 1e6, "from 0 to 1000000,.* a scale of their own", "Rescaling"),
}


@pytest.mark.parametrize("case", WRONG)
def test_images_in_another_range_are_one_warning(case: str) -> None:
    images, *says = WRONG[case]
    (message,) = warnings_of(images)
    for words in ("vit takes pixels from 0 to 255", *says):
        assert re.search(words, message), words


DARK = np.random.default_rng(0).poisson(3, (8, 16, 16, 3)).astype("uint8")  # 0 to 12
RIGHT: dict[str, np.ndarray] = {
    "pixels": IMAGES, "bytes": IMAGES.astype("uint8"), "dark bytes": DARK,
    "one dark photograph": DARK[:1].astype("float32"), "zeros": np.zeros((8, 16, 16, 3)),
    "one flat photograph": 90 + DARK[:1].astype("float32"), "none": np.zeros((0, 16, 16, 3)),
    "a dark photograph among others": np.concatenate([DARK[:3], IMAGES[:1]]),
    "a color each": np.arange(8.0)[:, None, None, None] + np.zeros((8, 16, 16, 3)),
    "one pixel": np.array([[[[0.3]]]]),
    "overshoot of a cubic resize": np.where(IMAGES < 9, -14, np.where(IMAGES > 240, 270, IMAGES)),
}  # fmt: skip


def test_no_false_alarm_and_one_of_normalized_images() -> None:
    assert {case: warnings_of(images) for case, images in RIGHT.items()} == {k: [] for k in RIGHT}
    for images in (IMAGES, IMAGES.astype("uint8"), IMAGES[:1]):
        (message,) = warnings_of(images, normalized=True)
        assert re.search("255, and vit takes normalized .* -3 to 3.*_preprocessing=True", message)
    (message,) = warnings_of(UNIT * 4095 - 1024, normalized=True)
    assert "not normalized" in message
    for images in (UNIT * 2 - 1, (UNIT - MEAN) / STD, UNIT, (IMAGES - 128) / 10, DARK * 0):
        assert warnings_of(images, normalized=True) == []


def test_what_is_not_finite_is_an_error_and_a_batch_is_warned_of_once() -> None:
    images = UNIT.copy()
    for value, normalized in product((np.nan, np.inf, -np.inf), (True, False)):
        images[3, 2, 1, 0] = value
        words = rf"hold {value}, first in image 3.*np\.nan_to_num"
        refused(words, check_pixels, images, "vit", normalized)
    batches = (IMAGES, np.zeros_like(IMAGES), IMAGES[:0])
    assert [bool(check_pixels(images, "vit")) for images in batches] == [True, False, False]
    warned: set[str] = set()
    shares = (UNIT, UNIT * 0.9, UNIT * 65535)
    assert [len(warnings_of(images, warned=warned)) for images in shares] == [1, 0, 1]
