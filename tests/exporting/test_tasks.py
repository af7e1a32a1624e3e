"""Every task, or several at once, through every format: the answers are the model's by name."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_vit
from keras_vit import tasks
from keras_vit.evaluation import fit_novelty
from keras_vit.evaluation.novelty import classifier_head
from keras_vit.evaluation.prediction import predict_files
from keras_vit.exporting import FORMATS, check, load_exported
from keras_vit.exporting.agreement import decisions_agree
from keras_vit.exporting.contract import Contract
from keras_vit.exporting.openvino_folder import quietly_imported
from keras_vit.models.answers import answers_of
from keras_vit.models.combined import combine
from keras_vit.models.scoring import answer_rows, scoring_model
from keras_vit.tasks import PredictionSets
from keras_vit.weights.folders.combined_folder import save_combined
from tests import bank
from tests.backend import refused
from tests.data.image_fixtures import one_quick
from tests.exporting.artifacts import LONG, PATHS, Artifacts, contract, formats, opened, pairs
from tests.models.test_combined import IMAGES, heads_of
from tests.models.test_task import TASKS, images, vit

PIXELS = images(8)
# One of each format, and one of each task; the SavedModel of each has tests of its names.
QUICK = [("onnx", "multilabel"), ("litert", "regression"), ("tf_saved_model", "ordinal")]
QUICK += [("torch", "classification")]


def answers(model: Any) -> np.ndarray:
    return answers_of(model, bank.outputs(model, PIXELS))


def decided(kind: str, rows: np.ndarray) -> list[Any]:
    if kind == "classification":
        return np.argsort(-rows, axis=1).tolist()
    if kind == "multilabel":
        return (rows >= np.float32([0.3, 0.6])).astype(int).tolist()
    return [int(np.searchsorted(np.cumsum(row), 0.5)) for row in rows]  # the median grade


def near(kind: str, model: Any) -> float:
    return 1e-5 * float(np.max(model.task.answer_scale)) * (20 if kind == "regression" else 1)


@pairs(FORMATS, TASKS, *QUICK)
def test_a_file_answers_as_its_model(format: str, kind: str, artifacts: Artifacts) -> None:
    model, file = artifacts.model(kind), artifacts.file(kind, format)
    assert file.task == model.task
    assert file.class_names == model.class_names
    assert file.output_shape == (None, model.task.size)
    found, expected = file.predict(PIXELS, batch_size=3), answers(model)
    np.testing.assert_allclose(found, expected, atol=near(kind, model))
    np.testing.assert_array_equal(answers_of(file, found), found)
    assert file.predict(PIXELS[:0]).shape == (0, model.task.size)
    for one, other in zip(expected, found, strict=True):
        assert model.task.to_text(one) == file.task.to_text(other)
    assert check(file.path).ok


@pairs(("onnx", "torch", "openvino"), TASKS, ("onnx", "multilabel"), ("torch", "ordinal"))
def test_the_outputs_by_name(format: str, kind: str, artifacts: Artifacts) -> None:
    """In the engines themselves: as programs without this package see them."""
    model, path = artifacts.model(kind), str(artifacts.path(kind, format))
    expected, names = answers(model), model.task.answer_names
    if format == "openvino":
        ports = quietly_imported().Core().read_model(f"{path}/model.xml")
        assert [name for port in ports.inputs for name in port.names] == ["images"]
        assert sorted(n for port in ports.outputs for n in port.names) == sorted(names)
        # It sends its makers a line per import unless it is told otherwise.
        assert pytest.importorskip("openvino_telemetry").Telemetry().consent is False
        return
    if format == "onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(path)
        (image,) = session.get_inputs()
        assert (image.type, image.shape) == ("tensor(uint8)", ["batch", *PIXELS.shape[1:]])
        assert sorted(output.name for output in session.get_outputs()) == sorted(names)
        found = dict(zip(names, session.run(list(names), {"images": PIXELS}), strict=True))
    else:
        import torch

        outputs = torch.export.load(path).module()(images=torch.from_numpy(PIXELS))
        found = {name: value.numpy() for name, value in outputs.items()}
    np.testing.assert_allclose(found[names[0]], expected, atol=near(kind, model))
    for second in names[1:2]:
        assert found[second].dtype == np.int32
        assert found[second].tolist() == decided(kind, expected)


@pytest.mark.parametrize(
    "kind", one_quick(("regression", "ordinal", "multilabel", "classification"))
)
def test_a_saved_model_has_names_for_integers(kind: str, artifacts: Artifacts) -> None:
    import tensorflow as tf

    model = artifacts.model(kind)
    signatures = tf.saved_model.load(str(artifacts.path(kind))).signatures
    png = tf.io.encode_png(PIXELS[0]).numpy()
    answer = signatures["serving_default"](contents=tf.constant([png, b"no image"]))
    assert answer.keys() == {*model.task.answer_names, "valid"}
    assert answer["valid"].numpy().tolist() == [True, False]
    first = answer[model.task.answer_names[0]].numpy()
    np.testing.assert_allclose(first[0], answers(model)[0], atol=near(kind, model))
    # Nobody takes a row of zeros for probabilities; a weight of 0 kg would be taken for one.
    assert np.isnan(first[1]).all() if kind == "regression" else not first[1].any()
    if kind != "regression":
        said = model.task.describe(answers(model)[0])
        classes = [row.get("class") for row in said["predictions"]]
        own = {"multilabel": said.get("labels"), "ordinal": [said.get("grade")]}
        texts = answer[model.task.answer_names[1]].numpy().reshape(2, -1)
        assert [text.decode() for text in texts[0] if text] == own.get(kind, classes)
        assert not any(texts[1])


@formats("tf_saved_model", of=("tf_saved_model", "onnx", "torch"), rest=pytest.mark.slow)
def test_every_format_has_the_same_sets_and_novelty(format: str, tmp_path: Path) -> None:
    """RAPS and APS, whose graphs compare classes in pairs; LAC compares each with a number."""
    thresholds = (0.05, 0.2, -0.05, 0.3, 0.01, 0.1)
    method = "aps_randomized" if format in ("tf_saved_model", "onnx") else "raps"
    sets = PredictionSets(method, 0.9, thresholds, 100, penalty=0.05)
    model = vit(task=tasks.Classification(tuple("abcdef"), sets=sets))
    rows = bank.outputs(model.feature_model("pre_logits"), PIXELS)
    model.set_novelty(fit_novelty(rows[::2], rows[1::2], 0.4, classifier_head(model)))
    assert model.novelty.classes
    novelty, inside = model.novelty.scores(rows), sets.contains(answers(model))
    assert 8 < inside.sum() < 40
    file = opened(keras_vit.export(model, tmp_path / PATHS[format], format))
    assert file.task.sets == sets
    assert file.contract.outputs[-2:] == ("in_set", "novelty")
    run = FORMATS[format].implementation().runner(file.path, ["in_set", "novelty"])
    found, scores = run(PIXELS)
    np.testing.assert_allclose(scores, novelty, rtol=1e-3)
    if format == "tf_saved_model":
        found = found != b""
    np.testing.assert_array_equal(found.astype(bool), inside)
    both = answer_rows(file, scoring_model(file).predict_on_batch(PIXELS))
    np.testing.assert_allclose(both[:, :-1], answers(model), atol=1e-5)
    np.testing.assert_allclose(both[:, -1], novelty, rtol=1e-3)


@pytest.mark.backends("torch")  # which does not compare arrays with tensors
def test_answers_with_sets_are_compared() -> None:
    rows = np.random.default_rng(0).dirichlet(np.ones(3), 9).astype("float32")
    sets = PredictionSets("lac", 0.9, (0.1, 0.2, 0.3), 100)
    task = tasks.Classification(tuple("abc"), sets=sets)
    same = decisions_agree(task, rows, rows[:, [0, 2, 1]])
    assert same.tolist() == (rows.argmax(1) == 0).tolist()
    maps = rows[..., None, None] / 1000  # of no unit: a hundredth of their spread counts
    assert not decisions_agree(tasks.RelativeDepth(), maps, maps[:, ::-1]).all()


@formats("onnx", of=("onnx", "torch"))
def test_what_no_task_describes_is_raw(format: str, tmp_path: Path) -> None:
    model, path = vit(num_classes=1), tmp_path / PATHS[format]
    words = r"model\.task = keras_vit\.tasks.*model\.task = None"
    refused(words, keras_vit.export, model, path, format)
    model.task = None
    file = load_exported(keras_vit.export(model, path, format))
    assert (file.task, file.class_names, file.contract.outputs) == (None, None, ("outputs",))
    raw = bank.outputs(model, PIXELS)
    np.testing.assert_allclose(file.predict(PIXELS), raw, atol=1e-5)
    assert check(path).ok
    refused(r"model\.task = ", answers_of, file, raw)
    file.task = TASKS["regression"]
    np.testing.assert_allclose(answers_of(file, raw), 20 + 10 * raw, rtol=1e-5)
    with pytest.raises(ValueError, match=r"class_names are of a task.*model\.task = "):
        keras_vit.export(model, path, format, class_names=["weight"], overwrite=True)
    if format == "onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
        assert [output.name for output in session.get_outputs()] == ["outputs"]


def test_names_of_the_export_and_labels(artifacts: Artifacts) -> None:
    def labels(path: Path) -> bytes | None:
        with zipfile.ZipFile(path) as archive:
            return archive.read("labels.txt") if "labels.txt" in archive.namelist() else None

    model = artifacts.model("regression")
    names = {"class_names": ["an\nt", "\udcff", "cow"]}
    assert labels(artifacts.path("classification", "litert", **names)) == b"an t\n?\ncow"
    assert labels(artifacts.path("regression", "litert")) == b"weight"
    assert artifacts.file("regression", class_names=["mass"]).task.names == ("mass",)
    assert model.class_names == ("weight",)
    unnamed = artifacts.model("unnamed", lambda: vit(task=TASKS["regression"]))
    unnamed.class_names = None
    assert labels(artifacts.path("unnamed", "litert")) is None
    assert artifacts.file("unnamed", "litert").class_names == ("0",)
    with pytest.raises(ValueError, match="2 class_names for regression of 1"):
        artifacts.path("regression", "litert", class_names=["a", "b"])


@formats("torch", of=[f for f in PATHS if f != "html"], rest=pytest.mark.slow)
def test_a_file_of_several_heads(format: str, tmp_path: Path) -> None:
    models, photos = heads_of(), IMAGES.astype("uint8")
    both = combine(models)
    path = keras_vit.export(both, tmp_path / PATHS[format], format)
    file, found = opened(path), check(path)
    assert found.ok, str(found)
    first = {name: model.task.answer_names[0] for name, model in models.items()}
    assert [*found.differences] == [f"{name}_{answer}" for name, answer in first.items()]
    answers = file.predict(photos[:1] if format in LONG else photos)
    for (name, model), each in zip(models.items(), answers, strict=True):
        expected = answers_of(model, bank.outputs(model, photos))[: len(each)]
        scale = np.abs(expected).max() if name == "depth" else 1
        np.testing.assert_allclose(each, expected, atol=1e-5 * scale)
    refused(r"several heads.*kinds .classification.*, scenes", keras_vit.evaluate, file, "digits")
    if format == "onnx":
        refused("page shows the answer of one task", keras_vit.export, both, tmp_path / "page.html")
        save_combined(models, tmp_path / "all")
        ours, theirs = (keras_vit.predict(m, photos) for m in (tmp_path / "all", path))
        assert ours[0].keys() == theirs[0].keys() == {"file", "error", *models}
        assert ours[0]["scenes"].keys() == {"predictions"}
        _, reason = next(predict_files(file, ["nowhere.jpg"]))
        assert "No such file" in reason


def test_contracts() -> None:
    """That of one task has the text that it always had; that of several says all, or is damaged."""
    one = contract()
    assert "tasks" not in one.to_text()
    assert Contract.from_text(one.to_text()) == one
    tasks = tuple((name, model.task) for name, model in heads_of().items())
    several = contract(task=None, tasks=tasks)
    assert Contract.from_text(several.to_text()) == several
    assert several.answers[:2] == ("kinds_probabilities", "labels_probabilities")
    for old, new in (("kinds", "a b"), ("kinds", "labels"), ('"tasks": [[', '"tasks": [3, [')):
        refused("description is damaged", Contract.from_text, several.to_text().replace(old, new))
