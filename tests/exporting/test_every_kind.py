"""Every kind of position, pooling and family goes through every format, or is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_vit
from keras_vit.exporting import FORMATS, check
from keras_vit.exporting.agreement import check_images
from keras_vit.exporting.failure import failure_reason
from keras_vit.exporting.proof import MOST_VALUES, Proof
from keras_vit.layers._dense import Dense
from keras_vit.models.answers import answers_of
from keras_vit.ops import process_on
from tests import bank
from tests.exporting.artifacts import EVERY_KIND, MODELS, PATHS, Artifacts, formats, pairs
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
            with pytest.raises(ValueError, match=words):
                keras_vit.export(model, tmp_path / PATHS[format], format)
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
        with pytest.raises(RuntimeError) as caught:
            keras_vit.export(bank.tiny(), tmp_path / "1")
    expected = "The model is not exported as tf_saved_model: TypeError: the second channel\n"
    assert str(caught.value).startswith(expected)
    assert "in user code" not in str(caught.value)
    python, environment = process_on("tensorflow")
    broken_process = [*python, "-c", BROKEN_WRITER], environment
    monkeypatch.setattr("keras_vit.ops.process_on", lambda name: broken_process)
    with pytest.raises(RuntimeError) as caught:
        keras_vit.export(bank.tiny(), tmp_path / "m.onnx", "onnx")
    reason = "TypeError: 'NoneType' object is not callable"
    assert str(caught.value) == f"The model is not exported as onnx: {reason}"
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
