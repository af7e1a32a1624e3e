"""Real weights: ViT-Ti/16 of AugReg as timm has it, against timm's and transformers' numbers."""

import json
import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer, ViTTi16
from keras_vit.evaluation.prediction import predict_files
from keras_vit.weights import load, save_weights
from tests.weights.models import assert_same_weights, of_torch, stripped, suffix

Arrays = dict[str, np.ndarray]
# Largest difference of logits of magnitude 13, and of tokens, which grow to 50 by the last block.
LOGITS, TOKENS = 2e-5, {"block_0": 2e-5, "block_5": 2e-5, "block_11": 5e-4}


@pytest.fixture(scope="module")
def folder(shared: Path) -> Path:
    return shared / "weights" / "vit_tiny_patch16_224.augreg_in21k_ft_in1k"


@pytest.fixture(scope="module")
def recorded(folder: Path) -> Arrays:
    return dict(np.load(folder / "golden_timm.npz"))


@pytest.fixture(scope="module")
def model(folder: Path) -> VisionTransformer:
    return load(folder / "model.safetensors", include_preprocessing=False)


def compare(model: VisionTransformer, recorded: Arrays) -> None:
    features = model.feature_model([*TOKENS, "pre_logits", "logits"])
    normal = np.random.default_rng(0).standard_normal((2, 3, 224, 224)).astype("float32")
    for name, images in (("cats", recorded["cats_input_nchw"]), ("normal_seed0", normal)):
        found = features(images.transpose(0, 2, 3, 1))
        outputs = {key: keras.ops.convert_to_numpy(value) for key, value in found.items()}
        assert np.abs(outputs["logits"] - recorded[f"{name}_logits"]).max() <= LOGITS
        for block, atol in TOKENS.items():
            expected = recorded[f"{name}_{block.replace('_', '')}"]
            assert np.abs(outputs[block][:1, :8] - expected).max() <= atol, block


def test_timms_numbers(model: VisionTransformer, recorded: Arrays) -> None:
    assert (model.activation, model.norm_epsilon, model.num_heads) == ("gelu", 1e-6, 3)
    assert model.class_names[281] == "tabby, tabby cat"
    compare(model, recorded)


@pytest.mark.parametrize("layout", ["google", "big_vision", "huggingface"])
def test_in_another_layout(layout: str, model: Any, recorded: Arrays, tmp_path: Path) -> None:
    file = tmp_path / f"m{suffix(layout)}"
    save_weights(model, file, layout=layout)
    twin = load(file)
    assert (twin.load_report.layout, twin.class_names) == (layout, model.class_names)
    if layout != "big_vision":
        assert_same_weights(twin, model)
    compare(twin, recorded)


def test_a_configuration_beside_the_file_is_read(model: Any, folder: Path, tmp_path: Path) -> None:
    """Hugging Face's config.json has epsilon 1e-6, where its layout alone means 1e-12."""
    file = tmp_path / "m.safetensors"
    save_weights(model, file, layout="huggingface")
    assert load(stripped(file)).norm_epsilon == 1e-12
    for name in ("config.json", "preprocessor_config.json"):
        shutil.copyfile(folder / "hf" / name, tmp_path / name)
    twin = load(file)
    assert (twin.norm_epsilon, twin.activation, twin.num_heads) == (1e-6, "gelu", 3)
    assert twin.include_preprocessing is True
    assert twin.class_names[281] == "tabby, tabby cat"
    imagenet = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(imagenet))
    assert load(file).normalization == "imagenet"


def test_transformers_loads_what_we_write(folder: Path, recorded: Arrays, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = load(folder / "model.safetensors")
    save_weights(model, tmp_path / "vit", layout="huggingface")
    theirs = transformers.ViTForImageClassification.from_pretrained(tmp_path / "vit").eval()
    logits = of_torch(theirs, recorded["cats_input_nchw"].transpose(0, 2, 3, 1))
    expected = recorded["cats_logits"]
    assert np.abs(logits - expected).max() <= 1e-5 * np.abs(expected).max()
    assert theirs.config.id2label[281] == "tabby, tabby cat"


def test_a_named_model_follows_its_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    model = ViTTi16(weights=file, num_classes=5, input_shape=(64, 96, 3))
    assert (model.activation, model.norm_epsilon) == ("gelu", 1e-6)
    assert model.output_shape == (None, 5)
    assert ViTTi16(weights=file, activation="relu", num_classes=5).activation == "relu"


def test_the_two_cats(folder: Path, shared: Path) -> None:
    pytest.importorskip("tensorflow")
    model = load(folder / "model.safetensors")
    golden = json.loads((folder / "golden_cats.json").read_text())
    ((_, answer),) = predict_files(model, [shared / "photos" / "cats.png"])
    rows = model.task.describe(answer, top=5)["predictions"]
    assert [row["class"] for row in rows] == [row["label"] for row in golden["top5"]]
