"""Folders of models of labels, numbers and grades: transformers and timm answer what we answer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_vit import VisionTransformer
from keras_vit.evaluation.prediction import read_images
from keras_vit.models.answers import answers_of
from keras_vit.tasks import Multilabel, Ordinal, Regression
from keras_vit.weights import from_checkpoint, save_weights

Image = pytest.importorskip("PIL.Image")
torch = pytest.importorskip("torch")

TASKS = {
    "labels": Multilabel(("beach", "night", "people"), thresholds=(0.2, 0.5, 0.7)),
    "numbers": Regression(
        ("height", "weight"), units=("m", "kg"), offset=(1.7, 70.0), scale=(0.1, 12.0)
    ),
    "number": Regression(("age",), offset=(40.0,), scale=(15.0,), margins=(9.0,)),
    "grades": Ordinal(("none", "mild", "severe")),
}


@pytest.fixture(params=TASKS)
def model(request: pytest.FixtureRequest) -> Any:
    model = VisionTransformer(
        patch_size=8, hidden_dim=16, depth=1, num_heads=2, input_shape=(32, 32, 3),
        activation="gelu", task=TASKS[request.param],
    )  # fmt: skip
    random = np.random.default_rng(0)
    head = model.get_layer("head")
    head.set_weights([random.normal(0, 2, w.shape).astype("float32") for w in head.weights])
    model.eval_transform = {
        "mode": "huggingface_stretch",
        "crop_fraction": 1.0,
        "decoder": "pillow",
    }
    return model


@pytest.fixture
def photograph(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(1).integers(0, 256, (8, 8, 3)).astype("uint8")
    Image.fromarray(pixels).resize((48, 40)).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def outputs(model: Any, photograph: Path) -> np.ndarray:
    images, _ = read_images(model, [photograph], 2**20)
    return np.asarray(model.predict(images, verbose=0))


def test_a_pipeline_of_transformers(model: Any, photograph: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    save_weights(model, tmp_path / "out", layout="huggingface")
    predict = transformers.pipeline("image-classification", str(tmp_path / "out"))
    theirs = {row["label"]: row["score"] for row in predict(str(photograph), top_k=9)}
    answer = answers_of(model, outputs(model, photograph))[0]
    names = model.task.names
    expected = dict(zip(names, answer, strict=True))
    if isinstance(model.task, Ordinal):  # there, each output is a yes or no
        expected = {"above none": answer[1] + answer[2], "above mild": answer[2]}
    assert theirs.keys() == expected.keys()
    for name, value in expected.items():
        assert theirs[name] == pytest.approx(float(value), rel=2e-3, abs=2e-3)


@pytest.mark.parametrize("layout", ["huggingface", "timm"])
def test_it_is_read_as_the_same_task(
    model: Any, layout: str, photograph: Path, tmp_path: Path
) -> None:
    before = model.get_layer("head").get_weights()
    save_weights(model, tmp_path / "out", layout=layout)
    for weight, old in zip(model.get_layer("head").get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, old)  # of the model that was written: unchanged
    read = from_checkpoint(tmp_path / "out")
    assert type(read.task) is type(model.task)
    assert read.task.names == model.task.names
    ours, theirs = (answers_of(m, outputs(model, photograph)) for m in (model, model))
    theirs = answers_of(read, outputs(read, photograph))
    np.testing.assert_allclose(theirs, ours, rtol=2e-3, atol=2e-3)
    answers = [m.task.describe(a[0]) for m, a in ((model, ours), (read, theirs))]
    assert [row.keys() for row in answers[0]["predictions"]] == [
        row.keys() for row in answers[1]["predictions"]
    ]
    assert answers[0].get("labels") == answers[1].get("labels")  # by the same thresholds


def test_timm_returns_numbers_in_their_units(model: Any, photograph: Path, tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    save_weights(model, tmp_path / "out", layout="timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["label_names"] == list(model.task.output_names)
    images, _ = read_images(model, [photograph], 2**20)
    with torch.no_grad():
        logits = theirs(torch.tensor(images / 127.5 - 1.0, dtype=torch.float32).permute(0, 3, 1, 2))
    expected = outputs(model, photograph)
    if isinstance(model.task, Regression):
        expected = answers_of(model, expected)
    np.testing.assert_allclose(logits.numpy(), expected, rtol=1e-3, atol=1e-3)
    usage = (tmp_path / "out" / "README.md").read_text()
    assert ("softmax" in usage, "$" in usage) == (False, False)
    assert ("sigmoid" in usage) == (not isinstance(model.task, Regression))


@pytest.mark.parametrize(
    ("problem", "kind"),
    [("multi_label_classification", "multilabel"), ("regression", "regression"), ([], None)],
)
def test_their_problem_type_is_read(problem: Any, kind: str | None, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.ViTConfig(
        **sizes, intermediate_size=64, image_size=32, patch_size=8,
        id2label={0: "sun", 1: "rain"}, label2id={"sun": 0, "rain": 1},
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text()) | {"problem_type": problem}
    (tmp_path / "config.json").write_text(json.dumps(written))
    task = from_checkpoint(tmp_path).task
    assert task.kind == (kind or "classification")
    assert task.names == ("sun", "rain")
