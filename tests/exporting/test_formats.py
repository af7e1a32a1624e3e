"""Every format predicts what its model does, carries its contract and proof, or is refused."""

import json
import re
import runpy
import shutil
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from PIL import Image
from scipy.stats import beta
from sklearn.metrics import accuracy_score

import keras_vit
from keras_vit import data
from keras_vit.data import EvalTransform, read_image
from keras_vit.exporting import (
    FORMATS,
    ExportedModel,
    check,
    load_exported,
    onnx_file,
    other_engines,
    page_file,
    peer_folder,
    smallest,
)
from keras_vit.exporting.agreement import check_agreement, check_images
from keras_vit.exporting.comparison import Comparison, calibration_images, compare, size_of
from keras_vit.exporting.contract import Contract
from keras_vit.exporting.exported import read_contract
from keras_vit.exporting.proof import Proof
from keras_vit.exporting.smallest import Smallest, Trial, export_smallest
from keras_vit.models.answers import answers_of
from keras_vit.tasks import Classification, Regression, Segmentation
from keras_vit.weights import CheckpointError
from tests import bank
from tests.backend import refused
from tests.conftest import Command
from tests.data.image_fixtures import encode, write
from tests.exporting import artifacts as made
from tests.exporting.artifacts import IMAGES, Artifacts, contract, exported, formats, probabilities
from tests.exporting.test_one_preparation import sensitive_model
from tests.models.test_common import build
from tests.models.test_task import TASKS, vit
from tests.weights.models import flips

INT8 = [made.case("openvino", True, quick=False)]
INT8 += [made.case(format, False, quick=False) for format in ("onnx", "litert")]
INT8 += [made.case(f, False, quick=False, rest=pytest.mark.slow) for f in ("html", *made.LONG)]
FOLDER, FLOATS = {"format": "tf_saved_model"}, {"quantize": "int8", "calibration": IMAGES / 255}
# Another backend's file is written by a new process, which starts in seconds: one stands for all.
FILES = [pytest.param("onnx", marks=pytest.mark.every_backend)]
QUICK = ("onnx", "tf_saved_model", "litert", "torch")
OTHERS = [f for f in FORMATS if f != "onnx"]
FILES += [made.case(f, quick=f in QUICK, long=pytest.mark.thorough) for f in OTHERS]


def of_names(artifacts: Artifacts, format: str) -> ExportedModel:
    return artifacts.file("sincos2d", format, class_names=made.NAMES, top_k=3)


@pytest.mark.parametrize("format", FILES)
def test_predicts_as_the_model(format: str, artifacts: Artifacts) -> None:
    """Batches of 1 and 7 by the same file, pixels of both kinds, and what it says of itself."""
    file, model = of_names(artifacts, format), artifacts.model("sincos2d")
    expected = made.softmax(model.predict(IMAGES, verbose=0))
    for rows in (slice(1), slice(1, 8)):
        np.testing.assert_allclose(file.predict_on_batch(IMAGES[rows]), expected[rows], atol=1e-4)
    between = IMAGES + np.float32(0.2)  # levels, as prepared photographs are
    expected = probabilities(model, between)
    atol = 1e-4 if format == "executorch" else 1e-5  # XNNPACK has a GELU of its own
    np.testing.assert_allclose(file.predict(between, batch_size=3), expected, atol=atol)
    says = file.contract
    assert (says.format, says.task.names, says.top_k) == (format, made.NAMES, 3)
    assert (says.image_size, says.channels, says.quantize) == ((32, 32), 3, None)
    assert says.evaluation == model.eval_transform
    refused(r"\(None, 32, 32, 3\)", file.predict, IMAGES[:, :16])


@formats(of=("tf_saved_model", "torch"))  # others: below
def test_weights_stand_once(format: str, artifacts: Artifacts) -> None:
    parameters = artifacts.model("large").count_params()
    assert size_of(artifacts.path("large", format)) < 1.25 * 4 * parameters


@pytest.mark.parametrize(("format", "calibrated"), INT8)
def test_int8(format: str, calibrated: bool, artifacts: Artifacts, tmp_path: Path) -> None:
    model, calibration = artifacts.model("large"), IMAGES if calibrated else None
    file = exported(tmp_path, model, format, quantize="int8", calibration=calibration)
    result = check(file.path)
    assert result.ok, result
    assert "int8" in str(result)
    exact = artifacts.path("large", format)
    assert size_of(exact) < 1.25 * 4 * model.count_params()
    between = 1e-3 if format == "executorch" else 3e-4  # XNNPACK has a GELU of its own
    assert check(exact).tolerance["probabilities"] < between < result.tolerance["probabilities"]
    assert file.contract.quantize == "int8"
    most = 0.5 if format == "html" else 0.6  # the patches' kernel is in float32
    assert size_of(file.path) < most * 4 * model.count_params()
    difference = np.abs(file.predict(IMAGES) - probabilities(model, IMAGES))
    assert 0 < difference.sum(1).mean() / 2 < 0.1
    assert difference.max() < 0.02 or format != "html"  # which rounds weights alone


@formats(of=("onnx", "html"))
def test_mixed_rounds_the_blocks_between(format: str, tmp_path: Path, digits: Any) -> None:
    """By what the graph stores; the flips are of the file's answers, as scikit-learn counts."""
    model, (images, labels) = digits_model(hidden_dim=64, mlp_dim=128, depth=4), digits.as_arrays()
    file = exported(tmp_path, model, format, quantize="mixed")
    parts = page_file._parts(file.path, "graph") if format == "html" else {}
    onnx, content = pytest.importorskip("onnx"), parts.get("graph") or file.path.read_bytes()
    graph = onnx.load_from_string(content).graph
    int8, stored = {"onnx": 2, "html": 3}[format], set()
    for kernel in (each for each in graph.initializer if np.prod(each.dims) >= 1024):
        stored.add(("".join(re.findall(r"block_(\d)", kernel.name)[:1]), kernel.data_type))
    # Types of ONNX: 10 is float16; 2 and 3 are eight bits.
    assert stored == {("", 10), ("0", 10), ("1", int8), ("2", int8), ("3", 10)}
    products = {n.name for n in graph.node if n.op_type == "MatMulNBits"}
    blocks = {re.findall(r"block_(\d)", name)[0] for name in products}
    assert blocks == ({"1", "2"} if format == "onnx" else set())
    assert check(file.path).ok
    found = compare(model, file, digits)
    before, after = (x.argmax(1) for x in (probabilities(model, images), file.predict(images)))
    assert found.flips == pytest.approx((before != after).mean())
    assert found.exported_score == pytest.approx(accuracy_score(labels, after), abs=1e-12)


def test_blocks_between_by_the_names_of_nodes() -> None:
    names = [f"vit_1/block_{i}_{call}/mlp_1/MatMul" for i in range(12) for call in (1, 12)]
    outer = {name for name in names if re.search("block_(0|11)_", name)}
    assert onnx_file.between([*names, "vit_1/head_1/MatMul", "TopK"]) == {*names} - outer
    refused("quantize='mixed' rounds.*there are none.*'float16'", onnx_file.between, names[:4])


@pytest.mark.thorough
@pytest.mark.backends("torch")
def test_a_core_ml_package(artifacts: Artifacts, tmp_path: Path, command: Command) -> None:
    """What Linux can see of it: `test_predicts_as_the_model` has what its program computes."""
    coremltools = pytest.importorskip("coremltools")
    file, model = of_names(artifacts, "coreml"), artifacts.model("sincos2d")
    spec = coremltools.utils.load_spec(str(file.path))
    (images,) = spec.description.input
    assert (images.name, [*images.type.multiArrayType.shape]) == ("images", [1, 32, 32, 3])
    shapes = {o.name: [*o.type.multiArrayType.shape] for o in spec.description.output}
    assert shapes == {"probabilities": [1, 5], "top_classes": [1, 3], "top_probabilities": [1, 3]}
    assert "Written where Core ML is not" in spec.description.metadata.shortDescription
    assert coremltools.libmodelpackage.ModelPackage.isValid(str(file.path))
    stored = (file.path / "Data/com.apple.CoreML/weights/weight.bin").read_bytes()
    weights = [v for v in model.trainable_variables if len(v.shape) == 2 and "kernel" in v.path]
    assert len(weights) > 8
    for weight in weights:
        kernel = keras.ops.convert_to_numpy(weight)
        assert any(each.tobytes() in stored for each in (kernel.T, kernel)), weight.path
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    model.save(tmp_path / "m.keras")
    export = f"export {tmp_path}/m.keras --format coreml --data digits --out {tmp_path}/m.mlpackage"
    for line in (f"predict {file.path} {tmp_path}/a.png", f"serve {file.path}", export):
        assert "which only macOS and iOS have" in command(line, status=2)
    assert "Check it on a Mac, too" in command("check", file.path)
    merging, package = artifacts.model("merging"), tmp_path / "merging.mlpackage"
    refused("Core ML does not have the stable sort", keras_vit.export, merging, package)


@pytest.mark.thorough
@pytest.mark.backends("torch")
def test_executorch_does_not_run_one_channel(tmp_path: Path) -> None:
    pytest.importorskip("executorch")
    words = "error 0x12. ExecuTorch does not run convolutions on one channel.*'litert'"
    file = tmp_path / "m.pte"
    refused(words, keras_vit.export, digits_model(depth=1), file, error=RuntimeError)
    assert not file.exists()


@pytest.mark.usefixtures("here")
def test_a_model_repository_of_triton(artifacts: Artifacts, command: Command) -> None:
    artifacts.model("ordinal").save("m.keras")
    export = "export m.keras --triton --overwrite --out r/photos/1/model.onnx"
    config = Path("r/photos/config.pbtxt")
    for _ in range(2):
        command(export)
    first, _, rest = config.read_text().partition("\n")
    assert first.startswith("# Written by keras_vit from 1/model.onnx, sum ")
    assert rest.partition("dynamic_batching")[0] == (
        'backend: "onnxruntime"\n'
        "max_batch_size: 8\n"
        'input [ { name: "images" data_type: TYPE_UINT8 dims: [ 32, 32, 3 ] } ]\n'
        'output [ { name: "grade" data_type: TYPE_INT32 dims: [ 1 ] reshape { shape: [ ] } } ]\n'
        'output [ { name: "probabilities" data_type: TYPE_FP32 dims: [ 3 ] } ]\n'
    )
    for mine in (f"{first}\n{rest}instance_group [ {{ kind: KIND_GPU }} ]\n", "mine"):
        config.write_text(mine)
        assert "is not replaced" in command(export, status=2)
        assert config.read_text() == mine


@formats("tf_saved_model", "onnx", of=("tf_saved_model", "torch", "onnx"))
def test_a_file_averages_over_the_views_of_its_model(format: str, tmp_path: Path) -> None:
    model = vit(task=TASKS["regression"]) if format == "onnx" else build("token", depth=1)
    model.eval_transform = {"mode": "stretch", "views": "flip"}
    file = exported(tmp_path, model, format)
    # Or the views would be averaged twice.
    assert file.eval_transform.to_dict() == {"mode": "stretch"}
    models = (model.with_views(), model)
    averaged, one = (answers_of(m, bank.outputs(m, IMAGES.astype("float32"))) for m in models)
    np.testing.assert_allclose(file.predict(IMAGES), averaged, atol=1e-4)
    assert np.abs(averaged - one).max() > 1e-4


@formats(*QUICK)
def test_damaged_files(format: str, artifacts: Artifacts, tmp_path: Path) -> None:
    source = of_names(artifacts, format).path
    target, part = tmp_path / source.name, FORMATS[format].files[0] if source.is_dir() else ""
    (target / part).parent.mkdir(exist_ok=True)
    content = (source / part).read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"this is no model" * 99):
        (target / part).write_bytes(damaged)
        refused("damaged|not exported by this", load_exported, target, error=CheckpointError)


def test_hostile_descriptions(tmp_path: Path) -> None:
    target, values = tmp_path / "model.tflite", json.loads(contract(format="litert").to_text())
    for changes, words in (
        ({"image_size": [0, 32]}, "height=0"),
        ({"channels": 0}, "channels"),
        ({"evaluation": {"mode": "rm -rf"}}, "rm -rf"),
        ({"class_names": None}, "damaged"),
        ({"task": {"kind": "rm -rf"}}, "rm -rf"),
        ({"task": {"kind": "regression", "size": 1, "scale": [0]}}, "scale"),
        ({"task": {"kind": "multilabel", "size": 2, "thresholds": [0.5, 7]}}, "thresholds"),
        ({"task": None}, "neither a task nor raw_shape"),
        ({"task": None, "raw_shape": [0]}, "raw_shape"),
        ({"format": "onnx"}, "says that it is 'onnx'"),
        ({"other": 1}, "other"),
    ):
        with zipfile.ZipFile(target, "w") as archive:
            archive.writestr("keras_vit.json", json.dumps(values | changes))
        refused(words, load_exported, target, error=CheckpointError)


@pytest.mark.backends("torch")
def test_a_torch_file_is_never_unpickled(artifacts: Artifacts, tmp_path: Path) -> None:
    target, ran = tmp_path / "model.pt2", tmp_path / "ran"
    payload = f"cposix\nsystem\n(S'touch {ran}'\ntR.".encode()
    with zipfile.ZipFile(of_names(artifacts, "torch").path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    ends = ("model_constants_config.json", "sample_inputs/model.pt")
    options, sample = (next(name for name in members if name.endswith(end)) for end in ends)
    pickled = members[options].replace(b'"use_pickle": false', b'"use_pickle": true')
    assert pickled != members[options]
    for changes, words in (
        ({sample: payload}, r"model\.pt2 is damaged"),
        ({options: pickled}, r"model\.pt2 is damaged"),
        ({"model/data/constants/custom_obj_0": payload}, "custom_obj_0"),
    ):
        with zipfile.ZipFile(target, "w") as archive:
            for name, content in (members | changes).items():
                archive.writestr(name, content)
        refused(words, load_exported, target, error=CheckpointError)
    assert not ran.exists()


def test_arguments_are_refused_before_any_work(tmp_path: Path, digits: Any) -> None:
    for file, options, words in (
        ("model.bin", {}, r"must end in \.onnx: give '/.*/model\.onnx'\."),
        ("1", {"format": "onyx"}, "tf_saved_model"),
        ("name/1", {**FOLDER, "class_names": ["a", "b"]}, "2 class_names for classification of 5"),
        ("name/1", {**FOLDER, "quantize": "int8"}, "not have int8 operators.*litert"),
        ("model.pt2", {"format": "torch", "quantize": "int8"}, "torchao"),
        ("model.onnx", {"quantize": "int4"}, "'int4' is not known"),
        ("m.html", {"format": "html", "debug": True}, "another format than 'html'"),
        ("m.tflite", {"format": "litert", "quantize": "mixed"}, "not have quantize='mixed': give"),
        ("m.onnx", {"calibration": IMAGES}, "calibration is for quantize='int8'"),
        ("m.onnx", FLOATS, r"must be uint8 images \(images, 32, 32, 3\)"),
    ):
        with pytest.raises(ValueError, match=words):
            keras_vit.export(bank.small(), tmp_path / file, **{"format": "onnx", **options})
        assert not list(tmp_path.iterdir())
    scaled = {"quantize": "int8", "calibration": IMAGES // 255}
    warned = pytest.warns(data.DataRangeWarning, match="calibration takes pixels from 0 to 255")
    with warned, pytest.raises(ValueError, match="must end in"):
        keras_vit.export(bank.small(), tmp_path / "m.bin", "onnx", **scaled)
    for bound in (0, -1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="max_flips="):
            export_smallest(bank.small(), tmp_path / "m.onnx", split=digits, max_flips=bound)
    refused("is not quantized", export_smallest, bank.small(), tmp_path / "m", split=digits)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export, file = partial(keras_vit.export, bank.tiny()), tmp_path / "m.onnx"
    write(tmp_path, {"2/precious": b"the user's", file.name: b"the user's"})
    refused("never replaced", export, tmp_path / "2", error=FileExistsError)
    for overwrite, words in ((False, "exists"), (True, "was not exported by this package")):
        refused(words, export, file, "onnx", overwrite=overwrite, error=FileExistsError)
    assert (tmp_path / "2/precious").read_text() == file.read_text() == "the user's"
    model = bank.fresh(**bank.TINY)
    model.quantize("int8")
    words = r"quantized by Keras \(int8\).*quantize='int8'"
    refused(words, keras_vit.export, model, tmp_path / "q.onnx", "onnx")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    words = r"tf2onnx.* is missing: pip install 'keras3-vit\[onnx\]'.*torch writes format='torch'"
    refused(words, export, file, "onnx", error=ImportError)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "m.onnx"]


def test_what_differs_is_refused() -> None:
    images = check_images((9, 12), 3)
    assert images.std() > 30
    np.testing.assert_array_equal(images, check_images((9, 12), 3))
    rows = np.random.default_rng(0).dirichlet(np.ones(4), 8)
    of, of_values = contract(Classification(size=4)), contract(TASKS["regression"])
    quantized = replace(of, quantize="int8")
    values = np.linspace(0, 40, 8, dtype="float32")[:, None]

    def parts(answers: np.ndarray) -> Any:
        return lambda x: answers[:1] if len(x) == 1 else answers[1:]

    for run, expected, one, words in (
        (lambda x: rows[: len(x)], rows, of, "probabilities differ from the model's by up to 0"),
        (lambda x: np.full((len(x), 4), np.nan), rows, of, "not finite"),
        (lambda x: rows[:1], rows, of, r"\(1, 4\) for 7 images"),
        (parts(np.roll(rows, 1, axis=1)), rows, quantized, "int8 moves"),
        # A thousandth of a standard deviation: 0.01 kg of a task whose scale is 10 kg.
        (parts(values + 0.009), values, of_values, None),
        (parts(values + 0.02), values, of_values, r"values differ from the model's by up to 0\.02"),
    ):
        with pytest.raises(RuntimeError, match=words) if words else nullcontext():
            check_agreement(one.outputs[0], run, images, expected, one)
    maps = np.full((8, 20, 20, 4), 0.25, "float32")
    maps[:, 0, 0] = 0, 0, 0, 1  # one pixel of each image answers something else
    check_agreement("probabilities", parts(maps), images, np.full_like(maps, 0.25), quantized)
    novelty = np.array([0.1, 0.9, 2, 3, 4, 50, 60, 70])
    for factor, one, words in (
        (1.001, of, None),
        (1.02, of, r"novelty differ from the model's by up to 1\.4"),
        (1.2, quantized, None),
        (1.5, quantized, "int8 moves its novelty"),
        (np.nan, of, "not finite"),
    ):
        with pytest.raises(RuntimeError, match=words) if words else nullcontext():
            check_agreement("novelty", parts(factor * novelty), images, novelty, one)


@pytest.mark.thorough
def test_a_saved_model_that_decodes_files_otherwise(artifacts: Artifacts, tmp_path: Path) -> None:
    """It was calibrated on Pillow's pixels, and JPEG files have other ones by TensorFlow."""
    random, model = np.random.default_rng(0), build("token", num_classes=5)
    noise = random.integers(0, 256, (200, 32, 32, 3)).astype("uint8")
    photos = [encode(Image.fromarray(pixels), "JPEG", quality=20) for pixels in noise]
    jpegs = {f"{i % 5}/{i}.jpg": photo for i, photo in enumerate(photos)}
    split = keras_vit.data.load(write(tmp_path / "photos", jpegs), val_fraction=0.5).val
    file = exported(tmp_path, model, "tf_saved_model")
    assert (compare(model, file, split).files, compare(model, file, split).other_files) == (100, 0)
    model.eval_transform = EvalTransform(decoder="pillow")

    def classes(decoder: str) -> np.ndarray:
        transform = EvalTransform(decoder=decoder)
        images = [read_image(file, 32, transform=transform) for file in split.files]
        return model.predict(np.stack(images), verbose=0).argmax(-1)

    other = int((classes("tensorflow") != classes("pillow")).sum())
    assert other > 0
    compared = compare(model, file, split)
    assert (compared.files, compared.other_files) == (100, other)
    assert f"{other} of 100 images not: it decodes JPEG files" in str(compared)


@pytest.fixture(scope="module")
def digits() -> Any:
    return data.load("digits").val


# Random, and decided: some of its answers are right.
digits_model = partial(vit, task=made.DIGITS, input_shape=(8, 8, 1), patch_size=4)


def test_comparison_and_calibration(artifacts: Artifacts, digits: Any) -> None:
    model = digits_model()
    images = calibration_images(model, digits, 50)
    assert (images.shape, images.dtype) == ((50, 8, 8, 1), np.uint8)
    file = ExportedModel(Path(__file__), contract(), lambda x: [probabilities(model, x)])
    other = ExportedModel(Path(__file__), contract(TASKS["regression"]), lambda x: [x])
    words = "answers regression of .*, and the data has classification of 0, 1,"
    refused(words, compare, artifacts.model("regression"), other, digits)
    batches = data.pipeline(digits, (8, 8), 32, channels=1)
    assert file.predict(batches, steps=2).shape == (64, 10)
    refused("steps", file.predict, batches, steps=0)


def test_whose_answers_change(digits: Any) -> None:
    """The scores are scikit-learn's, of the answers themselves; the interval is that of pairs."""
    model, images = digits_model(), digits.as_arrays()[0]
    noise = 0.7 * np.random.default_rng(0).dirichlet(np.ones(10), 32)
    file = ExportedModel(
        Path(__file__), contract(), lambda x: [0.3 * probabilities(model, x) + noise[: len(x)]]
    )
    found, labels = compare(model, file, digits), digits.labels()
    before, after = probabilities(model, images).argmax(1), file.predict(images).argmax(1)
    assert found.score == pytest.approx(accuracy_score(labels, before), abs=1e-12)
    assert found.exported_score == pytest.approx(accuracy_score(labels, after), abs=1e-12)
    flipped = before != after
    assert 10 < flipped.sum() < 200
    assert found.flips == pytest.approx(flipped.mean())
    assert len(found.changed) == flipped.sum()
    assert found.agreement == pytest.approx(1 - found.flips)
    change = (after == labels).astype(float) - (before == labels)
    assert found.change.value == pytest.approx(change.mean())
    error = change.std() / len(change) ** 0.5
    half = (found.change.high - found.change.low) / 2
    assert half == pytest.approx(1.96 * error, rel=0.15)
    lost = -np.bincount(labels, change, 10)
    assert lost.max() > 0
    assert found.suffers.startswith(f"{lost.argmax()}: ")
    first = int(np.flatnonzero(flipped)[0])
    assert found.changed[0].startswith(f"image {first}: {before[first]} ")
    assert found.changed[0].endswith(f"it is {labels[first]}")
    assert f"and {flipped.sum() - 20:,} more" in str(found)


def test_pixels_with_other_answers_are_parts_of_images() -> None:
    task, random = Segmentation(("sky", "tree")), np.random.default_rng(0)
    model = bank.fresh(task=task)
    model.eval_transform = EvalTransform("stretch")
    images = bank.pixels(3, *model.image_size, 3)
    split = data.ArraySplit("all", task, images, random.integers(0, 2, (3, *model.image_size)))
    answers = task.answers(bank.outputs(model, images))
    other = answers.copy()
    other[1, :4, :8], other[2, :2, :8] = 1 - other[1, :4, :8], 1 - other[2, :2, :8]
    sizes = {"image_size": model.image_size, "channels": 3, "evaluation": {"mode": "stretch"}}
    file = ExportedModel(Path(__file__), contract(task, **sizes), lambda x: [other[: len(x)]])
    found, area = compare(model, file, split), 32 * 32
    assert found.flips == pytest.approx((32 + 16) / (3 * area))
    assert found.changed == ("image 1: 3.12% of its pixels", "image 2: 1.56% of its pixels")
    trial = Trial("int8", found)
    printed = str(Smallest((trial,), trial, 0.02))
    assert "of whose pixels at most 2 %" in printed
    assert "interval" not in printed
    assert "others" not in printed


@pytest.mark.thorough
@pytest.mark.usefixtures("here")
def test_numbers_are_scored_in_their_units(command: Command) -> None:
    """A table's own mean and scale are not those of the training."""
    pngs = {
        f"{i}.png": encode(Image.fromarray(pixels), "PNG")
        for i, pixels in enumerate(bank.pixels(9, 8, 8, 3))
    }
    ages = "".join(f"{name},{i + 3}\n" for i, name in enumerate(pngs))
    write(Path("photos"), {**pngs, "ages.csv": f"file,age\n{ages}".encode()})
    task = Regression(("age",)).fitted([20.0, 60.0])
    bank.small(input_shape=(8, 8, 3), task=task).save("m.keras")
    words = "m.keras --data photos --labels ages.csv"
    mae = command(f"evaluate {words}").split("\nmae ")[1].split()[0]
    printed = command(f"export {words} --format litert --out m.tflite")
    assert printed.split("  mae ")[1].split()[:2] == [mae, mae]


@pytest.mark.parametrize("kind", ["multilabel", "regression", "ordinal"])
def test_changes_of_other_tasks(kind: str) -> None:
    task, random = TASKS[kind], np.random.default_rng(0)
    targets = {"multilabel": random.integers(0, 2, (40, task.size))}
    targets["ordinal"] = random.integers(0, task.size, 40)
    target = targets.get(kind, random.normal(0, 10, (40, task.size)))
    rows = random.dirichlet(np.ones(max(task.size, 2)), (2, 40))
    answers, others = rows[..., : task.size]
    changes = task.score_changes(target, answers, others, resamples=50)
    first, second = (task.scores(target, each, resamples=0) for each in (answers, others))
    for name, change in changes.items():
        assert change.value == pytest.approx(second[name].value - first[name].value, nan_ok=True)
        assert not change.low > change.value
        assert not change.value > change.high


@formats("litert", of=("onnx", "litert", "openvino"), rest=pytest.mark.slow)
def test_float16_halves_the_weights(format: str, artifacts: Artifacts) -> None:
    model, file = artifacts.model("large"), artifacts.file("large", format, quantize="float16")
    assert size_of(file.path) < 0.65 * 4 * model.count_params()
    np.testing.assert_allclose(file.predict(IMAGES), probabilities(model, IMAGES), atol=2e-3)
    assert check(file.path).ok


@pytest.mark.parametrize(("images", "flips"), [(450, 0), (450, 2), (5000, 10), (5000, 45)])
def test_what_a_bound_promises_of_other_images(images: int, flips: int) -> None:
    """It prints where the interval, nearly that of Clopper and Pearson, reaches above the bound."""
    of_images = (images, "accuracy", 0.9, 0.9, 1, "class", 10, 40)
    trial = Trial("int8", Comparison(*of_images, flips=flips / images))
    printed = str(Smallest((trial,), trial, 0.01))
    exact = beta.ppf(0.975, flips + 1, images - flips)
    assert ("of others up to" in printed) == (exact > 0.01)
    high = float(printed.split(" to ")[1].split("%")[0]) / 100
    assert exact <= high + 1e-4 < exact + 1e-3


@pytest.mark.thorough
@pytest.mark.usefixtures("here")
def test_the_smallest_that_holds_the_bound(digits: Any, monkeypatch: Any, command: Command) -> None:
    model, out = digits_model(), Path("m.onnx")
    model.save("m.keras")
    words = "export m.keras --format onnx --out m.onnx --data digits --quantize auto"
    printed = command(f"{words} --max-flips 100%")
    for name in ("int8", "mixed", "float16", "float32"):
        assert printed.index(f"writing and comparing {name}\n") < printed.index(f" {name} ")
    assert "written to m.onnx, " in printed
    assert check(out).ok
    assert load_exported(out).contract.quantize in ("int8", "float16")
    Image.fromarray(bank.pixels(9, 9)).save("a.png")
    assert "%" in command("predict m.onnx a.png --top 2")
    assert "balanced_accuracy" in command("evaluate m.onnx --data digits")
    assert "exported file" in command("evaluate m.onnx --data digits --knn 5", status=2)
    real, sizes = smallest.compare, []

    def flipping(*arguments: Any) -> Any:
        found = real(*arguments)
        sizes.append(found.size)
        return replace(found, flips=0.02)

    monkeypatch.setattr(smallest, "compare", flipping)
    refused("overwrite=True", export_smallest, model, out, split=digits, error=FileExistsError)
    assert not sizes
    made = export_smallest(model, out, split=digits, overwrite=True)
    assert (made.chosen.name, load_exported(out).contract.quantize) == ("float32", None)
    assert "No quantization holds the bound" in str(made)
    assert size_of(out) == sizes[-1] == max(sizes)


# Exported files prove themselves: by images, answers and sums that they carry.
# With the engine alone; as a script it would import it anew.
SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "deploy/check_file.py"))["main"]
WEIGHTS = {"tf_saved_model": "variables/variables.data-00000-of-00001", "openvino": "model.bin"}
WEIGHTS["coreml"] = "Data/com.apple.CoreML/weights/weight.bin"


def proof_of(path: Path) -> tuple[Proof, bool]:
    about = read_contract(path)
    text, rest = FORMATS[about.format].implementation().read_proof(path)
    return Proof.from_text(text, about, rest)


def is_wrong(path: Path) -> bool:
    try:
        return not check(path).ok
    except CheckpointError:
        return True


@formats("onnx", rest=pytest.mark.slow)
def test_damage_is_found(format: str, artifacts: Artifacts, tmp_path: Path) -> None:
    model = artifacts.model("sensitive", sensitive_model)
    source = artifacts.path("sensitive", format)
    copy: Callable[..., Any] = shutil.copytree if source.is_dir() else shutil.copy
    path = Path(copy(source, tmp_path / source.name))
    result = check(path)
    assert result.ok, result
    assert (result.is_whole, result.files, result.lost) == (True, 3, 0)
    assert result.differences["probabilities"] < 1e-3
    assert result.seconds > 0
    assert format in ("html", *made.LONG) or SCRIPT(path) == 0
    proof, _ = proof_of(path)
    assert sum(proof.steady) > 4
    pixels = np.concatenate([*proof.prepared(result.contract), proof.pixels.astype("float32")])
    expected = model.task.answers(bank.outputs(model, pixels))
    np.testing.assert_allclose(proof.expected["probabilities"], expected, atol=1e-4)
    assert np.ptp(expected, axis=0).max() > 0.1
    part = path / WEIGHTS.get(format, "")
    content = part.read_bytes()
    # Of the model: behind it are dates of a zip archive, and the spare bits of base64.
    ends: tuple[float, float] = 0, 0.6 * len(content)
    if format == "html":  # a browser compares the script and style with the page's policy
        ends = (first := content.index(b'part-graph">') + 12), content.index(b"</", first) - 12
    random = np.random.default_rng(0)
    for flipped in flips(content, np.linspace(*ends, 7).astype(int), random):
        part.write_bytes(flipped)
        assert is_wrong(path)
    # A page without its last tags is whole.
    last = int(ends[1]) if format == "html" else len(content) - 9
    for end in (int(sum(ends)) // 2, last):
        part.write_bytes(content[:end])
        assert is_wrong(path)


def sealed(proto: Any, about: Contract, proof: Proof, path: Path) -> Path:
    import onnx

    onnx.helper.set_model_props(proto, {"keras_vit": about.to_text()})
    onnx.save(proto, path)
    implementation = FORMATS["onnx"].implementation()
    implementation.add_proof(path, proof.to_text(implementation.read_proof(path)[1]))
    return path


def test_answers_alone_find_what_sums_would_miss(artifacts: Artifacts, tmp_path: Path) -> None:
    """Other weights and other preparations, sealed as if they had been written so."""
    import onnx

    artifacts.model("sensitive", sensitive_model)
    proto = onnx.load(artifacts.path("sensitive", "onnx"))
    about = load_exported(artifacts.path("sensitive", "onnx")).contract
    proof, _ = proof_of(artifacts.path("sensitive", "onnx"))
    others = [
        replace(about, evaluation=EvalTransform(mode))
        for mode in ("stretch", "stretch_bicubic", "timm_squash", "big_vision")
    ]
    others += [replace(about, evaluation=EvalTransform("timm_center", 0.7))]
    kernel = max(proto.graph.initializer, key=lambda each: np.prod(each.dims))
    values = onnx.numpy_helper.to_array(kernel).copy()
    values.flat[5] *= 2**20  # a bit of its exponent
    for other in (about, *others, None):
        if other is None:
            kernel.CopyFrom(onnx.numpy_helper.from_array(values, kernel.name))
        path = sealed(proto, other or about, proof, tmp_path / "m.onnx")
        result = check(path)
        assert result.is_whole
        assert result.ok == (other is about), other
    assert "its probabilities differ by" in str(result)
    assert SCRIPT(path) == 1


BLOCKS = 4
FEATURES = ["normalized", "patches", "tokens", *(f"block_{i}" for i in range(BLOCKS))]
FEATURES += ["encoder_norm", "pooled"]
deep_model = partial(sensitive_model, depth=BLOCKS)
DENSE = ("attention/query_key_value", "attention/output", "mlp/dense_0", "mlp/dense_1")


def initializers(proto: Any, model: Any, path: str) -> list[Any]:
    from onnx.numpy_helper import to_array

    weight = keras.ops.convert_to_numpy(next(v for v in model.variables if v.path == path))
    values = np.sort(weight, None)
    arrays = [(one, np.sort(to_array(one), None)) for one in proto.graph.initializer]
    return [one for one, array in arrays if np.array_equal(array, values)]


@formats("onnx", of=[format for format in FORMATS if format != "html"], rest=pytest.mark.slow)
def test_a_debug_export_returns_the_features(format: str, artifacts: Artifacts) -> None:
    model = artifacts.model("deep", deep_model)
    path = artifacts.path("deep", format, debug=True)
    result = check(path)
    assert result.ok, result
    assert [*result.features] == FEATURES
    assert "9 compared: as the model's" in str(result)
    images = bank.pixels(3, 16, 24, 3).astype("float32")
    run = FORMATS[format].implementation().runner(path, FEATURES, "float32")
    expected = model.feature_model(["images", *FEATURES[1:]]).predict(images, verbose=0)
    truths = [expected["images"], *(expected[name] for name in FEATURES[1:])]
    for found, truth in zip(run(images), truths, strict=True):
        np.testing.assert_allclose(found, truth, atol=1e-3 * np.abs(truth).max())
    file = made.opened(path)
    np.testing.assert_allclose(file.predict(images), probabilities(model, images), atol=1e-3)
    assert format in made.LONG or SCRIPT(path) == 0


def test_the_first_block_that_differs(artifacts: Artifacts, tmp_path: Path, capsys: Any) -> None:
    """One weight in the graph, a wrong preparation, and an overflow in float16, sealed as whole."""
    import onnx
    from onnx.numpy_helper import from_array, to_array

    model = artifacts.model("deep", deep_model)
    path = artifacts.path("deep", "onnx", debug=True)
    about, (proof, _), file = read_contract(path), proof_of(path), tmp_path / "m.onnx"
    names = [f"block_{i}/{name}/kernel" for i in range(BLOCKS) for name in DENSE]
    names += ["patch_embedding/kernel", "encoder_norm/gamma"]
    for name in names:
        proto = onnx.load(path)
        one = initializers(proto, model, name)[0]
        values = to_array(one).copy()
        values.flat[3] += 2
        one.CopyFrom(from_array(values, one.name))
        result, first = check(sealed(proto, about, proof, file)), name.split("/")[0]
        first = {"patch_embedding": "patches"}.get(first, first)
        assert (result.is_whole, result.ok, result.first_feature) == (True, False, first), name
        place = FEATURES.index(first) - 2
        assert (f"block {place} of 4 ({first}): " in str(result)) == first.startswith("block_")
        assert ", or weights were changed there" in str(result)
        assert SCRIPT(file) == 1
        lines = capsys.readouterr().out.splitlines()
        wrong = [line for line in lines if line.endswith("WRONG") and "probab" not in line]
        assert wrong[0].startswith(f"{first}: largest difference")
    other = replace(about, evaluation=EvalTransform("stretch"))
    result = check(sealed(onnx.load(path), other, proof, file))
    assert (result.ok, result.first_feature) == (False, "normalized")
    assert "normalized: of the image file alone" in str(result)
    proto = onnx.load(path)
    (one,) = initializers(proto, model, "block_2/mlp/dense_0/kernel")
    one.CopyFrom(from_array(100_000 * to_array(one), one.name))
    nodes = proto.graph.node
    i = next(i for i, node in enumerate(nodes) if one.name in node.input)
    product, nodes[i].output[0] = nodes[i].output[0], "wide"
    half, whole = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    nodes.insert(i + 1, onnx.helper.make_node("Cast", ["wide"], ["half"], to=half))
    nodes.insert(i + 2, onnx.helper.make_node("Cast", ["half"], [product], to=whole))
    result = check(sealed(proto, about, proof, file))
    assert (result.ok, result.first_feature) == (False, "block_2")
    assert "block 3 of 4 (block_2): its values are not finite: they overflow" in str(result)


@formats("onnx", of=("onnx", "litert"), rest=pytest.mark.slow)
def test_other_engines(format: str, artifacts: Artifacts) -> None:
    artifacts.model("deep", deep_model)
    for engine in {"onnx": ("openvino", "onnx"), "litert": ("tensorflow",)}[format]:
        result = check(artifacts.path("deep", format, debug=True), engine)
        assert result.ok, result
        assert result.first_feature is None
        assert f", run by {engine} " in str(result)


@pytest.mark.usefixtures("here")
def test_engines_that_cannot(artifacts: Artifacts, monkeypatch: Any, command: Command) -> None:
    import onnx
    import openvino

    model = artifacts.model("deep", deep_model).copy()
    model.eval_transform = EvalTransform(views="flip")
    model.save("m.keras")
    printed = command("export m.keras --format onnx --out m.onnx --debug")
    assert re.search("of one view of an image, .*keras-vit check m.onnx", printed, re.DOTALL)
    error = command("check m.onnx --engine tensorrt", status=2)
    known = "onnxruntime (pip install 'keras3-vit[onnx]'), openvino (pip install"
    assert f"--engine tensorrt does not run ONNX. Engines that do: {known}" in error
    proto = onnx.load("m.onnx")
    proto.graph.node[5].domain = "elsewhere"
    onnx.save(proto, "other.onnx")
    assert " cannot run other.onnx: " in command("check other.onnx --engine onnx", status=2)
    capabilities = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if "BF16" in capabilities:
        printed = command("check m.onnx --engine openvino-bf16", status=1)
        assert ": the engine computes in fewer bits" in printed
    else:
        words = "this processor does not compute in bf16"
        assert words in command("check m.onnx --engine openvino-bf16", status=2)
    monkeypatch.setattr(other_engines, "find_spec", lambda name: name != "openvino" or None)
    error = command("check m.onnx --engine openvino", status=2)
    assert f"openvino is missing. Engines that run ONNX: {known}" in error
    model = bank.tiny()
    model.eval_transform = EvalTransform(views="flip")
    refused("views='flip'", keras_vit.export, model, "n.onnx", "onnx", debug=True)
    assert not Path("n.onnx").exists()


@pytest.mark.every_backend
@pytest.mark.parametrize("layout", ["huggingface", "timm"])
@pytest.mark.usefixtures("here")
def test_folders_are_proven(layout: str, command: Command) -> None:
    name = {"huggingface": "transformers"}.get(layout, layout)
    pytest.importorskip(name, exc_type=ImportError)
    folder = Path("folder")
    sensitive_model().save("m.keras")
    assert "keras-vit check folder" in command(f"convert m.keras folder --layout {layout}")
    for words in ("m.npz --layout google", "timm --layout timm"):  # also where timm is missing
        assert "model.safetensors (" in command(f"convert folder {words}")
    result = check(folder)
    assert (result.ok, result.files, result.lost) == (True, 3, 0), result
    assert result.engine.startswith(f"{name} ")
    assert SCRIPT(folder) == 0
    weights, about = folder / "model.safetensors", read_contract(folder)
    proof, _ = Proof.from_text((folder / "keras_vit_proof.json").read_text(), about, "")
    content = weights.read_bytes()
    places = np.linspace(0, len(content) - 1, 5).astype(int)
    for flipped in flips(content, places, np.random.default_rng(0)):
        weights.write_bytes(flipped)
        assert is_wrong(folder)
    weights.write_bytes(content)
    file = folder / ("config.json" if layout == "timm" else "preprocessor_config.json")
    whole, key = file.read_text(), "mean" if layout == "timm" else "image_mean"
    config = json.loads(whole)
    config.get("pretrained_cfg", config)[key] = [0.4, 0.5, 0.5]
    file.write_text(json.dumps(config))
    # Sealed as if it had been written so.
    seal = proof.to_text(peer_folder.read_proof(folder)[1])
    (folder / "keras_vit_proof.json").write_text(seal)
    result = check(folder)
    assert (result.is_whole, result.ok) == (True, False)
    (folder / "keras_vit.json").unlink()
    error = command("check folder", status=2)
    assert f"convert the model again where {name} is installed" in error


@pytest.mark.usefixtures("here")
def test_the_command(artifacts: Artifacts, command: Command) -> None:
    import onnx

    artifacts.model("sensitive", sensitive_model)
    whole = artifacts.path("sensitive", "onnx")
    proto = onnx.load(whole)
    proto.producer_name = "another"
    onnx.save(proto, "changed.onnx")
    onnx.helper.set_model_props(proto, {"keras_vit": contract().to_text()})
    onnx.save(proto, "before.onnx")
    onnx.helper.set_model_props(proto, {})
    onnx.save(proto, "foreign.onnx")
    bank.tiny().save("m.keras")
    for file, status, words in (
        (whole, 0, "answers here as its model"),
        ("changed.onnx", 1, "its bytes are not those that were written"),
        ("before.onnx", 2, "does not carry images to check it by"),
        ("foreign.onnx", 2, "was not exported by this package"),
        ("m.keras", 2, "is not an exported model"),
        (".", 2, "is not an exported model"),
        ("d.onnx", 2, "There is no exported file"),
    ):
        assert words in command("check", file, status=status)


def test_a_damaged_proof_is_refused() -> None:
    about: Contract = contract(TASKS["multilabel"])
    proof = Proof.of(about, lambda x: {"probabilities": np.zeros((len(x), 2), "float32")})
    text = proof.to_text("")
    assert Proof.from_text(text, about, "")[1]
    assert not Proof.from_text(text, about, "other")[1]
    for part, other in (
        ('"steady": [', '"steady": [1, '),
        ('"probabilities": 0.0', '"probabilities": NaN'),
        ('"probabilities": 0.0', '"probabilities": -1'),
        ("[8, 2]", "[8, 2000000000]"),
        ("[8, 2]", "[7, 2]"),
        ('"pixels": "', '"pixels": "AAAA'),
        ('"sum"', '"some"'),
        (text, "[]"),
    ):
        assert part in text
        refused("its proof is damaged", Proof.from_text, text.replace(part, other, 1), about, "")
