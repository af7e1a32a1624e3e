"""The studies of features: wrong labels, duplicates, prediction sets and novelty."""

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from PIL import Image

from keras_vit.curation import measure_photos
from keras_vit.layers.novelty_score import unit_rows
from tests.curation.photos import grainy, index_of, picture
from tests.examples import load_example

pytest.importorskip("sklearn")
GOLDEN = dict(np.load(Path(__file__).parents[1] / "golden" / "novelty.npz"))


def labeled(count: int = 120) -> tuple[np.ndarray, np.ndarray]:
    """Features of three classes, the first two of which are alike."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, count)
    centers = np.array([[1, 0.8, 0, 0], [1, -0.2, 0, 0], [0, 0, 1, 0]])
    return (centers[labels] + random.normal(0, 0.2, (count, 4))).astype("float32"), labels


def flowers() -> tuple[np.ndarray, np.ndarray]:
    """Features of three classes that overlap a little."""
    random, labels = np.random.default_rng(0), np.arange(450) % 3
    return (2 * np.eye(3, 6)[labels] + random.normal(0, 0.7, (450, 6))).astype("float32"), labels


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_wrong_labels_are_of_any_class_or_the_similar_one() -> None:
    """And the table has a row per score."""
    script, (features, labels) = load_example("wrong_labels"), labeled()
    for kind in script.KINDS:
        new = script.changed(features, labels, kind, 0.2, seed=1)
        assert (new != labels).sum() == 24
        np.testing.assert_array_equal(new, script.changed(features, labels, kind, 0.2, seed=1))
    rows = new != labels
    pairs = {*zip(labels[rows].tolist(), new[rows].tolist(), strict=True)}
    assert pairs == {(0, 1), (1, 0), (2, 0)}
    with patch.multiple(script, KINDS=("symmetric",), RATES=(0.2,)):
        lines = script.study(features, labels, seeds=2).splitlines()
    assert lines[0] == "| score | symmetric 20% AP | symmetric 20% AUROC |"
    assert len(lines) == 2 + 5
    assert lines[2].startswith(f"| {script.OURS} | ")
    assert " ± " in lines[2]


def test_planted_photographs_are_what_their_kind_says(tmp_path: Path) -> None:
    script, sizes = load_example("planted_duplicates"), []
    grainy(picture(0, side=60)).save(tmp_path / "a.png")
    for kind in script.KINDS:
        contents = script.planted(tmp_path / "a.png", kind, np.random.default_rng(0))
        (tmp_path / "copy.jpg").write_bytes(contents)
        with Image.open(tmp_path / "copy.jpg") as copy:
            sizes.append(copy.size)
        if kind == "mirrored":
            measures = measure_photos(index_of(tmp_path))
            assert int(measures.hash[0] ^ measures.mirrored[1]).bit_count() <= 4
    assert sizes == [(40, 30), (80, 60), (80, 60), (72, 54), (60, 45)]


def test_coverage_and_novelty() -> None:
    """The tables of sets and of novelty; the distance to a class is PyTorch-OOD's."""
    script = load_example("coverage_and_novelty")
    with patch.multiple(script, PROBED=150, HALVES=5):
        lines = script.table_of_sets(*flowers()).splitlines()
    assert len(lines) == 2 + 2 * len(script.METHODS)
    for line in lines[2:]:
        promised, covered = (float(cells(line)[i].rstrip("%")) for i in (0, 2))
        assert covered > promised - 5
    with patch.multiple(script, FITTED=250, THRESHOLD=100, DRAWS=2):
        lines = script.table_of_novelty(*flowers(), {"far": -4 * np.ones((50, 6))}).splitlines()
    assert cells(lines[0]) == ["score", "false alarms", "far"]
    assert len(lines) == 2 + 5
    for line in lines[2:5]:  # the last two are of a probe, which may be sure of anything
        assert cells(line)[2] == "1.000, 100%"
    train, new = unit_rows(GOLDEN["train"]), unit_rows(GOLDEN["new"])
    score = script.mahalanobis_per_class(train, np.zeros(len(train), int))
    np.testing.assert_allclose(score(new) / 2, GOLDEN["mahalanobis"], rtol=1e-5)
