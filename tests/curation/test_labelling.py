"""Which images to label next, beside scikit-learn and by what was planted."""

import re
from pathlib import Path

import numpy as np
import pytest

from keras_vit.curation import labelling, next_to_label
from keras_vit.curation.nearest import unit_rows
from keras_vit.data.sources.label_table import read_labeled_files
from tests.curation.photos import in_memory
from tests.data.image_fixtures import write


def clouds(count: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """Three clouds of rows, and the cloud of each."""
    labels, random = np.repeat([0, 1, 2], count), np.random.default_rng(0)
    centers, noise = random.normal(size=(3, 64)), random.normal(0, 0.5, (len(labels), 64))
    return (centers[labels] + noise).astype("float32"), labels


def test_the_first_images_are_nearest_to_the_centers_of_k_means() -> None:
    cluster = pytest.importorskip("sklearn.cluster")
    features, labels = clouds()
    chosen = next_to_label(features, count=3)
    assert sorted(labels[chosen.rows]) == [0, 1, 2]
    rows = unit_rows(features)
    centers = cluster.KMeans(3, n_init=3, random_state=0).fit(rows).cluster_centers_
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
    others = next_to_label(features, known, count=8, seed=1).rows
    assert not np.array_equal(others, chosen.rows)
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
        (table, "file,label\na.jpg,cat\nd.jpg,dog\n", "line 3: 'd.jpg' is not a file in"),
        (table, "file,one,two\na.jpg,cat,3\nb.jpg,dog,4\n", "2 columns of labels"),
        (lines, '{"file": "a.jpg", "label": ["x", "y"]}\n', "is not one class"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=re.escape(reason)):
            read_labeled_files(path, tmp_path)
