"""Novelty against pytorch-ood's scores and scikit-learn's Ledoit-Wolf.

`golden/novelty.npz` is of pytorch-ood 0.4.0 on 200 and 40 rows of features (its package without
torchvision), with one class for all:

    unit = lambda z: z / z.norm(dim=1, keepdim=True)
    Mahalanobis(f).fit_features(unit(train), zeros).predict_features(unit(new))
    KNN(f, k=10).fit_features(train, zeros).predict_features(new)
    EnergyBased.score(new)
"""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from sklearn.covariance import ledoit_wolf

import keras_vit
from keras_vit.evaluation import fit_novelty
from keras_vit.evaluation.novelty import (
    classifier_head,
    energy_scores,
    knn_scores,
    shrunk_covariance,
)
from keras_vit.layers.novelty_score import NoveltyScore, unit_rows
from keras_vit.tasks import Classification
from keras_vit_cli.model_files import open_classifier
from tests.bank import TINY, fresh, outputs

GOLDEN = dict(np.load(Path(__file__).parents[1] / "golden" / "novelty.npz"))
TRAIN, NEW = GOLDEN["train"], GOLDEN["new"]


def test_the_scores_of_pytorch_ood_and_the_covariance_of_ledoit_and_wolf() -> None:
    rows = unit_rows(TRAIN)
    centered = rows - rows.mean(axis=0)
    precision = np.linalg.inv(centered.T @ centered + 1e-6 * np.eye(8))  # theirs, not over N
    layer = NoveltyScore()
    layer.build((None, 8))
    layer.set_weights([rows.mean(axis=0), np.linalg.cholesky(precision)])
    # Theirs is half of the squared distance.
    np.testing.assert_allclose(layer.scores(NEW) / 2, GOLDEN["mahalanobis"], rtol=1e-5)
    np.testing.assert_allclose(knn_scores(TRAIN, NEW), GOLDEN["knn_10"], rtol=1e-5)
    np.testing.assert_allclose(energy_scores(NEW), GOLDEN["energy"], rtol=1e-5)
    for count in (5, 20, 200):
        rows = TRAIN[:count].astype("float64")
        np.testing.assert_allclose(shrunk_covariance(rows), ledoit_wolf(rows)[0])


def test_images_between_the_classes_are_found_by_their_energy() -> None:
    """At no more false alarms, and with those that are far from all training images."""
    centers, alarms, between = 4 * np.eye(3, 8), [], []
    head = centers.T, -np.square(centers).sum(1) / 2
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows = centers[np.arange(600) % 3] + rng.normal(0, 1, (600, 8))
        like = centers.mean(axis=0) + rng.normal(0, 0.7, (200, 8))
        for each in (None, head):
            novelty = fit_novelty(rows[:200], rows[200:300], 0.1, each)
            alarms.append((novelty.scores(rows[300:]) > 1).mean())
            between.append((novelty.scores(like) > 1).mean())
            assert (novelty.scores(-5 * np.ones((9, 8))) > 1).all()
            found = keras.ops.convert_to_numpy(novelty(like.astype("float32")))
            np.testing.assert_allclose(found, novelty.scores(like), rtol=1e-3)
    assert max(np.mean(alarms[::2]), np.mean(alarms[1::2])) < 0.11
    assert np.mean(between[::2]) < 0.2 < 0.6 < np.mean(between[1::2])
    assert not fit_novelty(rows[:200], rows[200:218], 0.1, head).classes  # half of it takes 19


def calibrated() -> Any:
    model = fresh(**TINY | {"hidden_dim": 8, "input_shape": (8, 8, 3)})
    answers = [[0.9, 0.1], [0.3, 0.7]] * 10
    model.task = Classification(("cat", "dog")).with_coverage(["cat", "dog"] * 10, answers, 0.9)
    model.set_novelty(fit_novelty(TRAIN[:150], TRAIN[150:], head=classifier_head(model)))
    assert model.novelty.classes == 2
    return model


@pytest.mark.every_backend
def test_novelty_is_saved_and_of_these_weights(tmp_path: Path, recwarn: Any) -> None:
    novelty, inputs = fit_novelty(TRAIN[:150], TRAIN[150:]), keras.Input((8,))
    model = keras.Model(inputs, novelty(inputs))
    np.testing.assert_allclose(outputs(model, NEW), novelty.scores(NEW), rtol=1e-4)
    assert not model.trainable_variables
    model.save(tmp_path / "novelty.keras")
    loaded = keras.saving.load_model(tmp_path / "novelty.keras")
    np.testing.assert_array_equal(outputs(loaded, NEW), outputs(model, NEW))
    # An average has other weights, and so has a model after `fit`.
    model, plain = calibrated(), calibrated().uncalibrated()
    assert model.is_calibrated
    average = keras_vit.training.average_weights([model, plain])
    for other in (plain, average, keras_vit.training.model_stock(plain, [model, calibrated()])):
        assert not other.is_calibrated
        assert other.task.names == ("cat", "dog")
    model.save(tmp_path / "model.keras")
    open_classifier(tmp_path / "model.keras", views="one")
    assert not [w for w in recwarn if "calibrated" in str(w.message)]
    with pytest.warns(UserWarning, match=r"calibrated without --views flip"):
        open_classifier(tmp_path / "model.keras", views="flip")
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.warns(UserWarning, match=r"Train model\.uncalibrated\(\)"):
        model.fit(np.full((2, 8, 8, 3), 99.0, "float32"), np.array([0, 1]), verbose=0)
