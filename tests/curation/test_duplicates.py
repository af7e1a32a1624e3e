"""Copies and near copies are found, by hashes with ImageHash's bits and by features."""

from pathlib import Path

import numpy as np
from PIL import Image

from keras_vit.curation import find_duplicates, measure_photos, perceptual_hash
from tests.curation.photos import in_memory, index_of, no_hashes, picture
from tests.data.image_fixtures import encode, write

# int(str(imagehash.phash(picture(seed))), 16) by ImageHash 4.3.2 with Pillow 13, and the same of
# picture(seed).transpose(FLIP_LEFT_RIGHT).
HASHES = {
    0: (0xBC7E28359F85306A, 0xE92B7D60CAD0243F),
    1: (0xAD6BD68AB8A72158, 0xF83E83DFCDB2000D),
    2: (0x84ED0C5D7D1786E8, 0xD1BC59082842FFBD),
}


def test_copies_saved_again_resized_and_mirrored_are_pairs(tmp_path: Path) -> None:
    assert {seed: perceptual_hash(np.asarray(picture(seed))) for seed in HASHES} == HASHES
    pictures = [picture(i) for i in range(6)]
    files = {f"one/{i}.png": encode(image, "PNG") for i, image in enumerate(pictures)}
    files |= {"two/copy.png": files["one/0.png"], "two/again.png": files["one/0.png"]}
    mirrored = pictures[2].transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    files |= {"one/saved.jpg": encode(pictures[1], "JPEG", quality=60)}
    files |= {"one/mirror.png": encode(mirrored, "PNG")}
    files |= {"two/small.png": encode(pictures[3].resize((40, 30)), "PNG")}
    files |= {"train.txt": b"one/0.png\none/1.png\n", "val.txt": b"two/copy.png\none/saved.jpg\n"}
    index = index_of(write(tmp_path, files))
    duplicates = find_duplicates(index, measure_photos(index), closeness=0, similar=-1)
    names = [tuple(sorted(index.files[row] for row in pair)) for pair in duplicates.pairs]
    copies = [("one/0.png", "two/again.png"), ("one/0.png", "two/copy.png")]
    others = {("one/1.png", "one/saved.jpg"), ("one/2.png", "one/mirror.png")}
    assert set(names) == {*copies, *others, ("one/3.png", "two/small.png")}
    assert [n for n, copy in zip(names, duplicates.is_copy, strict=True) if copy] == copies
    groups = [{index.files[row] for row in rows} for rows in duplicates.members()]
    assert groups[0] == {"one/0.png", "two/again.png", "two/copy.png"}
    assert sorted(map(len, groups)) == [2, 2, 2, 3]
    of_splits = "one/0.png one/1.png one/saved.jpg two/copy.png"
    of_labels = "one/0.png one/3.png two/again.png two/copy.png two/small.png"
    for mask, expected in (
        (duplicates.across_splits(index.splits), of_splits),
        (duplicates.with_two_labels(index.labels), of_labels),
    ):
        rows = duplicates.pairs[mask].reshape(-1)
        assert sorted({index.files[row] for row in rows}) == expected.split()


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
    # With fewer rows than the tenth neighbor.
    assert len(find_duplicates(in_memory(features[:9]), no_hashes(9)).pairs) == 0


def test_a_photograph_that_is_gone_is_not_a_duplicate(tmp_path: Path) -> None:
    index = index_of(write(tmp_path, {f"{i}.png": encode(picture(i), "PNG") for i in range(4)}))
    (tmp_path / "1.png").unlink()
    (tmp_path / "2.png").write_bytes(b"cut off")
    measures = measure_photos(index)
    assert sorted(measures.failed) == [1, 2]
    found = find_duplicates(index, measures, closeness=0, similar=-1)
    assert (len(found.pairs), found.groups.tolist()) == (0, [0, 1, 2, 3])
