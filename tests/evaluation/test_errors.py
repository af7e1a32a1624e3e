"""What does not fit is refused by every function, with the value and what would be accepted."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from keras_vit import curation, evaluation
from keras_vit.data import ArraySplit
from keras_vit.evaluation import calibration, classification_report
from keras_vit.evaluation.prediction import predict_files
from keras_vit.evaluation.shown_images import images_at
from keras_vit.tasks import Regression
from tests.bank import TINY, fresh, tiny
from tests.curation.photos import in_memory, no_hashes

X = np.random.default_rng(0).normal(size=(200, 12))
Y = np.arange(200) % 4
FOUR = X, Y, X, Y
NAMES = ("daisy", "rose", "tulip")
LOGITS = X[:, :3]
ROWS = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)  # probabilities
LABELS = Y % 3
ALONE = np.eye(3), [0, 0, 0]
ONE_NAN = np.where(np.arange(200)[:, None] == 7, np.nan, X)
F, K = X[:, :4].reshape(50, 16)[:20], Y[:20]  # of few images
ONE, TWO, ONE_NUMBER = np.ones((4, 1)), np.ones((4, 2)), Regression(("x",))
SPLIT = ArraySplit("val", NAMES, np.zeros((3, 16, 16, 3), np.uint8), np.arange(3))


def few_shots(**changes: Any) -> None:
    x, y = np.arange(8.0).reshape(4, 2), np.array([0, 1, 0, 1])
    some = {"train_x": x, "train_y": y, "test_x": x, "test_y": y, "shots": 1}
    evaluation.fewshot_accuracy(**some | changes)


def novelty(**changes: Any) -> None:
    evaluation.fit_novelty(**{"features": X, "held_out": X[:50], **changes})


def predict(batch_size: int = 1, **changes: Any) -> None:
    next(predict_files(tiny(**changes), ["nowhere.jpg"], batch_size=batch_size))


def zero_shots(**changes: Any) -> None:
    evaluation.zero_shot(tiny(num_classes=4), **{"text_embeddings": np.eye(2, 4), **changes})


def duplicates(measured: int = 20, **options: Any) -> None:
    curation.find_duplicates(in_memory(F), no_hashes(measured), **options)


def quantized() -> Any:
    model = fresh(**TINY)
    model.quantize("int8")
    return model


@pytest.mark.parametrize(("words", "call"), [
    ("k=201 is more than the 200", lambda: evaluation.knn_accuracy(*FOUR, k=201)),
    ("temperature=0", lambda: evaluation.knn_accuracy(*FOUR, temperature=0)),
    ("folds=1 must be an integer", lambda: evaluation.linear_probe(*FOUR, folds=1)),
    ("two classes; all 3 are of class 0", lambda: evaluation.linear_probe(*ALONE, *ALONE)),
    ("shots=3 is more than any class has: the largest has 2", lambda: few_shots(shots=3)),
    ("seed=-1", lambda: few_shots(seed=-1)),
    (r"l2=0.0 must be greater than 0", lambda: few_shots(l2=0.0)),
    (r"train features \(4, 2\) and labels \(2,\)", lambda: few_shots(train_y=[0, 1])),
    ("test features have 3 dimensions", lambda: few_shots(test_x=np.ones((4, 3)))),
    ("example 0 are not finite", lambda: few_shots(train_x=np.full((4, 2), np.nan))),
    ("labels are float64", lambda: few_shots(train_y=[0.0, 1.0, 0.0, 1.0])),
    (r"shots=\(\) is empty", lambda: evaluation.fewshot_table(*FOUR, shots=())),
    ("takes at least 19 held-out images, and there are 18", lambda: novelty(held_out=X[:18])),
    ("are not of one model", lambda: novelty(held_out=X[:50, :3])),
    (r"features \(12,\) are not \(images, dimension\)", lambda: novelty(features=X[0])),
    ("features are not finite", lambda: novelty(features=X * np.nan)),
    ("are the same: the model is damaged", lambda: novelty(features=np.ones((30, 12)))),
    ("false_alarms=1.0 must lie in", lambda: novelty(false_alarms=1.0)),
    ("not one score per class", lambda: predict(num_classes=0)),
    (r"mean is not known.*model\.task = ", lambda: predict(num_classes=1)),
    ("takes normalized pixels", lambda: predict(include_preprocessing=False)),
    ('Build it with pooling="token"', lambda: evaluation.features(tiny(pooling=None), SPLIT)),
    ("batch_size=0", lambda: evaluation.features(tiny(), SPLIT, batch_size=0)),
    (r"\(2,\) labels do not match \(1,\)", lambda: classification_report([0, 1], [0], NAMES)),
    ("Class 3 does not have a name", lambda: classification_report([0, 3], [0, 1], NAMES)),
    ("Labels range from -1", lambda: classification_report(LABELS - 1, LOGITS, NAMES)),
    ("one column per class", lambda: classification_report(LABELS, LOGITS, NAMES[:2])),
    ("200 of 200 examples", lambda: classification_report(LABELS, LOGITS * np.inf, NAMES)),
    (r"not probabilities\. Apply keras\.ops\.softmax", lambda: calibration(LABELS, LOGITS)),
    (r"\(199,\) labels do not match \(200, 3\)", lambda: calibration(LABELS[1:], ROWS)),
    ("Labels range from 1 to 3", lambda: calibration(LABELS + 1, ROWS)),
    ("Labels are float64", lambda: calibration(LABELS / 2, ROWS)),
    ("indices from -1 to 1", lambda: images_at(SPLIT, [-1, 1])),
    (r"\(200, 12\) and targets \(3, 1\)", lambda: evaluation.task_probe(ONE_NUMBER, X, ONE[:3])),
    ("example 7 are not finite", lambda: evaluation.task_probe(ONE_NUMBER, ONE_NAN, X[:, :1])),
    (r"labels \(0,\).*at least one row", lambda: evaluation.fit_temperature([], np.zeros((0, 3)))),
    (r"labels \(2,\).*logits \(3, 3\)", lambda: evaluation.fit_temperature([0, 1], np.eye(3))),
    ("from 0 to 3.*0 to 2", lambda: evaluation.fit_temperature([0, 3], np.zeros((2, 3)))),
    ("not finite", lambda: evaluation.fit_temperature([0, 1], [[0.0, np.nan], [0.0, 1.0]])),
    ("temperature=", lambda: evaluation.divide_logits(tiny(), float("nan"))),
    ("quantized", lambda: evaluation.divide_logits(quantized(), 2.0)),
    ("head", lambda: evaluation.divide_logits(tiny(num_classes=0), 2.0)),
    ("do not fit", lambda: zero_shots(text_embeddings=np.ones((2, 5)))),
    ("zero or not finite", lambda: zero_shots(text_embeddings=np.zeros((2, 4)))),
    ("1 class names for 2", lambda: zero_shots(class_names=["a"])),
    ("activation", lambda: zero_shots(activation="gelu")),
    ("logit_scale", lambda: zero_shots(logit_scale=float("nan"))),
    (r"\(5, 1\) do not match 4 rows", lambda: curation.ridge_answers(TWO, np.ones((5, 1)))),
    ("at least 3", lambda: curation.ridge_answers(np.ones((2, 2)), np.ones((2, 1)))),
    ("An answer is NaN", lambda: curation.ridge_answers(TWO, ONE * np.nan)),
    ("A feature is NaN or infinite", lambda: curation.ridge_answers(np.full((4, 2), np.inf), ONE)),
    ("above 0", lambda: curation.ridge_answers(TWO, ONE, [0.0])),
    ("temperature=0 must be greater", lambda: curation.neighbors_answers(ONE, ONE, temperature=0)),
    ("Too few images for clusters, 2: give 3", lambda: curation.find_clusters(np.eye(2), 3)),
    (r"similar=1.5 is not a cosine", lambda: duplicates(similar=1.5)),
    ("closeness=2", lambda: duplicates(closeness=2)),
    ("2 measures do not fit 20 photographs", lambda: duplicates(2)),
    ("do not fit 20 rows", lambda: curation.find_label_errors(F, K[:5])),
    ("two classes or more with two labeled im", lambda: curation.find_label_errors(F, 0 * K)),
    ("Groups of shape", lambda: curation.find_label_errors(F, K, [0])),
    ("do not match", lambda: curation.label_quality(K, np.ones((20, 1)))),
    ("are not classes of 0 to 1", lambda: curation.confident_errors(K[2:3], np.ones((1, 2)))),
    ("2 numbers do not fit features of 16", lambda: curation.nearest_neighbors(F, TWO[:1])),
    ("NaN or infinite", lambda: curation.nearest_neighbors(F, np.full((1, 16), np.nan))),
    ("are not rows", lambda: curation.nearest_neighbors(F, np.ones(16))),
    ("count=0 must be an integer of at least 1", lambda: curation.next_to_label(F, count=0)),
    ("dropouts=2 must be odd", lambda: curation.next_to_label(F, dropouts=2)),
    ("rate=1.0 is not a rate", lambda: curation.next_to_label(F, rate=1.0)),
    ("seed=-1", lambda: curation.next_to_label(F, seed=-1)),
    ("give an integer per row, -1 where", lambda: curation.next_to_label(F, [0.5] * 20)),
    (r"Labels of shape \(2,\)", lambda: curation.next_to_label(F, [0, 1])),
    ("All 20 images have a label", lambda: curation.next_to_label(F, [1] * 20)),
    ("NaN or infinite", lambda: curation.next_to_label(np.full((4, 2), np.nan))),
])  # fmt: skip
def test_what_does_not_fit_is_refused(words: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=words):
        call()
