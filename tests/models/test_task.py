"""What a model's outputs mean is part of the model: built, saved, copied and loaded with it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_vit
from keras_vit import tasks
from keras_vit.evaluation import fit_novelty
from keras_vit.evaluation.novelty import classifier_head
from keras_vit.models.answers import answers_in_graph, answers_of, task_of
from keras_vit.models.scoring import scoring_model
from tests.backend import numpy, reloaded, rows
from tests.bank import outputs

SIZES: dict[str, Any] = {"patch_size": 8, "hidden_dim": 16, "depth": 1, "num_heads": 2}
TASKS = {
    "classification": tasks.Classification(("cat", "dog", "cow")),
    "multilabel": tasks.Multilabel(("beach", "night"), thresholds=(0.3, 0.6)),
    "regression": tasks.Regression(("weight",), units=("kg",), offset=(20.0,), scale=(10.0,)),
    "ordinal": tasks.Ordinal(("none", "mild", "severe")),
}
CRANES = tasks.Classification(("crane", "crane", "cat"))  # ImageNet has two


def vit(**options: Any) -> Any:
    model = keras_vit.VisionTransformer(**SIZES, input_shape=(32, 32, 3), **options)
    for i, variable in enumerate(model.get_layer("head").trainable_variables):
        variable.assign(np.random.default_rng(i).normal(0, 1, variable.shape))
    return model


def images(number: int = 3) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 255, (number, 32, 32, 3)).astype("uint8")


def test_only_several_classes_are_taken_for_classes() -> None:
    for activation in (None, "linear", "softmax"):
        assert vit(num_classes=2, classifier_activation=activation).task.kind == "classification"
    assert vit(num_classes=3, task="multilabel").task.kind == "multilabel"
    for options in ({"num_classes": 2, "classifier_activation": "sigmoid"}, {"num_classes": 1}):
        model = vit(**options)
        assert model.task is None
        with pytest.raises(ValueError, match=r"model\.task = keras_vit\.tasks\.Regression"):
            task_of(model)
    for options in ({"num_classes": 0}, {"pooling": None}):  # features and tokens
        assert keras_vit.VisionTransformer(**SIZES, input_shape=(32, 32, 3), **options).task is None
    with pytest.raises(ValueError, match="pooling=None returns all tokens"):
        keras_vit.VisionTransformer(**SIZES, pooling=None, task="multilabel", num_classes=4)


@pytest.mark.every_backend
@pytest.mark.parametrize("kind", TASKS)
def test_the_task_sets_the_head_and_gives_the_answers(kind: str) -> None:
    model, task = vit(task=TASKS[kind]), TASKS[kind]
    assert model.num_classes == model.output_shape[1] == task.outputs
    assert model.class_names == task.names
    raw = outputs(model, images())
    np.testing.assert_array_equal(answers_of(model, raw), task.answers(raw))
    in_graph = numpy(answers_in_graph(model, raw))
    np.testing.assert_allclose(in_graph, task.answers(raw), atol=1e-5, rtol=1e-5)
    both = model.with_views("flip")
    assert both.task == task
    mean = (task.answers(raw) + task.answers(outputs(model, images()[:, :, ::-1]))) / 2
    np.testing.assert_allclose(answers_of(both, outputs(both, images())), mean, atol=1e-4)


@pytest.mark.parametrize("kind", TASKS)
def test_copies_keep_the_task_and_new_heads_do_not(kind: str) -> None:
    model, task = vit(task=TASKS[kind]), TASKS[kind]
    assert model.copy().task == model.with_input_shape((48, 48, 3)).task == task
    assert model.with_classifier(5).task == tasks.Classification(size=5)
    again = vit(num_classes=9).with_classifier(task=task)
    assert (again.task, again.output_shape) == (task, (None, task.outputs))


@pytest.mark.parametrize("file", ["model.keras", "model.npz", "model.safetensors"])
@pytest.mark.parametrize("kind", TASKS)
def test_files_keep_the_task(kind: str, file: str, tmp_path: Path) -> None:
    model, path = vit(task=TASKS[kind]), tmp_path / file
    layout = {".npz": "google", ".safetensors": "timm"}.get(path.suffix)
    keras_vit.save_weights(model, path, layout=layout)
    loaded = keras_vit.load(path)
    np.testing.assert_allclose(outputs(loaded, images()), outputs(model, images()), atol=1e-6)
    other = vit(num_classes=TASKS[kind].outputs)
    keras_vit.load_weights(other, path)
    assert loaded.task == other.task == TASKS[kind]
    assert keras_vit.load(path, num_classes=7).task == tasks.Classification(size=7)


def test_the_task_and_its_names_may_be_set_where_they_fit() -> None:
    model, alone = vit(num_classes=4), vit(num_classes=1)
    for call, match in (
        (lambda: vit(num_classes=4, task=TASKS["classification"]), "leave num_classes out"),
        (lambda: setattr(model, "task", TASKS["multilabel"]), r"with_classifier\(task=\.\.\.\)"),
        (lambda: setattr(model, "class_names", ["a", "b"]), "size=4 and 2 names"),
        (lambda: setattr(alone, "class_names", ["a"]), "does not have a task"),
        (lambda: model.with_classifier(task="multilabel"), "how wide the new head is"),
        (lambda: vit(num_classes=4, task="multi-label"), "'multi-label' is not a task"),
        # Names that occur twice are names all the same; only targets by name need others.
        (lambda: CRANES.check_targets(["crane", "cat"]), "a name that stands for one of them"),
    ):
        with pytest.raises(ValueError, match=match):
            call()
    assert CRANES.check_targets([0, 1]).tolist() == [0, 1]
    alone.task = tasks.Regression(("age",), units=("years",))
    assert alone.class_names == ("age",)
    alone.class_names = ["size"]
    assert alone.task == tasks.Regression(("size",), units=("years",))
    alone.class_names = None
    assert alone.task.names == ()


# One takes too many images for the energy.
@pytest.mark.parametrize("false_alarms", rows([0.05, 0.2], [0.2]))
def test_a_novelty_is_saved_and_copied_with_the_model(tmp_path: Path, false_alarms: float) -> None:
    model = vit(num_classes=3)
    assert model.novelty is None
    assert "novelty" not in model.get_config()
    rows = outputs(model.feature_model("pre_logits"), images(40))
    model.set_novelty(fit_novelty(rows[:20], rows[20:], false_alarms, classifier_head(model)))
    assert model.get_config()["novelty"] == ("energy" if false_alarms == 0.2 else True)
    expected, loaded = model.novelty.scores(rows[:3]), reloaded(model, tmp_path)
    model.save_weights(tmp_path / "model.weights.h5")
    of_weights = model.copy()
    of_weights.novelty.set_weights([0 * w for w in model.novelty.get_weights()])
    of_weights.load_weights(tmp_path / "model.weights.h5")
    for each in (loaded, model.copy(), of_weights, model.copy(dtype="mixed_bfloat16")):
        np.testing.assert_allclose(each.novelty.scores(rows[:3]), expected)
    of_images = model.novelty.scores(outputs(model.feature_model("pre_logits"), images()))
    for seen in (model, loaded):
        found, novelty = scoring_model(seen).predict_on_batch(images())
        np.testing.assert_allclose(novelty, of_images, rtol=1e-3)
        np.testing.assert_allclose(found, outputs(model, images()), atol=1e-5)
    assert model.with_classifier(5).novelty is None
    assert outputs(model, images()).shape == (3, 3)  # the model itself is as it was
    for file, layout in (("model.safetensors", "timm"), ("folder", "huggingface")):
        with pytest.warns(UserWarning, match=rf"has a novelty score, .*{file} is without it"):
            keras_vit.save_weights(model, tmp_path / file, layout=layout)
        assert keras_vit.load(tmp_path / file).novelty is None
    with pytest.raises(ValueError, match="does not fit: fit it on features of this model"):
        model.set_novelty(fit_novelty(rows[:20, :5], rows[20:, :5]))
    model.eval_transform = {"views": "flip"}
    _, novelty = scoring_model(model).predict_on_batch(images())
    np.testing.assert_allclose(novelty, of_images, rtol=1e-3)
