"""The DPT and EoMT heads: options, answers, copies, files, training, and what is refused."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit.inspection import attention_maps, attention_rollout
from keras_vit.layers import Reassemble
from keras_vit.models.dpt import DPTHead
from keras_vit.models.eomt import EoMTHead
from keras_vit.models.head import HEAD_LAYERS, OUTPUT_LAYERS
from keras_vit.models.map_heads import map_head_of
from keras_vit.tasks import Segmentation
from keras_vit.tasks.query_losses import QueryLoss
from keras_vit.training import compile_model
from keras_vit.training.compilation import check_task
from keras_vit.training.lora import enable_lora, freeze_backbone
from keras_vit.training.resume import ResumableRun
from keras_vit.training.sam import sharpness_aware
from keras_vit.weights import CheckpointError
from keras_vit.weights.folders.sidecars import read_sidecar_configs
from keras_vit.weights.variables import bindings
from keras_vit_cli.train.build import build
from keras_vit_cli.train.job import Job
from tests import bank
from tests.backend import refused
from tests.golden.peers import weights
from tests.training.common import Killed, StopAt

SIZES: dict[str, Any] = {"patch_size": 4, "hidden_dim": 16, "depth": 3, "num_heads": 2}
SIZES |= {"input_shape": (20, 12, 3)}
TASK, NEW = Segmentation(("sky", "tree", "road")), Segmentation(("car", "rest"))
DPT: dict[str, Any] = {"width": 6}
EOMT: dict[str, Any] = {"kind": "eomt", "queries": 5}
HEADS = {"dpt": DPT, "eomt": EOMT}
IMAGES = bank.pixels(24, 20, 12, 3)
LABELS = (IMAGES[..., 0] // 86).astype("int32")
RECIPE = keras_vit.recipes.get("eomt_pixels").scaled(steps=12, batch_size=8)


def vit(head: Any = DPT, **changes: Any) -> keras_vit.VisionTransformer:
    task = {"task": TASK} if head in (EOMT, "eomt") else {}
    return keras_vit.VisionTransformer(**{**SIZES, "map_head": head, **task, **changes})


def awake(head: Any = EOMT, **changes: Any) -> keras_vit.VisionTransformer:
    model = vit(head, **changes)
    bank.wake(model)
    return model


def outputs(model: keras.Model) -> np.ndarray:
    return bank.outputs(model, bank.pixels(2, *model.input_shape[1:]))


def weights_of(model: keras.Model) -> dict[str, np.ndarray]:
    return {w.path: keras.ops.convert_to_numpy(w) for w in model.weights}


def test_sizes_that_follow_from_the_encoder() -> None:
    for width, depth, patch, classes, *sizes in (
        (384, 12, 16, 150, 3, 2, 100), (1024, 24, 14, 21, 4, 1, 42), (1536, 40, 32, 50, 5, 3, 100),
        (192, 2, 4, 2, 2, 1, 10),
    ):  # fmt: skip
        head = EoMTHead().resolved(width, depth, classes, (patch, patch))
        assert [head.blocks, head.upscale_blocks, head.queries] == sizes
        assert map_head_of(head.get_config()) == head
    small, large = (DPTHead().resolved(*sizes) for sizes in ((384, 12, 1), (1024, 24, 5)))
    assert (small.width, small.channels) == (64, (48, 96, 192, 384))
    assert (small.blocks, small.for_classes) == ((2, 5, 8, 11), False)
    assert (large.width, large.blocks, large.for_classes) == (256, (5, 11, 17, 23), True)
    assert map_head_of(small.get_config()) == small


@pytest.mark.parametrize(("head", "changes", "message"), [
    ("dtp", {}, "map_head='dtp' is not a head"),
    ({"widht": 3}, {}, "Did you mean 'width'"),
    ({"width": 0}, {}, "width=0 must be"),
    ({"scale": float("nan")}, {}, "scale=nan"),
    ({"blocks": (0, 1)}, {}, "must be 4 integers"),
    ({"blocks": (0, -1, 1, 2)}, {}, r"blocks\[1\]=-1 must be"),
    ({"blocks": (0, 1, 1, 1)}, {}, "up to the last of the encoder's 3"),
    ({"readout": "add"}, {}, "readout='add'"),
    ({"activation": "relu"}, {"task": TASK}, "leave it out"),
    ({"readout": "project"}, {"pooling": "gap"}, "class_token=True"),
    (DPT, {"pooling": "gap", "norm_after_pooling": True}, '"normalized": False'),
    (DPT, {"token_merging": 1}, 'map_head="linear"'),
    (DPT, {"input_shape": (21, 12, 3)}, r"give \(20, 12\)"),
    (DPT, {"input_shape": (None, None, 3)}, "a head for every pixel returns a map"),
    (DPT, {"classifier_activation": "softmax"}, "takes logits"),
    (DPT, {"task": "classification"}, "the task, classification, is of one row per image"),
    ({**EOMT, "queries": 0}, {}, "queries=0 must be"),
    ({**EOMT, "blocks": 4}, {"task": TASK}, "give at most 3"),
    ({**EOMT, "upscale_blocks": 9}, {}, "upscale_blocks"),
    ({**EOMT, "masked": "yes"}, {}, "masked"),
    (EOMT, {"task": "depth", "num_classes": 1}, 'map_head="dpt" or "linear"'),
    (EOMT, {"task": None, "num_classes": 0}, "num_classes=0"),
    (EOMT, {"token_merging": 1}, 'map_head="eomt": leave it out'),
    (EOMT, {"position_embedding": "relative_2d"}, "position_embedding='relative_2d'"),
    (EOMT, {"pooling": "gap", "norm_after_pooling": True}, "norm_after_pooling=True"),
    (EOMT, {"input_shape": (21, 12, 3)}, r"the EoMT head needs: give \(20, 12\)"),
])  # fmt: skip
def test_what_is_refused(head: Any, changes: dict[str, Any], message: str) -> None:
    refused(message, vit, head, **changes)


def test_maps_without_a_task(tmp_path: Path) -> None:
    model = vit({**DPT, "activation": "sigmoid", "scale": 20.0}, num_classes=1)
    model.compile("sgd", "mse")
    assert model.task is None
    assert model.output_shape == (None, 20, 12, 1)
    np.testing.assert_allclose(outputs(model), 10.0)  # the last layer begins at zero
    model.save(tmp_path / "m.keras")
    twin = keras_vit.load(tmp_path / "m.keras")
    assert (twin.map_head, twin.task) == (model.map_head, None)
    np.testing.assert_array_equal(outputs(twin), outputs(model))
    plain = vit({**DPT, "normalized": False, "readout": "project"}, num_classes=1)
    assert plain.feature_model("block_2").output_shape == (None, 16, 16)
    alone = Reassemble(3, 1, 4, readout="project")
    refused("pre_logits", plain.feature_model, "pre_logits")
    refused('give readout="ignore"', alone, np.zeros((1, 2, 2, 8), "float32"))


@pytest.mark.every_backend
@pytest.mark.parametrize("masked", [False, True])
def test_answers_are_the_scores_of_the_paper(masked: bool, tmp_path: Path) -> None:
    model = awake({**EOMT, "masked": masked}, task=TASK)
    names = ["mask_logits", "class_logits"]
    parts = model.feature_model(names)(bank.pixels(2, 20, 12, 3))
    masks, classes = (keras.ops.convert_to_numpy(parts[name]) for name in names)
    assert masks.shape == (2, 10, 6, 5)
    assert classes.shape == (2, 5, 4)
    torch = pytest.importorskip("torch")
    maps = torch.as_tensor(masks.copy()).permute(0, 3, 1, 2)
    wide = torch.nn.functional.interpolate(maps, (20, 12), mode="bilinear").sigmoid()
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
    model, images = awake(), bank.pixels(2, 20, 12, 3)
    for maps in attention_maps(model, images):
        assert maps.shape[-2:] == (16, 16)
        np.testing.assert_allclose(maps.sum(axis=-1), 1, atol=1e-5)
    assert np.shape(attention_rollout(model, images)) == (2, 5, 3)


@pytest.mark.parametrize("kind", HEADS)
def test_a_new_head_keeps_the_neck_or_the_queries(kind: str) -> None:
    model = awake(HEADS[kind], task=TASK)
    freeze_backbone(model)
    other, rows = model.with_classifier(task=NEW), model.with_classifier(5)
    assert other.output_shape == (None, 20, 12, 2)
    trained = [{w.path for w in m.trainable_weights} for m in (model, other)]
    assert trained[0] == trained[1]
    assert {path.split("/")[0] for path in trained[0]} <= set(HEAD_LAYERS)
    before, after = weights_of(model), weights_of(other)
    kept = {p for p in before if p.split("/")[0] not in (*OUTPUT_LAYERS, "eomt_classes")}
    assert any(path.startswith(("dpt_fusion_3/", "eomt_queries/")) for path in kept)
    for path in kept:
        np.testing.assert_array_equal(before[path], after[path])
    assert (rows.output_shape, rows.map_head, rows.task.kind) == ((None, 5), None, "classification")
    assert rows.with_classifier(task=TASK, map_head="dpt").map_head.width == 64
    check_task(model, TASK)


def test_the_masks_of_a_photograph(here: Path, command: Any) -> None:
    """By the command, and a folder as transformers wrote it, of random weights."""
    case, folder = weights.case("hf_eomt"), here / "folder"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(case["config"]))
    larger = {"class_predictor.weight": 5, "class_predictor.bias": 0, "mask_head.fc3.weight": 5}
    tensors = weights.tensors(case)  # for several classes in the image
    tensors |= {n: np.float32(factor) * tensors[n] for n, factor in larger.items()}
    save_file(tensors, folder / "model.safetensors")
    Image.fromarray(bank.pixels(30, 47, 3)).save("photo.png")
    command("predict folder photo.png --maps maps")
    with Image.open("photo.png") as photo:  # stretched to the model's size, antialiased
        small = np.asarray(photo.resize((16, 16), Image.Resampling.BILINEAR))
    model = keras_vit.load(folder)
    (answer,) = model.task.answers(bank.outputs(model, small[None]))
    with Image.open("maps/photo.png") as file:
        found = np.asarray(file)
    assert len(np.unique(found)) > 1
    assert (found == model.task.answer_map(answer, (30, 47))).mean() > 0.99  # ties of rounding


SQUARE = {"input_shape": (16, 16, 3), "activation": "gelu", "layer_scale": 1.0}
FRESH = {"dpt": {"dpt", "head", "head_norm", "head_conv_0"}, "eomt": {"eomt", "head"}}


@pytest.mark.parametrize("kind", HEADS)
def test_the_encoder_of_a_file_and_back(kind: str, tmp_path: Path) -> None:
    """And a folder with a head: of its kind for another task, or without it."""
    plain = keras_vit.VisionTransformer(**SIZES, num_classes=5, layer_scale=1.0)
    keras_vit.save_weights(plain, tmp_path / "plain.safetensors", "timm")
    model = keras_vit.load(tmp_path / "plain.safetensors", task=TASK, map_head=HEADS[kind])
    assert {name.split("/")[0] for name in model.load_report.fresh} == FRESH[kind]
    depth = partial(vit, {**DPT, "activation": "relu"}, num_classes=1, layer_scale=1.0)
    model = awake(**SQUARE) if kind == "eomt" else depth()
    keras_vit.save_weights(model, tmp_path / "folder", "huggingface")
    other = "dpt" if kind == "eomt" else "linear"
    for changes, head in (
        ({}, kind),
        ({"task": NEW}, kind),
        ({"task": NEW, "map_head": kind}, kind),
        ({"task": NEW, "map_head": other}, other),
        ({"num_classes": 5}, "row"),
    ):
        model = keras_vit.load(tmp_path / "folder", **changes)
        assert model.head_kind == head
        loaded = any(name.startswith(f"{kind}/") for name in model.load_report.loaded)
        assert loaded == (head == kind)
        assert not loaded or kind != "dpt" or model.map_head.width == 6
    assert kind == "eomt" or keras_vit.load(tmp_path / "folder").map_head.activation == "relu"


def test_a_folder_that_no_eomt_head_fits(tmp_path: Path) -> None:
    keras_vit.save_weights(awake(**SQUARE), tmp_path / "folder", "huggingface")
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
        refused(message, keras_vit.load, tmp_path / "folder", error=CheckpointError)
    for changes, message in (
        ({"input_shape": (20, 12, 3)}, "square images"),
        ({"layer_scale": None}, "layer_scale=None"),
        ({"activation": "relu"}, "one activation in encoder"),
    ):
        call = keras_vit.save_weights, awake(**SQUARE | changes), tmp_path / "other", "huggingface"
        refused(message, *call, error=CheckpointError)


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
    with pytest.raises(CheckpointError, match="head_in_index=0"):
        read_sidecar_configs(tmp_path / "model.safetensors", (14, 14, 3, 768))


def test_the_option_of_the_command(tmp_path: Path) -> None:
    job = Job(data=str(tmp_path), out=tmp_path / "run", map_head="dpt")
    recipe = replace(keras_vit.recipes.get("from_scratch_tiny"), model=SIZES, image_size=20)
    model = build(job, recipe, TASK, channels=3)
    assert (model.head_kind, model.task) == ("dpt", TASK)


def batches(start_step: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for step in itertools.count(start_step):
        chosen = np.random.default_rng(step).permutation(24)[:8]
        yield IMAGES[chosen].astype("float32"), LABELS[chosen]


def steps_counted(model: Any) -> int:
    return int(keras.ops.convert_to_numpy(model.annealing_seed.state)[1])


@pytest.mark.backends("jax", "torch")  # TensorFlow traces its steps for minutes
def test_a_stopped_run_ends_with_the_same_bytes(tmp_path: Path) -> None:
    def fit(folder: str, seed: int, *callbacks: Any) -> tuple[Any, Any]:
        keras.utils.set_random_seed(seed)
        model = vit({**EOMT, "blocks": 2}, task=TASK, dropout=0.1)
        compile_model(model, replace(RECIPE, accumulation=2), 6)
        assert model.loss.steps == 12
        run = ResumableRun(tmp_path / folder, None, every_steps=3, print_fn=lambda _: None)
        return model, run.fit(model, batches, 3, 4, callbacks=callbacks, verbose=0).history

    whole, history = fit("whole", 0)
    with pytest.raises(Killed):
        fit("cut", 0, StopAt(8))
    resumed, again = fit("cut", 9)
    assert again == history
    assert steps_counted(whole) == steps_counted(resumed) == 12
    for one, other in zip(whole.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    # A file has the weights of a model that was never compiled.
    assert len(bindings(whole)) == len(bindings(vit({**EOMT, "blocks": 2}, task=TASK)))
    whole.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(bank.outputs(whole, IMAGES[:2]), bank.outputs(loaded, IMAGES[:2]))
    loaded.fit(IMAGES, LABELS, batch_size=8, verbose=0)  # by Keras's own means: counts on
    assert steps_counted(loaded) == 15


ROTARY = {"rotary": "dinov3", "position_embedding": "none", "num_registers": 2}


@pytest.mark.parametrize(
    ("head", "changes", "prepare"),
    [
        (EOMT, {"dropout": 0.1}, "sam"),
        (EOMT, {"dtype": "mixed_float16"}, ""),
        (EOMT, ROTARY, ""),
        ({**EOMT, "masked": True}, {}, ""),
        (EOMT, {}, "lora"),
        ({**DPT, "batch_norm": True}, {}, ""),
    ],
    ids=["sam", "float16", "rotary", "always masked", "lora", "dpt"],
)
def test_every_weight_learns(head: Any, changes: dict[str, Any], prepare: str) -> None:
    model = awake(head, task=TASK, **changes)
    if prepare == "lora":
        enable_lora(model, 2)
    is_eomt = model.head_kind == "eomt"
    loss = QueryLoss(steps=12) if is_eomt else TASK.loss("pixel_crossentropy")
    model.compile(keras.optimizers.AdamW(3e-3), loss, metrics=TASK.metrics())
    if prepare == "sam":
        sharpness_aware(model, 0.05)
    before = weights_of(model)
    seen = model.fit(IMAGES, LABELS, batch_size=8, epochs=4, verbose=0).history
    assert seen["loss"][-1] < seen["loss"][0]
    assert seen.keys() == {"loss", "mean_iou"}
    same = {p for p, value in weights_of(model).items() if np.array_equal(before[p], value)}
    assert ("patch_embedding/kernel" in same) if prepare == "lora" else not same
    assert model.predict(IMAGES[:2], verbose=0).shape == (2, 20, 12, 3)


# Names of facebookresearch/dinov2's released heads and of those that dinov3's training writes.
@pytest.mark.every_backend
@pytest.mark.parametrize(("outer", "norm", "convolution"), [
    ("state_dict", "decode_head.bn", "decode_head.conv_seg"),
    ("model", "segmentation_model.1.batchnorm_layer", "segmentation_model.1.conv"),
])  # fmt: skip
def test_linear_heads_of_dino(outer: str, norm: str, convolution: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    layers = {norm: torch.nn.BatchNorm2d(16), convolution: torch.nn.Conv2d(16, 3, 1)}
    for tensor in (*layers[norm].parameters(), *layers[norm].buffers()):
        tensor.data = torch.rand(tensor.shape).add(0.5).to(tensor.dtype)
    state = {f"{n}.{k}": v for n, x in layers.items() for k, v in x.state_dict().items()}
    torch.save({outer: state, "meta": {"iter": 1}}, tmp_path / "head.pth")
    model = vit("linear", task=TASK)
    features = model.feature_model("encoder_norm", format="grid")
    grid = bank.outputs(features, IMAGES[:2])
    assert len(keras_vit.load_weights(model, tmp_path / "head.pth").loaded) == 6
    with torch.no_grad():
        maps = layers[convolution](layers[norm].eval()(torch.tensor(grid).permute(0, 3, 1, 2)))
        maps = torch.nn.functional.interpolate(maps, model.image_size, mode="bilinear")
    expected = maps.permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose(bank.outputs(model, IMAGES[:2]), expected, atol=1e-5)
    np.testing.assert_array_equal(bank.outputs(features, IMAGES[:2]), grid)
    keras_vit.save_weights(model, tmp_path / "h.safetensors", "dino_linear_head")
    for name, values in load_file(tmp_path / "h.safetensors").items():
        inner = name.replace("batchnorm_layer", norm).replace("conv.", f"{convolution}.")
        np.testing.assert_array_equal(values, state[inner].numpy())
    path, words = tmp_path / "head.pth", ("3 classes in the file, 2", "norm of every", "several of")
    others = ({"task": NEW}, {"num_classes": 3, "map_head": None}, {"task": TASK, "hidden_dim": 32})
    for message, changes in zip(words, others, strict=True):
        other = vit("linear", **changes)
        refused(message, keras_vit.load_weights, other, path, error=CheckpointError)
    refused("has a head alone: load the encoder", keras_vit.load, path, error=CheckpointError)


def test_what_training_refuses(tmp_path: Path) -> None:
    frozen, model = keras_vit.recipes.get("linear_pixels"), vit(EOMT)
    model.compile("sgd", QueryLoss())
    dice = replace(RECIPE, loss="crossentropy_dice")
    refused("matching its queries with masks", compile_model, model, dice, 6)
    refused("one of 1 losses", vit("linear", task=TASK).compile, "sgd", QueryLoss())
    refused("points=0", QueryLoss, points=0)
    refused("steps=2.5", QueryLoss, steps=2.5)
    refused("pass the last blocks", keras_vit.fit, model, frozen, (IMAGES, LABELS), tmp_path)
    refused("sample_weight", model.fit, IMAGES, LABELS, sample_weight=np.ones(24), verbose=0)


@pytest.mark.backends("tensorflow")
def test_xla_does_not_call_the_host_on_tensorflow() -> None:
    model = vit(EOMT)
    refused("which XLA does not compile there", model.compile, "sgd", QueryLoss(), jit_compile=True)
    model.compile("sgd", QueryLoss())
    assert not model.jit_compile
    assert not model._xla_is_free
    assert model.get_compile_config()["jit_compile"] == "auto"
