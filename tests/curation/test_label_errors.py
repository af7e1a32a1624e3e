"""Labels are scored as cleanlab does from the same probabilities, and probes have not seen them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from keras_vit import curation
from keras_vit.curation import find_label_errors, label_errors
from keras_vit.evaluation.probes import STRENGTHS

# What cleanlab 2.9.0 says of 120 labels of four classes:
# get_label_quality_scores(labels, probabilities, method=...), and find_label_issues(labels,
# probabilities, filter_by="confident_learning", return_indices_ranked_by="normalized_margin").
CLEANLAB = dict(np.load(Path(__file__).parents[1] / "golden/cleanlab.npz"))


def mislabeled(count: int = 200) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features of four groups, labels of which a tenth are wrong, and which these are."""
    random = np.random.default_rng(0)
    true = random.integers(0, 4, count)
    features = np.eye(8)[true] + random.normal(0, 0.25, (count, 8))
    labels = true.copy()
    wrong = random.permutation(count)[: count // 10]
    labels[wrong] = (labels[wrong] + random.integers(1, 4, len(wrong))) % 4
    return features.astype("float32"), labels, labels != true


def test_quality_suspects_and_their_order_are_those_of_cleanlab() -> None:
    labels, probabilities = CLEANLAB["labels"], CLEANLAB["probabilities"]
    for method in ("self_confidence", "normalized_margin"):
        quality = curation.label_quality(labels, probabilities, method)
        np.testing.assert_allclose(quality, CLEANLAB[method], rtol=1e-12, err_msg=method)
    errors = np.flatnonzero(curation.confident_errors(labels, probabilities))
    quality = curation.label_quality(labels, probabilities)[errors]
    assert errors[np.argsort(quality, kind="stable")].tolist() == CLEANLAB["ranked"].tolist()


def test_the_quality_is_chosen_by_the_estimated_noise() -> None:
    probabilities = np.full((12, 3), 0.05) + 0.85 * np.eye(3)[[0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2]]
    # Two labels of each of two classes are wrong: both of one other class, or of one each.
    similar = np.array([0, 0, 0, 1, 1, 1, 1, 0, 0, 2, 2, 2])
    any_class = np.array([0, 0, 0, 1, 2, 1, 1, 0, 2, 2, 1, 0])
    for labels, margins in ((similar, 1.0), (any_class, 0.5)):
        margin, confidence, chosen = (
            curation.label_quality(labels, probabilities, method)
            for method in ("normalized_margin", "self_confidence", "by_noise")
        )
        np.testing.assert_allclose(chosen, margins * margin + (1 - margins) * confidence)


def test_wrong_labels_are_found(monkeypatch: pytest.MonkeyPatch, recwarn: Any) -> None:
    features, labels, wrong = mislabeled()
    errors = find_label_errors(features, labels)
    assert not [w for w in recwarn if "do not separate the classes" in str(w.message)]
    weak = features + np.random.default_rng(1).normal(0, 0.6, features.shape)
    with pytest.warns(UserWarning, match="labels the features prefer another class without being"):
        find_label_errors(weak, labels)
    assert average_precision_score(wrong, -errors.quality) > 0.9
    assert wrong[errors.suspects].sum() > 0.9 * wrong.sum()
    assert wrong[errors.confident].mean() > 0.8
    assert set(np.flatnonzero(errors.confident)) <= set(errors.suspects)
    assert (np.diff(errors.quality[errors.suspects]) >= 0).all()
    # Rows without a label are not judged.
    labels[:5] = -1
    errors = find_label_errors(features, labels)
    np.testing.assert_array_equal(np.isnan(errors.quality), labels < 0)
    assert not set(errors.suspects) & set(range(5))
    # A class, or all that have a label, may be copies of one image.
    for groups in (np.where(labels == 1, 200, np.arange(200)), np.zeros(200, int)):
        errors = find_label_errors(features, labels, groups)
        assert np.isfinite(errors.probabilities).all()
        assert 1 not in labels[errors.suspects]  # which nothing else shows
    # A large folder is fitted to a part.
    monkeypatch.setattr(label_errors, "MOST_FITTED", 60)
    monkeypatch.setattr(label_errors, "BLOCK", 7)
    features, labels, wrong = mislabeled()
    assert average_precision_score(wrong, -find_label_errors(features, labels).quality) > 0.8


def test_probes_have_not_seen_the_label() -> None:
    """Those of scikit-learn on the rows outside of each fold; the row's own label is not read."""
    features, labels, _ = mislabeled(60)
    probabilities = curation.probe_probabilities(features, labels, folds=3)
    fold = label_errors._folds(labels, None, 3, np.random.default_rng(0))
    peers = []
    for strength in STRENGTHS:
        peer = np.zeros_like(probabilities)
        for f in range(3):
            probe = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=1000))
            probe.fit(features[fold != f], labels[fold != f])
            peer[fold == f] = probe.predict_proba(features[fold == f])
        peers.append(peer)
    assert min(np.abs(peer - probabilities).max() for peer in peers) < 1e-6


def test_copies_are_not_asked_and_neighbors_vote_by_their_cosine() -> None:
    """Two copies with one wrong label would confirm each other."""
    features, labels, wrong = mislabeled()
    row = int(np.flatnonzero(wrong)[0])
    groups = np.r_[np.arange(200), np.full(15, row)]
    features, labels = features[groups], labels[groups]
    alone = curation.neighbor_probabilities(features, labels)[row, labels[row]]
    grouped = curation.neighbor_probabilities(features, labels, groups)[row, labels[row]]
    assert grouped < 0.3 < alone
    assert len(set(label_errors._folds(labels, groups, 5, np.random.default_rng(0))[groups == row]))
    assert row in find_label_errors(features, labels, groups).suspects
    features, labels, _ = mislabeled(50)
    near = curation.nearest_neighbors(features, k=4)
    votes = curation.neighbor_probabilities(features, labels, k=4)
    weights = np.exp((near.similarities[7] - 1) / 0.07)
    part = np.bincount(labels[near.rows[7]], weights, minlength=4) / weights.sum()
    np.testing.assert_allclose(votes[7], (part + 0.05) / 1.2, rtol=1e-6)
