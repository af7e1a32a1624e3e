"""`keras-vit evaluate`, as a user types it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_vit import data
from keras_vit.evaluation import classification_report, features, fewshot_table, predict_split
from keras_vit_cli import commands as cli
from tests.bank import TINY, fresh, outputs
from tests.data.image_fixtures import plain, write

pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes that differ by their gray level."""
    files = {f"dark/{i}.png": plain(3 * i) for i in range(20)}
    files |= {f"light/{i}.png": plain(190 + 3 * i) for i in range(20)}
    return write(tmp_path_factory.mktemp("images"), files)


@pytest.fixture(scope="module")
def model() -> Any:
    model = fresh(**TINY)
    model.class_names = ("dark", "light")
    return model


@pytest.fixture(scope="module")
def file(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model.save(path := tmp_path_factory.mktemp("models") / "model.keras")
    return path


def run(*arguments: object) -> int:
    return cli.main(["evaluate", *map(str, arguments)])


def test_features(file: Path, images: Path, model: Any, tmp_path: Path, capsys: Any) -> None:
    options = ["--probe", "--knn", 3, "--fewshot", 1, 5, "--seeds", 4, "--cache-dir", tmp_path]
    assert run(file, "--data", images, *options) == 0
    printed = capsys.readouterr().out
    for words in ("2 classes: train 32, val 8", "linear probe", "3 nearest neighbors"):
        assert words in printed
    splits = data.load(images)
    # The cache also serves the model that was saved.
    four = (*features(model, splits.train, tmp_path), *features(model, splits.val, tmp_path))
    assert len(list(tmp_path.iterdir())) == 2
    for row in fewshot_table(*four, shots=(1, 5), seeds=range(4)):
        line = next(x for x in printed.splitlines() if f"{row.shots}-shot" in x)
        assert f"{row.mean:.2%}" in line
        assert f"± {100 * row.spread:.2f} over 4 seeds" in line


def test_own_classes(file: Path, images: Path, model: Any, capsys: Any) -> None:
    assert run(file, "--data", images) == 0
    split = data.load(images).val
    labels, scores = predict_split(model, split)
    expected = outputs(model, np.stack([data.read_image(path, 16) for path in split.files]))
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    np.testing.assert_array_equal(labels, split.labels())
    report = classification_report(labels, expected, ("dark", "light"))
    assert str(report) in capsys.readouterr().out


def test_errors(file: Path, images: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """Those in the labels come before features."""
    monkeypatch.delattr("keras_vit_cli.evaluate.tables.features")
    others = write(tmp_path, {f"{c}/{i}.png": plain(i) for c in "abc" for i in range(3)})
    of_images = (file, "--data", images)
    other_names = "predicts 2 classes (dark, light), and the data has 3 (a, b, c)"
    for arguments, words in (
        ((file,), "evaluate needs --data"),
        ((file, "--data", others), other_names),
        ((*of_images, "--split", "test"), "split='test' is not known"),
        ((*of_images, "--knn", 99), "--knn: k=99 is more than the 32"),
        ((*of_images, "--fewshot", 1, 17), "--fewshot: shots=17 is more than any"),
        (("none.keras", "--data", images), "There is no model"),
    ):
        assert run(*arguments) == 2
        assert words in capsys.readouterr().err
