"""The studies of wrong labels and of duplicates."""

from pathlib import Path

import numpy as np
import pytest

from keras_vit.curation import measure_photos
from tests.curation.photos import grainy, index_of, picture
from tests.examples import load_example

pytest.importorskip("sklearn")
image = pytest.importorskip("PIL.Image")


def labeled(count: int = 120) -> tuple[np.ndarray, np.ndarray]:
    """Features of three classes, the first two of which are alike."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, count)
    centers = np.array([[1, 0.8, 0, 0], [1, -0.2, 0, 0], [0, 0, 1, 0]])
    return (centers[labels] + random.normal(0, 0.2, (count, 4))).astype("float32"), labels


def test_labels_are_changed_to_any_class_or_the_similar_one() -> None:
    script = load_example("wrong_labels")
    features, labels = labeled()
    for kind in script.KINDS:
        new = script.changed(features, labels, kind, 0.2, seed=1)
        assert (new != labels).sum() == 24
        np.testing.assert_array_equal(new, script.changed(features, labels, kind, 0.2, seed=1))
    rows = new != labels
    assert {*zip(labels[rows].tolist(), new[rows].tolist(), strict=True)} == {
        (0, 1),
        (1, 0),
        (2, 0),
    }


def test_the_table_has_a_row_per_score(monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_example("wrong_labels")
    monkeypatch.setattr(script, "KINDS", ("symmetric",))
    monkeypatch.setattr(script, "RATES", (0.2,))
    lines = script.study(*labeled(), seeds=2).splitlines()
    assert lines[0] == "| score | symmetric 20% AP | symmetric 20% AUROC |"
    assert len(lines) == 2 + 5
    assert lines[2].startswith(f"| {script.OURS} | ")
    assert " ± " in lines[2]


def test_planted_photographs_are_what_their_kind_says(tmp_path: Path) -> None:
    script = load_example("planted_duplicates")
    photos = tmp_path / "photos"
    photos.mkdir()
    grainy(picture(0, side=60)).save(photos / "a.png")
    sizes = {}
    for kind in script.KINDS:
        contents = script.planted(photos / "a.png", kind, np.random.default_rng(0))
        (photos / "copy.jpg").write_bytes(contents)
        with image.open(photos / "copy.jpg") as copy:
            sizes[kind] = copy.size
        if kind == "mirrored":
            measures = measure_photos(index_of(photos))
            differing = int(measures.hash[0] ^ measures.mirrored[1])
            assert differing.bit_count() <= 4
    assert list(sizes.values()) == [(40, 30), (80, 60), (80, 60), (72, 54), (60, 45)]
