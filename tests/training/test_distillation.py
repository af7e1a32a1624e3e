"""Distillation: the losses of the papers, who learns from whom, and the command."""

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from scipy.special import log_softmax, softmax
from scipy.stats import entropy

import keras_vit
from keras_vit import data, recipes
from keras_vit.data import Augmentation
from keras_vit.models.answers import answers_of
from keras_vit.ops import without_gradient
from keras_vit.tasks import Classification, Multilabel, Ordinal, Regression
from keras_vit.tasks.distillation_losses import (
    grade_distillation,
    hard_distillation,
    label_distillation,
    soft_distillation,
)
from keras_vit.tasks.losses import LabelAccuracy, SoftmaxCrossentropy
from keras_vit.training import fit as fit_module
from keras_vit.training.distillation import (
    DISTILLATION_KINDS,
    Distillation,
    _images_for,
)
from keras_vit.training.fit import fit
from keras_vit.training.lora import enable_lora
from keras_vit.training.parameter_groups import find_groups
from keras_vit.training.resume import ResumableRun, RunMismatchError
from keras_vit.training.state_file import open_state
from keras_vit_cli import commands as cli
from keras_vit_cli.arguments import parse
from keras_vit_cli.train import run as job_module
from keras_vit_cli.train.job import Job
from tests.models.test_common import pixels, predict

CLASSES, RATE = 4, 0.5
SIZES: dict[str, Any] = {"patch_size": 8, "depth": 1, "num_heads": 2, "num_classes": CLASSES}
IMAGES = pixels(8, 32, 32, 3)
LABELS = np.arange(8) % CLASSES
ROWS = np.eye(CLASSES, dtype="float32")[LABELS]
MIXED = (0.7 * ROWS + 0.3 * ROWS[::-1]).astype("float32")  # as from mixup
# Operation by operation JAX takes longer than to compile; TensorFlow's graphs need no XLA.
JIT = "auto" if keras.backend.backend() == "jax" else False
Vit = keras_vit.VisionTransformer


def vit(seed: int, **changes: Any) -> Vit:
    """A small model whose weights are the same on every backend."""
    model = Vit(**{**SIZES, "hidden_dim": 16, "input_shape": (32, 32, 3), **changes})
    random = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        if variable.path.endswith("gamma"):
            continue
        variable.assign(random.normal(0, 0.2, variable.shape))
    return model


def teacher_of(**changes: Any) -> Vit:
    return vit(1, hidden_dim=24, name="teacher", **changes)


def compiled(task: Any, optimizer: Any = None, **options: Any) -> Any:
    optimizer = keras.optimizers.SGD(RATE) if optimizer is None else optimizer
    options = {"jit_compile": JIT, **options}
    task.compile(optimizer, SoftmaxCrossentropy(), metrics=[LabelAccuracy()], **options)
    return task


def array(tensor: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(tensor), "float64")


def steps(task: Any, labels: Any, count: int, images: np.ndarray = IMAGES) -> list[float]:
    """The loss of each of some steps on one batch."""
    return task.fit(images, labels, batch_size=8, epochs=count, verbose=0).history["loss"]


def test_losses_are_those_of_scipy() -> None:
    random = np.random.default_rng(0)
    teacher, student = (random.normal(0, 3, (6, 5)).astype("float32") for _ in range(2))
    for temperature in (0.5, 1.0, 4.0):
        p, q = (
            softmax(logits.astype("float64") / temperature, -1) for logits in (teacher, student)
        )
        actual = array(soft_distillation(teacher, student, temperature))
        np.testing.assert_allclose(actual, temperature**2 * entropy(p, q, axis=-1), rtol=2e-5)
    expected = -log_softmax(student, -1)[np.arange(6), teacher.argmax(-1)]
    np.testing.assert_allclose(array(hard_distillation(teacher, student)), expected, rtol=2e-5)


class Reference:
    """Steps of SGD on linear heads over fixed features, in NumPy from the papers' equations."""

    def __init__(self, student: Vit, teacher: Vit, kind: str, weight: float, t: float) -> None:
        names = ["pooled", "distillation_token"] if student.distilled else ["pooled"]
        features = student.feature_model(names).predict(IMAGES, verbose=0)
        self.features = [
            np.pad(array(features[name]), ((0, 0), (0, 1)), constant_values=1) for name in names
        ]
        heads = [student.get_layer(n) for n in ("head", "head_distillation")[: len(names)]]
        self.heads = [np.concatenate([array(h.kernel), array(h.bias)[None]]) for h in heads]
        self.teacher = array(teacher.predict(IMAGES, verbose=0))
        self.kind, self.weight, self.t = kind, weight, t

    def step(self, labels: np.ndarray) -> float:
        """The loss; its gradient updates the heads."""
        logits = [x @ w for x, w in zip(self.features, self.heads, strict=True)]
        s, d = logits[0], logits[-1]  # of one head, both are the same
        crossentropy = -(labels * log_softmax(s, -1)).sum(-1)
        of_labels = (1 - self.weight) * (softmax(s, -1) - labels)
        if self.kind == "soft":
            p, q = softmax(self.teacher / self.t, -1), softmax(d / self.t, -1)
            distilled = self.t**2 * entropy(p, q, axis=-1)
            of_teacher = self.weight * self.t * (q - p)
        else:
            hard = np.eye(CLASSES)[self.teacher.argmax(-1)]
            distilled = -(hard * log_softmax(d, -1)).sum(-1)
            of_teacher = self.weight * (softmax(d, -1) - hard)
        parts = [of_labels + of_teacher] if len(logits) == 1 else [of_labels, of_teacher]
        for i, gradient in enumerate(parts):
            self.heads[i] = self.heads[i] - RATE * self.features[i].T @ gradient / len(labels)
        return float(((1 - self.weight) * crossentropy + self.weight * distilled).mean())


@pytest.mark.parametrize("distilled", [False, True])
@pytest.mark.parametrize(("kind", "temperature"), [("soft", 2.0), ("hard", None)])
def test_steps_follow_the_equations(kind: str, temperature: float | None, distilled: bool) -> None:
    """Three updates of the heads, with mixed labels, against gradients written down by hand."""
    student, teacher = vit(0, distilled=distilled), teacher_of()
    for layer in student.layers:
        layer.trainable = layer.name.startswith("head")
    reference = Reference(student, teacher, kind, 0.7, temperature or 1.0)
    task = compiled(Distillation(student, teacher, kind, 0.7, temperature))
    losses = steps(task, MIXED, 3)
    np.testing.assert_allclose(losses, [reference.step(MIXED) for _ in range(3)], rtol=2e-4)
    for name, expected in zip(("head", "head_distillation"), reference.heads, strict=False):
        head = student.get_layer(name)
        np.testing.assert_allclose(array(head.kernel), expected[:-1], atol=2e-4)
        np.testing.assert_allclose(array(head.bias), expected[-1], atol=2e-4)


# Losses of four steps from the same weights, recorded on TensorFlow.
GOLDEN = {
    ("soft", False): [0.88085, 0.80032, 0.78656, 0.78314],
    ("soft", True): [0.85146, 0.80306, 0.7772, 0.75954],
    ("hard", False): [1.46297, 1.27909, 1.24496, 1.23648],
    ("hard", True): [1.35646, 1.22058, 1.14032, 1.09871],
}


@pytest.mark.parametrize("distilled", [False, True])
@pytest.mark.parametrize("kind", DISTILLATION_KINDS)
def test_backends_train_alike(kind: str, distilled: bool) -> None:
    student = vit(0, distilled=distilled, input_shape=(16, 16, 3), patch_size=4)
    task = compiled(Distillation(student, teacher_of(), kind), keras.optimizers.SGD(0.05))
    np.testing.assert_allclose(steps(task, LABELS, 4), GOLDEN[kind, distilled], rtol=2e-3)


def test_the_student_learns_from_the_teacher_alone() -> None:
    """With weight=1, on images without labels worth the name; the teacher stays as it was."""
    student, teacher = vit(0), teacher_of()
    before, trainable = teacher.get_weights(), [v.trainable for v in teacher.variables]
    target = softmax(predict(teacher, IMAGES), -1)
    task = compiled(
        Distillation(student, teacher, weight=1, temperature=1), keras.optimizers.Adam(3e-3)
    )
    trained = {id(v) for v in task.trainable_variables}
    assert trained == {id(v) for v in student.trainable_variables}
    assert {id(v) for v in task.variables} == {id(v) for v in student.variables + teacher.variables}
    divergences = [entropy(target, softmax(predict(student, IMAGES), -1), axis=-1).mean()]
    losses = steps(task, np.zeros(8, int), 40)
    divergences.append(entropy(target, softmax(predict(student, IMAGES), -1), axis=-1).mean())
    np.testing.assert_allclose(losses[0], divergences[0], rtol=1e-3)
    assert divergences[1] < 0.2 * divergences[0]
    for old, new in zip(before, teacher.get_weights(), strict=True):
        np.testing.assert_array_equal(new, old)
    assert [v.trainable for v in teacher.variables] == trainable
    assert all(trainable)


def test_the_teacher_computes_as_at_inference() -> None:
    """Without dropout, in its own policy and at its size; the student drops out."""
    student = vit(0, input_shape=(16, 16, 3), dropout=0.5)
    teacher = teacher_of(dropout=0.5, dtype="mixed_bfloat16")
    task = Distillation(student, teacher)
    first, second = (task(IMAGES, training=True) for _ in range(2))
    expected = without_gradient(predict, teacher, IMAGES)  # a gradient rounds attention otherwise
    for outputs in (first, second):
        np.testing.assert_allclose(array(outputs["teacher"]), expected, atol=1e-5)
    assert not np.array_equal(array(first["logits"]), array(second["logits"]))
    assert teacher.get_layer("block_0").compute_dtype == "bfloat16"
    assert student.get_layer("block_0").compute_dtype == "float32"


def test_evaluate_and_predict_are_the_students() -> None:
    student = vit(0)
    task, alone = compiled(Distillation(student, teacher_of())), compiled(student)
    for labels in (LABELS, ROWS):
        expected = alone.evaluate(IMAGES, labels, verbose=0)
        np.testing.assert_allclose(task.evaluate(IMAGES, labels, verbose=0), expected, rtol=1e-5)
    np.testing.assert_array_equal(task.predict(IMAGES, verbose=0), alone.predict(IMAGES, verbose=0))
    history = task.fit(IMAGES, LABELS, validation_data=(IMAGES, LABELS), verbose=0).history
    expected = alone.evaluate(IMAGES, LABELS, verbose=0, return_dict=True)
    for name, value in expected.items():
        np.testing.assert_allclose(history[f"val_{name}"], [value], rtol=1e-5)


def test_sample_weights_and_data_checks() -> None:
    task = compiled(Distillation(vit(0), teacher_of()))
    (loss, *_) = task.train_on_batch(IMAGES, LABELS, sample_weight=np.zeros(8))
    assert loss == 0
    with pytest.raises(ValueError, match="Label 4 is not a class"):
        task.fit(IMAGES, LABELS + 4, verbose=0)
    with pytest.raises(ValueError, match=r"do not fit distillation.*with_input_shape"):
        task.fit(IMAGES[:, :16, :16], LABELS, verbose=0)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ((16, 16, 3), (32, 32, 3), (32, 32, 3)),
        ((32, 32, 3), (16, 24, 3), (32, 32, 3)),
        ((16, 32, 3), (32, 16, 3), (32, 32, 3)),
        ((32, 32, 3), (None, None, 3), (32, 32, 3)),
    ],
)
def test_each_model_gets_its_size(ours: Any, theirs: Any, expected: Any) -> None:
    """The larger size, resized to each model's as `keras.ops.image.resize` does."""
    student, teacher = vit(0, input_shape=ours), teacher_of(input_shape=theirs)
    task = Distillation(student, teacher)
    assert task.input_shape == (None, *expected)
    outputs = task(IMAGES, training=True)
    for model, name in ((student, "logits"), (teacher, "teacher")):
        size = tuple(side or 32 for side in model.image_size)
        images = IMAGES.astype("float32")
        resized = keras.ops.image.resize(images, size, antialias=True)
        actual = _images_for(model, images, is_first=False)
        np.testing.assert_allclose(array(actual), array(resized), atol=2e-3)
        np.testing.assert_allclose(array(outputs[name]), predict(model, resized), atol=2e-3)
    np.testing.assert_allclose(predict(task, IMAGES), array(outputs["logits"]), atol=1e-5)


def test_channels_first_and_a_keras_teacher() -> None:
    """The student's layout counts; the teacher may be any Keras classifier of logits."""
    student = vit(0, input_shape=(3, 16, 16), data_format="channels_first")
    keras.config.set_image_data_format("channels_last")
    teacher = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.BatchNormalization(),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(CLASSES),
        ]
    )
    task = compiled(Distillation(student, teacher))
    assert task.input_shape == (None, 3, 32, 32)
    images = IMAGES.transpose(0, 3, 1, 2)
    outputs = task(images, training=True)
    np.testing.assert_allclose(array(outputs["teacher"]), predict(teacher, IMAGES), atol=1e-5)
    before = teacher.get_weights()
    assert np.isfinite(steps(task, LABELS, 2, images)).all()
    for old, new in zip(before, teacher.get_weights(), strict=True):
        np.testing.assert_array_equal(new, old)  # the averages of batch normalization, too


def test_mixed_precision() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    student, teacher = vit(0, input_shape=(16, 16, 3)), teacher_of(dtype="float32")
    task = compiled(Distillation(student, teacher))
    outputs = task(IMAGES, training=True)
    assert {keras.backend.standardize_dtype(x.dtype) for x in outputs.values()} == {"float32"}
    np.testing.assert_allclose(array(outputs["teacher"]), predict(teacher, IMAGES), atol=1e-5)
    assert np.isfinite(steps(task, MIXED, 2)).all()


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="torch and JAX do not differ")
def test_xla_compiles_the_step() -> None:
    losses = []
    for jit_compile in (True, False):
        task = Distillation(vit(0, input_shape=(16, 16, 3)), teacher_of())
        losses.append(steps(compiled(task, jit_compile=jit_compile), LABELS, 2))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3)


@pytest.mark.parametrize("distilled", [False, True])
def test_files_and_configurations(tmp_path: Path, distilled: bool) -> None:
    student, teacher = vit(0, distilled=distilled), teacher_of()
    student.class_names = teacher.class_names = tuple("abcd")
    teacher.trainable = False
    task = compiled(Distillation(student, teacher, "soft", 0.9, 2.0), "adam")
    task.train_on_batch(IMAGES, LABELS)
    task.save(tmp_path / "task.keras")
    loaded = keras.saving.load_model(tmp_path / "task.keras")
    assert isinstance(loaded, Distillation)
    assert loaded.get_config() == task.get_config()
    assert (loaded.kind, loaded.weight, loaded.temperature) == ("soft", 0.9, 2.0)
    assert not loaded.teacher.trainable
    assert loaded.trainable_variables
    for name, values in task(IMAGES, training=True).items():
        np.testing.assert_allclose(
            array(loaded(IMAGES, training=True)[name]), array(values), atol=1e-6
        )
    # It goes on as if nothing had happened, with the optimizer's state.
    for model in (task, loaded):
        model.train_on_batch(IMAGES, LABELS)
    for ours, theirs in zip(task.student.get_weights(), loaded.student.get_weights(), strict=True):
        np.testing.assert_allclose(theirs, ours, atol=1e-6)
    again = Distillation.from_config(task.get_config())
    assert again.get_config() == task.get_config()
    student.save(tmp_path / "student.keras")
    alone = keras.saving.load_model(tmp_path / "student.keras")
    np.testing.assert_allclose(predict(alone, IMAGES), predict(task, IMAGES), atol=1e-6)


RECIPE = replace(
    recipes.get("digits"), epochs=0, steps=6, batch_size=8, learning_rate=1e-2, warmup=2
)


@pytest.mark.parametrize(
    "changes",
    [{"rho": 0.05}, {"ema": 0.9}, {"accumulation": 2}, {"loss": "sigmoid", "head_bias": -2.0}],
    ids=lambda changes: next(iter(changes)),
)
def test_recipes(changes: dict[str, Any]) -> None:
    """SAM, moving averages, accumulation and the sigmoid loss train the student alone."""
    student = Vit(**SIZES, hidden_dim=16, input_shape=(16, 16, 3), distilled=True)
    teacher, recipe = teacher_of(), replace(RECIPE, layer_decay=0.5, **changes)
    before = [array(v) for v in teacher.variables]
    task = Distillation(student, teacher)
    keras_vit.compile_model(task, recipe, 6, jit_compile=JIT)
    bias = changes.get("head_bias", 0.0)
    assert {float(v) for v in np.asarray(student.get_layer("head_distillation").bias)} == {bias}
    start = {v.path: array(v) for v in student.trainable_variables}
    losses = steps(task, MIXED, 6)
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    for path, values in start.items():
        (variable,) = [v for v in student.trainable_variables if v.path == path]
        assert not np.array_equal(array(variable), values), path
    for old, variable in zip(before, teacher.variables, strict=True):
        np.testing.assert_array_equal(array(variable), old)


def test_tables_match_the_paths_of_the_student() -> None:
    """Layerwise decay and patterns give the optimizer of the student alone."""
    recipe = replace(RECIPE, layer_decay=0.5)
    students = [vit(0, depth=2, distilled=True) for _ in range(2)]
    task = Distillation(students[0], teacher_of())
    for model in (task, students[1]):
        keras_vit.compile_model(model, recipe, 6, frozen=["block_0/.*"])
    ours, theirs = task.optimizer, students[1].optimizer
    assert ours.get_config()["groups"] == theirs.get_config()["groups"]
    paths = [v.path for v in task.trainable_variables]
    assert paths == [v.path for v in students[1].trainable_variables]
    rates = {
        path: group.learning_rate
        for path, group in zip(paths, find_groups(paths, ours.groups), strict=True)
    }
    assert not any(path.startswith("block_0") for path in paths)
    assert not students[0].get_layer("block_0").trainable
    assert rates["head/kernel"] == rates["head_distillation/kernel"] == 1
    assert rates["block_1/norm_0/gamma"] == 0.5
    assert rates["distillation_token/embedding"] == 0.125


def test_lora_student() -> None:
    student = vit(0)
    enable_lora(student, 2)
    task = compiled(Distillation(student, teacher_of()), keras.optimizers.Adam(1e-2))
    assert 0 < len(task.trainable_variables) == len(student.trainable_variables)
    losses = steps(task, LABELS, 3)
    assert losses[-1] < losses[0]


class Killed(Exception):
    """Stands for the signal where a new process would take too long."""


class KillAt(keras.callbacks.Callback):
    def __init__(self, step: int) -> None:
        super().__init__()
        self.left = step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed


def test_an_interrupted_run_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout, mixup, EMA, patience; the best model is the student; the teacher is not stored."""
    pytest.importorskip("tensorflow")
    monkeypatch.setattr(fit_module, "ResumableRun", functools.partial(ResumableRun, every_steps=2))
    splits = data.load("digits")
    sizes = {**SIZES, "num_classes": 10}
    recipe = replace(
        RECIPE,
        image_size=8,
        steps=12,
        batch_size=240,
        ema=0.5,
        mixup=0.4,
        augmentation=Augmentation(crop="resize", flip=False, shift=1),
    )

    def run(folder: str, seed: int, *callbacks: Any, of_teacher: int = 1) -> tuple[Any, bytes]:
        keras.utils.set_random_seed(seed)
        student = Vit(
            **{**sizes, "patch_size": 4},
            hidden_dim=16,
            input_shape=(8, 8, 1),
            dropout=0.1,
            distilled=True,
        )
        teacher = vit(of_teacher, **sizes, hidden_dim=24, input_shape=(16, 16, 1))
        task = Distillation(student, teacher)
        history = fit(
            task,
            recipe,
            splits,
            tmp_path / folder,
            print_fn=lambda _: None,
            patience=5,
            callbacks=callbacks,
        )
        return history, b"".join(w.tobytes() for w in student.get_weights())

    with pytest.raises(Killed):
        run("cut", 1, KillAt(9))
    checkpoint = max((tmp_path / "cut" / "checkpoints").glob("*.safetensors"))
    shapes = [shape for _, shape in open_state(checkpoint).arrays.values()]
    assert any(16 in shape for shape in shapes)
    assert not any(24 in shape for shape in shapes)  # the teacher's width
    assert run("cut", 2) == run("whole", 1)
    best = keras.saving.load_model(tmp_path / "whole" / "best.keras")
    assert isinstance(best, Vit)
    assert best.input_shape == (None, 8, 8, 1)
    assert not best.compiled


def test_errors_name_the_fix() -> None:
    student, teacher = vit(0), teacher_of()

    def check(words: str, *models: Any, **options: Any) -> None:
        with pytest.raises(ValueError, match=words):
            Distillation(*(models or (student, teacher)), **options)

    check(
        "The teacher teacher has 3 classes, and the student.* 4", student, teacher_of(num_classes=3)
    )
    check("returns probabilities", student, teacher_of(classifier_activation="softmax"))
    check("returns probabilities", vit(0, classifier_activation="softmax"), teacher)
    check("with_classifier", vit(0, num_classes=0), teacher)
    check("with_classifier", student, teacher_of(num_classes=0))
    check("any size.*with_input_shape", vit(0, input_shape=(None, None, 3)), teacher)
    check(
        "images of 1 channels, and the student.* of 3", student, teacher_of(input_shape=(32, 32, 1))
    )
    check(
        "include_preprocessing=False and the student True",
        student,
        teacher_of(include_preprocessing=False),
    )
    check(r"share weights.*teacher\.copy\(\)", student, student)
    dense = keras.Sequential([keras.Input((4,)), keras.layers.Dense(CLASSES)])
    check("The student is a Sequential. Give a model of keras_vit", dense, teacher)
    check("does not map images to one score per class", student, dense)
    check("The teacher is a str", student, "runs/teacher")
    probabilities = keras.Sequential(
        [keras.Input((32, 32, 3)), keras.layers.Flatten(), keras.layers.Dense(4, "softmax")]
    )
    check("returns probabilities", student, probabilities)
    check("kind='softly' is not known", kind="softly")
    for weight in (0, -0.1, 1.5, float("nan"), "half"):
        check(r"must be in \(0, 1\]", weight=weight)
    for temperature in (0, -1.0, float("inf")):
        check("temperature=", temperature=temperature)
    check('temperature=2.0 has no effect with kind="hard"', kind="hard", temperature=2.0)
    student.class_names, teacher.class_names = ("a", "b", "c", "d"), ("b", "a", "c", "d")
    check("in another order: class 0 is 'b' to the teacher teacher and 'a' to the student")
    teacher.class_names = ("a", "b", "c", "e")
    check("are not the student's: class 3 is 'e' to the teacher teacher and 'd' to the student")


def small_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"patch_size": 4, "hidden_dim": 16, "depth": 1, "num_heads": 2}
    recipe = replace(recipes.get("digits"), model=small, epochs=0, steps=8, batch_size=240)
    monkeypatch.setitem(recipes.RECIPES, "digits", recipe)
    # The SavedModel takes most of the time, and is tested elsewhere.
    monkeypatch.setattr(keras_vit, "export_model", lambda *_, **__: None)
    monkeypatch.setattr(fit_module, "ResumableRun", functools.partial(ResumableRun, every_steps=2))


def words(out: Path, *more: str) -> list[str]:
    return ["train", "--data", "digits", "--out", str(out), "--image-size", "8", *more]


def killing_fit(step: int) -> Callable[..., Any]:
    def killed(*args: Any, **options: Any) -> Any:
        return fit(*args, **{**options, "callbacks": [KillAt(step)]})

    return killed


once = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="tested in the run on TensorFlow"
)


@once
def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A teacher, and a student that is interrupted and resumed.

    (`test_an_interrupted_run_ends_with_the_same_bytes` compares with one that is not.)
    """
    pytest.importorskip("tensorflow")
    small_recipe(monkeypatch)
    assert cli.main(words(tmp_path / "teacher", "--image-size", "12")) == 0
    options = ["--teacher", str(tmp_path / "teacher"), "--distill", "hard", "--token-merging", "1"]
    options += ["--patience", "3"]
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(job_module, "fit", killing_fit(7))
        with pytest.raises(Killed):
            cli.run(parse(words(run, *options)))
    capsys.readouterr()
    assert cli.main(words(run, *options[:2], "--resume")) == 2
    assert "distillation was 'hard', is 'None'" in capsys.readouterr().err
    assert cli.main(words(run, *options, "--resume")) == 0
    assert "learns from vision_transformer: " in capsys.readouterr().out
    for file in ("model.keras", "best.keras"):
        model = keras.saving.load_model(run / file)
        assert isinstance(model, Vit)
        assert model.token_merging == 1
        assert model.input_shape == (None, 8, 8, 1)
    config = json.loads((run / "config.json").read_text())
    assert config["job"]["teacher"] == config["identity"]["teacher"] == options[1]
    assert config["job"]["distillation"] == "hard"
    assert f"| teacher | {Path(options[1]).name} |" in (run / "report.md").read_text()


@once
def test_another_teacher_in_its_place_is_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorflow")
    small_recipe(monkeypatch)
    file = tmp_path / "teacher.keras"
    sizes = {**SIZES, "num_classes": 10, "input_shape": (8, 8, 1)}
    vit(1, **sizes).save(file)
    job = Job("digits", tmp_path / "run", teacher=str(file))
    with monkeypatch.context() as patch:
        patch.setattr(job_module, "fit", killing_fit(5))
        with pytest.raises(Killed):
            job_module.train(job, lambda _: None)
    vit(2, **sizes).save(file)
    with pytest.raises(RunMismatchError, match="teacher_sha256"):
        job_module.train(replace(job, resume=True), lambda _: None)


def test_errors_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each before the data are loaded: there are none of that name."""
    teacher = tmp_path / "teacher"
    teacher.mkdir()
    teacher_of(classifier_activation="softmax").save(teacher / "model.keras")
    vit(0).save(tmp_path / "other.keras")
    missing = ["train", "--data", str(tmp_path / "nothing")]
    for arguments, error in (
        (["--teacher", "nowhere"], "There is no model at nowhere"),
        (["--teacher", str(teacher)], "returns probabilities"),
        (["--distill", "hard"], "--distill has no effect without --teacher"),
        (["--teacher", str(teacher), "--distill", "firm"], "invalid choice: 'firm'"),
        (
            ["--teacher", str(teacher), "--weights", "x.npz", "--freeze-backbone"],
            "freeze_backbone fits the head to the labels, without a teacher",
        ),
    ):
        out = ["--out", str(tmp_path / "out")]
        assert cli.main([*missing, *out, *arguments]) == 2
        assert error in capsys.readouterr().err
    for folder in (teacher, teacher / "student", tmp_path):
        assert cli.main([*missing, "--out", str(folder), "--teacher", str(teacher)]) == 2
        assert "which is read" in capsys.readouterr().err
    with pytest.raises(ValueError, match='distillation="hard" has no effect without a teacher'):
        job_module.train(Job("digits", tmp_path / "out", distillation="hard"))
    recipe = replace(recipes.get("finetune_small"), image_size=32)
    with pytest.raises(ValueError, match="token_merging=2 is for the blocks of a Vision"):
        job_module.build(
            Job("x", tmp_path, model="Mixer-S/16", token_merging=2),
            recipe,
            Classification(size=5),
            3,
        )


def test_labels_and_grades_are_choices_of_two() -> None:
    random = np.random.default_rng(0)
    teacher, student = (random.normal(0, 3, (6, 5)).astype("float32") for _ in range(2))
    for temperature in (0.5, 3.0):
        # A choice of two with one of their logits fixed at 0.
        pairs = [np.stack([x, np.zeros_like(x)], -1).reshape(-1, 2) for x in (teacher, student)]
        expected = array(soft_distillation(*pairs, temperature)).reshape(6, 5)
        labels = array(label_distillation(teacher, student, temperature))
        np.testing.assert_allclose(labels, expected.mean(axis=1), rtol=1e-4)
        grades = array(grade_distillation(teacher, student, temperature))
        np.testing.assert_allclose(grades, expected.sum(axis=1), rtol=1e-4)


OF_TASKS = {
    "labels": (Multilabel(("a", "b", "c", "d")), np.eye(4, dtype="float32")[[0, 1, 2, 3] * 2]),
    "grades": (Ordinal(("a", "b", "c")), np.array([0, 1, 2, 1, 0, 2, 1, 0])),
    "numbers": (Regression(("x", "y")), np.random.default_rng(0).normal(size=(8, 2))),
}


# TensorFlow's steps are the slowest here, and one of them stands for all.
@pytest.mark.parametrize(
    "name", OF_TASKS if keras.backend.backend() != "tensorflow" else ["numbers"]
)
def test_other_tasks_learn_from_a_teacher(name: str) -> None:
    """With the teacher alone, the student comes to answer what the teacher answers."""
    task, targets = OF_TASKS[name]
    named = {k: v for k, v in SIZES.items() if k != "num_classes"}
    other = replace(task, offset=(3.0, -1.0), scale=(2.0, 0.5)) if name == "numbers" else task
    student = Vit(**named, hidden_dim=16, task=task, input_shape=IMAGES.shape[1:])
    teacher = Vit(**named, hidden_dim=24, task=other, input_shape=IMAGES.shape[1:])
    random = np.random.default_rng(1)
    teacher.get_layer("head").set_weights(
        [random.normal(0, 0.4, (24, task.outputs)), random.normal(0, 0.4, task.outputs)]
    )
    distillation = Distillation(student, teacher, weight=1.0)
    distillation.compile(keras.optimizers.Adam(3e-3), loss=task.loss(), metrics=task.metrics())
    losses = steps(distillation, task.check_targets(targets), 300)
    assert losses[-1] < 0.02 * losses[0]
    answers = [answers_of(m, m.predict(IMAGES, verbose=0)) for m in (student, teacher)]
    np.testing.assert_allclose(*answers, atol=0.1 if name == "numbers" else 0.02)


def test_a_teacher_of_another_task_is_refused() -> None:
    named = {k: v for k, v in SIZES.items() if k != "num_classes"}
    student = Vit(**named, hidden_dim=16, task=Multilabel(("a", "b")))
    for task, words in (
        (Classification(("a", "b")), "teacher .* answers classification.*student .*multilabel"),
        (Multilabel(("b", "a")), "another order"),
    ):
        with pytest.raises(ValueError, match=words):
            Distillation(student, Vit(**named, hidden_dim=24, task=task))
    teacher = Vit(**named, hidden_dim=24, task=Multilabel(("a", "b")))
    with pytest.raises(ValueError, match=r"kind=.hard. is not known.*soft"):
        Distillation(student, teacher, "hard")
    numbers = [Vit(**named, hidden_dim=w, task=Regression(("x",))) for w in (16, 24)]
    with pytest.raises(ValueError, match=r"temperature=2\.0 has no effect.*regression"):
        Distillation(*numbers, temperature=2.0)
    unknown = [Vit(**named, hidden_dim=w, num_classes=1) for w in (16, 24)]
    with pytest.raises(ValueError, match=r"model\.task ="):
        Distillation(*unknown)
