"""Dark, blurred and tiny images, those unlike all others, copies and near copies."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import laplace
from sklearn.neighbors import NearestNeighbors

from keras_vit.curation import find_duplicates, find_outliers, image_quality, measure_photos
from keras_vit.curation.image_quality import measure_image, outlier_distances
from keras_vit.curation.perceptual_hash import perceptual_hash
from tests.curation.photos import blurred, grainy, in_memory, index_of, no_hashes, picture
from tests.data.image_fixtures import encode, write

# int(str(imagehash.phash(picture(seed))), 16) by ImageHash 4.3.2 with Pillow 13, and the same of
# picture(seed).transpose(FLIP_LEFT_RIGHT).
HASHES = {
    0: (0xBC7E28359F85306A, 0xE92B7D60CAD0243F),
    1: (0xAD6BD68AB8A72158, 0xF83E83DFCDB2000D),
    2: (0x84ED0C5D7D1786E8, 0xD1BC59082842FFBD),
}


def test_sharpness_is_the_variance_of_scipys_laplacian(tmp_path: Path) -> None:
    image = grainy(picture(0))
    measured = measure_image(np.asarray(image))
    gray = np.asarray(image.convert("L"), float)
    # OpenCV's border and scipy's "mirror" are one: without the pixel at the edge twice.
    assert measured.sharpness == pytest.approx(laplace(gray, mode="mirror").var())
    assert measured.brightness == pytest.approx(np.percentile(gray, 95))
    assert (measured.height, measured.width) == (64, 85)
    large = grainy(picture(0, side=600)).convert("L").convert("RGB")
    small = large.copy()
    small.thumbnail((256, 256), Image.Resampling.BILINEAR)
    assert measure_image(np.asarray(large)).sharpness == measure_image(np.asarray(small)).sharpness
    images = {f"good{i}": grainy(picture(i, side=96)) for i in range(3)}
    good = images["good0"]
    images |= {"dark": good.point(lambda level: int(level * 0.1)), "tiny": good.resize((30, 20))}
    images |= {"darker": good.point(lambda level: int(level * 0.02)), "blurred": blurred(good)}
    images["line"] = Image.new("RGB", (1, 40), "white")
    for name, image in images.items():
        image.save(tmp_path / f"{name}.png")
    index = index_of(tmp_path)
    measures = measure_photos(index)

    def names(rows: np.ndarray) -> list[str]:
        return [index.files[row].removesuffix(".png") for row in rows]

    assert names(measures.dark()) == ["darker", "dark"]
    assert {"blurred", "line"} <= {*names(measures.blurred())}
    assert not [name for name in names(measures.blurred()) if name.startswith("good")]
    assert names(measures.tiny()) == ["line", "tiny"]


def counted(function: Any, calls: list[Any]) -> Any:
    return lambda *arguments: calls.append(arguments) or function(*arguments)


def test_what_was_measured_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos, folder = tmp_path / "photos", tmp_path / "index"
    folder.mkdir()
    pictures = {f"{i}.png": encode(grainy(picture(i)), "PNG") for i in range(5)}
    index = index_of(write(photos, pictures))
    info = {**index.info, "photos": "../photos"}
    index = replace(index, folder=folder, info=info, unreadable={"3a.png": ""})
    read, decoded = [], []

    def measured() -> tuple[int, int]:
        """How many files are read and decoded; the measures are right, kept or not."""
        read.clear()
        decoded.clear()
        kept = vars(measure_photos(index, keep=True))
        counts = len(read), len(decoded)
        np.testing.assert_equal(kept, vars(measure_photos(index)))
        return counts

    for name, calls in (("read_contents", read), ("displayed_image", decoded)):
        monkeypatch.setattr(image_quality, name, counted(getattr(image_quality, name), calls))
    assert measured() == (5, 5)
    assert measured() == (5, 0)  # nobody knows when they were changed
    times = [(photos / name).stat().st_mtime_ns for name in index.files]
    np.save(folder / "modified.npy", [*times[:4], 7, times[4]])
    assert measured() == (0, 0)
    os.utime(photos / "0.png", ns=(0, 0))
    (photos / "1.png").write_bytes((photos / "2.png").read_bytes())
    blurred(picture(3)).save(photos / "3.png")
    assert measured() == (3, 1)
    file = folder / "measures.bin"
    content = bytearray(file.read_bytes())
    content[file.stat().st_size // 7 + 40] ^= 1  # the first record
    file.write_bytes(content[:-1])  # and the last one
    assert measured() == (3, 2)
    assert measured() == (3, 0)


def test_outliers_are_far_from_their_neighbors_and_duplicates_near() -> None:
    features = np.eye(8)[0] + np.random.default_rng(0).normal(0, 0.1, (60, 8))
    features[17] = np.eye(8)[5]
    distances = outlier_distances(features, k=5)
    peer = NearestNeighbors(n_neighbors=5, metric="cosine").fit(features).kneighbors()[0]
    np.testing.assert_allclose(distances, peer.mean(axis=1), atol=1e-6)
    assert find_outliers(distances, spreads=3).tolist() == [17]
    # Rows are near that are much closer to each other than to their tenth neighbors.
    random = np.random.default_rng(0)
    features = random.normal(size=(40, 32)).astype("float32")
    features[7] = features[3] + random.normal(0, 0.2, 32)
    index = in_memory(features)
    found = find_duplicates(index, no_hashes(40))
    assert found.pairs.tolist() == [[3, 7]]
    assert found.similarities[0] > 0.9
    assert len(find_duplicates(index, no_hashes(40), closeness=0).pairs) == 0
    assert len(find_duplicates(in_memory(features[:9]), no_hashes(9)).pairs) == 0


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
    of_splits = "one/0.png one/1.png one/saved.jpg two/copy.png"
    of_labels = "one/0.png one/3.png two/again.png two/copy.png two/small.png"
    for mask, expected in (
        (duplicates.across_splits(index.splits), of_splits),
        (duplicates.with_two_labels(index.labels), of_labels),
    ):
        rows = duplicates.pairs[mask].reshape(-1)
        assert sorted({index.files[row] for row in rows}) == expected.split()
    (tmp_path / "one/2.png").unlink()
    (tmp_path / "one/3.png").write_bytes(b"cut off")
    measures = measure_photos(index)
    assert sorted(index.files[row] for row in measures.failed) == ["one/2.png", "one/3.png"]
    assert len(find_duplicates(index, measures, closeness=0, similar=-1).pairs) == len(copies) + 1
