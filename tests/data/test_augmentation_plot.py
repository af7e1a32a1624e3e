"""The plot shows the images that the model sees in training."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit.data import ArraySplit, Augmentation, plot_augmentations
from keras_vit.data.augment.augment_layers import describe_augment, resolve_augment
from keras_vit.training import recipes
from keras_vit_cli import commands as cli
from tests.data.image_fixtures import flat_folder

pytest.importorskip("matplotlib")


def black(count: int) -> ArraySplit:
    images = np.zeros((count, 8, 8, 3), np.uint8)
    return ArraySplit("train", ("a", "b"), images, np.arange(count) % 2)


def test_rows_are_images_and_columns_passes(tmp_path: Path, monkeypatch) -> None:
    shown, titles = [], []
    axes = "matplotlib.axes.Axes"
    monkeypatch.setattr(f"{axes}.imshow", lambda self, image, **_: shown.append(image))
    monkeypatch.setattr(f"{axes}.set_title", lambda self, title, **_: titles.append(title))
    images = np.full((30, 8, 8, 3), 40, np.uint8)
    images[:, :, :4] = np.arange(30)[:, None, None, None] * 8
    split = ArraySplit("train", ("a", "b"), images, np.arange(30) % 2)
    plain = Augmentation(crop="resize", flip=False)
    plot = partial(plot_augmentations, split, image_size=8, images=3, versions=2)
    plot(tmp_path / "plot.png", augment=plain)
    assert len(shown) == 9
    assert titles == ["a", "a", "b"]  # images 0, 14 and 29, the names above the first column
    for column in range(3):  # the image as it is, twice, because nothing is augmented
        for row, index in enumerate((0, 14, 29)):
            np.testing.assert_allclose(shown[3 * column + row], images[index] / 255, atol=1e-6)
    titles.clear()
    plot(tmp_path / "mixed.png", augment=replace(plain, mixup=1.0))
    assert len(titles) == 9
    assert any("%" in title for title in titles[3:])


def test_the_title_is_in_words_and_a_sheet_has_a_bound(tmp_path: Path, monkeypatch) -> None:
    titles, sizes = [], []

    def measure(self, path: Path, **_: object) -> None:
        sizes.append(self.get_size_inches() * self.dpi)
        Path(path).write_bytes(b"")

    figure = "matplotlib.figure.Figure"
    monkeypatch.setattr(f"{figure}.suptitle", lambda self, title, **_: titles.append(title))
    monkeypatch.setattr(f"{figure}.savefig", measure)
    options = {"images": 1, "versions": 1}
    changes = Augmentation(crop="resize", flip=False, shift=2, rotation=10, erasing=0.25, mixup=0.2)
    plot_augmentations(black(4), tmp_path / "plot.png", 8, augment=changes, **options)
    words = "resize, shift by up to 2 px, rotation by up to 10°, random erasing of 25 %, mixup 0.2"
    assert titles == [words]
    for name in recipes.RECIPES:
        title = describe_augment(recipes.get(name).augment, ())
        assert not re.search(r"[(]\w+=|None|False|Augmentation", title), title
    layers = [Augmentation(min_area=0.3), keras.layers.MixUp()]
    title = describe_augment(*resolve_augment(layers, Augmentation()))
    assert title == "inception crop of at least 30 %, flip, keras.layers.MixUp"
    plot_augmentations(black(60), tmp_path / "many.png", 8, images=60, versions=1)
    assert max(sizes[-1]) == pytest.approx(8000)


def test_paths_that_are_refused_and_the_command(tmp_path: Path, capsys) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "theirs.png").write_bytes(b"theirs")
    before = sorted(tmp_path.iterdir())
    for name, error, message in (
        ("path", ValueError, "does not have the suffix of an image: give one of .*png"),
        ("path.txt", ValueError, "does not have the suffix of an image"),
        ("folder", FileExistsError, "folder is a folder: give a file, such as plot.png"),
        ("theirs.png", FileExistsError, "theirs.png exists, and is not a PNG file that"),
    ):
        with pytest.raises(error, match=message):
            plot_augmentations(black(4), tmp_path / name, 8, overwrite=True)
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "theirs.png").read_bytes() == b"theirs"
    folder, path = flat_folder(tmp_path / "photos"), tmp_path / "new" / "plot.png"
    command = ["augment", "--data", str(folder), "--out", str(path), "--image-size", "16"]
    deit, digits = ["--recipe", "deit"], ["--recipe", "digits"]  # which is quick
    assert cli.main([*command, *deit, "--images", "2", "--versions", "2"]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert f"written to {path}" in capsys.readouterr().out
    assert cli.main([*command, "--recipe", "dei"]) == 2
    assert "deit" in capsys.readouterr().err
    written = path.read_bytes()
    assert cli.main([*command, *deit]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert path.read_bytes() == written
    assert cli.main([*command, *digits, "--images", "1", "--overwrite"]) == 0
    assert path.read_bytes() != written
    # Broken files are skipped, and the last line is the next command.
    photos = flat_folder(tmp_path / "my photos")
    sorted(photos.glob("*/*"))[0].write_bytes(b"not an image")
    command[2:3] = [str(photos)]
    assert cli.main([*command, "--images", "100", "--versions", "1", *digits, "--overwrite"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"next: keras-vit train --data '{photos}' --recipe digits"
