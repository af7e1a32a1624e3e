"""Folders that transformers and timm open as they are, and theirs that `load` opens."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_vit.data.decode.decoder import DECODERS
from keras_vit.data.eval_transform import EvalTransform
from keras_vit.evaluation.prediction import read_images
from keras_vit.models import BiTResNet
from keras_vit.models.answers import answers_of
from keras_vit.tasks import Classification, Multilabel, Ordinal, Regression
from keras_vit.weights import folder_transform, load, load_weights, save_weights
from keras_vit_cli.options import shared as shared_options
from tests.backend import warned
from tests.bank import fresh, outputs, small
from tests.weights.models import of_torch, refused, stripped, their_vit

Image = pytest.importorskip("PIL.Image")
torch = pytest.importorskip("torch")

SMALL, LARGE = {"height": 32, "width": 32}, {"height": 40, "width": 40}
EDGE = {"shortest_edge": 40}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
NAMES = ("ash", "birch", "cedar", "dogwood", "elm")
PILLOW = {"decoder": "pillow"}
# Preparations, and by how much logits of about 2 may differ. Any two preparations differ by 0.025
# or more; the first ones are the other side's own, and TensorFlow rounds a few pixels otherwise.
STRETCH = {"mode": "huggingface_stretch"}
TRANSFORMS: dict[str, tuple[dict[str, Any], float]] = {
    "stretch": ({**STRETCH, "crop_fraction": 1.0}, 1e-3),
    "stretch_and_crop": ({**STRETCH, "crop_fraction": 0.8, "interpolation": "bilinear"}, 1e-3),
    "crop": ({"mode": "huggingface_crop", "crop_fraction": 0.875}, 1e-3),
    "stretch_bicubic": ({"mode": "stretch_bicubic"}, 5e-3),  # Pillow has integers between the axes
    # The long side, 42 pixels here, is rounded down there, and to the nearest integer by ours.
    "default": ({}, 0.1),
}


def model_with(transform: dict[str, Any], **changes: Any) -> Any:
    model = fresh(activation="gelu", **changes)
    model.class_names = NAMES
    model.eval_transform = {**transform, **PILLOW}
    head = model.get_layer("head")
    head.kernel.assign(20 * head.kernel)  # logits that differ where pixels do
    return model


@pytest.fixture
def photograph(tmp_path: Path) -> Path:
    rows, columns = np.mgrid[0:67, 0:90]
    pairs = ((90, 3), (210, 2.6), (55, 4))
    waves = [127 + 120 * np.sin(rows * columns / a + columns / b) for a, b in pairs]
    file = tmp_path / "photograph.jpg"
    Image.fromarray(np.stack(waves, -1).astype("uint8")).save(file, quality=90)
    return file


def ours(model: Any, file: Path) -> np.ndarray:
    images, failed = read_images(model, [file])
    assert not failed
    return outputs(model, images)


def huggingface_logits(folder: Path, file: Path) -> np.ndarray:
    transformers = pytest.importorskip("transformers")
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    model = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    with Image.open(file) as image, torch.no_grad():
        return model(**processor(image.convert("RGB"), return_tensors="pt")).logits.numpy()


def timm_logits(folder: Path, file: Path) -> np.ndarray:
    timm = pytest.importorskip("timm", exc_type=ImportError)
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    with Image.open(file) as image, torch.no_grad():
        return model(transform(image.convert("RGB"))[None]).numpy()


SIDES = {"huggingface": huggingface_logits, "timm": timm_logits}


def assert_agree(layout: str, model: Any, folder: Path, file: Path, atol: float) -> np.ndarray:
    save_weights(model, folder / "vit", layout)
    logits, expected = SIDES[layout](folder / "vit", file), ours(model, file)
    for found in (logits, ours(load(folder / "vit"), file)):
        np.testing.assert_allclose(found, expected, atol=atol)
    return expected


@pytest.mark.parametrize("layout", SIDES)
@pytest.mark.parametrize("kind", TRANSFORMS)
def test_their_logits_are_ours(layout: str, kind: str, tmp_path: Path, photograph: Path) -> None:
    transform, atol = TRANSFORMS[kind]
    expected = assert_agree(layout, model_with(transform), tmp_path, photograph, atol)
    assert np.abs(expected - expected.mean()).max() > 1.5


@pytest.mark.parametrize("changes", [
    *({"pooling": "gap"}, {"pooling": "gap", "class_token": True}, {"pooling": "map"}),
    *({"num_registers": 3, "layer_scale": 0.3}, {"position_embedding": "none"}),
    *({"mlp_dim": 45, "activation": "silu"}, {"normalization": "imagenet"}),
    {"input_shape": (32, 48, 3), "patch_size": (8, 16)},
], ids=str)  # fmt: skip
def test_timm_builds_what_it_does_not_name(changes: Any, tmp_path: Path, photograph: Path) -> None:
    model = fresh(**{"activation": "gelu_tanh", **changes})
    model.eval_transform = {"mode": "timm_squash", "crop_fraction": 1.0, **PILLOW}
    assert_agree("timm", model, tmp_path, photograph, 0.002)


def test_we_load_what_transformers_writes(tmp_path: Path) -> None:
    square, wide = their_vit(num_labels=5), their_vit(image_size=[16, 64])
    square.save_pretrained(tmp_path)
    torch.save(square.state_dict(), tmp_path / "m.bin")  # which has other names
    square.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("model-*-of-*.safetensors"))) > 2
    wide.save_pretrained(tmp_path / "wide")
    for theirs, file, size, call in (
        (square, "model.safetensors", (32, 32), {}),
        (square, "m.bin", (32, 32), {}),
        (square, "shards", (32, 32), {}),
        (square, "model.safetensors", (48, 40), {"interpolate_pos_encoding": True}),
        (wide, "wide", (16, 64), {}),
    ):
        # That positions are not those of a square stands in the configuration.
        given = {} if theirs is wide else {"input_shape": (*size, 3)}
        model = load(tmp_path / file, include_preprocessing=False, **given)
        assert (model.norm_epsilon, model.num_heads) == (1e-12, 4)
        assert model.input_shape == (None, *size, 3)
        images = np.random.default_rng(0).normal(0, 1, (2, *size, 3)).astype("float32")
        logits = of_torch(theirs, images, **call)
        np.testing.assert_allclose(outputs(model, images), logits, atol=1e-5)


@pytest.mark.parametrize(("kind", "processor", "expected"), [
    ("ViT", {}, ("stretch", 1.0, "bilinear")),
    ("ViT", {"resample": 3, "size": LARGE}, ("stretch", 1.0, "bicubic")),
    ("Bit", {**HALF, "size": EDGE, "crop_size": SMALL}, ("crop", 0.8, "bicubic")),
    ("DeiT", {"size": LARGE, "crop_size": SMALL, "resample": 1}, ("stretch", 0.8, "lanczos")),
])  # fmt: skip
def test_we_open_a_folder_of_transformers(kind, processor, expected, tmp_path, photograph) -> None:
    transformers = pytest.importorskip("transformers")
    options = {"size": SMALL, **processor}
    side = options.get("crop_size", options["size"])["height"]
    labels = {"id2label": dict(enumerate(NAMES)), "label2id": {n: i for i, n in enumerate(NAMES)}}
    their_vit(image_size=side, **labels).save_pretrained(tmp_path / "vit")
    processor_class = getattr(transformers, f"{kind}ImageProcessorPil")
    processor_class(**options).save_pretrained(tmp_path / "vit")
    model = load(tmp_path / "vit")
    assert (model.class_names, model.input_shape) == (NAMES, (None, side, side, 3))
    mode, *others = expected
    assert model.eval_transform == EvalTransform(f"huggingface_{mode}", *others, **PILLOW)
    logits = huggingface_logits(tmp_path / "vit", photograph)
    np.testing.assert_allclose(ours(model, photograph), logits, atol=1e-3)


@pytest.mark.parametrize("mode", ["center", "squash"])
def test_we_open_a_folder_of_timm(mode: str, tmp_path: Path, photograph: Path) -> None:
    timm = pytest.importorskip("timm", exc_type=ImportError)
    options = {"crop_mode": mode, "crop_pct": 0.9, "interpolation": "bilinear"}
    theirs = timm.create_model(
        "vit_tiny_patch16_224", num_classes=5, img_size=48, embed_dim=32, depth=2, num_heads=4,
        act_layer="gelu_tanh", global_pool="avg", fc_norm=False,
        pretrained_cfg_overlay={**options, "input_size": (3, 48, 48)},
    )  # fmt: skip
    written = {"label_names": list(NAMES)}
    timm.models.save_for_hf(theirs, tmp_path / "vit", written, safe_serialization=True)
    model = load(tmp_path / "vit")
    assert (model.class_names, model.num_heads, model.pooling) == (NAMES, 4, "gap")
    assert model.input_shape == (None, 48, 48, 3)
    assert model.eval_transform == EvalTransform(f"timm_{mode}", 0.9, "bilinear", **PILLOW)
    logits = timm_logits(tmp_path / "vit", photograph)
    np.testing.assert_allclose(ours(model, photograph), logits, atol=1e-3)


@pytest.mark.parametrize("changes", [
    *({"resample": 0}, {"resample": []}, {"do_resize": False}),
    *({"crop_pct": 0.9}, {"size": {"longest_edge": 32}}, {"size": []}),
    {"size": {"shortest_edge": 32}, "do_center_crop": False},
    *({"size": {"height": "32", "width": 32}}, {"size": {"height": 10**9, "width": 10**9}}),
], ids=str)  # fmt: skip
def test_a_preparation_that_we_do_not_have_is_reported(changes: Any, tmp_path: Path) -> None:
    save_weights(small(), tmp_path / "vit", "huggingface")
    stripped(tmp_path / "vit" / "model.safetensors")
    processor = tmp_path / "vit" / "preprocessor_config.json"
    processor.write_text(json.dumps({**json.loads(processor.read_text()), **changes}))
    model = warned("prepares images in a way that this package does not", load, tmp_path / "vit")
    assert model.eval_transform == EvalTransform("stretch_bicubic")
    processor.unlink()
    config = tmp_path / "vit" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "hidden_act": []}))
    warned(r"has the activation \[\], which is not known", load, tmp_path / "vit")


CLIP = {"pre_norm": True, "normalization": "clip"}
BEIT = {"position_embedding": "relative_2d", "norm_after_pooling": True, "pooling": "gap"}
BEIT |= {"class_token": True}


@pytest.mark.parametrize(("layout", "changes", "message"), [
    ("huggingface", {"pooling": "gap", "class_token": True}, "not classify with pooling='gap'"),
    ("huggingface", {"pooling": "map"}, "does not classify with pooling='map'"),
    ("huggingface", {"layer_scale": 0.1}, "Dinov2ForImageClassification does not classify"),
    ("huggingface", {"distilled": True, "mlp_norm": True}, "mlp_norm=True"),
    ("huggingface", {"num_registers": 2}, "num_registers=2"),
    ("huggingface", {"representation_size": 32}, "representation_size=32"),
    ("huggingface", {"position_embedding": "sincos2d"}, "position_embedding='sincos2d'"),
    ("huggingface", {"key_bias": False}, "key_bias=False"),  # with biases that are not zero
    ("huggingface", {"activation": "swiglu"}, "gated MLPs, activation='swiglu'"),
    ("huggingface", {**CLIP, "input_shape": (32, 64, 3)}, r"of squares.* image_size=\[32, 64\]"),
    ("huggingface", {**CLIP, "patch_size": (8, 4)}, r"of squares.* patch_size=\[8, 4\]"),
    ("timm", {"position_embedding": "learned_2d"}, "position_embedding='learned_2d'"),
    ("timm", {"representation_size": 24}, "representation_size=24"),
    ("timm", {"activation": "swiglu"}, "activation='swiglu'"),
    ("timm", {**BEIT, "activation": "relu"}, "activation='gelu', and this one has 'relu'"),
    ("timm", {"pooling": None}, "does not classify with pooling=None"),
    ("timm", {"token_merging": 1}, "token_merging=1"),
    ("timm", {"distilled": True, "pre_norm": True}, "pre_norm=True"),
])  # fmt: skip
def test_what_they_do_not_compute(layout: str, changes: Any, message: str, tmp_path: Path) -> None:
    refused(message, save_weights, small(**changes), tmp_path / "vit", layout)
    assert not (tmp_path / "vit").exists()


def test_without_biases_of_the_attention(tmp_path: Path) -> None:
    model = fresh(key_bias=False)
    for weight in model.weights:
        if weight.path.endswith("query_value_bias"):
            weight.assign(0 * weight)
    for layout in SIDES:
        save_weights(model, tmp_path / layout, layout)
        config = json.loads((tmp_path / layout / "config.json").read_text())
        assert config.get("model_args", config)["qkv_bias"] is False
        assert not load(tmp_path / layout).key_bias


def test_a_pooling_of_timm_that_we_do_not_have(tmp_path: Path) -> None:
    save_weights(small(pooling="gap"), tmp_path / "vit", "timm")
    config = json.loads((file := tmp_path / "vit" / "config.json").read_text())
    for theirs in ({"global_pool": "avgmax"}, {"pool_include_prefix": True}):
        file.write_text(json.dumps({**config, "model_args": {**config["model_args"], **theirs}}))
        refused("global_pool='avg.*open it with timm", load, tmp_path / "vit")


@pytest.mark.parametrize(("layout", "transform", "changes", "message"), [
    ("timm", {"mode": "stretch"}, {}, "'stretch' cannot be expressed"),
    ("huggingface", {"mode": "big_vision"}, {}, "'big_vision' cannot be expressed"),
    ("timm", {"views": "flip"}, {}, "by the mean of several views, 'flip', .* are of one view"),
    ("timm", {}, {"norm_epsilon": 1e-3}, "norm_epsilon=0.001"),
    ("timm", {}, {**BEIT, "activation": "gelu_tanh"}, "'gelu_tanh': logits differ slightly"),
    ("timm", {}, {"include_preprocessing": False}, "include_preprocessing=False"),
    ("huggingface", {}, {"input_shape": (32, 64, 3)}, "transformers crops to 32 x 64"),
    ("timm", {}, {"input_shape": (32, 32, 1)}, "1 channels"),
])  # fmt: skip
def test_what_the_folder_cannot_say_is_told(layout, transform, changes, message, tmp_path) -> None:
    model = fresh(**changes)
    model.eval_transform = transform
    warned(message, save_weights, model, tmp_path / "vit", layout)


@pytest.mark.parametrize("layout", SIDES)
def test_files_of_others_stay(layout: str, tmp_path: Path) -> None:
    folder, model = tmp_path / "vit.v2", small()
    folder.mkdir()
    (folder / "README.md").write_text("mine")
    for _ in range(2):
        save_weights(model, folder, layout)
    assert (folder / "README.md").read_text() == "mine"
    with pytest.raises(FileExistsError, match="overwrite=True"):
        save_weights(model, folder, layout, overwrite=False)
    (other,) = {*SIDES} - {layout}
    refused("is a folder for", save_weights, model, folder, other, error=FileExistsError)
    (folder / "config.json").write_text('{"model_type": "vit"}')
    refused(r"config\.json exists", save_weights, model, folder, layout, error=FileExistsError)
    assert (folder / "config.json").read_text() == '{"model_type": "vit"}'
    # Nor is there a folder of another family, or layout.
    refused("layout='google' is not known", folder_transform, model, "google", error=ValueError)
    other = BiTResNet(depths=(1,), width=32, num_classes=2, input_shape=(32, 32, 3))
    refused("is a BiTResNet that is not", save_weights, other, tmp_path / "bit", layout)


def test_the_model_card(tmp_path: Path) -> None:
    for layout, library in (("huggingface", "transformers"), ("timm", "timm")):
        model = fresh()
        model.class_names = ("<b>", "| `x`", "c", "d", "e")
        save_weights(model, tmp_path / layout, layout)
        card = (tmp_path / layout / "README.md").read_text()
        _, header, body = card.split("---\n", 2)
        assert f"\nlibrary_name: {library}\npipeline_tag: image-classification\n" in header
        assert "\nlicense" not in header
        assert "$" not in card
        assert "5 classes" in body
        assert "<b>" not in card
        compile(body.split("```python\n")[1].split("```")[0], "card", "exec")


@pytest.mark.parametrize("layout", SIDES)
@pytest.mark.parametrize("mode", ["crop", "stretch", "big_vision", "timm_center"])
def test_folder_transform(layout: str, mode: str, tmp_path: Path, photograph: Path) -> None:
    model = model_with({"mode": mode})
    with warnings.catch_warnings(action="ignore"):  # of what the folder cannot say
        save_weights(model, tmp_path / "vit", layout)
        model.eval_transform = folder_transform(model, layout)
    logits = SIDES[layout](tmp_path / "vit", photograph)
    np.testing.assert_allclose(logits, ours(model, photograph), atol=1e-3)


def test_predict_and_evaluate_take_a_decoder(tmp_path: Path, command: Any, shared: Path) -> None:
    pytest.importorskip("tensorflow")
    assert tuple(DECODERS) == shared_options.DECODERS
    model_with({}).save(tmp_path / "model.keras")
    photo = min((shared / "photos" / "flowers" / "roses").glob("*.jpg"))
    words = "predict", tmp_path / "model.keras", photo, "--decoder"
    assert command(*words, "tensorflow") != command(*words, "pillow")


SCALES = {"offset": (1.7, 70.0), "scale": (0.1, 12.0)}
TASKS = {
    "classes": Classification(("ash", "birch", "cedar")),
    "labels": Multilabel(("beach", "night", "people"), thresholds=(0.2, 0.5, 0.7)),
    "numbers": Regression(("height", "weight"), units=("m", "kg"), **SCALES),
    "number": Regression(("age",), offset=(40.0,), scale=(15.0,), margins=(9.0,)),
    "grades": Ordinal(("none", "mild", "severe")),
}


@pytest.fixture(params=TASKS)
def model(request: pytest.FixtureRequest) -> Any:
    sizes = {"hidden_dim": 16, "depth": 1, "num_heads": 2, "mlp_dim": 64}
    model = fresh(filled=False, activation="gelu", task=TASKS[request.param], **sizes)
    random, head = np.random.default_rng(0), model.get_layer("head")
    head.set_weights([random.normal(0, 2, w.shape).astype("float32") for w in head.weights])
    model.eval_transform = {**TRANSFORMS["stretch"][0], **PILLOW}
    return model


def answers(model: Any, photograph: Path) -> np.ndarray:
    return answers_of(model, outputs(model, read_images(model, [photograph])[0]))


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
    own, theirs = answers(model, photograph), answers(read, photograph)
    np.testing.assert_allclose(theirs, own, rtol=2e-3, atol=2e-3)
    old, new = model.task.describe(own[0]), read.task.describe(theirs[0])
    assert [row.keys() for row in old["predictions"]] == [row.keys() for row in new["predictions"]]
    assert old.get("labels") == new.get("labels")  # by the same thresholds


@pytest.mark.parametrize(("before", "named"), [
    (Multilabel(("cat", "dog")), "multilabel of 2 (cat, dog)"),
    (Classification(("dog", "cat")), "classification of 2 (dog, cat)"),
    (Classification(size=2), None),  # nobody gave the names
    (Classification(("cat", "dog")), None),
])  # fmt: skip
def test_a_head_of_another_task_is_named(before: Any, named: str | None, tmp_path: Path) -> None:
    save_weights(fresh(task=Classification(("cat", "dog"))), tmp_path / "m.safetensors", "timm")
    model = fresh(task=before)
    text = re.escape(f"classification of 2 (cat, dog), and {model.name} was for {named}:")
    nothing = warnings.catch_warnings(action="error", category=UserWarning)
    with pytest.warns(match=text) if named else nothing:
        load_weights(model, tmp_path / "m.safetensors")
    assert model.task == Classification(("cat", "dog"))


def test_timm_returns_numbers_in_their_units(model: Any, photograph: Path, tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    save_weights(model, tmp_path / "out", layout="timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["label_names"] == list(model.task.output_names)
    images = read_images(model, [photograph])[0]
    logits = of_torch(theirs, (images / 127.5 - 1.0).astype("float32"))
    is_numbers = isinstance(model.task, Regression)
    expected = answers(model, photograph) if is_numbers else outputs(model, images)
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)
    usage = (tmp_path / "out" / "README.md").read_text()
    assert "$" not in usage
    assert ("softmax" in usage) == isinstance(model.task, Classification)
    assert ("sigmoid" in usage) == isinstance(model.task, Multilabel | Ordinal)


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
    warned(r"\(sun, rain\).* was for .*\(red, bl", load, tmp_path, task=Multilabel(("red", "blue")))


def test_a_classifier_of_siglip_pools_as_there(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"intermediate_size": 32, "num_hidden_layers": 1, "image_size": 16, "patch_size": 8}
    config = transformers.SiglipConfig(vision_config=sizes, num_labels=3)
    config.id2label, config.label2id = dict(enumerate("abc")), {c: i for i, c in enumerate("abc")}
    config.problem_type = "multi_label_classification"
    theirs = transformers.SiglipForImageClassification(config).eval()
    theirs.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["vision_config"].pop("hidden_size") == 768  # released files leave defaults out
    (tmp_path / "config.json").write_text(json.dumps(written))
    model = load(tmp_path, include_preprocessing=False, classifier_activation=None)
    assert (model.pooling, model.task) == ("gap", Multilabel(("a", "b", "c")))
    images = np.random.default_rng(0).standard_normal((2, 16, 16, 3)).astype("float32")
    expected = of_torch(theirs, images)
    np.testing.assert_allclose(outputs(model, images), expected, atol=1e-5)


def test_what_a_file_keeps_of_its_model(tmp_path: Path) -> None:
    model = fresh(num_classes=1, classifier_activation="sigmoid", task=Regression(("score",)))
    images = np.zeros((1, 32, 32, 3), "float32")
    save_weights(model, tmp_path / "m.safetensors", layout="timm")
    np.testing.assert_allclose(
        outputs(load(tmp_path / "m.safetensors"), images), outputs(model, images), atol=1e-6
    )
    folder = tmp_path / "gap"
    save_weights(model_with({}, pooling="gap"), folder, layout="huggingface")
    assert load(folder).class_names == NAMES
