"""Copies and near copies are found, by hashes with ImageHash's bits and by features."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from keras_vit.curation import (
    Duplicates,
    FeatureIndex,
    find_duplicates,
    measure_photos,
    perceptual_hash,
)
from tests.curation.photos import in_memory, index_of, no_hashes, picture

# int(str(imagehash.phash(picture(seed))), 16) by ImageHash 4.3.2 with Pillow 13, and the same of
# picture(seed).transpose(FLIP_LEFT_RIGHT).
HASHES = {
    0: (0xBC7E28359F85306A, 0xE92B7D60CAD0243F),
    1: (0xAD6BD68AB8A72158, 0xF83E83DFCDB2000D),
    2: (0x84ED0C5D7D1786E8, 0xD1BC59082842FFBD),
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> FeatureIndex:
    folder = tmp_path_factory.mktemp("duplicates")
    photos = folder / "photos"
    for name in ("one", "two"):
        (photos / name).mkdir(parents=True)
    for i in range(6):
        picture(i).save(photos / f"one/{i}.png")
    for name in ("copy", "again"):
        (photos / f"two/{name}.png").write_bytes((photos / "one/0.png").read_bytes())
    picture(1).save(photos / "one/saved.jpg", quality=60)
    picture(2).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(photos / "one/mirror.png")
    picture(3).resize((40, 30)).save(photos / "two/small.png")
    (photos / "train.txt").write_text("one/0.png\none/1.png\n")
    (photos / "val.txt").write_text("two/copy.png\none/saved.jpg\n")
    return index_of(photos)


@pytest.fixture(scope="module")
def duplicates(index: FeatureIndex) -> Duplicates:
    return find_duplicates(index, measure_photos(index), closeness=0, similar=-1)


@pytest.mark.parametrize("seed", HASHES)
def test_hashes_are_those_of_imagehash(seed: int) -> None:
    assert perceptual_hash(np.asarray(picture(seed))) == HASHES[seed]


def test_copies_saved_again_resized_and_mirrored_are_pairs(index: Any, duplicates: Any) -> None:
    names = [tuple(sorted(index.files[row] for row in pair)) for pair in duplicates.pairs]
    copies = [("one/0.png", "two/again.png"), ("one/0.png", "two/copy.png")]
    assert set(names) == {
        *copies,
        ("one/1.png", "one/saved.jpg"),
        ("one/2.png", "one/mirror.png"),
        ("one/3.png", "two/small.png"),
    }
    assert [n for n, copy in zip(names, duplicates.is_copy, strict=True) if copy] == copies
    groups = [{index.files[row] for row in rows} for rows in duplicates.members()]
    assert groups[0] == {"one/0.png", "two/again.png", "two/copy.png"}
    assert sorted(map(len, groups)) == [2, 2, 2, 3]


def test_splits_and_labels_of_pairs(index: FeatureIndex, duplicates: Duplicates) -> None:
    for mask, names in (
        (duplicates.across_splits(index.splits), "one/0.png one/1.png one/saved.jpg two/copy.png"),
        (
            duplicates.with_two_labels(index.labels),
            "one/0.png one/3.png two/again.png two/copy.png two/small.png",
        ),
    ):
        rows = duplicates.pairs[mask].reshape(-1)
        assert sorted({index.files[row] for row in rows}) == names.split()


def test_features_find_what_hashes_do_not() -> None:
    """Two rows are near that are much closer to each other than to their tenth neighbors."""
    random = np.random.default_rng(0)
    features = random.normal(size=(40, 32)).astype("float32")
    features[7] = features[3] + random.normal(0, 0.2, 32)
    index = in_memory(features)
    found = find_duplicates(index, no_hashes(40))
    assert found.pairs.tolist() == [[3, 7]]
    assert found.similarities[0] > 0.9
    distances = 1 - np.corrcoef(features)  # about the same as the cosine's
    assert distances[3, 7] < 0.2 < np.sort(distances[3])[10]
    assert len(find_duplicates(index, no_hashes(40), closeness=0).pairs) == 0
    few = in_memory(features[:9])  # fewer than the tenth neighbor
    assert len(find_duplicates(few, no_hashes(9)).pairs) == 0


def test_a_photograph_that_is_gone_is_not_a_duplicate(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for i in range(4):
        picture(i).save(photos / f"{i}.png")
    index = index_of(photos)
    (photos / "1.png").unlink()
    (photos / "2.png").write_bytes(b"cut off")
    measures = measure_photos(index)
    assert sorted(measures.failed) == [1, 2]
    found = find_duplicates(index, measures, closeness=0, similar=-1)
    assert len(found.pairs) == 0
    assert found.groups.tolist() == [0, 1, 2, 3]
