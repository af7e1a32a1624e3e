"""Dark, blurred and tiny images, and those unlike all others."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import laplace
from sklearn.neighbors import NearestNeighbors

from keras_vit.curation import find_outliers, image_quality, measure_image, measure_photos
from keras_vit.curation.image_quality import outlier_distances
from tests.curation.photos import blurred, grainy, index_of, picture


def test_sharpness_is_the_variance_of_scipys_laplacian() -> None:
    image = grainy(picture(0))
    measured = measure_image(np.asarray(image))
    gray = np.asarray(image.convert("L"), float)
    # OpenCV's border and scipy's "mirror" are one: without the pixel at the edge twice.
    assert measured.sharpness == pytest.approx(laplace(gray, mode="mirror").var())
    assert measured.brightness == pytest.approx(np.percentile(gray, 95))
    assert (measured.height, measured.width) == (64, 85)
    # Large images are measured small.
    large = Image.fromarray(np.random.default_rng(0).integers(0, 256, (900, 600)).astype("uint8"))
    small = large.copy()
    small.thumbnail((256, 256), Image.Resampling.BILINEAR)
    one, other = (measure_image(np.asarray(i.convert("RGB"))) for i in (large, small))
    assert one.sharpness == other.sharpness


def test_the_bad_ones_are_found_the_worst_first(tmp_path: Path) -> None:
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
    assert {"blurred", "line"} <= set(names(measures.blurred()))
    assert not {"good0", "good1", "good2"} & set(names(measures.blurred()))
    assert names(measures.tiny()) == ["line", "tiny"]


def counted(function: Any, calls: list[Any]) -> Any:
    return lambda *arguments: calls.append(arguments) or function(*arguments)


def test_what_was_measured_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos, folder = tmp_path / "photos", tmp_path / "index"
    photos.mkdir()
    folder.mkdir()
    for i in range(5):
        grainy(picture(i)).save(photos / f"{i}.png")
    index = index_of(photos)
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

    for name, calls in (("read_contents", read), ("decode_with_pillow", decoded)):
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


def test_outliers_are_far_from_their_neighbors() -> None:
    features = np.eye(8)[0] + np.random.default_rng(0).normal(0, 0.1, (60, 8))
    features[17] = np.eye(8)[5]
    distances = outlier_distances(features, k=5)
    peer = NearestNeighbors(n_neighbors=5, metric="cosine").fit(features).kneighbors()[0]
    np.testing.assert_allclose(distances, peer.mean(axis=1), atol=1e-6)
    assert find_outliers(distances)[0] == 17
    assert find_outliers(distances, spreads=3).tolist() == [17]
    assert find_outliers(np.zeros(0)).tolist() == []
    assert outlier_distances(features[:1]).tolist() == [0]
