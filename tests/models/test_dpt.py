"""The DPT head: its options, copies, and files of encoders without one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers import PixelUpsample, Reassemble
from keras_vit.models.dpt import DPTHead
from keras_vit.models.head import HEAD_LAYERS, OUTPUT_LAYERS
from keras_vit.models.map_heads import map_head_of
from keras_vit.tasks import Segmentation
from keras_vit.training.lora import freeze_backbone
from keras_vit.weights.folders.sidecars import read_sidecar_configs
from keras_vit_cli.train.build import build
from keras_vit_cli.train.job import Job
from tests import bank

SIZES: dict[str, Any] = {"patch_size": 4, "hidden_dim": 16, "depth": 3, "num_heads": 2}
SIZES |= {"input_shape": (20, 12, 3)}
TASK = Segmentation(("sky", "tree", "road"))


def vit(**changes: Any) -> keras_vit.VisionTransformer:
    return keras_vit.VisionTransformer(**SIZES | {"map_head": {"width": 6}, **changes})


def outputs(model: keras.Model) -> np.ndarray:
    images = np.random.default_rng(0).integers(0, 256, (2, *model.input_shape[1:]))
    return bank.outputs(model, images.astype("uint8"))


def trainable(model: keras.Model) -> set[str]:
    return {weight.path for weight in model.trainable_weights}


def weights_of(model: keras.Model) -> dict[str, np.ndarray]:
    return {w.path: keras.ops.convert_to_numpy(w) for w in model.weights}


def test_sizes_that_follow_from_the_encoder() -> None:
    small, large = (DPTHead().resolved(*sizes) for sizes in ((384, 12, 1), (1024, 24, 5)))
    assert (small.width, small.channels) == (64, (48, 96, 192, 384))
    assert (small.blocks, small.for_classes) == ((2, 5, 8, 11), False)
    assert (large.width, large.blocks, large.for_classes) == (256, (5, 11, 17, 23), True)
    assert map_head_of(small.get_config()) == small


def test_what_is_not_there_is_refused() -> None:
    model = vit(num_classes=1, map_head={"width": 6, "normalized": False, "readout": "project"})
    assert model.feature_model("block_2").output_shape == (None, 16, 16)
    for call, message in (
        (lambda: model.feature_model("pre_logits"), "pre_logits"),
        (
            lambda: Reassemble(3, 1, 4, readout="project")(np.zeros((1, 2, 2, 8), "float32")),
            'give readout="ignore"',
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"map_head": "dtp"}, "map_head='dtp' is not a head"),
        ({"map_head": {"widht": 3}}, "Did you mean 'width'"),
        ({"map_head": {"width": 0}}, "width=0 must be"),
        ({"map_head": {"scale": float("nan")}}, "scale=nan"),
        ({"map_head": {"blocks": (0, 1)}}, "must be 4 integers"),
        ({"map_head": {"blocks": (0, -1, 1, 2)}}, r"blocks\[1\]=-1 must be"),
        ({"map_head": {"blocks": (0, 1, 1, 1)}}, "up to the last of the encoder's 3"),
        ({"map_head": {"readout": "add"}}, "readout='add'"),
        ({"map_head": {"activation": "relu"}, "task": TASK}, "leave it out"),
        ({"map_head": {"readout": "project"}, "pooling": "gap"}, "class_token=True"),
        ({"pooling": "gap", "norm_after_pooling": True}, '"normalized": False'),
        ({"token_merging": 1}, 'map_head="linear"'),
        ({"input_shape": (21, 12, 3)}, r"give \(20, 12\)"),
        ({"input_shape": (None, None, 3)}, "a head for every pixel returns a map"),
        ({"classifier_activation": "softmax"}, "takes logits"),
        ({"task": "classification"}, "the task, classification, is of one row per image"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vit(**changes)


def test_maps_without_a_task(tmp_path: Path) -> None:
    model = vit(num_classes=1, map_head={"width": 6, "activation": "sigmoid", "scale": 20.0})
    model.compile("sgd", "mse")
    assert model.task is None
    assert model.output_shape == (None, 20, 12, 1)
    np.testing.assert_allclose(outputs(model), 10.0)  # the last layer begins at zero
    model.save(tmp_path / "m.keras")
    twin = keras_vit.load(tmp_path / "m.keras")
    assert (twin.map_head, twin.task) == (model.map_head, None)
    np.testing.assert_array_equal(outputs(twin), outputs(model))


def test_a_new_head_keeps_the_neck() -> None:
    model = vit(task=TASK)
    freeze_backbone(model)
    assert all(name.split("/")[0] in HEAD_LAYERS for name in trainable(model))
    other = model.with_classifier(task=Segmentation(("car", "rest")))
    before, after = weights_of(model), weights_of(other)
    assert other.output_shape == (None, 20, 12, 2)
    assert any(path.startswith("dpt_fusion_3/") for path in before)
    for path in before.keys() & after.keys():
        if path.split("/")[0] not in OUTPUT_LAYERS:
            np.testing.assert_array_equal(before[path], after[path])
    assert trainable(other) == trainable(model)
    rows = model.with_classifier(5)
    assert (rows.output_shape, rows.map_head, rows.task.kind) == ((None, 5), None, "classification")
    assert rows.with_classifier(task=TASK, map_head="dpt").map_head.width == 64


def test_the_encoder_of_a_file_without_a_neck_and_back(tmp_path: Path) -> None:
    plain = vit(map_head=None, num_classes=5)
    keras_vit.save_weights(plain, tmp_path / "plain.safetensors", "timm")
    model = keras_vit.load(
        tmp_path / "plain.safetensors", task=TASK, num_classes=3, map_head={"width": 6}
    )
    fresh = {name.split("/")[0] for name in model.load_report.fresh}
    assert fresh == {"dpt", "head", "head_norm", "head_conv_0"}
    depth = vit(num_classes=1, map_head={"width": 6, "activation": "relu"}, layer_scale=1.0)
    keras_vit.save_weights(depth, tmp_path / "depth", "huggingface")
    for changes, head in (
        ({"num_classes": 5}, "row"),
        ({"task": TASK}, "dpt"),
        ({"task": TASK, "map_head": "dpt"}, "dpt"),
        ({"task": TASK, "map_head": "linear"}, "linear"),
    ):
        loaded = keras_vit.load(tmp_path / "depth", **changes)
        assert loaded.head_kind == head
        if head == "dpt":
            assert loaded.map_head.width == 6
            assert any(name.startswith("dpt/") for name in loaded.load_report.loaded)
    assert keras_vit.load(tmp_path / "depth").map_head.activation == "relu"


@pytest.mark.every_backend
@pytest.mark.parametrize("factor", [4, 2])
def test_the_transposed_convolution_is_torchs(factor: int) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    maps = rng.normal(size=(2, 3, 5, 4)).astype("float32")
    layer = PixelUpsample(factor)
    layer.build(maps.shape)
    layer.set_weights([rng.normal(size=w.shape).astype("float32") for w in layer.weights])
    kernel, bias = (torch.as_tensor(w.copy()) for w in layer.get_weights())
    theirs = torch.nn.functional.conv_transpose2d(
        torch.as_tensor(maps).permute(0, 3, 1, 2), kernel.permute(2, 3, 0, 1), bias, stride=factor
    )
    ours = keras.ops.convert_to_numpy(layer(maps))
    np.testing.assert_allclose(ours, theirs.permute(0, 2, 3, 1).numpy(), atol=1e-5)


def test_a_configuration_that_leaves_out_what_its_class_has(tmp_path: Path) -> None:
    """As that of Depth Anything V2 Base, whose encoder has the width of `Dinov2Config`."""
    config = {"model_type": "depth_anything", "depth_estimation_type": "metric", "max_depth": 80}
    encoder = {"model_type": "dinov2", "image_size": 518, "out_indices": [3, 6, 9, 12]}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config | {"backbone_config": encoder}))
    found, _ = read_sidecar_configs(tmp_path / "model.safetensors", (14, 14, 3, 768))
    head = {"blocks": [2, 5, 8, 11], "activation": "sigmoid", "scale": 80, "normalized": True}
    assert (found["num_heads"], found["grid"], found["dpt"]) == (12, (37, 37), head)
    file.write_text(json.dumps(config | {"backbone_config": encoder, "head_in_index": 0}))
    with pytest.raises(keras_vit.weights.CheckpointError, match="head_in_index=0"):
        read_sidecar_configs(tmp_path / "model.safetensors", (14, 14, 3, 768))


def test_the_option_of_the_command(tmp_path: Path) -> None:
    job = Job(data=str(tmp_path), out=tmp_path / "run", map_head="dpt")
    recipe = replace(keras_vit.recipes.get("from_scratch_tiny"), model=SIZES, image_size=20)
    model = build(job, recipe, TASK, channels=3)
    assert (model.head_kind, model.task) == ("dpt", TASK)


def test_a_step_of_training_reaches_every_layer_of_the_head() -> None:
    model = vit(task=TASK, map_head={"width": 6, "batch_norm": True})
    bank.wake(model)
    before = weights_of(model)
    model.compile(keras.optimizers.SGD(0.1), model.task.loss("pixel_crossentropy"))
    labels = np.random.default_rng(1).integers(0, 3, (2, 20, 12)).astype("int32")
    model.fit(bank.pixels(2, 20, 12, 3), labels, verbose=0)
    after = weights_of(model)
    still = {path for path in before if np.array_equal(before[path], after[path])}
    assert not {path for path in still if path.split("/")[0] in HEAD_LAYERS}
