"""The EoMT head: its options, copies, what it answers, and what is refused."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit.inspection import attention_maps, attention_rollout
from keras_vit.models.eomt import EoMTHead
from keras_vit.models.head import HEAD_LAYERS
from keras_vit.models.map_heads import map_head_of
from keras_vit.tasks import Segmentation
from keras_vit.training.compilation import check_task
from keras_vit.training.lora import freeze_backbone
from keras_vit.weights import CheckpointError
from keras_vit_cli import commands
from tests import bank
from tests.golden.peers import weights

HEAD: dict[str, Any] = {"kind": "eomt", "queries": 5}
SIZES: dict[str, Any] = {"patch_size": 4, "hidden_dim": 16, "depth": 3, "num_heads": 2}
SIZES |= {"input_shape": (20, 12, 3)}
TASK = Segmentation(("sky", "tree", "road"))
NEW = Segmentation(("car", "rest"))


def vit(**changes: Any) -> keras_vit.VisionTransformer:
    model = keras_vit.VisionTransformer(**SIZES | {"map_head": HEAD, "task": TASK, **changes})
    bank.wake(model)
    return model


def outputs(model: keras.Model) -> np.ndarray:
    return bank.outputs(model, bank.pixels(2, *model.input_shape[1:]))


def test_sizes_that_follow_from_the_encoder() -> None:
    for width, depth, patch, blocks, steps in (
        (384, 12, 16, 3, 2), (1024, 24, 14, 4, 1), (1536, 40, 32, 5, 3), (192, 2, 4, 2, 1),
    ):  # fmt: skip
        head = EoMTHead().resolved(width, depth, 150, (patch, patch))
        assert (head.blocks, head.upscale_blocks) == (blocks, steps)
        assert map_head_of(head.get_config()) == head


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"map_head": {"kind": "oemt"}}, "is not a head"),
        ({"map_head": {**HEAD, "querys": 3}}, "Did you mean 'queries'"),
        ({"map_head": {**HEAD, "queries": 0}}, "queries=0 must be"),
        ({"map_head": {**HEAD, "blocks": 4}}, "give at most 3"),
        ({"map_head": {**HEAD, "upscale_blocks": 9}}, "upscale_blocks"),
        ({"map_head": {**HEAD, "masked": "yes"}}, "masked"),
        ({"task": "depth", "num_classes": 1}, 'map_head="dpt" or "linear"'),
        ({"task": None, "num_classes": 0}, "num_classes=0"),
        ({"token_merging": 1}, 'map_head="eomt": leave it out'),
        ({"position_embedding": "relative_2d"}, "position_embedding='relative_2d'"),
        ({"pooling": "gap", "norm_after_pooling": True}, "norm_after_pooling=True"),
        ({"input_shape": (21, 12, 3)}, r"the EoMT head needs: give \(20, 12\)"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vit(**changes)


@pytest.mark.every_backend
@pytest.mark.parametrize("masked", [False, True])
def test_answers_are_the_scores_of_the_paper(masked: bool, tmp_path: Path) -> None:
    """Normalized over the classes; also of a saved file and in half precision."""
    model = vit(map_head={**HEAD, "masked": masked})
    names = ["mask_logits", "class_logits"]
    parts = model.feature_model(names)(bank.pixels(2, 20, 12, 3))
    masks, classes = (keras.ops.convert_to_numpy(parts[name]) for name in names)
    assert masks.shape == (2, 10, 6, 5)
    assert classes.shape == (2, 5, 4)
    torch = pytest.importorskip("torch")
    wide = torch.nn.functional.interpolate(
        torch.as_tensor(masks.copy()).permute(0, 3, 1, 2), (20, 12), mode="bilinear"
    ).sigmoid()
    classes = torch.as_tensor(classes.copy()).softmax(-1)[..., :-1]
    scores = torch.einsum("bqc,bqhw->bhwc", classes, wide).numpy()
    found = outputs(model)
    answers = TASK.answers(found)
    np.testing.assert_allclose(answers, scores / scores.sum(-1, keepdims=True), atol=1e-5)
    np.testing.assert_array_equal(found.argmax(-1), scores.argmax(-1))
    model.save(tmp_path / "m.keras")
    twin = keras_vit.load(tmp_path / "m.keras")
    assert twin.map_head == model.map_head
    np.testing.assert_array_equal(outputs(twin), found)
    half = TASK.answers(outputs(model.copy(dtype="mixed_float16")))
    assert np.abs(half - answers).mean() < 0.02


def test_attention_is_between_tokens_of_the_image() -> None:
    model, images = vit(), bank.pixels(2, 20, 12, 3)
    for maps in attention_maps(model, images):
        assert maps.shape[-2:] == (16, 16)
        np.testing.assert_allclose(maps.sum(axis=-1), 1, atol=1e-5)
    assert np.shape(attention_rollout(model, images)) == (2, 5, 3)


def test_new_classes_keep_the_queries() -> None:
    model = vit()
    freeze_backbone(model)
    assert {w.path.split("/")[0] for w in model.trainable_weights} <= set(HEAD_LAYERS)
    other = model.with_classifier(task=NEW)
    assert other.output_shape == (None, 20, 12, 2)
    for part in ("mask_logits", "block_2"):
        before, after = (m.feature_model(part)(bank.pixels(1, 20, 12, 3)) for m in (model, other))
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (before, after)))
    assert model.with_classifier(5).map_head is None
    check_task(model, TASK)


def test_the_masks_of_a_photograph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command, and a folder as transformers wrote it, of random weights."""
    monkeypatch.chdir(tmp_path)
    case, folder = weights.case("hf_eomt"), tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(case["config"]))
    larger = {"class_predictor.weight": 5, "class_predictor.bias": 0, "mask_head.fc3.weight": 5}
    tensors = weights.tensors(case)  # for several classes in the image
    tensors |= {n: np.float32(factor) * tensors[n] for n, factor in larger.items()}
    save_file(tensors, folder / "model.safetensors")
    Image.fromarray(bank.pixels(30, 47, 3)).save("photo.png")
    assert commands.main(["predict", "folder", "photo.png", "--maps", "maps"]) == 0
    with Image.open("photo.png") as photo:  # stretched to the model's size, antialiased
        small = np.asarray(photo.resize((16, 16), Image.Resampling.BILINEAR))
    model = keras_vit.load(folder)
    (answer,) = model.task.answers(bank.outputs(model, small[None]))
    with Image.open("maps/photo.png") as file:
        found = np.asarray(file)
    assert len(np.unique(found)) > 1
    assert (found == model.task.answer_map(answer, (30, 47))).mean() > 0.99  # ties of rounding


def test_the_encoder_of_a_file_and_back(tmp_path: Path) -> None:
    plain = keras_vit.VisionTransformer(**SIZES, num_classes=5, layer_scale=1.0)
    keras_vit.save_weights(plain, tmp_path / "plain.safetensors", "timm")
    model = keras_vit.load(tmp_path / "plain.safetensors", task=TASK, map_head=HEAD)
    assert {name.split("/")[0] for name in model.load_report.fresh} == {"eomt", "head"}
    square = {"input_shape": (16, 16, 3), "activation": "gelu", "layer_scale": 1.0}
    keras_vit.save_weights(vit(**square), tmp_path / "folder", "huggingface")
    for changes, head, loaded in (
        ({}, "eomt", True),
        ({"task": NEW}, "eomt", True),
        ({"task": NEW, "map_head": "eomt"}, "eomt", True),
        ({"task": NEW, "map_head": "dpt"}, "dpt", False),
        ({"num_classes": 5}, "row", False),
    ):
        model = keras_vit.load(tmp_path / "folder", **changes)
        assert model.head_kind == head
        assert ("eomt/queries" in model.load_report.loaded) == loaded
    file = tmp_path / "folder/model.safetensors"
    tensors = load_file(file)
    for probabilities, message in (
        (np.array([0.5, 0, 0]), "was not finished"),
        (np.zeros((3, 1)), "was not finished"),
        (np.zeros(4), "blocks=4 of the EoMT head"),
        (None, "4.53 or later"),
    ):
        others = {n: x for n, x in tensors.items() if n != "attn_mask_probs"}
        if probabilities is not None:
            others["attn_mask_probs"] = probabilities.astype("float32")
        save_file(others, file)
        with pytest.raises(CheckpointError, match=message):
            keras_vit.load(tmp_path / "folder")
    for changes, message in (
        ({"input_shape": (20, 12, 3)}, "square images"),
        ({"layer_scale": None}, "layer_scale=None"),
        ({"activation": "relu"}, "one activation in encoder"),
    ):
        model = vit(**square | changes)
        with pytest.raises(CheckpointError, match=message):
            keras_vit.save_weights(model, tmp_path / "other", "huggingface")
