"""A file of several heads: the answers of each model by name, and a proof of all of them."""

from pathlib import Path

import numpy as np
import pytest

import keras_vit
from keras_vit.evaluation.prediction import predict_files
from keras_vit.exporting import check
from keras_vit.exporting.contract import Contract
from keras_vit.models.answers import answers_of
from keras_vit.models.combined import combine
from keras_vit.weights.folders.combined_folder import save_combined
from tests import bank
from tests.exporting.artifacts import PATHS, contract, formats, opened
from tests.models.test_combined import IMAGES, heads_of

PIXELS = IMAGES.astype("uint8")


@formats("onnx", "tf_saved_model", "torch", of=[f for f in PATHS if f != "html"])
def test_a_file_of_several_heads(format: str, tmp_path: Path) -> None:
    models = heads_of()
    both = combine(models)
    path = keras_vit.export(both, tmp_path / PATHS[format], format)
    file, found = opened(path), check(path)
    assert found.ok, str(found)
    assert [*found.differences] == [
        f"{name}_{models[name].task.answer_names[0]}" for name in models
    ]
    answers = file.predict(PIXELS[:1] if format in ("executorch", "coreml") else PIXELS)
    for (name, model), each in zip(models.items(), answers, strict=True):
        expected = answers_of(model, bank.outputs(model, IMAGES.astype("uint8")))[: len(each)]
        scale = np.abs(expected).max() if name == "depth" else 1
        np.testing.assert_allclose(each, expected, atol=1e-5 * scale)
    with pytest.raises(ValueError, match=r"several heads.*kinds .classification.*, scenes"):
        keras_vit.evaluate(file, "digits")
    if format == "onnx":
        with pytest.raises(ValueError, match="page shows the answer of one task"):
            keras_vit.export(both, tmp_path / "page.html")
        save_combined(models, tmp_path / "all")
        ours, theirs = (keras_vit.predict(m, PIXELS) for m in (tmp_path / "all", path))
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
        with pytest.raises(ValueError, match="its description is damaged"):
            Contract.from_text(several.to_text().replace(old, new))
