"""Every task through every format: the file's answers are the model's, by their names."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_vit
from keras_vit import tasks
from keras_vit.evaluation import fit_novelty
from keras_vit.export import FORMATS, load_exported
from keras_vit.export.agreement import check_agreement, check_images
from keras_vit.export.comparison import compare
from keras_vit.export.contract import KEY, Contract
from keras_vit.models.answers import answers_of
from keras_vit.models.scoring import answer_rows, scoring_model
from keras_vit.tasks import PredictionSets
from keras_vit.weights import CheckpointError
from tests.export.test_formats import PATHS, _contract
from tests.models.test_task import SIZES, TASKS, images, vit

PIXELS = images(8)
EACH = pytest.mark.parametrize("kind", TASKS)


def answers(model: Any) -> np.ndarray:
    return answers_of(model, model.predict(PIXELS, verbose=0))


def decided(kind: str, rows: np.ndarray) -> list[Any]:
    """What the second output is, computed here from the answers."""
    if kind == "classification":
        return np.argsort(-rows, axis=1).tolist()
    if kind == "multilabel":
        return (rows >= np.float32([0.3, 0.6])).astype(int).tolist()
    return [int(np.searchsorted(np.cumsum(row), 0.5)) for row in rows]  # the median grade


def near(kind: str, model: Any) -> float:
    """The tolerance of float32 beside the size of the answers."""
    return 1e-5 * float(np.max(model.task.answer_scale)) * (20 if kind == "regression" else 1)


# Each task in turn; the other pairs are slow.
PAIRS = {("onnx", "multilabel"), ("litert", "regression"), ("tf_saved_model", "ordinal")}


WITH_SETS = ("tf_saved_model",)  # what three others are made from


@pytest.mark.parametrize(
    ("format", "kind"),
    [
        pytest.param(f, k, marks=[pytest.mark.slow] * ((f, k) not in PAIRS))
        for f in FORMATS
        for k in TASKS
    ],
)
def test_a_file_answers_as_its_model(format: str, kind: str, tmp_path: Path) -> None:
    model = vit(task=TASKS[kind])
    file = load_exported(keras_vit.export_model(model, tmp_path / PATHS[format], format))
    assert file.task == model.task
    assert file.class_names == model.class_names
    assert file.output_shape == (None, model.task.size)
    found, expected = file.predict(PIXELS, batch_size=3), answers(model)
    np.testing.assert_allclose(found, expected, atol=near(kind, model))
    np.testing.assert_array_equal(answers_of(file, found), found)
    assert file.predict(PIXELS[:0]).shape == (0, model.task.size)
    texts = [
        (model.task.to_text(a), file.task.to_text(b)) for a, b in zip(expected, found, strict=True)
    ]
    assert [a for a, _ in texts] == [b for _, b in texts]


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.slow] * (k != "multilabel")) for k in TASKS]
)
def test_the_outputs_by_name(kind: str, tmp_path: Path) -> None:
    """In the engines themselves: as programs without this package see them."""
    onnxruntime = pytest.importorskip("onnxruntime")
    import torch

    model = vit(task=TASKS[kind])
    expected = answers(model)
    file = keras_vit.export_model(model, tmp_path / "m.onnx", "onnx")
    session = onnxruntime.InferenceSession(str(file))
    names = [output.name for output in session.get_outputs()]
    assert sorted(names) == sorted(model.task.answer_names)
    outputs = dict(zip(names, session.run(names, {"images": PIXELS}), strict=True))
    program = torch.export.load(keras_vit.export_model(model, tmp_path / "m.pt2", "torch"))
    of_torch = program.module()(images=torch.from_numpy(PIXELS))
    for found in (outputs, {name: x.numpy() for name, x in of_torch.items()}):
        first, *others = model.task.answer_names
        np.testing.assert_allclose(found[first], expected, atol=near(kind, model))
        if others:
            assert found[others[0]].dtype == np.int32
            assert found[others[0]].tolist() == decided(kind, expected)


@EACH
def test_a_saved_model_has_names_for_integers(kind: str, tmp_path: Path) -> None:
    import tensorflow as tf

    model = vit(task=TASKS[kind])
    path = keras_vit.export_model(model, tmp_path / "1")
    signatures = tf.saved_model.load(str(path)).signatures
    png = tf.io.encode_png(PIXELS[0]).numpy()
    answer = signatures["serving_default"](contents=tf.constant([png, b"no image"]))
    assert answer.keys() == {*model.task.answer_names, "valid"}
    assert answer["valid"].numpy().tolist() == [True, False]
    first = answer[model.task.answer_names[0]].numpy()
    np.testing.assert_allclose(first[0], answers(model)[0], atol=near(kind, model))
    # Nobody takes a row of zeros for probabilities; a weight of 0 kg would be taken for one.
    assert np.isnan(first[1]).all() if kind == "regression" else not first[1].any()
    described = model.task.describe(answers(model)[0])
    expected = {
        "classification": lambda: [row["class"] for row in described["predictions"]],
        "multilabel": lambda: described["labels"],
        "ordinal": lambda: [described["grade"]],
    }
    if kind in expected:
        texts = answer[model.task.answer_names[1]].numpy().reshape(2, -1)
        assert [text.decode() for text in texts[0] if text] == expected[kind]()
        assert not any(texts[1])


@pytest.mark.parametrize(
    "format", [pytest.param(f, marks=[pytest.mark.slow] * (f not in WITH_SETS)) for f in FORMATS]
)
def test_every_format_has_the_same_sets_and_novelty(format: str, tmp_path: Path) -> None:
    """RAPS, whose graph compares classes in pairs; LAC compares each with a number."""
    thresholds = (0.05, 0.2, -0.05, 0.3, 0.01, 0.1)
    sets = PredictionSets("raps", 0.9, thresholds, 100, penalty=0.05)
    model = vit(task=tasks.Classification(tuple("abcdef"), sets=sets))
    rows = model.feature_model("pre_logits").predict(PIXELS, verbose=0)
    model.set_novelty(fit_novelty(rows[::2], rows[1::2], 0.4))
    novelty = model.novelty.scores(rows)
    inside = sets.contains(answers(model))
    assert 8 < inside.sum() < 40
    path = keras_vit.export_model(model, tmp_path / PATHS[format], format)
    exported = load_exported(path)
    assert exported.task.sets == sets
    assert exported.contract.outputs[-2:] == ("in_set", "novelty")
    run = FORMATS[format].implementation().runner(path, ["in_set", "novelty"])
    found, scores = run(PIXELS)
    np.testing.assert_allclose(scores, novelty, rtol=1e-3)
    if format == "tf_saved_model":
        found = found != b""
    np.testing.assert_array_equal(found.astype(bool), inside)
    both = answer_rows(exported, scoring_model(exported).predict_on_batch(PIXELS))
    np.testing.assert_allclose(both[:, :-1], answers(model), atol=1e-5)
    np.testing.assert_allclose(both[:, -1], novelty, rtol=1e-3)


def test_activations_are_applied_once(tmp_path: Path) -> None:
    """A head that returns answers by itself, and one whose "linear" returns logits."""
    for task, activation in (
        (TASKS["classification"], "softmax"),
        (TASKS["classification"], "linear"),
        (TASKS["multilabel"], "sigmoid"),
    ):
        model = vit(task=task, classifier_activation=activation)
        plain = vit(task=task)
        plain.set_weights(model.get_weights())
        file = keras_vit.export_model(model, tmp_path / "m" / "1", overwrite=True)
        np.testing.assert_allclose(load_exported(file).predict(PIXELS), answers(plain), atol=1e-5)


@pytest.mark.parametrize("format", ["onnx", pytest.param("torch", marks=pytest.mark.slow)])
def test_what_no_task_describes_is_raw(format: str, tmp_path: Path) -> None:
    model = vit(num_classes=1)
    with pytest.warns(UserWarning, match=r"Nobody said .*model\.task = keras_vit\.tasks") as caught:
        path = keras_vit.export_model(model, tmp_path / PATHS[format], format)
    assert caught[0].filename == __file__
    file = load_exported(path)
    assert (file.task, file.class_names, file.contract.outputs) == (None, None, ("outputs",))
    raw = model.predict(PIXELS, verbose=0)
    np.testing.assert_allclose(file.predict(PIXELS), raw, atol=1e-5)
    with pytest.raises(ValueError, match=r"model\.task = "):
        answers_of(file, raw)
    file.task = TASKS["regression"]
    np.testing.assert_allclose(answers_of(file, raw), 20 + 10 * raw, rtol=1e-5)
    with pytest.raises(ValueError, match=r"class_names are of a task.*model\.task = "):
        keras_vit.export_model(model, path, format, class_names=["weight"], overwrite=True)
    if format == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path))
        assert [output.name for output in session.get_outputs()] == ["outputs"]


@pytest.mark.parametrize(
    "options",
    [{"num_classes": 0}, pytest.param({"pooling": None, "num_classes": 0}, marks=pytest.mark.slow)],
)
def test_features_and_tokens_are_exported_without_a_warning(
    options: Any, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    model = keras_vit.VisionTransformer(**SIZES, input_shape=(32, 32, 3), **options)
    file = load_exported(keras_vit.export_model(model, tmp_path / "m.tflite", "litert"))
    assert file.output_shape == model.output_shape
    np.testing.assert_allclose(
        file.predict(PIXELS), model.predict(PIXELS, verbose=0), atol=1e-4, rtol=1e-4
    )
    assert not [w for w in recwarn if "Nobody said" in str(w.message)]


def test_names_of_the_export_and_labels(tmp_path: Path) -> None:
    model = vit(task=TASKS["regression"])
    file = keras_vit.export_model(model, tmp_path / "m.tflite", "litert", class_names=["mass"])
    assert load_exported(file).task.names == ("mass",)
    assert model.class_names == ("weight",)
    with zipfile.ZipFile(file) as archive:
        assert archive.read("labels.txt") == b"mass"
    model.class_names = None
    keras_vit.export_model(model, file, "litert", overwrite=True)
    with zipfile.ZipFile(file) as archive:
        assert "labels.txt" not in archive.namelist()
    assert load_exported(file).class_names == ("0",)
    with pytest.raises(ValueError, match="2 class_names for regression of 1"):
        keras_vit.export_model(model, file, "litert", class_names=["a", "b"], overwrite=True)


@EACH
def test_contracts_as_text(kind: str) -> None:
    contract = _contract(TASKS[kind])
    assert Contract.from_text(contract.to_text()) == contract
    assert "class_names" not in json.loads(contract.to_text())


def test_contracts_of_before_there_were_tasks() -> None:
    values = json.loads(_contract().to_text())
    del values["task"], values["raw_shape"]
    contract = Contract.from_text(json.dumps({**values, "class_names": list("0123456789")}))
    assert contract == _contract()
    assert KEY == "keras_vit"


def test_agreement_is_in_the_scale_of_the_answers() -> None:
    """A thousandth of a standard deviation: 0.01 kg of a task whose scale is 10 kg."""
    contract, pixels = _contract(TASKS["regression"]), check_images((8, 8), 1)
    expected = np.linspace(0, 40, 8, dtype="float32")[:, None]
    parts = iter((expected[:1] + 0.009, expected[1:] + 0.009))
    check_agreement(lambda x: next(parts), pixels, expected, contract)
    with pytest.raises(RuntimeError, match=r"values differ from the model's by up to 0\.02"):
        check_agreement(lambda x: expected[:1] + 0.02, pixels, expected, contract)


def test_a_comparison_wants_the_data_of_the_task(tmp_path: Path) -> None:
    digits, model = keras_vit.data.load("digits"), vit(task=TASKS["regression"])
    file = keras_vit.export.ExportedModel(tmp_path, _contract(model.task), lambda x: [x])
    with pytest.raises(ValueError, match="predicts regression of 1, and the data has 10"):
        compare(model, file, digits.val)


def test_a_damaged_task_is_a_damaged_file(tmp_path: Path) -> None:
    target = tmp_path / "m.tflite"
    contract = json.loads(_contract(TASKS["multilabel"]).to_text()) | {"format": "litert"}
    contract["task"]["thresholds"] = [0.5, 7]
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("keras_vit.json", json.dumps(contract))
    with pytest.raises(CheckpointError, match="thresholds"):
        load_exported(target)
