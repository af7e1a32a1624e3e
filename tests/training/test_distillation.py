"""Distillation: the papers' losses, who learns from whom, and the command."""

import functools
import itertools
import json
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
from keras_vit.data.seen_images import SeenImages
from keras_vit.models.answers import answers_of
from keras_vit.ops import without_gradient
from keras_vit.tasks import Classification, Multilabel, Ordinal, Regression, Task
from keras_vit.tasks import distillation_losses as ours
from keras_vit.tasks.losses import LabelAccuracy, SoftmaxCrossentropy
from keras_vit.training import compile_model
from keras_vit.training import fitting as fit_module
from keras_vit.training.distillation import Distillation, _images_for
from keras_vit.training.fitting import fit
from keras_vit.training.lora import enable_lora
from keras_vit.training.parameter_groups import find_groups
from keras_vit.training.resume import ResumableRun, RunMismatchError
from keras_vit.training.state_file import open_state
from keras_vit_cli import commands as cli
from keras_vit_cli.arguments import parse
from keras_vit_cli.train import run as job_module
from keras_vit_cli.train.job import Job
from tests.backend import refused, reloaded, rows
from tests.bank import outputs as predict
from tests.bank import pixels
from tests.conftest import Command
from tests.training.common import JIT, QUICK, StopAt, array, assert_equal, killed

CLASSES, RATE = 4, 0.5
SIZES: dict[str, Any] = {"patch_size": 8, "depth": 1, "num_heads": 2, "num_classes": CLASSES}
IMAGES, LABELS = pixels(8, 32, 32, 3), np.arange(8) % CLASSES
ROWS = np.eye(CLASSES, dtype="float32")[LABELS]
MIXED = (0.7 * ROWS + 0.3 * ROWS[::-1]).astype("float32")  # as from mixup
Vit = keras_vit.VisionTransformer


def vit(seed: int, **changes: Any) -> Vit:
    model = Vit(**{**SIZES, "hidden_dim": 16, "input_shape": (32, 32, 3), **changes})
    random = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        if not variable.path.endswith("gamma"):
            variable.assign(random.normal(0, 0.2, variable.shape))
    return model


def teacher_of(**changes: Any) -> Vit:
    return vit(1, hidden_dim=24, name="teacher", **changes)


def of_task(task: Task, width: int) -> Vit:
    sizes = {**SIZES, "num_classes": task.outputs, "hidden_dim": width}
    return Vit(**sizes, task=task, input_shape=(32, 32, 3))


def compiled(task: Any, optimizer: Any = None, **options: Any) -> Any:
    optimizer = keras.optimizers.SGD(RATE) if optimizer is None else optimizer
    options = {"metrics": [LabelAccuracy()], "jit_compile": JIT, **options}
    task.compile(optimizer, SoftmaxCrossentropy(), **options)
    return task


def steps(task: Any, labels: Any, count: int, images: np.ndarray = IMAGES) -> list[float]:
    return task.fit(images, labels, batch_size=8, epochs=count, verbose=0).history["loss"]


def test_losses_are_those_of_scipy() -> None:
    random = np.random.default_rng(0)
    teacher, student = (random.normal(0, 3, (6, 5)).astype("float32") for _ in range(2))
    # Labels and grades are choices of two, with one of their logits fixed at 0.
    pairs = [np.stack([x, np.zeros_like(x)], -1).reshape(-1, 2) for x in (teacher, student)]
    for temperature in (0.5, 1.0, 3.0, 4.0):
        p, q = (softmax(x.astype("float64") / temperature, -1) for x in (teacher, student))
        actual = array(ours.soft_distillation(teacher, student, temperature))
        np.testing.assert_allclose(actual, temperature**2 * entropy(p, q, axis=-1), rtol=2e-5)
        each = array(ours.soft_distillation(*pairs, temperature)).reshape(6, 5)
        labels = array(ours.label_distillation(teacher, student, temperature))
        np.testing.assert_allclose(labels, each.mean(axis=1), rtol=1e-4)
        grades = array(ours.grade_distillation(teacher, student, temperature))
        np.testing.assert_allclose(grades, each.sum(axis=1), rtol=1e-4)
    expected = -log_softmax(student, -1)[np.arange(6), teacher.argmax(-1)]
    np.testing.assert_allclose(array(ours.hard_distillation(teacher, student)), expected, rtol=2e-5)


def heads_of(student: Vit) -> list[np.ndarray]:
    names = ("head", "head_distillation")[: 1 + student.distilled]
    return [np.vstack(student.get_layer(name).get_weights()) for name in names]


def by_hand(student: Vit, teacher: Vit, kind: str, weight: float, t: float) -> Any:
    """Losses of three steps of SGD on the heads, and the heads, from the papers' equations."""
    names = ["pooled", "distillation_token"] if student.distilled else ["pooled"]
    outputs = student.feature_model(names).predict(IMAGES, verbose=0)
    features = [np.hstack([outputs[name], np.ones((8, 1))]) for name in names]
    heads = [head.astype("float64") for head in heads_of(student)]
    taught, losses = predict(teacher, IMAGES).astype("float64"), []
    for _ in range(3):
        logits = [x @ w for x, w in zip(features, heads, strict=True)]
        s, d = logits[0], logits[-1]  # of one head, both are the same
        crossentropy = -(MIXED * log_softmax(s, -1)).sum(-1)
        of_labels = (1 - weight) * (softmax(s, -1) - MIXED)
        if kind == "soft":
            p, q = softmax(taught / t, -1), softmax(d / t, -1)
            distilled, of_teacher = t**2 * entropy(p, q, axis=-1), weight * t * (q - p)
        else:
            hard = np.eye(CLASSES)[taught.argmax(-1)]
            distilled = -(hard * log_softmax(d, -1)).sum(-1)
            of_teacher = weight * (softmax(d, -1) - hard)
        parts = [of_labels + of_teacher] if len(logits) == 1 else [of_labels, of_teacher]
        for i, gradient in enumerate(parts):
            heads[i] = heads[i] - RATE * features[i].T @ gradient / 8
        losses.append(((1 - weight) * crossentropy + weight * distilled).mean())
    return losses, heads


EQUATIONS = [*itertools.product(("soft", "hard"), (False, True))]


@pytest.mark.parametrize(("kind", "distilled"), rows(EQUATIONS, EQUATIONS[1:3]))
def test_steps_follow_the_equations(kind: str, distilled: bool) -> None:
    student, teacher = vit(0, distilled=distilled), teacher_of()
    for layer in student.layers:
        layer.trainable = layer.name.startswith("head")
    temperature = 2.0 if kind == "soft" else None
    expected, heads = by_hand(student, teacher, kind, 0.7, temperature or 1.0)
    losses = steps(compiled(Distillation(student, teacher, kind, 0.7, temperature)), MIXED, 3)
    np.testing.assert_allclose(losses, expected, rtol=2e-4)
    assert_equal(heads_of(student), heads, atol=2e-4)


POLICIES = [("float32", "mixed_bfloat16"), ("mixed_bfloat16", "float32")]


@pytest.mark.parametrize(("ours", "theirs"), rows(POLICIES, POLICIES[:1]))
def test_the_teacher_computes_as_at_inference(ours: str, theirs: str) -> None:
    keras.config.set_dtype_policy(ours)
    student = vit(0, input_shape=(16, 16, 3), dropout=0.5)
    teacher = teacher_of(dropout=0.5, dtype=theirs)
    task = compiled(Distillation(student, teacher), **QUICK)
    first, second = (task(IMAGES, training=True) for _ in range(2))
    expected = without_gradient(predict, teacher, IMAGES)  # a gradient rounds attention otherwise
    for outputs in (first, second):
        np.testing.assert_allclose(array(outputs["teacher"]), expected, atol=1e-5)
    assert not np.array_equal(array(first["logits"]), array(second["logits"]))
    for model, policy in ((student, ours), (teacher, theirs)):
        assert model.get_layer("block_0").compute_dtype == policy.removeprefix("mixed_")
    assert {keras.backend.standardize_dtype(x.dtype) for x in first.values()} == {"float32"}
    assert np.isfinite(steps(task, MIXED, 2)).all()


def test_evaluate_and_predict_are_the_students() -> None:
    student = vit(0)
    task, alone = compiled(Distillation(student, teacher_of())), compiled(student)
    (loss, *_) = task.train_on_batch(IMAGES, LABELS, sample_weight=np.zeros(8))
    assert loss == 0
    for labels in (LABELS, ROWS):
        expected = alone.evaluate(IMAGES, labels, verbose=0)
        np.testing.assert_allclose(task.evaluate(IMAGES, labels, verbose=0), expected, rtol=1e-5)
    np.testing.assert_array_equal(task.predict(IMAGES, verbose=0), alone.predict(IMAGES, verbose=0))
    refused("Label 4 is not a class", task.fit, IMAGES, LABELS + 4, verbose=0)
    refused("with_input_shape", task.fit, IMAGES[:, :16, :16], LABELS, verbose=0)


@pytest.mark.parametrize(
    ("ours", "theirs"), [((32, 32), (16, 24)), ((16, 32), (32, 16)), ((32, 32), (None, None))]
)
def test_each_model_gets_its_size(ours: Any, theirs: Any) -> None:
    """The larger size, resized to each model's as `keras.ops.image.resize` does."""
    student, teacher = vit(0, input_shape=(*ours, 3)), teacher_of(input_shape=(*theirs, 3))
    task = Distillation(student, teacher)
    assert task.input_shape == (None, 32, 32, 3)
    outputs, images = task(IMAGES, training=True), IMAGES.astype("float32")
    for model, name in ((student, "logits"), (teacher, "teacher")):
        size = tuple(side or 32 for side in model.image_size)
        resized = keras.ops.image.resize(images, size, antialias=True)
        actual = _images_for(model, images, is_first=False)
        np.testing.assert_allclose(array(actual), array(resized), atol=2e-3)
        np.testing.assert_allclose(array(outputs[name]), predict(model, resized), atol=2e-3)
    np.testing.assert_allclose(predict(task, IMAGES), array(outputs["logits"]), atol=1e-5)


def test_channels_first_and_a_keras_teacher() -> None:
    student = vit(0, input_shape=(3, 16, 16), data_format="channels_first")
    keras.config.set_image_data_format("channels_last")
    pooling, head = keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(CLASSES)
    scaled = [keras.layers.Rescaling(1 / 255), keras.layers.BatchNormalization()]
    teacher = keras.Sequential([keras.Input((32, 32, 3)), *scaled, pooling, head])
    task = compiled(Distillation(student, teacher))
    assert task.input_shape == (None, 3, 32, 32)
    images = IMAGES.transpose(0, 3, 1, 2)
    outputs = task(images, training=True)
    np.testing.assert_allclose(array(outputs["teacher"]), predict(teacher, IMAGES), atol=1e-5)
    before = teacher.get_weights()
    assert np.isfinite(steps(task, LABELS, 2, images)).all()
    assert_equal(teacher, before)  # the averages of batch normalization, too


@pytest.mark.every_backend
def test_files_and_configurations(tmp_path: Path) -> None:
    student, teacher = vit(0, distilled=True), teacher_of()
    student.class_names = teacher.class_names = tuple("abcd")
    teacher.trainable = False
    task = compiled(Distillation(student, teacher, "soft", 0.9, 2.0), "adam", **QUICK)
    task.train_on_batch(IMAGES, LABELS)
    loaded = reloaded(task, tmp_path)
    assert loaded.get_config() == task.get_config()
    assert not loaded.teacher.trainable
    assert loaded.trainable_variables
    answers, again = (model(IMAGES, training=True) for model in (task, loaded))
    for name, values in answers.items():
        np.testing.assert_allclose(array(again[name]), array(values), atol=1e-6)


SHORT: dict[str, Any] = {"epochs": 0, "steps": 6, "batch_size": 8, "warmup": 2}
RECIPE = replace(recipes.get("digits"), learning_rate=1e-2, **SHORT)
CHANGES = [{"rho": 0.05}, {"ema": 0.9}, {"accumulation": 2}, {"loss": "sigmoid", "head_bias": -2.0}]


@pytest.mark.parametrize("changes", rows(CHANGES, CHANGES[:1]), ids=" ".join)
def test_recipes(changes: dict[str, Any]) -> None:
    student = Vit(**SIZES, hidden_dim=16, input_shape=(16, 16, 3), distilled=True)
    teacher, recipe = teacher_of(), replace(RECIPE, layer_decay=0.5, **changes)
    task, before = Distillation(student, teacher), teacher.get_weights()
    keras_vit.training.compile_model(task, recipe, 6, jit_compile=JIT)
    bias = changes.get("head_bias", 0.0)
    assert set(array(student.get_layer("head_distillation").bias)) == {bias}
    start = {v.path: array(v).copy() for v in student.trainable_variables}
    losses = steps(task, MIXED, 6)
    assert losses[-1] < losses[0]
    for variable in student.trainable_variables:
        assert not np.array_equal(array(variable), start[variable.path]), variable.path
    assert_equal(teacher, before)


def test_tables_and_lora_are_those_of_the_student() -> None:
    student, alone = (vit(0, depth=2, distilled=True) for _ in range(2))
    task = Distillation(student, teacher_of())
    for model in (task, alone):
        compile_model(model, replace(RECIPE, layer_decay=0.5), 6, frozen=["block_0/.*"])
    assert task.optimizer.get_config()["groups"] == alone.optimizer.get_config()["groups"]
    paths = [v.path for v in task.trainable_variables]
    assert paths == [v.path for v in alone.trainable_variables]
    names = ["head/kernel", "head_distillation/kernel", "distillation_token/embedding"]
    rates = [group.learning_rate for group in find_groups(names, task.optimizer.groups)]
    assert rates == [1, 1, 0.125]
    assert not any(path.startswith("block_0") for path in paths)
    enable_lora(student, 2)
    assert 0 < len(task.trainable_variables) == len(student.trainable_variables)


@pytest.fixture
def often_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_module, "ResumableRun", functools.partial(ResumableRun, every_steps=2))


@pytest.mark.usefixtures("often_kept")
def test_an_interrupted_run_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """Dropout, mixup, EMA, patience; the best model is the student; the teacher is not stored."""
    shifted = data.Augmentation(crop="resize", flip=False, shift=1)
    of_run = {"image_size": 8, "steps": 12, "batch_size": 240, "ema": 0.5, "mixup": 0.4}
    recipe, splits = replace(RECIPE, augmentation=shifted, **of_run), data.load("digits")

    def run(folder: str, seed: int, *callbacks: Any) -> tuple[Any, bytes]:
        keras.utils.set_random_seed(seed)
        of_student = {"patch_size": 4, "num_classes": 10, "hidden_dim": 16, "distilled": True}
        student = Vit(**{**SIZES, **of_student}, dropout=0.1, input_shape=(8, 8, 1))
        teacher = vit(1, num_classes=10, hidden_dim=24, input_shape=(16, 16, 1))
        teacher.seen_images = SeenImages.of({"trained on": np.array([b"a1" * 16])})
        task, options = Distillation(student, teacher), {"patience": 5, "callbacks": callbacks}
        history = fit(task, recipe, splits, tmp_path / folder, print_fn=str, **options)
        return history, b"".join(w.tobytes() for w in student.get_weights())

    killed(run, "cut", 1, StopAt(9))
    checkpoint = max((tmp_path / "cut" / "checkpoints").glob("*.safetensors"))
    shapes = [shape for _, shape in open_state(checkpoint).arrays.values()]
    assert any(16 in shape for shape in shapes)
    assert not any(24 in shape for shape in shapes)  # the teacher's width
    assert run("cut", 2) == run("whole", 1)
    best = keras.saving.load_model(tmp_path / "whole" / "best.keras")
    assert (type(best), best.input_shape, best.compiled) == (Vit, (None, 8, 8, 1), False)
    assert best.seen_images.counts["trained on"] == len(np.unique(splits.train.digests())) + 1


def dense(*shape: int, activation: str | None = None) -> keras.Sequential:
    layers = [keras.layers.Flatten(), keras.layers.Dense(CLASSES, activation)]
    return keras.Sequential([keras.Input(shape), *layers])


SOFTMAX = {"classifier_activation": "softmax"}
TWO, NUMBER = Multilabel(("a", "b")), Regression(("x",))
# Changes of the usual student, or another; the teacher likewise; options; and the error.
UNFIT: list[tuple[Any, Any, dict[str, Any], str]] = [
    ({}, {"num_classes": 3}, {}, "The teacher teacher has 3 classes, and the student.* 4"),
    ({}, SOFTMAX, {}, "returns probabilities"),
    (SOFTMAX, {}, {}, "returns probabilities"),
    ({"num_classes": 0}, {}, {}, "with_classifier"),
    ({}, {"num_classes": 0}, {}, "with_classifier"),
    ({"input_shape": (None, None, 3)}, {}, {}, "any size.*with_input_shape"),
    ({}, {"input_shape": (32, 32, 1)}, {}, "images of 1 channels, and the student.* of 3"),
    ({}, {"include_preprocessing": False}, {}, "preprocessing=False and the student True"),
    ({}, {"normalization": ((3e3,) * 3, (5e2,) * 3)}, {}, "do not take the same channels"),
    (lambda: dense(4), {}, {}, "The student is a Sequential. Give a model of keras_vit"),
    ({}, lambda: dense(4), {}, "does not map images to one score per class"),
    ({}, lambda: dense(32, 32, 3, activation="softmax"), {}, "returns probabilities"),
    ({}, lambda: "runs/teacher", {}, "The teacher is a str"),
    ({}, {}, {"kind": "softly"}, "kind='softly' is not known"),
    *(({}, {}, {"weight": w}, r"must be in \(0, 1\]") for w in (0, -0.1, 1.5, np.nan, "half")),
    *(({}, {}, {"temperature": t}, "temperature=") for t in (0, -1.0, np.inf)),
    ({}, {}, {"kind": "hard", "temperature": 2.0}, 'temperature=2.0 .* with kind="hard"'),
    (TWO, Classification(("a", "b")), {}, "answers classification.*student .*multilabel"),
    (TWO, Multilabel(("b", "a")), {}, "another order"),
    (TWO, TWO, {"kind": "hard"}, "kind=.hard. is not known.*soft"),
    (NUMBER, NUMBER, {"temperature": 2.0}, r"temperature=2\.0 has no effect.*regression"),
    ({"num_classes": 1}, {"num_classes": 1}, {}, r"model\.task ="),  # which nobody has said
]


@pytest.mark.parametrize(("student", "teacher", "options", "words"), UNFIT)
def test_errors_name_the_fix(student: Any, teacher: Any, options: Any, words: str) -> None:
    def model_of(given: Any, make: Any, width: int) -> Any:
        if isinstance(given, Task):
            return of_task(given, width)
        return given() if callable(given) else make(**given)

    models = model_of(student, functools.partial(vit, 0), 16), model_of(teacher, teacher_of, 24)
    refused(words, Distillation, *models, **options)


def test_teachers_of_the_same_weights_or_other_names() -> None:
    student, teacher = vit(0), teacher_of()
    refused(r"share weights.*teacher\.copy\(\)", Distillation, student, student)
    student.class_names, teacher.class_names = tuple("abcd"), tuple("abce")
    words = "not the student's: class 3 is 'e' to the teacher teacher and 'd' to the student"
    refused(words, Distillation, student, teacher)


def killed_at(step: int, function: Any, *arguments: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_module, "fit", functools.partial(fit, callbacks=[StopAt(step)]))
        killed(function, *arguments)


@pytest.mark.usefixtures("often_kept", "here")
def test_the_command(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"patch_size": 4, "hidden_dim": 16, "depth": 1, "num_heads": 2}
    recipe = replace(recipes.get("digits"), model=small, epochs=0, steps=8, batch_size=240)
    monkeypatch.setitem(recipes.RECIPES, "digits", recipe)
    # The SavedModel takes most of the time, and is tested elsewhere.
    monkeypatch.setattr(keras_vit, "export", lambda *_, **__: None)
    train, run = "train --data digits --image-size 8 --out", Path("run")
    command(f"{train} teacher --image-size 12")
    words = f"{train} run --teacher teacher --distill hard --token-merging 1 --patience 3"
    killed_at(7, cli.run, parse(words.split()))
    error = command(f"{train} run --teacher teacher --resume", status=2)
    assert "distillation was 'hard', is 'None'" in error
    assert "learns from vision_transformer: " in command(f"{words} --resume")
    for file in ("model.keras", "best.keras"):
        model = keras.saving.load_model(run / file)
        assert (model.token_merging, model.input_shape) == (1, (None, 8, 8, 1))
    config = json.loads((run / "config.json").read_text())
    assert config["job"]["teacher"] == "teacher"
    assert "| teacher | teacher |" in (run / "report.md").read_text()
    sizes = {**SIZES, "num_classes": 10, "input_shape": (8, 8, 1)}
    vit(1, **sizes).save("teacher.keras")
    job = Job("digits", Path("another"), teacher="teacher.keras")
    killed_at(5, job_module.train, job, str)
    vit(2, **sizes).save("teacher.keras")
    again = replace(job, resume=True)
    refused("teacher_sha256", job_module.train, again, str, error=RunMismatchError)


@pytest.mark.usefixtures("here")
def test_errors_of_the_command(command: Command) -> None:
    """Each before the data are loaded: there are none."""
    Path("x.npz").touch()
    for folder in ("nothing", "a/teacher"):
        Path(folder).mkdir(parents=True)
    teacher_of(**SOFTMAX).save("a/teacher/model.keras")
    its = "--teacher a/teacher"
    for out, words, error in (
        ("out", "--teacher nowhere", "There is no model at nowhere"),
        ("out", its, "returns probabilities"),
        ("out", f"{its} --weights x.npz --freeze-backbone", "head to the labels, without a teac"),
        *((out, its, "which is read") for out in ("a/teacher", "a/teacher/student", "a")),
    ):
        assert error in command(f"train --data nothing --out {out} {words}", status=2)


OF_TASKS = {
    "labels": (Multilabel(("a", "b", "c", "d")), np.eye(4, dtype="float32")[[0, 1, 2, 3] * 2]),
    "grades": (Ordinal(("a", "b", "c")), np.array([0, 1, 2, 1, 0, 2, 1, 0])),
    "numbers": (Regression(("x", "y")), np.random.default_rng(0).normal(size=(8, 2))),
}


# 300 steps are quickest where they are compiled; one task stands for all on the other backends.
@pytest.mark.parametrize("name", rows(OF_TASKS, ["numbers"]))
@pytest.mark.backends("jax")
def test_other_tasks_learn_from_a_teacher(name: str) -> None:
    task, targets = OF_TASKS[name]
    other = replace(task, offset=(3.0, -1.0), scale=(2.0, 0.5)) if name == "numbers" else task
    student, teacher = of_task(task, 16), of_task(other, 24)
    random, shapes = np.random.default_rng(1), ((24, task.outputs), task.outputs)
    teacher.get_layer("head").set_weights([random.normal(0, 0.4, shape) for shape in shapes])
    distillation = Distillation(student, teacher, weight=1.0)
    distillation.compile(keras.optimizers.Adam(3e-3), loss=task.loss(), metrics=task.metrics())
    losses = steps(distillation, task.check_targets(targets), 300)
    assert losses[-1] < 0.02 * losses[0]
    answers = [answers_of(model, predict(model, IMAGES)) for model in (student, teacher)]
    np.testing.assert_allclose(*answers, atol=0.1 if name == "numbers" else 0.02)
