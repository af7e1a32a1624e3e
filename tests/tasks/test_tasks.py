"""Every task: targets, answers in NumPy and in graphs, texts, splits, and what is refused."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
from scipy.special import expit, softmax

from keras_vit import tasks
from keras_vit.tasks import Classification, Depth, Multilabel, Ordinal, Regression, Task, losses
from keras_vit.tasks.balance import class_weights, log_priors, sampling_rates
from keras_vit.tasks.depth_losses import SiLog
from keras_vit.tasks.ordinal import grade_order
from keras_vit.tasks.splitting import held_out
from tests.backend import refused

EXAMPLES = 1000
RATES = np.geomspace(0.01, 0.4, 12)  # of labels, from rare to frequent
NAMES = ("low", "middle", "high")
EVERY = {
    "classification": Classification(NAMES), "ordinal": Ordinal(NAMES),
    "multilabel": Multilabel(NAMES, thresholds=(0.5, 0.25, 0.75)),
    "regression": Regression(NAMES, units=("kg", "m", ""), offset=(1, -2, 0.5), scale=(3, 0.1, 1)),
    "segmentation": tasks.Segmentation(NAMES), "depth": Depth(unit="m", depth_scale=0.001),
    "relative_depth": tasks.RelativeDepth(depth_scale="inverse"),
}  # fmt: skip


@pytest.fixture(params=EVERY)
def task(request: pytest.FixtureRequest) -> Task:
    return EVERY[request.param]


def outputs_of(task: Task, examples: int = 40) -> np.ndarray:
    shape = (examples, *task.answer_shape((4, 5))[:-1], task.outputs)
    return np.random.default_rng(0).normal(0, 3, shape).astype("float32")


def test_configurations_targets_and_descriptions(task: Task) -> None:
    assert set(EVERY) == set(tasks.TASKS)  # every kind is tested
    targets = np.eye(3) if task.kind in ("regression", "multilabel") else [0, 2, 1]
    targets = np.array([[[0, 2, 1]]]) if task.per_pixel else targets
    checked = task.check_targets(targets)
    np.testing.assert_allclose(task.check_targets(task.to_targets(checked)), checked, atol=1e-5)
    config = json.loads(json.dumps(task.get_config()))
    assert tasks.get(config) == tasks.get(task) == type(task).from_config(config) == task
    answer = task.answers(outputs_of(task))[0]
    description, text = task.describe(answer, top=2), task.to_text(answer, top=2)
    assert json.loads(json.dumps(description)) == description
    assert len(description["predictions"]) == (3 if isinstance(task, Regression | Depth) else 2)
    assert text.splitlines() == [text]


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
    outputs = outputs_of(EVERY["classification"])

    def named(kind: str, name: str) -> np.ndarray:
        task = EVERY[kind]
        answers = task.answers_in_graph(keras.ops.convert_to_tensor(outputs[:, : task.outputs]))
        return keras.ops.convert_to_numpy(task.graph_answers(answers, 2)[name])

    top = named("classification", "top_classes")
    assert top.dtype == np.int32
    np.testing.assert_array_equal(top, np.argsort(-outputs, axis=1)[:, :2])
    expected = np.take_along_axis(softmax(outputs, axis=1), top.astype(int), 1)
    np.testing.assert_allclose(named("classification", "top_probabilities"), expected, rtol=1e-5)
    labels = named("multilabel", "labels")
    np.testing.assert_array_equal(labels, expit(outputs) >= [0.5, 0.25, 0.75])
    grades = EVERY["ordinal"].grades(EVERY["ordinal"].answers(outputs[:, :2]))
    np.testing.assert_array_equal(named("ordinal", "grade"), grades)
    values = outputs * np.array([3, 0.1, 1]) + np.array([1, -2, 0.5])
    np.testing.assert_allclose(named("regression", "values"), values, rtol=1e-4, atol=1e-6)


def test_answers_of_numbers_and_of_ordinal_outputs_in_any_order() -> None:
    targets = np.random.default_rng(0).normal([100, 1e-3], [10, 1e-4], (500, 2))
    task = Regression(("mass", "length")).fitted(targets)
    scaled = task.check_targets(targets)
    np.testing.assert_allclose([scaled.mean(0), scaled.std(0)], [[0, 0], [1, 1]], atol=1e-5)
    np.testing.assert_allclose(task.answers(scaled), targets, rtol=1e-5)
    # Sorted, ordinal ones keep the grade and the expected grade, and are probabilities.
    task = Ordinal(size=5)
    outputs = outputs_of(task, 500)
    answers = task.answers(outputs)
    assert (answers >= 0).all()
    np.testing.assert_allclose(answers.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(answers @ np.arange(5), expit(outputs).sum(axis=1), rtol=1e-5)
    np.testing.assert_array_equal(task.grades(answers), (outputs > 0).sum(axis=1))


@pytest.mark.parametrize(("kind", "targets", "expected"), [
    ("classification", ["high", "low"], [2, 0]),
    ("classification", np.array([[2], [0]], "uint8"), [2, 0]),
    ("classification", [[0.5, 0.5, 0]], [[0.5, 0.5, 0]]),
    ("multilabel", [["low", "high"], ()], [[1, 0, 1], [0, 0, 0]]),
    ("multilabel", np.array([["low", "high"]]), [[1, 0, 1]]),
    ("multilabel", np.array([[True, False, True]]), [[1, 0, 1]]),
    ("regression", [[4, -1.9, 0]], [[1, 1, -0.5]]),
    ("ordinal", np.array(["high", "low"]), [2, 0]),
])  # fmt: skip
def test_targets(kind: str, targets: Any, expected: Any) -> None:
    checked = EVERY[kind].check_targets(targets)
    np.testing.assert_allclose(checked, expected, rtol=1e-6)
    assert checked.dtype == (np.int32 if checked.ndim == 1 else np.float32)


def test_texts() -> None:
    assert Classification(("a\n", "b")).to_text([0.9, 0.1], 1) == "a\\n 90.00%"
    labels = EVERY["multilabel"]
    assert labels.to_text([0.1, 0.3, 0.7], 2) == "middle (high 70.00%, middle 30.00%)"
    assert EVERY["regression"].to_text([1, 2, 3.14159]) == "low 1 kg, middle 2 m, high 3.142"


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


def labels(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.random((EXAMPLES, 12)) < RATES * rng.uniform(0, 2, (EXAMPLES, 1))).astype(int)


def worst(rows: np.ndarray, mask: np.ndarray, fraction: float) -> float:
    return float(np.abs(rows[mask].sum(axis=0) - fraction * rows.sum(axis=0)).max())


def test_several_labels_with_and_without_groups() -> None:
    rows = labels(1)
    for fraction in (0.1, 0.25, 0.5):
        mask = Multilabel(size=12).split(rows, fraction, 1)
        assert abs(mask.mean() - fraction) <= 2 / EXAMPLES
        assert worst(rows, mask, fraction) <= 2  # at random, more than twice as much
    # Groups of 1 to 30 examples, which share most of their labels.
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 31, 80)
    groups = np.repeat([f"patient {i}" for i in range(80)], sizes)
    of_group = rng.random((80, 12)) < RATES
    rows = np.repeat(of_group, sizes, axis=0) ^ (rng.random((len(groups), 12)) < 0.02)
    mask = Multilabel(size=12).split(rows, 0.25, 1, groups)
    assert not set(groups[mask]) & set(groups[~mask])
    assert abs(mask.mean() - 0.25) < 0.02
    chosen = (np.random.default_rng(s).random(80) < 0.25 for s in range(20))
    at_random = min(worst(rows, np.repeat(c, sizes), 0.25) for c in chosen)
    assert worst(rows, mask, 0.25) < at_random / 2


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


def test_classes_are_split_as_in_earlier_versions() -> None:
    targets = np.repeat(range(4), [3, 40, 11, 1])
    mask = Classification(size=4).split(targets, 0.25, seed=5)
    held_out = [1, 8, 9, 15, 19, 21, 22, 30, 31, 40, 42, 45, 47, 48]
    assert np.flatnonzero(mask).tolist() == held_out


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
    for task, targets in ((Multilabel(size=12), labels()), (Regression(size=1), one)):
        first = task.split(targets, 0.2, 1)
        np.testing.assert_array_equal(task.split(targets, 0.2, 1), first)
        assert (task.split(targets, 0.2, 2) != first).any()
    # Of examples most of which are without any label.
    mask = Multilabel(size=3).split((np.arange(100)[:, None] < [10, 0, 0]).astype(int), 0.2)
    assert (mask[:10].sum(), mask.sum()) == (2, 20)


TARGETS: list[tuple[str, Any, str]] = [
    ("classification", [0, 3], r"Target 3 of row 1 does not suit .* 0 to 2, or a name .* low"),
    ("classification", [0, 1.5], r"Target 1.5 of row 1"),
    ("classification", [[0.0, 1, 2]], r"Target \[0.0, 1.0, 2.0\] of row 0"),
    ("classification", [[0.0, 1]], r"\(1, 2\) do not fit .* give \(examples, 3\)"),
    ("classification", [], "empty"), ("classification", [0, None], "Target None of row 1"),
    ("classification", [["low", "high"], ["low"]], "different lengths"),
    ("regression", [[1, 2, None]], "row 0 does not suit regression"),
    ("multilabel", [["low"], ["lwo"]], r"'lwo' of row 1 .* low, middle, high"),
    ("multilabel", [[0, 1, 1], [0, 1, 2]], r"row 1 .* a number in \[0, 1\] per label"),
    ("multilabel", [[], "low"], "Row 1 of the targets is the text 'low': give a list of names"),
    ("regression", [[0, 0, 0], [0, np.nan, 1]], "row 1 .* finite number for each of low"),
    ("regression", [["a", "b", "c"]], "not rows of 3 numbers"),
    ("depth", np.ones((1, 2, 2, 1)), r"\(1, 2, 2, 1\) do not fit depth: give numbers"),
    ("ordinal", [[0, 1, 0]], r"\(1, 3\) are not grades"),
]  # fmt: skip
RANDOM = np.random.default_rng(0)
LABELS, ROWS = RANDOM.integers(0, 6, 300), RANDOM.dirichlet(np.ones(6), 300)
ZLPR = "weights", "zlpr"
CAT, TAG, LEVELS = Classification(size=2), Multilabel(size=3), Ordinal(size=3)
ONE, TWO = Regression(size=1), Regression(("mass", "length"))
NOT_COUNTS = "must be the examples of each class"
FEW, NAN, FOUR = np.arange(8.0), float("nan"), [0, 1, 0, 1]
CUMULATIVE, BINARY = "cumulative_crossentropy", "binary_crossentropy"


def calibrate(labels: Any = LABELS, rows: Any = ROWS, coverage: Any = 0.9, **options: Any) -> None:
    tasks.PredictionSets.calibrated(labels, rows, coverage, **options)


@pytest.mark.parametrize(("words", "call"), [
    *((words, partial(EVERY[kind].check_targets, targets)) for kind, targets, words in TARGETS),
    ("at least 2 names", lambda: Classification()), ("is one text", lambda: Classification("cat")),
    ("more than once: a", lambda: Multilabel(("a", "a"))),
    ("Target 'a' of row 1", lambda: Classification(("a", "b", "a")).check_targets(["b", "a"])),
    ("size=3 and 2 names", lambda: Classification(("a", "b"), size=3)),
    ("2 numbers in", lambda: Multilabel(size=2, thresholds=(0.5,))),
    ("above 0", lambda: Regression(size=1, scale=(0.0,))),
    ("Did you mean 'classification'", lambda: tasks.get("clasification", size=2)),
    ("'sizes'", lambda: tasks.get("ordinal", sizes=2)),
    ("3 is not a task", lambda: tasks.get(3)), ("scale=0.0", lambda: losses.UnitError(0.0)),
    *(("give all of them from", partial(grade_order, grades.split("; "))) for grades in
        ("500; 1,000; 2,000", "6-12 months; 1-2 years; 2-5 years", "5 days; 2 weeks; 1 month")),
    ("kind='multilabel'", lambda: Ordinal.from_config(EVERY["multilabel"].get_config())),
    ("'squared_error', 'huber', 'quantile'", lambda: EVERY["regression"].loss("mse")),
    ("delta", lambda: EVERY["regression"].loss("huber", dleta=1)),
    (r"length is 2\.0 in all of 2 targets", lambda: TWO.fitted([[0, 2], [1, 2]])),
    ("need at least 9 examples, and there are 8", lambda: ONE.with_intervals(FEW, FEW)),
    ("3 targets do not match 2 answers", lambda: CAT.scores([0, 1, 0], np.eye(2))),
    (r"\(3, 4\) do not fit classification of 2", lambda: CAT.scores([0, 1, 0], np.zeros((3, 4)))),
    ("1 of 2 examples are not finite", lambda: CAT.scores([0, 1], [[0.5, 0.5], [NAN, 1]])),
    (r"fraction=0.0 must lie in \(0, 1\)", lambda: CAT.split(FOUR, 0.0, 0)),
    (r"\(2,\) groups do not match 4 targets", lambda: CAT.split(FOUR, 0.2, 0, ["a", "b"])),
    ("not enough groups", lambda: CAT.split(FOUR, 0.2, 0, ["a"] * 4)),
    ("not enough examples", lambda: held_out(np.arange(3), 0.5)),
    ("clip=1.0", lambda: losses.AsymmetricLoss(clip=1.0)),
    ("quantile=1.0", lambda: losses.QuantileLoss(1.0)),
    ("label_smoothing=-0.1", lambda: losses.BinaryCrossentropy(label_smoothing=-0.1)),
    ("numbers, of which none is rare", lambda: ONE.check_balance("weights", "squared_error")),
    ("the limits of the others", lambda: LEVELS.check_balance("logits", CUMULATIVE)),
    ("give 'weights', or leave it out", lambda: TAG.check_balance("sampling", BINARY)),
    ("changes the loss binary_crossentropy, and this", lambda: TAG.check_balance(*ZLPR)),
    ("changes the loss softmax, and this one", lambda: CAT.check_balance("logits", "sigmoid")),
    ("weights", lambda: CAT.check_balance("weight", "softmax")),
    *((NOT_COUNTS, lambda f=f, c=c: f(c)) for f in (class_weights, log_priors, sampling_rates)
        for c in ([], [0, 0], [1, -1], [1, np.nan], [[1]])),
    ("beta=2", lambda: class_weights([1, 2], 2)), ("size=2 and 1 names", lambda: Depth(size=2)),
    ("balance=1.5 must be a number from 0 to 1", lambda: SiLog(1.5)),
    ("Not one pixel of 2 maps", lambda: Depth().initial_bias(np.zeros((2, 3, 3)))),
    ("give maps of one size", lambda: Depth().scores(np.ones((2, 3, 3)), np.ones((2, 3, 4, 1)))),
    ("has neither", lambda: Depth().with_coverage((), (), 0.9)),
    ("coverage=1.0 must lie in", lambda: calibrate(coverage=1.0)),
    ("need at least 99 images .* there are 98", lambda: calibrate(LABELS[:98], ROWS[:98], 0.99)),
    ("'lac', 'aps', 'aps_inclusive', 'aps_randomized', 'raps'", lambda: calibrate(method="abc")),
    ("labels range from 1 to 6, and there are 6", lambda: calibrate(LABELS + 1)),
    (r"\(3,\) do not go with probabilities \(300, 6\)", lambda: calibrate(LABELS[:3])),
    ("not finite", lambda: calibrate(rows=ROWS * np.nan)),
    ("penalty=-1.0 must be", lambda: calibrate(penalty=-1.0)),
])  # fmt: skip
def test_what_does_not_fit_is_refused(words: str, call: Callable[[], Any]) -> None:
    refused(words, call)
