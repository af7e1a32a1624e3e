"""Models as the server calls them, on every backend; versions on disk."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from keras_vit._base.errors import printable
from keras_vit.exporting import ExportedModel
from keras_vit.inspection import attention_rollout, class_attribution
from keras_vit.tasks import Classification
from keras_vit_cli.serve.model import load_served, warm_up
from keras_vit_cli.serve.versions import newest_version
from tests import bank
from tests.cli.serve.helpers import NAMES, save, tiny_model


@pytest.mark.every_backend
@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_a_keras_model_predicts_as_it_does_itself(data_format: str, tmp_path: Path) -> None:
    if data_format == "channels_first":
        model = bank.tiny(num_classes=3, input_shape=(3, 32, 24), data_format=data_format)
        kernel = np.random.default_rng(0).normal(size=(16, 3))
        model.get_layer("head").kernel.assign(kernel.astype("float32"))
    else:
        model = tiny_model(classifier_activation="softmax")
    served = load_served(save(model, tmp_path / "model.keras"))
    warm_up(served, 5)
    images = np.random.default_rng(0).uniform(0, 255, (3, 32, 24, 3)).astype("float32")
    taken = np.moveaxis(images, -1, 1) if data_format == "channels_first" else images
    scores = bank.outputs(model, taken)
    if data_format == "channels_first":
        scores = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    else:
        assert served.class_names == tuple(map(printable, NAMES))
    assert served.image_size == (32, 24)
    np.testing.assert_allclose(served.predict(images), scores, atol=1e-5)
    best = served.class_names[served.predict(images[:1])[0].argmax()]
    default = served.explain(images[:1], "attribution", None)
    assert (default.map.shape, default.covered, default.class_name) == ((4, 3), (32, 24), best)
    np.testing.assert_array_equal(default.map, class_attribution(model, taken[:1])[0])
    other = next(name for name in served.class_names if name != best)
    chosen = served.explain(images[:1], "attribution", other)
    assert chosen.class_name == other
    assert np.abs(chosen.map - default.map).max() > 1e-3
    rollout = served.explain(images[:1], "rollout", None)
    np.testing.assert_array_equal(rollout.map, attention_rollout(model, taken[:1])[0])
    assert rollout.class_name is None


def test_what_cannot_be_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for options, reason in (
        ({"num_classes": 0}, "not one score per class"),
        ({"num_classes": 1}, r"model\.task = "),  # nobody said what it is
        ({"include_preprocessing": False}, "normalized pixels"),
        ({"input_shape": (16, 16, 2)}, "one, three or four channels"),
    ):
        file = save(bank.tiny(**options), tmp_path / "model.keras")
        with pytest.raises(ValueError, match=reason):
            load_served(file)
    with pytest.raises(FileNotFoundError, match="no model at"):
        load_served(tmp_path / "nothing")
    assert load_served(save(bank.small_kind("mixer"), tmp_path / "mixer.keras")).explain is None
    contract = SimpleNamespace(
        task=Classification(("a\n", "b")), answer_shape=(2,), image_size=(8, 8), channels=1,
        evaluation={"mode": "stretch"}, top_k=2, format="onnx", novelty=False, statistics=None,
        seen_images=None, tasks=(), has_task=True,
    )  # fmt: skip
    contract.heads = (contract,)
    file = tmp_path / "model.onnx"
    file.write_bytes(b"")
    exported = ExportedModel(file, contract, lambda x: [np.full((len(x), 2), 0.5)])
    monkeypatch.setattr("keras_vit_cli.serve.model.load_classifier", lambda path: exported)
    served = load_served(file)
    assert (served.class_names, served.explain) == (("a\\n", "b"), None)
    warm_up(served, 4)
    exported._run = lambda x: np.full((len(x), 3), 0.5)
    with pytest.raises(ValueError, match="not classification of 2"):
        warm_up(load_served(file), 4)


def test_the_newest_version(tmp_path: Path) -> None:
    for number in ("2", "10", "notes"):
        (tmp_path / number).mkdir()
        (tmp_path / number / "model.keras").write_text(number)
    newest = newest_version(tmp_path)
    assert (newest.name, newest.path) == ("10", tmp_path / "10")
    run = newest_version(tmp_path / "2")
    (tmp_path / "2" / "report.md").write_text("does not count")
    assert newest_version(tmp_path / "2") == run
    (tmp_path / "2" / "model.keras").write_text("changed")
    assert newest_version(tmp_path / "2").name != run.name
