"""What does not fit is refused by every task, with the value and what would be accepted."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from keras_vit import tasks
from keras_vit.tasks import (
    Classification,
    Depth,
    Multilabel,
    Ordinal,
    PredictionSets,
    Regression,
    losses,
)
from keras_vit.tasks.balance import class_weights, log_priors, sampling_rates
from keras_vit.tasks.depth_losses import SiLog
from keras_vit.tasks.splitting import held_out
from tests.tasks.test_tasks import EVERY

TARGETS: list[tuple[str, Any, str]] = [
    ("classification", [0, 3], r"Target 3 of row 1 does not suit .* 0 to 2, or a name .* low"),
    ("classification", ["low", "Low"], r"Target 'Low' of row 1"),
    ("classification", [0, 1.5], r"Target 1.5 of row 1"),
    ("classification", [[0.0, 1, 2]], r"Target \[0.0, 1.0, 2.0\] of row 0"),
    ("classification", [[0.0, 1]], r"\(1, 2\) do not fit .* give \(examples, 3\)"),
    ("classification", [], "empty"),
    ("classification", [0, None], "Target None of row 1"),
    ("classification", [["low", "high"], ["low"]], "different lengths"),
    ("regression", [[1, 2, None]], "row 0 does not suit regression"),
    ("multilabel", [["low"], ["lwo"]], r"'lwo' of row 1 .* low, middle, high"),
    ("multilabel", [[0, 1, 1], [0, 1, 2]], r"row 1 .* a number in \[0, 1\] per label"),
    ("multilabel", [[], "low"], "Row 1 of the targets is the text 'low': give a list of names"),
    ("regression", [[0, 0, 0], [0, np.nan, 1]], "row 1 .* finite number for each of low"),
    ("regression", [["a", "b", "c"]], "not rows of 3 numbers"),
    ("depth", np.ones((1, 2, 2, 1)), r"\(1, 2, 2, 1\) do not fit depth: give numbers"),
    ("ordinal", [0, -1], "Target -1 of row 1 does not suit ordinal"),
    ("ordinal", [[0, 1, 0]], r"\(1, 3\) are not grades"),
]
RANDOM = np.random.default_rng(0)
LABELS, ROWS = RANDOM.integers(0, 6, 300), RANDOM.dirichlet(np.ones(6), 300)
ZLPR = "weights", "zlpr"
CAT, TAG, LEVELS = Classification(size=2), Multilabel(size=3), Ordinal(size=3)
ONE, TWO = Regression(size=1), Regression(("mass", "length"))
NOT_COUNTS = "must be the examples of each class"
FEW, NAN, FOUR = np.arange(8.0), float("nan"), [0, 1, 0, 1]
CUMULATIVE, BINARY = "cumulative_crossentropy", "binary_crossentropy"


def calibrate(labels: Any = LABELS, rows: Any = ROWS, coverage: Any = 0.9, **options: Any) -> None:
    PredictionSets.calibrated(labels, rows, coverage, **options)


@pytest.mark.parametrize(("words", "call"), [
    *((words, partial(EVERY[kind].check_targets, targets)) for kind, targets, words in TARGETS),
    ("at least 2 names", lambda: Classification()),
    ("more than once: a", lambda: Multilabel(("a", "a"))),
    ("at least 2", lambda: Classification(size=1)),
    ("Target 'a' of row 1", lambda: Classification(("a", "b", "a")).check_targets(["b", "a"])),
    ("size=3 and 2 names", lambda: Classification(("a", "b"), size=3)),
    ("is one text", lambda: Classification("cat")),
    ("2 numbers in", lambda: Multilabel(size=2, thresholds=(0.5,))),
    ("above 0", lambda: Regression(size=1, scale=(0.0,))),
    ("at least 2", lambda: Ordinal(size=1)),
    ("Did you mean 'classification'", lambda: tasks.get("clasification", size=2)),
    ("'sizes'", lambda: tasks.get("ordinal", sizes=2)),
    ("3 is not a task", lambda: tasks.get(3)),
    ("has its arguments", lambda: tasks.get(EVERY["ordinal"], size=2)),
    ("kind='multilabel'", lambda: Ordinal.from_config(EVERY["multilabel"].get_config())),
    ("'squared_error', 'huber', 'quantile'", lambda: EVERY["regression"].loss("mse")),
    ("delta", lambda: EVERY["regression"].loss("huber", dleta=1)),
    (r"length is 2\.0 in all of 2 targets", lambda: TWO.fitted([[0, 2], [1, 2]])),
    ("need at least 9 examples, and there are 8", lambda: ONE.with_intervals(FEW, FEW)),
    (r"coverage=1\.5", lambda: ONE.with_intervals(FEW, FEW, 1.5)),
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
    (r"label_smoothing=1\.5", lambda: losses.SigmoidCrossentropy(label_smoothing=1.5)),
    ("scale=0.0", lambda: losses.UnitError(0.0)),
    ("numbers, of which none is rare", lambda: ONE.check_balance("weights", "squared_error")),
    ("the limits of the others", lambda: LEVELS.check_balance("logits", CUMULATIVE)),
    ("give 'weights', or leave it out", lambda: TAG.check_balance("sampling", BINARY)),
    ("changes the loss binary_crossentropy, and this", lambda: TAG.check_balance(*ZLPR)),
    ("changes the loss softmax, and this one", lambda: CAT.check_balance("logits", "sigmoid")),
    ("weights", lambda: CAT.check_balance("weight", "softmax")),
    *((NOT_COUNTS, lambda f=f, c=c: f(c)) for f in (class_weights, log_priors, sampling_rates)
        for c in ([], [0, 0], [1, -1], [1, np.nan], [[1]])),
    ("beta=2", lambda: class_weights([1, 2], 2)),
    ("size=2 and 1 names", lambda: Depth(size=2)),
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
    with pytest.raises(ValueError, match=words):
        call()
