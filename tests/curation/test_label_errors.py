"""Wrong labels, scored as cleanlab does, and which images to label next, beside scikit-learn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from keras_vit import curation, data
from keras_vit.curation import find_label_errors, label_errors, labelling, next_to_label
from keras_vit.curation.nearest import unit_rows
from keras_vit.data.sources.label_table import read_labeled_files
from keras_vit.evaluation.probes import STRENGTHS
from tests import bank
from tests.backend import refused, warned
from tests.cli.helpers import rows_of
from tests.conftest import Command
from tests.curation.photos import in_memory
from tests.data.image_fixtures import write
from tests.tasks.test_segmentation import scenes

# What cleanlab 2.9.0 says of 120 labels of four classes:
# get_label_quality_scores(labels, probabilities, method=...), and find_label_issues(labels,
# probabilities, filter_by="confident_learning", return_indices_ranked_by="normalized_margin").
CLEANLAB = dict(np.load(Path(__file__).parents[1] / "golden/cleanlab.npz"))


def mislabeled(count: int = 200) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features of four groups, labels of which a tenth are wrong, and which these are."""
    random = np.random.default_rng(0)
    true = random.integers(0, 4, count)
    features = np.eye(8)[true] + random.normal(0, 0.25, (count, 8))
    labels, wrong = true.copy(), random.permutation(count)[: count // 10]
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
    probabilities = np.full((12, 3), 0.05) + 0.85 * np.eye(3)[[0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2]]
    # Two labels of each of two classes are wrong: both of one other class, or of one each.
    similar = np.array([0, 0, 0, 1, 1, 1, 1, 0, 0, 2, 2, 2])
    any_class = np.array([0, 0, 0, 1, 2, 1, 1, 0, 2, 2, 1, 0])
    for labels, margins in ((similar, 1.0), (any_class, 0.5)):
        methods = ("normalized_margin", "self_confidence", "by_noise")
        qualities = [curation.label_quality(labels, probabilities, method) for method in methods]
        margin, confidence, chosen = qualities
        np.testing.assert_allclose(chosen, margins * margin + (1 - margins) * confidence)


def test_wrong_labels_are_found(monkeypatch: pytest.MonkeyPatch, recwarn: Any) -> None:
    features, labels, wrong = mislabeled()
    errors = find_label_errors(features, labels)
    assert not [w for w in recwarn if "do not separate the classes" in str(w.message)]
    weak = features + np.random.default_rng(1).normal(0, 0.6, features.shape)
    warned("labels the features prefer another class without", find_label_errors, weak, labels)
    assert average_precision_score(wrong, -errors.quality) > 0.9
    assert wrong[errors.suspects].sum() > 0.9 * wrong.sum()
    assert wrong[errors.confident].mean() > 0.8
    assert set(np.flatnonzero(errors.confident)) <= set(errors.suspects)
    assert (np.diff(errors.quality[errors.suspects]) >= 0).all()
    labels[:5] = -1
    errors = find_label_errors(features, labels)
    np.testing.assert_array_equal(np.isnan(errors.quality), labels < 0)
    assert not set(errors.suspects) & set(range(5))
    # A class, or all that have a label, may be copies of one image.
    for groups in (np.where(labels == 1, 200, np.arange(200)), np.zeros(200, int)):
        errors = find_label_errors(features, labels, groups)
        assert np.isfinite(errors.probabilities).all()
        assert 1 not in labels[errors.suspects]  # which nothing else shows
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


def clouds(count: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """Three clouds of rows, and the cloud of each."""
    labels, random = np.repeat([0, 1, 2], count), np.random.default_rng(0)
    centers, noise = random.normal(size=(3, 64)), random.normal(0, 0.5, (len(labels), 64))
    return (centers[labels] + noise).astype("float32"), labels


def test_the_first_images_are_nearest_to_the_centers_of_k_means() -> None:
    features, labels = clouds()
    chosen = next_to_label(features, count=3)
    assert sorted(labels[chosen.rows]) == [0, 1, 2]
    rows = unit_rows(features)
    centers = KMeans(3, n_init=3, random_state=0).fit(rows).cluster_centers_
    distances = 1 - rows @ unit_rows(centers).T
    assert {*chosen.rows.tolist()} == {*distances.argmin(axis=0).tolist()}
    assert (chosen.flipped, chosen.considered) == (None, 90)
    assert (chosen.predicted == -1).all()
    again = next_to_label(in_memory(features), count=3)  # of an index as of an array, once more
    assert np.array_equal(again.rows, chosen.rows)


def test_labeled_images_are_left_out_and_doubtful_ones_chosen(monkeypatch) -> None:
    features, labels = clouds()
    known = np.full(len(labels), -1)
    known[[0, 1, 30, 31, 60, 61]] = labels[[0, 1, 30, 31, 60, 61]]
    between = [2, 32, 62]
    features[between] = (features[[30, 60, 0]] + features[[60, 0, 30]]) / 2
    chosen = next_to_label(features, known, count=8)
    assert not set(chosen.rows) & set(np.flatnonzero(known >= 0))
    assert len(set(chosen.rows)) == 8
    assert len(set(chosen.rows) & set(between)) >= 2, chosen
    assert chosen.flipped is not None
    assert 0 < chosen.flipped < chosen.considered == 84
    assert not np.array_equal(next_to_label(features, known, count=8, seed=1).rows, chosen.rows)
    # More than there are; without a dropped feature nothing flips.
    assert len(next_to_label(features, known, count=500).rows) == 84
    assert next_to_label(features, known, count=3, rate=0).flipped == 0
    monkeypatch.setattr(labelling, "MOST_FITTED", 20)  # of more, so many are drawn
    assert next_to_label(features, known, count=4).considered == 20
    # One class does not make a probe; copies are chosen once.
    assert next_to_label(features, np.where(known == 0, 0, -1), count=3).flipped is None
    assert len(next_to_label(np.repeat(np.eye(3), 4, axis=0), count=5).rows) == 3


def test_a_table_of_labels(tmp_path: Path) -> None:
    write(tmp_path, {"a.jpg": b"...", "b.jpg": b"..."})
    table, lines = tmp_path / "labels.csv", tmp_path / "labels.jsonl"
    table.write_text("file,label,group\na.jpg,cat,1\nb.jpg,,2\n")
    read = read_labeled_files(table, tmp_path)
    assert (read.label, read.labels, len(read.columns)) == ("label", ["cat", None], 3)
    for path, text, reason in (
        (table, "file,label\na.jpg,cat\na.jpg,dog\n", "'a.jpg' has another label before"),
        (table, "file,one,two\na.jpg,cat,3\nb.jpg,dog,4\n", "2 columns of labels"),
        (lines, '{"file": "a.jpg", "label": ["x", "y"]}\n', "is not one class"),
    ):
        path.write_text(text)
        refused([reason], read_labeled_files, path, tmp_path)


# Masks that are wrong: planted errors are found, on the page and in the table.
SWAPPED, ERASED = "a/4.png", "b/9.png"


@pytest.mark.usefixtures("here")
def test_a_swap_and_an_erased_object_are_found(command: Command) -> None:
    scenes(Path.cwd(), 16, (48, 64))
    for name, change in (
        (SWAPPED, lambda mask: np.where(mask == 255, 255, np.array([0, 2, 1])[mask % 3])),
        (ERASED, lambda mask: np.where(mask == 1, 0, mask)),
    ):
        mask = np.asarray(Image.open(Path("masks", name)))
        Image.fromarray(change(mask).astype(np.uint8)).save(Path("masks", name))
    sizes = {"patch_size": 4, "mlp_dim": 64, "input_shape": (48, 64, 3), "num_classes": 0}
    model = bank.fresh(**bank.TINY | sizes)
    split = data.load("photos", labels="masks", val_fraction=None)["all"]
    errors = curation.find_mask_errors(model, split)
    names = [str(split.files[i].relative_to("photos")) for i in errors.order]
    assert set(names[:2]) == {SWAPPED, ERASED}
    scores = errors.disagreement[errors.order]
    assert scores[1] > 5 * scores[2]
    # Of what was erased the region and its class are named, and little else.
    i = int(errors.order[names.index(ERASED)])
    truth = np.asarray(Image.open(Path("photos", ERASED)))[2::4, 2::4, :2].mean(-1) > 200
    inside = errors.wrong[i] & truth
    assert inside.sum() > 0.6 * errors.wrong[i].sum() > 0.3 * truth.sum() > 1
    assert (errors.suggested[i][inside] == 1).all()

    model.save("model.keras")
    printed = command("audit photos --masks masks --model model.keras --out found --most 2")
    assert "of 16 with regions that are probably wrong" in printed
    rows = [(row["file"], row["labeled"], row["rather"]) for row in rows_of("found/masks.csv")]
    assert {file for file, *_ in rows[:2]} == {f"photos/{SWAPPED}", f"photos/{ERASED}"}
    assert (f"photos/{ERASED}", "sky", "tree") in rows
    assert len(rows) == 16
    page = Path("found/index.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 2
    assert "mostly labeled sky, rather tree" in page
    for i, file in enumerate(sorted(Path("masks").rglob("*.png"))):  # noise is no mask
        noise = np.random.default_rng(i).integers(0, 3, (6, 8)).astype(np.uint8)
        Image.fromarray(np.kron(noise, np.ones((8, 8), np.uint8))).save(file)
    noisy = data.load("photos", labels="masks", val_fraction=None)["all"]
    warned("of 16 masks somewhere: they do not separate", curation.find_mask_errors, model, noisy)
    digits = data.load("digits").val
    refused("labels of classification, and not a mask", curation.find_mask_errors, model, digits)
