"""Several heads on one encoder: the answers of each model, from one pass, and what is refused."""

import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit import tasks
from keras_vit.evaluation import fit_novelty
from keras_vit.layers import EncoderBlock
from keras_vit.models.combined import combine
from keras_vit.weights import CheckpointError
from keras_vit.weights.folders.combined_folder import load_combined, save_combined
from tests import bank
from tests.backend import refused, warned

IMAGES = np.random.default_rng(0).uniform(0, 255, (3, 32, 32, 3)).astype("float32")
SCENES = tasks.Segmentation(("sky", "tree", "sea"))


def heads_of(kind: str = "token") -> dict[str, Any]:
    first = bank.fresh_kind(kind)
    first.eval_transform = "stretch"
    models = {"kinds": first, "labels": first.with_classifier(task=tasks.Multilabel(("x", "y")))}
    models["scenes"] = first.with_classifier(task=SCENES)
    if kind in ("token", "dinov3"):
        models["depth"] = first.with_classifier(task=tasks.Depth(), map_head={"width": 4})
    for seed, (name, model) in enumerate(models.items()):
        for layer in model.layers:
            if layer.name.startswith(("head", "dpt")):
                bank.fill(layer, seed, scale=0.05 if name == "depth" else 0.5)  # depth is an exp
    return models


@pytest.mark.parametrize("kind", ["token", "map", "dinov3", "eva02", "hybrid", "mixer", "bit"])
def test_the_answers_of_each_from_one_pass(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    models = heads_of(kind)
    both, calls = combine(models), []
    expected = [bank.outputs(model, IMAGES) for model in models.values()]
    call = EncoderBlock.call
    monkeypatch.setattr(EncoderBlock, "call", lambda *a, **o: calls.append(1) or call(*a, **o))
    found = [np.asarray(keras.ops.convert_to_numpy(each)) for each in both(IMAGES)]
    if keras.backend.backend() == "torch" and kind not in ("mixer", "bit"):
        assert len(calls) == 2  # a call for each of two blocks
    for head, one, other in zip(both.heads, found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6 * np.abs(other).max())
        assert models[head.name].task == head.task
    refused("several heads.* give the model of one head", lambda: both.task)


def test_a_folder_holds_each_model_and_all(tmp_path: Path) -> None:
    models = heads_of()
    models["kinds"].eval_transform = "crop"
    refused("mode is 'crop' and 'stretch'", save_combined, models, tmp_path / "all")
    both = save_combined(models, tmp_path / "all", eval_transform="stretch")
    again = load_combined(tmp_path / "all")
    assert [head.name for head in again.heads] == list(models)
    assert again.eval_transform.mode == "stretch"
    for one, other in zip(again(IMAGES), both(IMAGES), strict=True):
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (one, other)))
    both.save(tmp_path / "all.keras")
    loaded = keras.saving.load_model(tmp_path / "all.keras")
    copy = loaded.copy(dtype="float32")
    for one, other in zip(copy.get_weights(), both.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(FileExistsError, match="is not empty"):
        save_combined(models, tmp_path / "all", eval_transform="stretch")
    for text in ('{"heads": ["../all/kinds"]}', "[]", '{"heads": [1]}'):
        (tmp_path / "all/combined.json").write_text(text)
        refused("Combine the models again", load_combined, tmp_path / "all", error=CheckpointError)


def of_another_weight(one: Any) -> Any:
    other = one.copy()
    bias = other.get_layer("block_1").weights[-1]
    bias.assign(bias + 1e-3)
    return other


@pytest.mark.parametrize(("other_of", "message", "transform"), [
    (of_another_weight, "block_1/mlp/.*bias is the first .* by up to 0.001.*train", "stretch"),
    (lambda one: bank.fresh(patch_size=16), "patch_size is .8, 8. and .16, 16.", "stretch"),
    (lambda one: one.copy(dtype="bfloat16"), "dtype is .*float32.* and .*bfloat16", "stretch"),
    (lambda one: bank.fresh(num_classes=0), "returns features: give one", "stretch"),
    (lambda one: one.with_input_shape((None, None, 3)), "any size: give model", "stretch"),
    (lambda one: bank.fresh(task=SCENES, map_head="eomt"), "an EoMT head.*linear", "stretch"),
    (lambda one: one.with_token_merging(2), "with_token_merging.0.", "stretch"),
    (lambda one: one.copy(), "views='flip'.*leaves views out", {"views": "flip"}),
    (lambda one: bank.fresh(), "'flip' and None. Train with views='one' in", {"views": "flip"}),
    (lambda one: one.with_classifier(task=SCENES), "which masks and depth need", "crop"),
])  # fmt: skip
def test_what_does_not_go_together(other_of: Any, message: str, transform: Any) -> None:
    one = bank.fresh()
    one.eval_transform = transform
    refused(message, combine, {"kinds": one, "other": other_of(one)})


def test_novelty_goes_and_says_so() -> None:
    one = bank.fresh()
    width = one.get_layer("head").kernel.shape[0]
    one.set_novelty(fit_novelty(*np.random.default_rng(0).normal(size=(2, 60, width))))
    both = warned(
        "The novelty score of kinds is left out", combine, {"kinds": one, "other": bank.fresh()}
    )
    assert [head.name for head in both.heads] == ["kinds", "other"]
    plain = one.uncalibrated()
    plain.compile(loss=keras.losses.BinaryCrossentropy(from_logits=True))
    assert plain.task.kind == "multilabel"  # as of a model that was never calibrated
    assert plain.with_classifier(task=SCENES).eval_transform.is_whole


@pytest.mark.parametrize("names", [("kinds",), ("kinds", "a/b"), ("a", "A"), ("a", "1a")])
def test_names(names: tuple[str, ...]) -> None:
    model = bank.tiny()
    refused("another model|not the name of|another name", combine, dict.fromkeys(names, model))
    refused(re.escape("called a_top_probabilities"), combine, {"a_top": model, "a": model})


@pytest.mark.backends("torch")
def test_torch_traces_it() -> None:
    import torch

    both, images = combine(heads_of()), torch.as_tensor(IMAGES)
    both.trainable = False
    traced = torch.jit.trace(both, images, strict=False)  # outputs are a list
    for one, other in zip(traced(images), both(images), strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-6)
