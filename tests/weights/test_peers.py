"""Other packages read what we write, and give the same numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_vit.weights import from_checkpoint, save_weights
from tests.weights.models import outputs, small

torch = pytest.importorskip("torch")
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def images() -> np.ndarray:
    return np.random.default_rng(0).normal(0, 1, (2, 32, 32, 3)).astype("float32")


def nchw() -> Any:
    return torch.as_tensor(images().transpose(0, 3, 1, 2).copy())


def test_transformers_loads_our_folder(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = small(activation="gelu", norm_epsilon=1e-12, include_preprocessing=False)
    save_weights(model, tmp_path / "vit", layout="huggingface")
    theirs, info = transformers.ViTForImageClassification.from_pretrained(
        tmp_path / "vit", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    with torch.no_grad():
        logits = theirs.eval()(nchw()).logits.numpy()
    np.testing.assert_allclose(logits, outputs(model, images()), atol=1e-5)


def test_transformers_loads_real_weights(shared: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = shared / "weights" / "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    model = from_checkpoint(folder / "model.safetensors")
    save_weights(model, tmp_path / "vit", layout="huggingface")
    theirs = transformers.ViTForImageClassification.from_pretrained(tmp_path / "vit").eval()
    recorded = np.load(folder / "golden_timm.npz")
    with torch.no_grad():
        logits = theirs(torch.as_tensor(recorded["cats_input_nchw"])).logits.numpy()
    expected = recorded["cats_logits"]
    assert np.abs(logits - expected).max() <= 1e-5 * np.abs(expected).max()
    assert theirs.config.id2label[281] == "tabby, tabby cat"


def test_we_load_what_transformers_writes(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        **SIZES, intermediate_size=48, image_size=32, patch_size=8, num_labels=5
    )
    theirs = transformers.ViTForImageClassification(config).eval()
    theirs.save_pretrained(tmp_path)
    model = from_checkpoint(tmp_path / "model.safetensors", include_preprocessing=False)
    assert (model.norm_epsilon, model.num_heads) == (1e-12, 4)
    with torch.no_grad():
        logits = theirs(nchw()).logits.numpy()
    np.testing.assert_allclose(outputs(model, images()), logits, atol=1e-5)
    # Its state dict in memory has other names.
    torch.save(theirs.state_dict(), tmp_path / "m.bin")
    again = from_checkpoint(tmp_path / "m.bin", include_preprocessing=False)
    np.testing.assert_allclose(outputs(again, images()), logits, atol=1e-5)
    # At another resolution.
    larger = from_checkpoint(
        tmp_path / "model.safetensors", include_preprocessing=False, input_shape=(48, 40, 3)
    )
    larger_images = np.random.default_rng(1).normal(0, 1, (2, 48, 40, 3)).astype("float32")
    with torch.no_grad():
        logits = theirs(
            torch.as_tensor(larger_images.transpose(0, 3, 1, 2).copy()),
            interpolate_pos_encoding=True,
        ).logits.numpy()
    np.testing.assert_allclose(outputs(larger, larger_images), logits, atol=1e-5)


@pytest.mark.parametrize("swiglu", [False, True])
def test_we_load_dinov2_with_registers(swiglu: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.Dinov2WithRegistersConfig(
        **SIZES,
        mlp_ratio=2,
        image_size=32,
        patch_size=8,
        use_swiglu_ffn=swiglu,
        layerscale_value=0.3,
    )
    theirs = transformers.Dinov2WithRegistersModel(config).eval()
    theirs.save_pretrained(tmp_path)
    model = from_checkpoint(tmp_path / "model.safetensors", include_preprocessing=False)
    assert model.num_registers == 4
    assert model.layer_scale is not None
    assert model.activation == ("swiglu" if swiglu else "gelu")
    with torch.no_grad():
        pooled = theirs(nchw()).pooler_output.numpy()
    np.testing.assert_allclose(outputs(model, images()), pooled, atol=1e-5)


@pytest.mark.parametrize("kind", ["token", "gap", "map", "dinov2"])
def test_timm_loads_our_file_and_we_load_timms(kind: str, tmp_path: Path) -> None:
    timm = pytest.importorskip("timm.models.vision_transformer", exc_type=ImportError)
    options: dict[str, Any] = {
        "token": {},
        "gap": {"pooling": "gap"},
        "map": {"pooling": "map"},
        "dinov2": {"layer_scale": 0.3, "num_registers": 2},
    }[kind]
    model = small(activation="gelu", include_preprocessing=False, **options)
    save_weights(model, tmp_path / "m.safetensors", layout="timm")
    theirs = timm.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4, mlp_ratio=1.5,
        num_classes=5, class_token=kind in ("token", "dinov2"), fc_norm=False,
        global_pool={"token": "token", "gap": "avg", "map": "map", "dinov2": "token"}[kind],
        init_values=options.get("layer_scale"), reg_tokens=options.get("num_registers", 0),
        no_embed_class=kind == "dinov2",
    ).eval()  # fmt: skip
    from safetensors.torch import load_file

    state = load_file(tmp_path / "m.safetensors")
    if kind == "dinov2":  # timm keeps the class token's position in the token there
        state["cls_token"] = state["cls_token"] + state["pos_embed"][:, :1]
        state["pos_embed"] = state["pos_embed"][:, 1:]
    theirs.load_state_dict(state)
    with torch.no_grad():
        logits = theirs(nchw()).numpy()
    np.testing.assert_allclose(outputs(model, images()), logits, atol=1e-5)
    torch.save(theirs.state_dict(), tmp_path / "m.pth")
    again = from_checkpoint(tmp_path / "m.pth", num_heads=4, include_preprocessing=False)
    np.testing.assert_allclose(outputs(again, images()), logits, atol=1e-5)
