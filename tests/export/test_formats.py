"""Every format predicts what its model does, carries its contract, and is refused when damaged."""

import dataclasses
import json
import os
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.export import FORMATS, ExportedModel, load_exported
from keras_vit.export.agreement import check_agreement, check_images, check_novelty
from keras_vit.export.comparison import calibration_images, compare, size_of
from keras_vit.export.openvino_folder import quietly_imported
from keras_vit.tasks import Classification, Task
from keras_vit.weights import CheckpointError
from keras_vit_cli import commands as cli
from tests.export.test_saved_model import evaluation_images, softmax
from tests.models.test_common import build, wake

NAMES = ("ant", "bee", "\udcff", "a\nb", "elk")
PATHS = {
    "tf_saved_model": "1",
    "onnx": "model.onnx",
    "litert": "model.tflite",
    "openvino": "2",
    "torch": "model.pt2",
}
IMAGES = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3)).astype("uint8")
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"


def exported(folder: Path, model: Any, format: str, **options: Any) -> ExportedModel:
    return load_exported(keras_vit.export_model(model, folder / PATHS[format], format, **options))


def probabilities(model: Any, images: np.ndarray) -> np.ndarray:
    return softmax(model.predict(images, verbose=0))


# Each is written by a process of its own, from a file: the same from every backend.
ON_EVERY_BACKEND = "onnx"


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ExportedModel]:
    """One model in every format, with the positions of training from scratch, and itself."""
    folder = tmp_path_factory.mktemp("artifacts")
    model = build("token", position_embedding="sincos2d")
    formats = FORMATS if ON_TENSORFLOW else [ON_EVERY_BACKEND]
    files = {name: exported(folder, model, name, class_names=NAMES, top_k=3) for name in formats}
    return files | {"model": model}


@pytest.mark.parametrize(
    "format",
    [pytest.param(f, marks=[pytest.mark.every_backend] * (f == ON_EVERY_BACKEND)) for f in FORMATS],
)
def test_predicts_as_the_model(format: str, artifacts: dict[str, Any]) -> None:
    """Batches of 1 and 7 by the same file, pixels of both kinds, and what it says of itself."""
    file, model = artifacts[format], artifacts["model"]
    expected = probabilities(model, IMAGES)
    for rows in (slice(0, 1), slice(1, 8)):
        np.testing.assert_allclose(file.predict_on_batch(IMAGES[rows]), expected[rows], atol=1e-4)
    between = IMAGES + np.float32(0.2)  # levels, as prepared photographs are
    expected = probabilities(model, between)
    np.testing.assert_allclose(file.predict(between, batch_size=3), expected, atol=1e-5)
    contract = file.contract
    assert (contract.format, contract.task.names, contract.top_k) == (format, NAMES, 3)
    assert (contract.image_size, contract.channels, contract.quantize) == ((32, 32), 3, None)
    assert contract.evaluation == model.eval_transform
    with pytest.raises(ValueError, match=r"\(None, 32, 32, 3\)"):
        file.predict(IMAGES[:, :16])


def test_names_of_inputs_and_outputs(artifacts: dict[str, Any]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    openvino = quietly_imported()
    outputs = ["probabilities", "top_classes", "top_probabilities"]
    session = onnxruntime.InferenceSession(str(artifacts["onnx"].path))
    (images,) = session.get_inputs()
    assert (images.name, images.type, images.shape) == (
        "images",
        "tensor(uint8)",
        ["batch", 32, 32, 3],
    )
    assert sorted(output.name for output in session.get_outputs()) == outputs
    found = session.run(outputs, {"images": IMAGES})
    order = np.argsort(-found[0], axis=1)[:, :3]
    np.testing.assert_array_equal(found[1], order)
    np.testing.assert_array_equal(found[2], np.take_along_axis(found[0], order, 1))
    model = openvino.Core().read_model(artifacts["openvino"].path / "model.xml")
    assert [name for port in model.inputs for name in port.names] == ["images"]
    assert sorted(name for port in model.outputs for name in port.names) == outputs
    with zipfile.ZipFile(artifacts["litert"].path) as archive:
        assert archive.read("labels.txt").decode() == "ant\nbee\n?\na b\nelk"


def test_nothing_is_reported(run_python: Callable[..., str]) -> None:
    """OpenVINO sends its makers a line per import unless it is told otherwise."""
    pytest.importorskip("openvino_telemetry")
    code = """
import os
from keras_vit.export.openvino_folder import quietly_imported
quietly_imported()
import nncf, openvino_telemetry
print(openvino_telemetry.Telemetry().consent, os.environ.get("CI"))
"""
    assert run_python(code).split()[-2:] == ["False", str(os.environ.get("CI"))]


@pytest.mark.parametrize(
    "format", ["onnx", *(pytest.param(f, marks=pytest.mark.slow) for f in FORMATS if f != "onnx")]
)
def test_weights_stand_once(format: str, tmp_path: Path) -> None:
    arguments = {"hidden_dim": 256, "mlp_dim": 1024, "num_heads": 4, "depth": 2}
    model = build("token", **arguments)
    path = keras_vit.export_model(model, tmp_path / PATHS[format], format)
    assert size_of(path) < 1.25 * 4 * model.count_params()


KINDS: dict[str, Callable[[], Any]] = {
    "token": lambda: build("token"),
    "hybrid": lambda: build("hybrid"),
    "mixer": lambda: build("mixer"),
    "merging": lambda: build("token", token_merging=4),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("format", FORMATS)
def test_a_hundred_photographs(format: str, kind: str, shared: Path, tmp_path: Path) -> None:
    """The same class for all, and probabilities within 1e-3; another dtype policy changes none."""
    folder = shared / "photos" / "flowers"
    files = [folder / line for line in (folder / "val.txt").read_text().split()][::4][:100]
    model = KINDS[kind]()
    images = np.rint(evaluation_images(files, 32)).astype("uint8")
    expected = probabilities(model, images)
    file = exported(tmp_path, model, format)
    for batch_size in (1, 7):
        found = file.predict(images, batch_size=batch_size)
        assert np.abs(found - expected).max() <= 1e-3
        assert (found.argmax(1) == expected.argmax(1)).all()
    assert len(set(expected.argmax(1))) > 1  # predicting one class would prove little


@pytest.mark.parametrize(
    "format",
    ["tf_saved_model", *(pytest.param(f, marks=pytest.mark.slow) for f in ("onnx", "torch"))],
)
def test_a_file_averages_over_the_views_of_its_model(format: str, tmp_path: Path) -> None:
    model = build("token")
    wake(model)
    model.eval_transform = {"mode": "stretch", "views": "crops"}
    file = exported(tmp_path, model, format)
    # Or the views would be averaged twice.
    assert file.eval_transform.to_dict() == {"mode": "stretch"}
    averaged = keras_vit.average_views(model).predict(IMAGES.astype("float32"), verbose=0)
    np.testing.assert_allclose(file.predict(IMAGES), softmax(averaged), atol=1e-4)
    assert np.abs(softmax(averaged) - probabilities(model, IMAGES)).max() > 1e-4


def test_mixed_precision_is_written_in_float32(tmp_path: Path) -> None:
    model = build("token", dtype="mixed_bfloat16")
    file = exported(tmp_path, model, "litert")
    expected = probabilities(model.copy(dtype="float32"), IMAGES)
    np.testing.assert_allclose(file.predict(IMAGES), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("format", "calibrated"),
    [
        ("onnx", False),
        pytest.param("openvino", True, marks=pytest.mark.slow),  # the others need no images
        pytest.param("litert", False, marks=pytest.mark.slow),
        pytest.param("openvino", False, marks=pytest.mark.slow),
    ],
)
def test_int8(format: str, calibrated: bool, tmp_path: Path) -> None:
    model = build("token", hidden_dim=128, mlp_dim=512, num_heads=2, depth=2)
    calibration = IMAGES if calibrated else None
    file = exported(tmp_path, model, format, quantize="int8", calibration=calibration)
    assert file.contract.quantize == "int8"
    assert size_of(file.path) < 0.6 * 4 * model.count_params()  # patches' kernel is in float32
    difference = np.abs(file.predict(IMAGES) - probabilities(model, IMAGES))
    assert 0 < difference.sum(1).mean() / 2 < 0.1


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "foreign": lambda content: b"this is no model" * 99,
    "truncated": lambda content: content[: len(content) // 2],
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("format", FORMATS)
def test_damaged_files(format: str, damage: str, artifacts: dict[str, Any], tmp_path: Path) -> None:
    source = artifacts[format].path
    name = FORMATS[format].files[0] if source.is_dir() else source.name
    target = tmp_path / "model" / name if source.is_dir() else tmp_path / name
    target.parent.mkdir(exist_ok=True)
    content = (source / name if source.is_dir() else source).read_bytes()
    target.write_bytes(DAMAGES[damage](content))
    with pytest.raises(CheckpointError, match=r"damaged|not exported by this package"):
        load_exported(tmp_path / "model" if source.is_dir() else target)


def test_hostile_descriptions(artifacts: dict[str, Any], tmp_path: Path) -> None:
    source = artifacts["litert"].path
    with zipfile.ZipFile(source) as archive:
        contract = json.loads(archive.read("keras_vit.json"))
    for changes, words in (
        ({"image_size": [0, 32]}, "height=0"),
        ({"channels": 0}, "channels"),
        ({"evaluation": {"mode": "rm -rf"}}, "rm -rf"),
        ({"class_names": None}, "damaged"),
        ({"class_names": ["one"]}, "one class, 'one', which is 1 for every image"),
        ({"task": {"kind": "rm -rf"}}, "rm -rf"),
        ({"task": {"kind": "regression", "size": 1, "scale": [0]}}, "scale"),
        ({"task": None}, "neither a task nor raw_shape"),
        ({"task": None, "raw_shape": [0]}, "raw_shape"),
        ({"format": "onnx"}, "says that it is 'onnx'"),
        ({"other": 1}, "other"),
    ):
        target = tmp_path / "model.tflite"
        with zipfile.ZipFile(target, "w") as archive:
            archive.writestr("keras_vit.json", json.dumps(contract | changes))
        with pytest.raises(CheckpointError, match=words):
            load_exported(target)


def test_a_torch_file_is_never_unpickled(artifacts: dict[str, Any], tmp_path: Path) -> None:
    target, ran = tmp_path / "model.pt2", tmp_path / "ran"
    payload = f"cposix\nsystem\n(S'touch {ran}'\ntR.".encode()
    changes: dict[str, Callable[[str, bytes], bytes]] = {
        "sample_inputs/model.pt": lambda name, content: payload,
        "model_constants_config.json": lambda name, content: content.replace(
            b'"use_pickle": false', b'"use_pickle": true'
        ),
    }
    with zipfile.ZipFile(artifacts["torch"].path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for suffix, change in changes.items():
        assert any(name.endswith(suffix) for name in members)
        with zipfile.ZipFile(target, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, change(name, content) if name.endswith(suffix) else content)
        with pytest.raises(CheckpointError, match=r"model\.pt2 is damaged"):
            load_exported(target)
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr("model/data/constants/custom_obj_0", payload)
    with pytest.raises(CheckpointError, match="custom_obj_0"):
        load_exported(target)
    assert not ran.exists()


def test_refusals_come_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("token")
    export: Any = keras_vit.export_model
    for arguments, words in (
        (("model.bin", "onnx"), r"must end in \.onnx: give 'model\.onnx'"),
        (("1", "tf_saved_model", "int8"), "not have int8 operators.*litert"),
        (("model.pt2", "torch", "int8"), "torchao"),
        (("model.onnx", "onnx", "int4"), "'int4' is not known"),
    ):
        with pytest.raises(ValueError, match=words):
            export(model, tmp_path / arguments[0], arguments[1], quantize=(*arguments, None)[2])
    with pytest.raises(ValueError, match="calibration is for quantize='int8'"):
        export(model, tmp_path / "m.onnx", "onnx", calibration=IMAGES)
    with pytest.raises(ValueError, match=r"must be uint8 images \(images, 32, 32, 3\)"):
        export(model, tmp_path / "m.onnx", "onnx", quantize="int8", calibration=IMAGES / 255)
    (tmp_path / "m.onnx").write_text("the user's")
    for overwrite, words in ((False, "exists"), (True, "was not exported by this package")):
        with pytest.raises(FileExistsError, match=words):
            export(model, tmp_path / "m.onnx", "onnx", overwrite=overwrite)
    assert (tmp_path / "m.onnx").read_text() == "the user's"
    model.quantize("int8")
    with pytest.raises(ValueError, match=r"quantized by Keras \(int8\).*quantize='int8'"):
        export(model, tmp_path / "q.onnx", "onnx")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ImportError, match=r"tf2onnx.* is missing: pip install 'keras3-vit\[onnx\]'"
    ):
        export(build("token"), tmp_path / "m.onnx", "onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_images_to_calibrate_by_that_were_scaled_first(tmp_path: Path) -> None:
    with (
        pytest.warns(keras_vit.DataRangeWarning, match="calibration takes pixels from 0 to 255"),
        pytest.raises(ValueError, match="must end in"),  # before anything is written
    ):
        keras_vit.export_model(build("token"), tmp_path / "m.bin", "onnx", quantize="int8",
                               calibration=IMAGES // 255)  # fmt: skip


def test_what_differs_is_refused() -> None:
    images = check_images((9, 12), 3)
    assert images.std() > 30
    np.testing.assert_array_equal(images, check_images((9, 12), 3))
    expected = np.random.default_rng(0).dirichlet(np.ones(4), 8)
    contract = _contract(Classification(size=4))
    for run, words in (
        (lambda x: expected[: len(x)], "probabilities differ from the model's by up to 0"),
        (lambda x: np.full((len(x), 4), np.nan), "not finite"),
        (lambda x: expected[:1], r"\(1, 4\) for 7 images"),
    ):
        with pytest.raises(RuntimeError, match=words):
            check_agreement(run, images, expected, contract)
    wrong = np.roll(expected, 1, axis=1)
    parts = iter((wrong[:1], wrong[1:]))
    quantized = dataclasses.replace(contract, quantize="int8")
    with pytest.raises(RuntimeError, match="int8 moves"):
        check_agreement(lambda x: next(parts), images, expected, quantized)
    novelty = np.array([0.1, 0.9, 2, 3, 4, 50, 60, 70])
    for factor, of, words in (
        (1.001, contract, None),
        (1.02, contract, "novelty differs from the model's by up to 2.00%"),
        (1.2, quantized, None),
        (1.5, quantized, "int8 moves its novelty"),
        (np.nan, contract, "not finite"),
    ):
        scores = iter((factor * novelty[:1], factor * novelty[1:]))
        with pytest.raises(RuntimeError, match=words) if words else nullcontext():
            check_novelty(lambda x, scores=scores: next(scores), images, novelty, of)


@pytest.mark.skipif(not ON_TENSORFLOW, reason="the commands are the same")
def test_the_commands(
    artifacts: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`export --quantize` on data, and `predict` and `evaluate` of what it wrote."""
    sizes = {"patch_size": 4, "hidden_dim": 32, "depth": 1, "num_heads": 2}
    model = keras_vit.VisionTransformer(**sizes, num_classes=10, input_shape=(8, 8, 1))
    wake(model)
    model.save(tmp_path / "model.keras")
    file, images = tmp_path / "digits.tflite", tmp_path / "image.png"
    keras.utils.save_img(images, IMAGES[0, :8, :8])
    export = ["export", str(tmp_path / "model.keras"), "--format", "litert", "--out", str(file)]
    assert cli.main([*export, "--quantize", "int8", "--data", "digits"]) == 0
    assert "the same class" in capsys.readouterr().out
    assert cli.main(export) == 2
    assert "--overwrite" in capsys.readouterr().err.replace("overwrite=True", "--overwrite")
    assert cli.main(["predict", str(file), str(images), "--top", "2"]) == 0
    assert "%" in capsys.readouterr().out
    assert cli.main(["evaluate", str(file), "--data", "digits"]) == 0
    assert "macro average" in capsys.readouterr().out
    assert cli.main(["evaluate", str(file), "--data", "digits", "--knn", "5"]) == 2
    assert "exported file" in capsys.readouterr().err


def test_comparison_and_calibration() -> None:
    digits = keras_vit.data.load("digits")
    model = build("token", num_classes=10, input_shape=(8, 8, 1), patch_size=4)
    images = calibration_images(model, digits.train, 50)
    assert (images.shape, images.dtype) == ((50, 8, 8, 1), np.uint8)
    file = ExportedModel(Path(__file__), _contract(), lambda x: [probabilities(model, x)])
    compared = compare(model, file, digits.val)
    assert (compared.images, compared.agreement) == (360, 1.0)
    assert compared.score == compared.exported_score
    assert [line[:16].strip() for line in str(compared).splitlines()] == [
        "on 360 images", "accuracy", "the same class", "size",
    ]  # fmt: skip
    batches = keras_vit.data.pipeline(digits.val, (8, 8), 32, channels=1)
    assert file.predict(batches, steps=2).shape == (64, 10)
    with pytest.raises(ValueError, match="steps"):
        file.predict(batches, steps=0)


DIGITS = Classification(tuple("0123456789"))


def _contract(task: Task = DIGITS) -> keras_vit.export.Contract:
    return keras_vit.export.Contract(
        format="onnx",
        task=task,
        image_size=(8, 8),
        channels=1,
        top_k=5,
        max_pixels=64,
    )
