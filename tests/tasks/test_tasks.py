"""Every task: names, targets, answers in NumPy and in graphs, descriptions, configuration."""

import json
from typing import Any

import keras
import numpy as np
import pytest
from scipy.special import expit, softmax

import keras_vit
from keras_vit.tasks import TASKS, Classification, Multilabel, Ordinal, Regression, Task, get

NAMES = ("low", "middle", "high")
EVERY = {
    "classification": Classification(NAMES),
    "multilabel": Multilabel(NAMES, thresholds=(0.5, 0.25, 0.75)),
    "regression": Regression(NAMES, units=("kg", "m", ""), offset=(1, -2, 0.5), scale=(3, 0.1, 1)),
    "ordinal": Ordinal(NAMES),
}


@pytest.fixture(params=EVERY)
def task(request: pytest.FixtureRequest) -> Task:
    return EVERY[request.param]


def outputs_of(task: Task, examples: int = 40) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 3, (examples, task.outputs)).astype("float32")


def test_configuration_and_targets_can_be_turned_back(task: Task) -> None:
    assert set(EVERY) == set(TASKS)  # every kind is tested
    targets = np.eye(3) if task.kind in ("regression", "multilabel") else [0, 2, 1]
    checked = task.check_targets(targets)
    np.testing.assert_allclose(task.check_targets(task.to_targets(checked)), checked, atol=1e-5)
    config = json.loads(json.dumps(task.get_config()))
    assert get(config) == get(task) == type(task).from_config(config) == task
    assert get(task) is task
    saved = json.loads(json.dumps(keras.saving.serialize_keras_object(task)))
    assert keras.saving.deserialize_keras_object(saved) == task
    assert hash(task) == hash(get(config))
    assert get(task.kind, size=4).shown_names == ("0", "1", "2", "3")
    assert keras_vit.tasks.get is get


@pytest.mark.every_backend
def test_answers_in_numpy_are_those_of_the_graph(task: Task) -> None:
    outputs = outputs_of(task)
    answers = task.answers(outputs)
    assert (answers.shape, answers.dtype) == ((40, task.size), np.float32)
    in_graph = task.answers_in_graph(keras.ops.convert_to_tensor(outputs))
    back = task.answers_in_graph(task.outputs_in_graph(in_graph))
    named = task.graph_answers(in_graph, top_k=2)
    assert tuple(named) == task.answer_names
    for found, rtol in ((in_graph, 1e-5), (back, 1e-3), (named[task.answer_names[0]], 1e-5)):
        found = keras.ops.convert_to_numpy(found)
        np.testing.assert_allclose(found, answers, rtol=rtol, atol=1e-6)
    far = np.array([[1e4] * task.outputs, [-1e4] * task.outputs], "float32")
    assert np.isfinite(task.answers(far)).all()


@pytest.mark.every_backend
def test_graph_answers() -> None:
    outputs = keras.ops.convert_to_tensor(outputs_of(EVERY["classification"]))

    def named(kind: str, name: str) -> np.ndarray:
        task = EVERY[kind]
        answers = task.answers_in_graph(outputs[:, : task.outputs])
        return keras.ops.convert_to_numpy(task.graph_answers(answers, 2)[name])

    raw = keras.ops.convert_to_numpy(outputs)
    top = named("classification", "top_classes")
    assert top.dtype == np.int32
    np.testing.assert_array_equal(top, np.argsort(-raw, axis=1)[:, :2])
    expected = np.take_along_axis(softmax(raw, axis=1), top.astype(int), 1)
    np.testing.assert_allclose(named("classification", "top_probabilities"), expected, rtol=1e-5)
    np.testing.assert_array_equal(named("multilabel", "labels"), expit(raw) >= [0.5, 0.25, 0.75])
    grades = EVERY["ordinal"].grades(EVERY["ordinal"].answers(raw[:, :2]))
    np.testing.assert_array_equal(named("ordinal", "grade"), grades)
    values = raw * np.array([3, 0.1, 1]) + np.array([1, -2, 0.5])
    np.testing.assert_allclose(named("regression", "values"), values, rtol=1e-4, atol=1e-6)


def test_answers_of_ordinal_outputs_in_any_order() -> None:
    """Sorted, they keep the grade and the expected grade, and are probabilities."""
    task = Ordinal(size=5)
    outputs = outputs_of(task, 500)
    answers = task.answers(outputs)
    assert (answers >= 0).all()
    np.testing.assert_allclose(answers.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(answers @ np.arange(5), expit(outputs).sum(axis=1), rtol=1e-5)
    np.testing.assert_array_equal(task.grades(answers), (outputs > 0).sum(axis=1))
    above = expit(-np.sort(-outputs, axis=1))
    np.testing.assert_allclose(answers[:, 0], 1 - above[:, 0], atol=1e-6)
    np.testing.assert_allclose(answers[:, 4], above[:, 3], atol=1e-6)


@pytest.mark.parametrize(("kind", "targets", "expected"), [
    ("classification", ["high", "low"], [2, 0]),
    ("classification", np.array([[2], [0]], "uint8"), [2, 0]),
    ("classification", [[0.5, 0.5, 0]], [[0.5, 0.5, 0]]),
    ("multilabel", [["low", "high"], ()], [[1, 0, 1], [0, 0, 0]]),
    ("multilabel", [[], []], [[0, 0, 0], [0, 0, 0]]),
    ("multilabel", np.array([["low", "high"]]), [[1, 0, 1]]),
    ("multilabel", [[1, 0, 1], [0, 0, 0]], [[1, 0, 1], [0, 0, 0]]),
    ("multilabel", np.array([[True, False, True]]), [[1, 0, 1]]),
    ("regression", [[4, -1.9, 0]], [[1, 1, -0.5]]),
    ("ordinal", np.array(["high", "low"]), [2, 0]),
    ("ordinal", [2.0, 0.0], [2, 0]),
])  # fmt: skip
def test_targets(kind: str, targets: Any, expected: Any) -> None:
    checked = EVERY[kind].check_targets(targets)
    np.testing.assert_allclose(checked, expected, rtol=1e-6)
    assert checked.dtype == (np.int32 if checked.ndim == 1 else np.float32)
    again = EVERY[kind].check_targets(keras.ops.convert_to_tensor(checked))
    if kind != "regression":
        np.testing.assert_array_equal(again, checked)


def test_descriptions(task: Task) -> None:
    answer = task.answers(outputs_of(task))[0]
    description, text = task.describe(answer, top=2), task.to_text(answer, top=2)
    assert json.loads(json.dumps(description)) == description
    assert len(description["predictions"]) == (3 if task.kind == "regression" else 2)
    assert text.splitlines() == [text]
    assert task.shown_names[0] in task.to_text(answer, top=3)


def test_texts() -> None:
    assert Classification(("a\n", "b")).to_text([0.9, 0.1], 1) == "a\\n 90.00%"
    assert Classification(("crane", "crane")).check_targets([1, 0]).tolist() == [1, 0]
    assert EVERY["classification"].to_text([0.1, 0.2, 0.7], 2) == "high 70.00%, middle 20.00%"
    labels = EVERY["multilabel"]
    assert labels.to_text([0.1, 0.3, 0.7], 2) == "middle (high 70.00%, middle 30.00%)"
    assert EVERY["regression"].to_text([1, 2, 3.14159]) == "low 1 kg, middle 2 m, high 3.142"
    assert EVERY["ordinal"].to_text([0.1, 0.2, 0.7], 1) == "high (high 70.00%)"


def test_a_zero_head_with_the_initial_bias_predicts_the_mean(task: Task) -> None:
    rng = np.random.default_rng(0)
    targets = {
        "multilabel": rng.random((50_000, 3)) < [0.7, 0.2, 0.01],
        "regression": rng.normal(5, 2, (50_000, 3)),
    }.get(task.kind, rng.choice(3, 50_000, p=[0.7, 0.2, 0.1]))
    mean = (np.eye(3)[targets] if targets.ndim == 1 else targets).mean(axis=0)
    np.testing.assert_allclose(task.answers(task.initial_bias(targets)[None])[0], mean, rtol=1e-2)
    assert task.initial_bias(targets[:1]).shape == (task.outputs,)


def test_scale_of_numbers() -> None:
    targets = np.random.default_rng(0).normal([100, 1e-3], [10, 1e-4], (500, 2))
    task = Regression(("mass", "length")).fitted(targets)
    scaled = task.check_targets(targets)
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(axis=0), 1, rtol=1e-5)
    np.testing.assert_allclose(task.answers(scaled), targets, rtol=1e-5)
