"""Every kind of position, pooling, family and bands goes through every format, or is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_vit
from keras_vit import VisionTransformer
from keras_vit._base.errors import DataRangeWarning
from keras_vit.data import EvalTransform, Splits, load, pipeline
from keras_vit.evaluation.prediction import predict_files
from keras_vit.exporting import FORMATS, check
from keras_vit.exporting.agreement import check_images
from keras_vit.exporting.comparison import calibration_images, compare
from keras_vit.exporting.failure import failure_reason
from keras_vit.exporting.proof import MOST_VALUES, Proof
from keras_vit.layers._dense import Dense
from keras_vit.models.answers import answers_of
from keras_vit.ops import process_on
from tests import bank
from tests.backend import refused, warned
from tests.exporting.artifacts import EVERY_KIND, MODELS, PATHS, Artifacts, exported, formats, pairs
from tests.models.test_common import build

# Of each position and each pooling one, in the format that a fork writes soonest.
QUICK = [("onnx", kind) for kind in ("sincos2d", "beit", "dinov3", "hybrid", "bit_v1")]
QUICK += [("torch", kind) for kind in ("token", "learned_2d", "relative", "eva02", "mixer")]
QUICK += [("torch", kind) for kind in ("map", "merging_map")]
FIRST = {"data_format": "channels_first", "input_shape": (3, 32, 32)}
NORMALIZED = r"takes normalized pixels.*include_preprocessing=True"
# The code of the process that writes a file, with a check that fails.
BROKEN_WRITER = """
import runpy, sys
from keras_vit.exporting import agreement
agreement.check_agreement = None
del sys.argv[1:3]  # -m, and the module
runpy.run_module("keras_vit.exporting.writer_process", run_name="__main__")
"""


def assert_agrees(run: Callable[[np.ndarray], np.ndarray], model: Any) -> None:
    images = check_images(model.image_size, model.channels)
    expected = answers_of(model, bank.outputs(model, images))
    for rows in (slice(0, 1), slice(1, 8)):
        np.testing.assert_allclose(run(images[rows]), expected[rows], atol=1e-4)


@pairs(
    [f for f in FORMATS if f != "html"],  # it has ONNX inside
    EVERY_KIND,
    *QUICK,
    stood_for=[kind for _, kind in QUICK],
)
def test_goes_through_every_format(format: str, kind: str, artifacts: Artifacts) -> None:
    run = artifacts.file(kind, format).predict_on_batch
    assert_agrees(run, artifacts.model(kind).copy(dtype="float32"))


@formats(of=("onnx",))  # once by hand: SavedModel, LiteRT and OpenVINO
@pytest.mark.parametrize("head", ["dpt", "eomt"])
def test_goes_through_with_a_head_of_pixels(head: str, format: str, artifacts: Artifacts) -> None:
    file = artifacts.file(head, format)
    assert_agrees(file.predict_on_batch, artifacts.model(head))
    assert check(file.path).ok
    text, rest = FORMATS[format].implementation().read_proof(file.path)
    rows = next(iter(Proof.from_text(text, file.contract, rest)[0].expected.values()))
    assert rows[0].size <= MOST_VALUES < file.output_shape[1] * file.output_shape[2] * 5


def test_others_are_refused_at_once(tmp_path: Path) -> None:
    for base, changes, words in (
        ("token", {"include_preprocessing": False}, NORMALIZED),
        ("token", FIRST, "Rebuild it as channels_last"),
        ("gap", {"input_shape": (None, None, 3)}, "give image_size=224"),
    ):
        model = build(base, **changes)
        for format in FORMATS:
            refused(words, keras_vit.export, model, tmp_path / PATHS[format], format)
    refused("object is not a model of keras_vit", keras_vit.export, object(), "a.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", ["token", "gap", "sincos2d", "map", "dinov3", "beit"])
def test_torch_traces_models(kind: str) -> None:
    """`torch.jit.trace` checks that a second trace, without gradients, is the same graph."""
    import torch

    model, images = MODELS[kind](), torch.rand(2, 32, 32, 3) * 255
    found = torch.jit.trace(model, images)(images).detach().numpy()
    np.testing.assert_allclose(found, model(images).detach().numpy(), atol=1e-6)


@pytest.mark.backends("torch")
def test_torch_exports_layers_to_onnx_by_its_former_exporter(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    import torch

    tokens, options = torch.rand(2, 17, 32), {"dynamo": False, "opset_version": 18}
    for layer in (
        Dense(8),
        keras_vit.layers.MultiHeadSelfAttention(keras_vit.layers.AttentionConfig(num_heads=4)),
        keras_vit.layers.EncoderBlock(keras_vit.layers.BlockConfig(num_heads=4, mlp_dim=64)),
        keras_vit.layers.AttentionPooling(num_heads=4, mlp_dim=64),
    ):
        expected, file = layer(tokens).detach().numpy(), str(tmp_path / f"{layer.name}.onnx")
        torch.onnx.export(layer, (tokens,), file, input_names=["x"], **options)
        (outputs,) = onnxruntime.InferenceSession(file).run(None, {"x": tokens.numpy()})
        np.testing.assert_allclose(outputs, expected, atol=1e-5, err_msg=layer.name)


@pytest.mark.backends("torch")  # where Keras cannot write these formats
def test_keras_own_export_says_what_writes_the_format(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"keras_vit.export\(model, path, .tf_saved_model"):
        bank.tiny().export(tmp_path / "1")
    with pytest.raises(ValueError, match=r"\.pt2"):  # Keras's sentence on arguments stays
        bank.tiny().export(tmp_path / "m", format="torch")


def test_the_reason_of_a_failure_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process and in a second one: the message, not its last line, nor AutoGraph's code."""

    def broken(*_: Any) -> Any:
        raise TypeError("the second channel\nmust be known")

    with monkeypatch.context() as patch:
        patch.setattr("keras_vit.exporting.saved_model.named_answers", broken)
        said = refused("", keras_vit.export, bank.tiny(), tmp_path / "1", error=RuntimeError)
    expected = "The model is not exported as tf_saved_model: TypeError: the second channel\n"
    assert said.startswith(expected)
    assert "in user code" not in said
    python, environment = process_on("tensorflow")
    broken_process = [*python, "-c", BROKEN_WRITER], environment
    monkeypatch.setattr("keras_vit.ops.process_on", lambda name: broken_process)
    given = bank.tiny(), tmp_path / "m.onnx", "onnx"
    said = refused("", keras_vit.export, *given, error=RuntimeError)
    reason = "TypeError: 'NoneType' object is not callable"
    assert said == f"The model is not exported as onnx: {reason}"
    # Without what frameworks add.
    keras_error = (
        "Exception encountered when calling Dense.call().\n\n\x1b[1mno axis 3\nin x\x1b[0m\n\n"
        "Arguments received by Dense.call():\n  • x=torch.Tensor(...)"
    )
    assert failure_reason(ValueError(keras_error)) == "no axis 3\nin x"
    autograph = (
        'in user code:\n\n    File "/a.py", line 3, in f  *\n        return g(x)\n'
        '    File "/a.py", line 9, in g\n        raise ValueError("channels=2")\n\n'
        "    ValueError: channels=2 must be 3\n"
    )
    assert failure_reason(ValueError(autograph)) == "ValueError: channels=2 must be 3"
    assert failure_reason(KeyError("a")) == "KeyError: 'a'"
    assert len(failure_reason(RuntimeError(10**5 * "x"))) < 2100


# Models of raw files of 12 bits, and their exports. (To train one: `tests/cli/test_tasks.py`.)
SIZES = {"patch_size": 4, "hidden_dim": 48, "depth": 2, "num_heads": 4, "pooling": "gap"}


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> Splits:
    """Digits as a detector of 12 bits gives them: their strokes are in the lowest four."""
    imagecodecs, _ = map(pytest.importorskip, ("imagecodecs", "grain"))
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
def test_exports_of_raw_files(untrained: Any, splits: Splits, tmp_path: Path, format: str) -> None:
    written, files = exported(tmp_path, untrained, format), splits.val.files[:20]
    expected = dict(predict_files(untrained, files))
    for file, answer in predict_files(written, files):
        np.testing.assert_allclose(answer, expected[file], atol=1e-4)
    assert np.ptp(list(expected.values()), axis=0).max() > 0.1
    assert compare(untrained, written, splits.val).agreement == 1
    assert (check(written.path).ok, check(written.path).files) == (True, 0)
    assert written.contract.dtype == "float32"
    images = np.linspace(0, 255, 512).reshape(8, 8, 8, 1).astype("uint8")
    warned("standard deviations: 205", written.predict, images, kind=DataRangeWarning)


def test_what_does_not_fit_is_refused(untrained: Any, splits: Splits, tmp_path: Path) -> None:
    of_bytes = calibration_images(untrained, splits.train, 40).astype("uint8")
    int8 = {"format": "openvino", "quantize": "int8", "calibration": of_bytes}
    html = {"format": "html"}
    for options, message in ((html, "in a range of their own"), (int8, "must be float32 images")):
        refused(message, exported, tmp_path, untrained, **options)
    assert not list(tmp_path.iterdir())
    batches = pipeline(splits.val, 8, 32, eval_transform="stretch")
    images = np.concatenate([batch for batch, _ in batches])
    predict, words = untrained.copy().predict, "neither scaled nor normalized"
    warned(words, predict, images / 65535, verbose=0, kind=DataRangeWarning)
    other, unsaid = digits_vit(), untrained.copy()
    unsaid.eval_transform = "stretch"
    words, files = r"EvalTransform\(bands=\(1,\)\)", splits.val.files
    refused(words, lambda: next(predict_files(unsaid, files)))
    with pytest.raises(ValueError, match="one band for each"):
        other.eval_transform = EvalTransform(bands=(1, 2))
    for wrong in (((1,), (0,)), ((1, 2), (1, 2)), ((float("nan"),), (1,)), 3, ("a", "b")):
        refused("normalization=", digits_vit, normalization=wrong)


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
