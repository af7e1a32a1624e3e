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


def run(*arguments: object) -> int:
    return cli.main(["evaluate", *map(str, arguments)])


def test_features_own_classes_and_errors(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    files = {f"dark/{i}.png": plain(3 * i) for i in range(20)}  # by their gray level
    files |= {f"light/{i}.png": plain(190 + 3 * i) for i in range(20)}
    images, cache = write(tmp_path / "images", files), tmp_path / "cache"
    file, model = tmp_path / "model.keras", fresh(**TINY)
    model.class_names = ("dark", "light")
    model.save(file)
    options = ["--probe", "--knn", 3, "--fewshot", 1, 5, "--seeds", 4, "--cache-dir", cache]
    assert run(file, "--data", images, *options) == 0
    printed = capsys.readouterr().out
    for words in ("2 classes: train 32, val 8", "linear probe", "3 nearest neighbors"):
        assert words in printed
    splits = data.load(images)
    # The cache also serves the model that was saved.
    four = (*features(model, splits.train, cache), *features(model, splits.val, cache))
    assert len(list(cache.iterdir())) == 2
    for row in fewshot_table(*four, shots=(1, 5), seeds=range(4)):
        line = next(x for x in printed.splitlines() if f"{row.shots}-shot" in x)
        assert f"{row.mean:.2%}" in line
        assert f"± {100 * row.spread:.2f} over 4 seeds" in line
    # Its own classes; nothing says which images it has seen, and all are scored.
    assert run(file, "--data", images) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "40 images; vision_transformer does not have a record of those it was made" in printed
    assert run(file, "--data", images, "--split", "val") == 0
    labels, scores = predict_split(model, splits.val)
    expected = outputs(model, np.stack([data.read_image(path, 16) for path in splits.val.files]))
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    np.testing.assert_array_equal(labels, splits.val.labels())
    report = classification_report(labels, expected, ("dark", "light"))
    assert str(report) in capsys.readouterr().out
    # Errors in the labels come before features.
    monkeypatch.delattr("keras_vit_cli.evaluate.tables.features")
    others = write(tmp_path / "others", {f"{c}/{i}.png": plain(i) for c in "abc" for i in range(3)})
    of_images = (file, "--data", images)
    other_names = "predicts 2 classes (dark, light), and the data has 3 (a, b, c)"
    for arguments, words in (
        ((file,), "does not say what it was trained on: give --data"),
        ((file, "--data", others), other_names),
        ((*of_images, "--split", "test"), "--split test is not known"),
        ((*of_images, "--knn", 99), "--knn 99 is more than the 32"),
        ((*of_images, "--fewshot", 1, 17), "--fewshot 17 is more than any"),
        (("none.keras", "--data", images), "There is no model"),
    ):
        assert run(*arguments) == 2
        assert words in capsys.readouterr().err
