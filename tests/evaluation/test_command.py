"""`keras-vit evaluate`, as a user types it."""

from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import data
from keras_vit.evaluation import classification_report, features, fewshot_table, predict_split
from keras_vit_cli import commands as cli
from tests.data.image_fixtures import plain, write

pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def folder_of_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes that differ by their gray level."""
    folder = tmp_path_factory.mktemp("images")
    files = {f"dark/{i}.png": plain(3 * i) for i in range(20)}
    return write(folder, files | {f"light/{i}.png": plain(190 + 3 * i) for i in range(20)})


@pytest.fixture(scope="module")
def model() -> keras_vit.VisionTransformer:
    keras.utils.set_random_seed(0)
    model = keras_vit.VisionTransformer(
        patch_size=8, hidden_dim=8, depth=1, num_heads=2, input_shape=(16, 16, 3), num_classes=2
    )
    head = model.get_layer("head")
    head.kernel.assign(np.random.default_rng(0).normal(size=head.kernel.shape))
    model.class_names = ("dark", "light")
    return model


@pytest.fixture(scope="module")
def file(model: keras_vit.VisionTransformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "model.keras"
    model.save(path)
    return path


def run(*arguments: object) -> int:
    return cli.main(["evaluate", *map(str, arguments)])


def test_features(
    file: Path,
    folder_of_images: Path,
    model: keras_vit.VisionTransformer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--probe", "--knn", 3, "--fewshot", 1, 5, "--seeds", 4, "--cache-dir", tmp_path]
    assert run(file, "--data", folder_of_images, *options) == 0
    printed = capsys.readouterr().out
    assert "2 classes: train 32, val 8" in printed
    for row in ("linear probe", "3 nearest neighbors", "1-shot", "5-shot"):
        assert row in printed
    splits = data.load(folder_of_images)
    # The cache also serves the model that was saved.
    four = (*features(model, splits.train, tmp_path), *features(model, splits.val, tmp_path))
    assert len(list(tmp_path.iterdir())) == 2
    for row in fewshot_table(*four, shots=(1, 5), seeds=range(4)):
        line = next(x for x in printed.splitlines() if f"{row.shots}-shot" in x)
        assert f"{row.mean:.2%}" in line
        assert f"± {100 * row.spread:.2f} over 4 seeds" in line


def test_own_classes(
    file: Path,
    folder_of_images: Path,
    model: keras_vit.VisionTransformer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(file, "--data", folder_of_images) == 0
    split = data.load(folder_of_images).val
    labels, scores = predict_split(model, split)
    images = np.stack([data.read_image(path, 16) for path in split.files])
    expected = keras.ops.convert_to_numpy(model(images))
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    np.testing.assert_array_equal(labels, split.labels())
    assert (
        str(classification_report(labels, expected, ("dark", "light"))) in capsys.readouterr().out
    )


def test_errors(
    file: Path,
    folder_of_images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def no_features(*_: object) -> None:
        raise AssertionError("errors in the labels come before features")

    monkeypatch.setattr("keras_vit_cli.evaluate.tables.features", no_features)
    others = write(tmp_path, {f"{c}/{i}.png": plain(i) for c in "abc" for i in range(3)})
    for arguments, words in (
        ((file,), "evaluate needs --data"),
        (
            (file, "--data", others),
            "predicts 2 classes (dark, light), and the data has 3 (a, b, c)",
        ),
        ((file, "--data", folder_of_images, "--split", "test"), "split='test' is not known"),
        (
            (file, "--data", folder_of_images, "--knn", 99),
            "--knn: k=99 is more than the 32",
        ),
        (
            (file, "--data", folder_of_images, "--fewshot", 1, 17),
            "--fewshot: shots=17 is more than any",
        ),
        ((tmp_path / "none.keras", "--data", folder_of_images), "There is no model"),
    ):
        assert run(*arguments) == 2
        assert words in capsys.readouterr().err
