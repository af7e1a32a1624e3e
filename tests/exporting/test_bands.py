"""Models of raw files of 12 bits, and their exports. (To train one: `tests/cli/test_tasks.py`.)"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_vit
from keras_vit import VisionTransformer
from keras_vit._base.errors import DataRangeWarning
from keras_vit.data import EvalTransform, Splits, load, pipeline
from keras_vit.evaluation.prediction import predict_files
from keras_vit.exporting import check
from keras_vit.exporting.comparison import calibration_images, compare
from tests import bank
from tests.exporting.artifacts import exported, formats

imagecodecs = pytest.importorskip("imagecodecs")
pytest.importorskip("grain")
SIZES = {"patch_size": 4, "hidden_dim": 48, "depth": 2, "num_heads": 4, "pooling": "gap"}


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> Splits:
    """Digits as a detector of 12 bits gives them: their strokes are in the lowest four."""
    images, labels = load("digits").train.as_arrays()
    random, folder = np.random.default_rng(0), tmp_path_factory.mktemp("detector")
    exposure = random.integers(125, 132, (100, 1, 1, 1))
    values = (16 * exposure + np.rint(images[:100] * (15 / 255))).astype("uint16")
    for i, pixels in enumerate(values):
        file = folder / str(labels[i]) / f"{i}.png"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(imagecodecs.png_encode(pixels[..., 0].copy()))
    return load(folder, bands="all", val_fraction=0.3)


def digits_vit(**options: Any) -> VisionTransformer:
    return VisionTransformer(**SIZES, input_shape=(8, 8, 1), num_classes=10, **options)


@pytest.fixture
def untrained() -> VisionTransformer:
    model = digits_vit(normalization=((2050.0,), (30.0,)))
    bank.fill(model, scale=0.2)
    model.class_names = tuple("0123456789")
    model.eval_transform = EvalTransform("stretch", bands=(1,))
    return model


@formats(of=("tf_saved_model", "onnx", "litert", "torch"))
def test_exports_answer_raw_files(
    untrained: Any, splits: Splits, tmp_path: Path, format: str
) -> None:
    written, files = exported(tmp_path, untrained, format), splits.val.files[:20]
    expected = dict(predict_files(untrained, files))
    for file, answer in predict_files(written, files):
        np.testing.assert_allclose(answer, expected[file], atol=1e-4)
    assert np.ptp(list(expected.values()), axis=0).max() > 0.1
    assert compare(untrained, written, splits.val).agreement == 1
    assert (check(written.path).ok, check(written.path).files) == (True, 0)
    assert written.contract.dtype == "float32"
    images = np.linspace(0, 255, 512).reshape(8, 8, 8, 1)
    with pytest.warns(DataRangeWarning, match="means and standard deviations: 205"):
        written.predict(images.astype("uint8"))


def test_what_is_not_exported(untrained: Any, splits: Splits, tmp_path: Path) -> None:
    of_bytes = calibration_images(untrained, splits.train, 40).astype("uint8")
    int8 = {"format": "openvino", "quantize": "int8", "calibration": of_bytes}
    html = {"format": "html"}
    for options, message in ((html, "in a range of their own"), (int8, "must be float32 images")):
        with pytest.raises(ValueError, match=message):
            exported(tmp_path, untrained, **options)
    assert not list(tmp_path.iterdir())


def test_what_does_not_fit_is_said(untrained: VisionTransformer, splits: Splits) -> None:
    batches = pipeline(splits.val, 8, 32, eval_transform="stretch")
    images = np.concatenate([batch for batch, _ in batches])
    with pytest.warns(DataRangeWarning, match="neither scaled nor normalized"):
        untrained.copy().predict(images / 65535, verbose=0)
    other = digits_vit()
    unsaid = untrained.copy()
    unsaid.eval_transform = "stretch"
    with pytest.raises(ValueError, match=r"EvalTransform\(bands=\(1,\)\)"):
        next(predict_files(unsaid, splits.val.files))
    with pytest.raises(ValueError, match="one band for each"):
        other.eval_transform = EvalTransform(bands=(1, 2))
    for wrong in (((1,), (0,)), ((1, 2), (1, 2)), ((float("nan"),), (1,)), 3, ("a", "b")):
        with pytest.raises(ValueError, match="normalization="):
            digits_vit(normalization=wrong)


def test_statistics_are_kept(untrained: VisionTransformer, tmp_path: Path) -> None:
    untrained.save(tmp_path / "model.keras")
    keras_vit.save_weights(untrained, tmp_path / "model.npz", layout="google")
    keras_vit.save_weights(untrained, tmp_path / "model.safetensors", layout="timm")
    images = np.random.default_rng(0).normal(2050, 30, (4, 8, 8, 1)).astype("float32")
    expected = untrained.predict(images, verbose=0)
    assert np.ptp(expected, axis=0).max() > 1e-2
    for name in ("model.keras", "model.npz", "model.safetensors"):
        same = keras_vit.load(tmp_path / name)
        assert same.normalization == untrained.normalization
        assert same.eval_transform == untrained.eval_transform
        assert same.eval_transform.nodata == (2050.0,)  # the mean, which prediction writes
        np.testing.assert_allclose(bank.outputs(same, images), expected, atol=1e-4)
    # Normalized in the graph as NumPy does it.
    means, stds = untrained.normalization
    normalized = bank.outputs(untrained.feature_model("images"), images)
    np.testing.assert_allclose(normalized, (images - means) / stds, atol=1e-4)


def test_weights_of_photographs_take_bands(tmp_path: Path) -> None:
    """By the rule for other channels; statistics and bands are the new model's own."""
    source = VisionTransformer(**SIZES, input_shape=(8, 8, 3), normalization="imagenet")
    keras_vit.save_weights(source, tmp_path / "rgb.npz", layout="google")
    bands = 5 * (1000.0,), 5 * (300.0,)
    model = VisionTransformer(**SIZES, input_shape=(8, 8, 5), normalization=bands)
    model.eval_transform = EvalTransform(bands=(5, 4, 3, 2, 1))
    report = keras_vit.load_weights(model, tmp_path / "rgb.npz")
    assert report.adapted
    assert model.normalization == bands
    assert model.eval_transform.bands == (5, 4, 3, 2, 1)
