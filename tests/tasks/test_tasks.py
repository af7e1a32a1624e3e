"""Every task: targets, answers in NumPy and in graphs, texts, configuration; and its splits."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from scipy.special import expit, softmax

from keras_vit.data.sources.folder import _stratified
from keras_vit.tasks import (
    TASKS,
    Classification,
    Depth,
    Multilabel,
    Ordinal,
    Regression,
    RelativeDepth,
    Segmentation,
    Task,
    get,
)

EXAMPLES = 1000
RATES = np.geomspace(0.01, 0.4, 12)  # of labels, from rare to frequent
NAMES = ("low", "middle", "high")
EVERY = {
    "classification": Classification(NAMES),
    "multilabel": Multilabel(NAMES, thresholds=(0.5, 0.25, 0.75)),
    "regression": Regression(NAMES, units=("kg", "m", ""), offset=(1, -2, 0.5), scale=(3, 0.1, 1)),
    "ordinal": Ordinal(NAMES),
    "segmentation": Segmentation(NAMES),
    "depth": Depth(unit="m", depth_scale=0.001),
    "relative_depth": RelativeDepth(depth_scale="inverse"),
}


@pytest.fixture(params=EVERY)
def task(request: pytest.FixtureRequest) -> Task:
    return EVERY[request.param]


def outputs_of(task: Task, examples: int = 40) -> np.ndarray:
    shape = (examples, *task.answer_shape((4, 5))[:-1], task.outputs)
    return np.random.default_rng(0).normal(0, 3, shape).astype("float32")


def test_configurations_targets_and_descriptions(task: Task) -> None:
    assert set(EVERY) == set(TASKS)  # every kind is tested
    targets = np.eye(3) if task.kind in ("regression", "multilabel") else [0, 2, 1]
    targets = np.array([[[0, 2, 1]]]) if task.per_pixel else targets
    checked = task.check_targets(targets)
    np.testing.assert_allclose(task.check_targets(task.to_targets(checked)), checked, atol=1e-5)
    config = json.loads(json.dumps(task.get_config()))
    assert get(config) == get(task) == type(task).from_config(config) == task
    assert get(task) is task
    saved = json.loads(json.dumps(keras.saving.serialize_keras_object(task)))
    assert keras.saving.deserialize_keras_object(saved) == task
    answer = task.answers(outputs_of(task))[0]
    description, text = task.describe(answer, top=2), task.to_text(answer, top=2)
    assert json.loads(json.dumps(description)) == description
    assert len(description["predictions"]) == (3 if isinstance(task, Regression | Depth) else 2)
    assert text.splitlines() == [text]
    assert task.shown_names[0] in task.to_text(answer, top=3)


@pytest.mark.every_backend
def test_answers_in_numpy_are_those_of_the_graph(task: Task) -> None:
    outputs = outputs_of(task)
    answers = task.answers(outputs)
    assert (answers.shape, answers.dtype) == ((*outputs.shape[:-1], task.size), np.float32)
    assert answers.shape[1:] == task.answer_shape((4, 5))
    in_graph = task.answers_in_graph(keras.ops.convert_to_tensor(outputs))
    back = task.answers_in_graph(task.outputs_in_graph(in_graph))
    named = task.graph_answers(in_graph, top_k=2)
    assert tuple(named) == task.answer_names
    for found, rtol in ((in_graph, 1e-5), (back, 1e-3), (named[task.answer_names[0]], 1e-5)):
        found = keras.ops.convert_to_numpy(found)
        np.testing.assert_allclose(found, answers, rtol=rtol, atol=1e-6)
    assert np.isfinite(task.answers(np.sign(outputs) * np.float32(1e4))).all()


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


def test_answers_of_numbers_and_of_ordinal_outputs_in_any_order() -> None:
    targets = np.random.default_rng(0).normal([100, 1e-3], [10, 1e-4], (500, 2))
    task = Regression(("mass", "length")).fitted(targets)
    scaled = task.check_targets(targets)
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(axis=0), 1, rtol=1e-5)
    np.testing.assert_allclose(task.answers(scaled), targets, rtol=1e-5)
    # Sorted, ordinal ones keep the grade and the expected grade, and are probabilities.
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


def test_texts() -> None:
    assert Classification(("a\n", "b")).to_text([0.9, 0.1], 1) == "a\\n 90.00%"
    assert Classification(("crane", "crane")).check_targets([1, 0]).tolist() == [1, 0]
    labels = EVERY["multilabel"]
    assert labels.to_text([0.1, 0.3, 0.7], 2) == "middle (high 70.00%, middle 30.00%)"
    assert EVERY["regression"].to_text([1, 2, 3.14159]) == "low 1 kg, middle 2 m, high 3.142"
    assert EVERY["ordinal"].to_text([0.1, 0.2, 0.7], 1) == "high (high 70.00%)"


def test_a_zero_head_with_the_initial_bias_predicts_the_mean(task: Task) -> None:
    rng = np.random.default_rng(0)
    targets = {
        "multilabel": rng.random((50_000, 3)) < [0.7, 0.2, 0.01],
        "regression": rng.normal(5, 2, (50_000, 3)),
        "segmentation": rng.choice(3, (2000, 4, 5), p=[0.7, 0.2, 0.1]),
        "depth": rng.lognormal(1, 0.2, (2000, 4, 5)),
    }.get(task.kind.removeprefix("relative_"), rng.choice(3, 50_000, p=[0.7, 0.2, 0.1]))
    mean = (np.eye(3)[targets] if targets.ndim == 1 else targets).mean(axis=0)
    if task.per_pixel:
        means = {"depth": np.exp(1), "relative_depth": 0}  # relative ones are without a scale
        mean = means[task.kind] if task.kind in means else np.bincount(targets.flat) / targets.size
    bias = np.reshape(task.initial_bias(targets), (*task.answer_shape((1, 1))[:-1], task.outputs))
    np.testing.assert_allclose(np.ravel(task.answers(bias[None])), mean, rtol=1e-2)
    assert task.initial_bias(targets[:1]).shape == (task.outputs,)


def labels(seed: int = 0) -> np.ndarray:
    """Labels that come together: an example has few or many."""
    rng = np.random.default_rng(seed)
    return (rng.random((EXAMPLES, 12)) < RATES * rng.uniform(0, 2, (EXAMPLES, 1))).astype(int)


def worst(rows: np.ndarray, mask: np.ndarray, fraction: float) -> float:
    """By how many examples the label that is farthest off is off."""
    return float(np.abs(rows[mask].sum(axis=0) - fraction * rows.sum(axis=0)).max())


def best_at_random(rows: np.ndarray, fraction: float, sizes: Any = None) -> float:
    sizes = np.ones(len(rows), int) if sizes is None else sizes
    chosen = [np.random.default_rng(s).random(len(sizes)) < fraction for s in range(20)]
    return min(worst(rows, np.repeat(c, sizes), fraction) for c in chosen)


def test_several_labels_with_and_without_groups() -> None:
    rows, seed = labels(1), 1
    for fraction in (0.1, 0.25, 0.5):
        mask = Multilabel(size=12).split(rows, fraction, seed)
        assert abs(mask.mean() - fraction) <= 2 / EXAMPLES
        assert worst(rows, mask, fraction) <= 2
        assert worst(rows, mask, fraction) < best_at_random(rows, fraction) / 2
    # Groups of 1 to 30 examples, which share most of their labels.
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 31, 80)
    groups = np.repeat([f"patient {i}" for i in range(80)], sizes)
    of_group = rng.random((80, 12)) < RATES
    rows = np.repeat(of_group, sizes, axis=0) ^ (rng.random((len(groups), 12)) < 0.02)
    mask = Multilabel(size=12).split(rows, 0.25, seed, groups)
    assert not set(groups[mask]) & set(groups[~mask])
    assert abs(mask.mean() - 0.25) < 0.02
    assert worst(rows, mask, 0.25) < best_at_random(rows, 0.25, sizes) / 2


@pytest.mark.parametrize("ours", [Classification(size=4), Ordinal(size=4)])
def test_classes_with_and_without_groups(ours: Task) -> None:
    rng = np.random.default_rng(0)
    targets = rng.choice(4, EXAMPLES, p=[0.6, 0.3, 0.08, 0.02])
    mask = ours.split(targets, 0.2)
    expected = [round(0.2 * n) for n in np.bincount(targets)]
    np.testing.assert_array_equal(np.bincount(targets[mask]), expected)
    groups = np.argsort(np.argsort(targets + rng.normal(0, 0.5, EXAMPLES))) // 10
    mask = ours.split(targets, 0.2, 0, groups)
    assert not set(groups[mask]) & set(groups[~mask])
    assert (np.abs(np.bincount(targets[mask]) - expected) <= 2).all()


def test_classes_are_split_as_folders_are() -> None:
    names = ("a", "b", "c", "only one")
    targets = [names[k] for k in np.repeat(range(4), [3, 40, 11, 1])]
    files = [(Path(f"{i:03d}.png"), name) for i, name in enumerate(targets)]
    for fraction in (0.1, 0.25, 0.4):
        parts = _stratified(files, names, fraction, seed=5)
        mask = Classification(names).split(targets, fraction, seed=5)
        assert {file for file, _ in parts["val"]} == {files[i][0] for i in np.flatnonzero(mask)}


def test_splits_of_numbers_and_their_seeds() -> None:
    rng = np.random.default_rng(0)
    one = rng.lognormal(size=EXAMPLES)
    mask = Regression(size=1).split(one, 0.2)
    assert mask.mean() == 0.2
    tenths = np.arange(0.1, 1, 0.1)  # each of which has its part
    below = one[mask, None] < np.quantile(one, tenths)
    assert (np.abs(below.mean(axis=0) - tenths) < 0.01).all()
    several = np.stack([one, rng.normal(size=EXAMPLES), one + rng.normal(size=EXAMPLES)], axis=1)
    mask = Regression(size=3).split(several, 0.2)
    assert abs(mask.mean() - 0.2) < 0.005
    below = several[mask] < np.quantile(several, 0.3, axis=0)
    np.testing.assert_allclose(below.mean(axis=0), 0.3, atol=0.02)
    assert Regression(size=1).split(np.ones(50), 0.2).sum() == 10
    # The same seed has the same split.
    for task, targets in ((Multilabel(size=12), labels()), (Regression(size=1), labels() @ RATES)):
        first = task.split(targets, 0.2, 1)
        np.testing.assert_array_equal(task.split(targets, 0.2, 1), first)
        assert (task.split(targets, 0.2, 2) != first).any()
    # Of examples most of which are without any label.
    mask = Multilabel(size=3).split((np.arange(100)[:, None] < [10, 0, 0]).astype(int), 0.2)
    assert (mask[:10].sum(), mask.sum()) == (2, 20)
