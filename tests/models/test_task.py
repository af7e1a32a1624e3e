"""What outputs mean is part of the model; its loss says what, and other data do not pass."""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit import tasks
from keras_vit.data import DataRangeWarning
from keras_vit.evaluation import fit_novelty, predict_split
from keras_vit.evaluation.novelty import classifier_head
from keras_vit.evaluation.prediction import predict_files
from keras_vit.models.answers import answers_in_graph, answers_of, task_of
from keras_vit.models.scoring import scoring_model
from keras_vit.models.views import VIEWS
from keras_vit.tasks import Classification, Multilabel, Ordinal, Regression, losses
from keras_vit.training.compilation import check_task
from tests.backend import numpy, refused, reloaded, rows
from tests.bank import TINY, fill, fresh, outputs, pixels
from tests.training.common import SOURCES, Source, splits_of

SIZES: dict[str, Any] = {"patch_size": 8, "hidden_dim": 16, "depth": 1, "num_heads": 2}
TASKS = {
    "classification": tasks.Classification(("cat", "dog", "cow")),
    "multilabel": tasks.Multilabel(("beach", "night"), thresholds=(0.3, 0.6)),
    "regression": tasks.Regression(("weight",), units=("kg",), offset=(20.0,), scale=(10.0,)),
    "ordinal": tasks.Ordinal(("none", "mild", "severe")),
}
CRANES = tasks.Classification(("crane", "crane", "cat"))  # ImageNet has two


def vit(**options: Any) -> Any:
    model = keras_vit.VisionTransformer(**{**SIZES, "input_shape": (32, 32, 3), **options})
    for i, variable in enumerate(model.get_layer("head").trainable_variables):
        variable.assign(np.random.default_rng(i).normal(0, 1, variable.shape))
    return model


def images(number: int = 3) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 255, (number, 32, 32, 3)).astype("uint8")


def test_only_several_classes_are_taken_for_classes() -> None:
    for activation in (None, "linear", "softmax"):
        assert vit(num_classes=2, classifier_activation=activation).task.kind == "classification"
    assert vit(num_classes=3, task="multilabel").task.kind == "multilabel"
    for options in ({"num_classes": 2, "classifier_activation": "sigmoid"}, {"num_classes": 1}):
        model = vit(**options)
        assert model.task is None
        refused(r"model\.task = keras_vit\.tasks\.Regression", task_of, model)
    for options in ({"num_classes": 0}, {"pooling": None}):  # features and tokens
        assert keras_vit.VisionTransformer(**SIZES, input_shape=(32, 32, 3), **options).task is None
    refused("pooling=None returns all tokens", vit, pooling=None, task="multilabel", num_classes=4)


@pytest.mark.parametrize("kind", rows(TASKS, ["multilabel", "ordinal"]))
def test_the_task_sets_the_head_gives_the_answers_and_is_copied(kind: str) -> None:
    model, task = vit(task=TASKS[kind]), TASKS[kind]
    assert model.num_classes == model.output_shape[1] == task.outputs
    assert model.class_names == task.names
    assert model.copy().task == model.with_input_shape((48, 48, 3)).task == task
    assert model.with_classifier(5).task == tasks.Classification(size=5)
    again = vit(num_classes=9).with_classifier(task=task)
    assert (again.task, again.output_shape) == (task, (None, task.outputs))
    raw = outputs(model, images())
    np.testing.assert_array_equal(answers_of(model, raw), task.answers(raw))
    in_graph = numpy(answers_in_graph(model, raw))
    np.testing.assert_allclose(in_graph, task.answers(raw), atol=1e-5, rtol=1e-5)
    both = model.with_views("flip")
    assert both.task == task
    mean = (task.answers(raw) + task.answers(outputs(model, images()[:, :, ::-1]))) / 2
    np.testing.assert_allclose(answers_of(both, outputs(both, images())), mean, atol=1e-4)


@pytest.mark.parametrize("file", ["model.keras", "model.npz", "model.safetensors"])
@pytest.mark.parametrize("kind", TASKS)
def test_files_keep_the_task(kind: str, file: str, tmp_path: Path) -> None:
    model, path = vit(task=TASKS[kind]), tmp_path / file
    layout = {".npz": "google", ".safetensors": "timm"}.get(path.suffix)
    keras_vit.save_weights(model, path, layout=layout)
    loaded = keras_vit.load(path)
    np.testing.assert_allclose(outputs(loaded, images()), outputs(model, images()), atol=1e-6)
    other = vit(num_classes=TASKS[kind].outputs)
    keras_vit.load_weights(other, path)
    assert loaded.task == other.task == TASKS[kind]
    assert keras_vit.load(path, num_classes=7).task == tasks.Classification(size=7)


def test_the_task_and_its_names_may_be_set_where_they_fit() -> None:
    model, alone = vit(num_classes=4), vit(num_classes=1)
    refused("leave num_classes out", vit, num_classes=4, task=TASKS["classification"])
    refused(r"with_classifier\(task=\.\.\.\)", setattr, model, "task", TASKS["multilabel"])
    refused("size=4 and 2 names", setattr, model, "class_names", ["a", "b"])
    refused("does not have a task", setattr, alone, "class_names", ["a"])
    refused("how wide the new head is", model.with_classifier, task="multilabel")
    refused("'multi-label' is not a task", vit, num_classes=4, task="multi-label")
    # Names that occur twice are names all the same; only targets by name need others.
    refused("a name that stands for one of them", CRANES.check_targets, ["crane", "cat"])
    assert CRANES.check_targets([0, 1]).tolist() == [0, 1]
    alone.task = tasks.Regression(("age",), units=("years",))
    assert alone.class_names == ("age",)
    alone.class_names = ["size"]
    assert alone.task == tasks.Regression(("size",), units=("years",))
    alone.class_names = None
    assert alone.task.names == ()


# One takes too many images for the energy.
@pytest.mark.parametrize("false_alarms", rows([0.05, 0.2], [0.2]))
def test_a_novelty_is_saved_and_copied_with_the_model(tmp_path: Path, false_alarms: float) -> None:
    model = vit(num_classes=3)
    assert model.novelty is None
    assert "novelty" not in model.get_config()
    rows = outputs(model.feature_model("pre_logits"), images(40))
    model.set_novelty(fit_novelty(rows[:20], rows[20:], false_alarms, classifier_head(model)))
    assert model.get_config()["novelty"] == ("energy" if false_alarms == 0.2 else "distance")
    expected, loaded = model.novelty.scores(rows[:3]), reloaded(model, tmp_path)
    again = keras_vit.load(tmp_path / "reloaded.keras", dropout=0.1)
    for each in (loaded, again, model.copy(), model.copy(dtype="mixed_bfloat16")):
        np.testing.assert_allclose(each.novelty.scores(rows[:3]), expected)
    of_images = model.novelty.scores(outputs(model.feature_model("pre_logits"), images()))
    for seen in (model, loaded):
        found, novelty = scoring_model(seen).predict_on_batch(images())
        np.testing.assert_allclose(novelty, of_images, rtol=1e-3)
        np.testing.assert_allclose(found, outputs(model, images()), atol=1e-5)
    assert model.with_classifier(5).novelty is None
    assert outputs(model, images()).shape == (3, 3)  # the model itself is as it was
    for file, layout in (("model.safetensors", "timm"), ("folder", "huggingface")):
        with pytest.warns(UserWarning, match=rf"has a novelty score, .*{file} is without it"):
            keras_vit.save_weights(model, tmp_path / file, layout=layout)
        assert keras_vit.load(tmp_path / file).novelty is None
    refused("fit it on features", model.set_novelty, fit_novelty(rows[:20, :5], rows[20:, :5]))
    model.eval_transform = {"views": "flip"}
    _, novelty = scoring_model(model).predict_on_batch(images())
    np.testing.assert_allclose(novelty, of_images, rtol=1e-3)


IMAGES = pixels(2, 32, 24, 3).astype("float32")


def build(**options: Any) -> Any:
    model = fresh(**{**TINY, "num_classes": 3, "input_shape": (32, 24, 3), **options}, filled=False)
    fill(model, scale=0.3)
    return model


def views_by_hand(images: np.ndarray, views: str) -> list[np.ndarray]:
    seen = [images]
    for top, left in ((0, 0), (0, 3), (4, 0), (4, 3)) if views == "crops" else ():
        corner = images[:, top : top + 28, left : left + 21]
        seen.append(numpy(keras.ops.image.resize(corner, (32, 24), data_format="channels_last")))
    return [view for image in seen for view in (image, image[:, :, ::-1])]


CASES = [("crops", {}), ("flip", {}), ("flip", {"classifier_activation": "softmax"})]


@pytest.mark.parametrize(("views", "options"), rows(CASES, CASES[:1]))
def test_scores_are_the_mean_of_the_views_probabilities(views: str, options: dict) -> None:
    model = build(**options)
    averaged, by_hand = model.with_views(views), views_by_hand(IMAGES, views)
    expected = np.mean([answers_of(model, model(view)) for view in by_hand], axis=0)
    scores = outputs(averaged, IMAGES)
    np.testing.assert_allclose(answers_of(model, scores), expected, atol=1e-5)
    assert len(VIEWS[views]) == len(by_hand)
    first = build(input_shape=(3, 32, 24), data_format="channels_first", **options)
    others = outputs(first.with_views(views), np.moveaxis(IMAGES, -1, 1))
    np.testing.assert_allclose(others, scores, atol=1e-5)


def test_one_view_is_the_model_and_names_are_checked() -> None:
    model = build()
    assert model.with_views() is model
    refused("views='mirror' is not known", model.with_views, "mirror")
    refused("images of any size", build(input_shape=(None, None, 3)).with_views, "flip")


@pytest.mark.backends("tensorflow")
def test_the_models_views_are_saved_and_used_by_every_prediction(tmp_path: Path) -> None:
    model = build(num_classes=2)
    model.class_names = ("a", "b")
    model.eval_transform = {"mode": "stretch", "views": "flip"}
    model.save(tmp_path / "model.keras")
    loaded = keras_vit.load(tmp_path / "model.keras")
    assert loaded.eval_transform == model.eval_transform
    for i, image in enumerate(pixels(16, 40, 30, 3)):  # two classes of eight images each
        folder = tmp_path / "photos" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{i // 2}.png")
    splits = keras_vit.data.load(str(tmp_path / "photos"))
    _, scores = predict_split(loaded, splits.val)
    single = model.copy()
    single.eval_transform = {"mode": "stretch"}
    batches = keras_vit.data.pipeline(splits.val, (32, 24), 2, eval_transform="stretch")
    images = np.concatenate([images for images, _ in batches.as_numpy_iterator()])
    expected = outputs(single.with_views("flip"), images)
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    assert np.abs(scores - outputs(single, images)).max() > 1e-3
    ((_, answer),) = predict_files(loaded, [splits.val.files[0]])
    np.testing.assert_allclose(answer, answers_of(model, expected)[0], atol=1e-4)


KERAS = keras.losses
BINARY = KERAS.BinaryCrossentropy(from_logits=True)
PHOTOS = pixels(8, 16, 16, 3).astype("float32")
SEVERAL = np.array([[0, 1, 1], [1, 0, 0]] * 4, "float32")
NUMBERS = np.random.default_rng(0).normal((70, 1.75), (12, 0.1), (64, 2))
BODY = Regression(("weight", "height"), units=("kg", "m"))


def small(num_classes: int = 3, **options: Any) -> Any:
    sizes = {**TINY, "num_classes": num_classes, **options}
    if isinstance(options.get("task"), tasks.Task):
        del sizes["num_classes"]
    return fresh(**sizes)


def own_loss(y: Any, outputs: Any) -> Any:
    return keras.ops.mean((y - outputs) ** 2, axis=-1)


def warned(call: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True, action="always") as caught:
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
    model = small(classes, classifier_activation=activation)
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        model.compile("sgd", loss)
    assert (model.task and model.task.kind) == kind
    assert kind is None or model.task.outputs == classes


def test_what_no_loss_says_is_refused_until_somebody_does(tmp_path: Path) -> None:
    model = small()
    model.class_names = "abc"
    model.compile("sgd", own_loss)
    model.save(tmp_path / "model.keras")
    file = keras_vit.load(tmp_path / "model.keras")
    for each in (model, file, model.copy(), keras_vit.load(tmp_path / "model.keras")):
        assert each.task is None
        for call in (
            partial(task_of, each),
            partial(keras_vit.export, each, tmp_path / "1"),
            partial(keras_vit.save_weights, each, tmp_path / "f", layout="huggingface"),
            partial(keras_vit.training.compile_model, each, keras_vit.recipes.get("digits"), 99),
        ):
            refused(r"is not known.*model\.task = .*\"multilabel", call)
    assert model.with_classifier(3).task == Classification(size=3)
    model.task = "multilabel"
    assert model.copy().task == model.task == Multilabel(("a", "b", "c"))
    model.compile("sgd", own_loss)
    assert model.task == Multilabel(("a", "b", "c"))
    file.task = None
    assert (file.task, reloaded(file, tmp_path).is_task_unknown) == (None, False)


def test_the_last_loss_counts_and_what_the_user_said() -> None:
    model, said = small(), small(task="multilabel")
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
    model, raw = small(task=task), NUMBERS[:8].astype("float32")
    model.compile("sgd", "mse", run_eagerly=keras.backend.backend() != "jax")
    scaled = task.check_targets(NUMBERS[:8])
    assert warned(lambda: model.fit(**source(PHOTOS, scaled), verbose=0)) == []
    for method in (model.fit, model.evaluate):
        (message,) = warned(lambda method=method: method(**source(PHOTOS, raw), verbose=0))
        assert "as weight in its unit, and the task scales" in message
        assert "Train on model.task.check_targets(targets)" in message
    with warnings.catch_warnings(action="error", category=DataRangeWarning):
        before = model.get_weights()
        refused("would become", model.fit, error=DataRangeWarning, **source(PHOTOS, raw), verbose=0)
        assert all(map(np.array_equal, before, model.get_weights()))


def test_a_scale_that_comes_after_training_on_units_is_a_warning(tmp_path: Path) -> None:
    model, task = small(2), BODY.fitted(NUMBERS)
    model.compile("sgd", "mse")
    model.fit(PHOTOS, NUMBERS[:8], verbose=0)
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
    "a list": ("sparse", None, ROWS.argmax(1), [1.0, 2.0], r"dict\(enumerate\(class_weight"),
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
    model = small()
    model.class_names = ["cat", "dog", "cow"]
    if task:
        model.task = task
    model.compile("sgd", SPARSE(from_logits=True) if loss == "sparse" else loss)
    for call in (partial(model.fit, verbose=0), model.train_on_batch):
        with pytest.raises(ValueError, match=message) if message else nullcontext():
            call(PHOTOS, targets, class_weight=weights)


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
def test_targets_of_another_task(options, loss, targets, message: str, source: Source) -> None:
    model = small(**options)
    model.compile("sgd", loss)
    error = ValueError, DataRangeWarning
    with warnings.catch_warnings(action="error", category=DataRangeWarning):
        refused(message, model.fit, error=error, **source(PHOTOS, targets), verbose=0)


PIXELS = PHOTOS.astype("uint8")
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
def test_fit_wants_a_model_of_the_same_task(options, splits, message, tmp_path: Path) -> None:
    model = small(**options) if isinstance(options, dict) else options
    recipe = keras_vit.recipes.get("digits").scaled(steps=1)
    call = partial(keras_vit.fit, model, recipe, splits, tmp_path, print_fn=lambda line: None)
    if message is None:
        check_task(model, splits.task)
        return
    refused(message, call)
    assert not list(tmp_path.iterdir())
