"""Folders of models of labels, numbers and grades: transformers and timm answer what we answer."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_vit.evaluation.prediction import read_images
from keras_vit.models.answers import answers_of
from keras_vit.tasks import Classification, Multilabel, Ordinal, Regression
from keras_vit.weights import load, load_weights, save_weights
from tests.bank import fresh, outputs, pixels
from tests.weights.models import of_torch, their_vit

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("torch")

SCALES = {"offset": (1.7, 70.0), "scale": (0.1, 12.0)}
TASKS = {
    "labels": Multilabel(("beach", "night", "people"), thresholds=(0.2, 0.5, 0.7)),
    "numbers": Regression(("height", "weight"), units=("m", "kg"), **SCALES),
    "number": Regression(("age",), offset=(40.0,), scale=(15.0,), margins=(9.0,)),
    "grades": Ordinal(("none", "mild", "severe")),
}


@pytest.fixture(params=TASKS)
def model(request: pytest.FixtureRequest) -> Any:
    sizes = {"hidden_dim": 16, "depth": 1, "num_heads": 2, "mlp_dim": 64}
    model = fresh(filled=False, activation="gelu", task=TASKS[request.param], **sizes)
    random = np.random.default_rng(0)
    head = model.get_layer("head")
    head.set_weights([random.normal(0, 2, w.shape).astype("float32") for w in head.weights])
    transform = {"mode": "huggingface_stretch", "crop_fraction": 1.0, "decoder": "pillow"}
    model.eval_transform = transform
    return model


@pytest.fixture
def photograph(tmp_path: Path) -> Path:
    Image.fromarray(pixels(8, 8, 3, seed=1)).resize((48, 40)).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def images_of(model: Any, photograph: Path) -> np.ndarray:
    return read_images(model, [photograph], 2**20)[0]


def answers(model: Any, photograph: Path) -> np.ndarray:
    return answers_of(model, outputs(model, images_of(model, photograph)))


def test_a_pipeline_of_transformers(model: Any, photograph: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    save_weights(model, tmp_path / "out", layout="huggingface")
    predict = transformers.pipeline("image-classification", str(tmp_path / "out"))
    theirs = {row["label"]: row["score"] for row in predict(str(photograph), top_k=9)}
    answer = answers(model, photograph)[0]
    expected = dict(zip(model.task.names, answer, strict=True))
    if isinstance(model.task, Ordinal):  # there, each output is a yes or no
        expected = {"above none": answer[1] + answer[2], "above mild": answer[2]}
    assert theirs.keys() == expected.keys()
    for name, value in expected.items():
        assert theirs[name] == pytest.approx(float(value), rel=2e-3, abs=2e-3)


@pytest.mark.parametrize("layout", ["huggingface", "timm"])
def test_read_as_the_same_task(model: Any, layout: str, photograph: Path, tmp_path: Path) -> None:
    before = model.get_layer("head").get_weights()
    save_weights(model, tmp_path / "out", layout=layout)
    for weight, old in zip(model.get_layer("head").get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, old)  # of the model that was written: unchanged
    read = load(tmp_path / "out")
    assert (type(read.task), read.task.names) == (type(model.task), model.task.names)
    ours, theirs = answers(model, photograph), answers(read, photograph)
    np.testing.assert_allclose(theirs, ours, rtol=2e-3, atol=2e-3)
    old, new = model.task.describe(ours[0]), read.task.describe(theirs[0])
    assert [row.keys() for row in old["predictions"]] == [row.keys() for row in new["predictions"]]
    assert old.get("labels") == new.get("labels")  # by the same thresholds


@pytest.mark.parametrize(
    ("before", "named"),
    [
        (Multilabel(("cat", "dog")), "multilabel of 2 (cat, dog)"),
        (Classification(("dog", "cat")), "classification of 2 (dog, cat)"),
        (Classification(size=2), None),  # nobody gave the names
        (Classification(("cat", "dog")), None),
    ],
)
def test_a_head_of_another_task_is_named(before: Any, named: str | None, tmp_path: Path) -> None:
    save_weights(fresh(task=Classification(("cat", "dog"))), tmp_path / "model.keras")
    model = fresh(task=before)
    text = re.escape(f"classification of 2 (cat, dog), and {model.name} was for {named}:")
    with pytest.warns(match=text) if named else warnings.catch_warnings():
        if not named:
            warnings.simplefilter("error", UserWarning)
        load_weights(model, tmp_path / "model.keras")
    assert model.task == Classification(("cat", "dog"))


def test_timm_returns_numbers_in_their_units(model: Any, photograph: Path, tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    save_weights(model, tmp_path / "out", layout="timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["label_names"] == list(model.task.output_names)
    images = images_of(model, photograph)
    logits = of_torch(theirs, (images / 127.5 - 1.0).astype("float32"))
    is_numbers = isinstance(model.task, Regression)
    expected = answers(model, photograph) if is_numbers else outputs(model, images)
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)
    usage = (tmp_path / "out" / "README.md").read_text()
    assert ("softmax" in usage, "$" in usage) == (False, False)
    assert ("sigmoid" in usage) != is_numbers


@pytest.mark.parametrize(("problem", "kind"), [
    ("multi_label_classification", "multilabel"), ("regression", "regression"), ([], None),
])  # fmt: skip
def test_their_problem_type_is_read(problem: Any, kind: str | None, tmp_path: Path) -> None:
    labels = {"id2label": {0: "sun", 1: "rain"}, "label2id": {"sun": 0, "rain": 1}}
    their_vit(num_hidden_layers=1, **labels).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text()) | {"problem_type": problem}
    (tmp_path / "config.json").write_text(json.dumps(written))
    task = load(tmp_path).task
    assert (task.kind, task.names) == (kind or "classification", ("sun", "rain"))
