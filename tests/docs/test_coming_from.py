"""What docs/coming_from.md calls equal is equal, with random weights copied from the other side."""

import inspect
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from tests.docs.stand_ins import fill

# The other side computes on the same backend, or in torch.
pytestmark = pytest.mark.skipif(
    keras.backend.backend() == "tensorflow", reason="compared on JAX and torch"
)
SIZES = {"num_heads": 3, "hidden_dim": 48, "mlp_dim": 96}
IMAGES = np.random.default_rng(0).uniform(-1, 1, (2, 32, 32, 3)).astype("float32")


def numpy(value: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(value))


def ours_beside_keras_hub(**arguments: Any) -> Any:
    shared = {"input_shape": (32, 32, 3), "patch_size": 16, "depth": 2, "activation": "gelu"}
    return keras_vit.VisionTransformer(
        **{**SIZES, **shared, "include_preprocessing": False, **arguments}
    )


def as_google_file(model: keras.Model, file: Path) -> Path:
    """The weights of KerasHub's classifier or backbone under the names of the released code."""
    names = {
        "vit_patching_and_embedding/class_token": "cls",
        "vit_patching_and_embedding/patch_embedding/": "embedding/",
        "vit_patching_and_embedding/position_embedding/embeddings": (
            "Transformer/posembed_input/pos_embedding"
        ),
        "vit_encoder/transformer_block_1/": "Transformer/encoderblock_0/",
        "vit_encoder/transformer_block_2/": "Transformer/encoderblock_1/",
        "vit_encoder/ln/": "Transformer/encoder_norm/",
        "ln_1/": "LayerNorm_0/",
        "ln_2/": "LayerNorm_1/",
        "mha/attention_output/": "MultiHeadDotProductAttention_0/out/",
        "mha/": "MultiHeadDotProductAttention_0/",
        "mlp/dense_1/": "MlpBlock_0/Dense_0/",
        "mlp/dense_2/": "MlpBlock_0/Dense_1/",
        "predictions/": "head/",
        "gamma": "scale",
        "beta": "bias",
    }
    arrays = {}
    for weight in model.weights:
        name = weight.path
        for theirs, released in names.items():
            name = name.replace(theirs, released)
        array = numpy(weight)
        arrays[name] = array[None] if "pos_embedding" in name else array
    np.savez(file, **arrays)
    return file


@pytest.mark.parametrize("representation_size", [None, 12])
def test_keras_hub_classifier(tmp_path: Path, representation_size: int | None) -> None:
    keras_hub = pytest.importorskip("keras_hub", exc_type=ImportError)
    backbone = keras_hub.models.ViTBackbone((32, 32, 3), 16, num_layers=2, **SIZES)
    theirs = keras_hub.models.ViTImageClassifier(backbone, 5, intermediate_dim=representation_size)
    fill(theirs)
    ours = ours_beside_keras_hub(num_classes=5, representation_size=representation_size)
    keras_vit.load_weights(ours, as_google_file(theirs, tmp_path / "theirs.npz"))
    np.testing.assert_allclose(numpy(ours(IMAGES)), numpy(theirs(IMAGES)), atol=2e-5)

    features = ours.feature_model("encoder_norm")
    np.testing.assert_allclose(numpy(features(IMAGES)), numpy(backbone(IMAGES)), atol=2e-5)


def test_keras_hub_gap_averages_the_class_token() -> None:
    keras_hub = pytest.importorskip("keras_hub", exc_type=ImportError)
    backbone = keras_hub.models.ViTBackbone((32, 32, 3), 16, num_layers=1, **SIZES)
    theirs = keras_hub.models.ViTImageClassifier(backbone, 5, pooling="gap")
    fill(theirs)
    tokens, head = numpy(backbone(IMAGES)), theirs.output_dense
    mean = tokens.mean(1) @ numpy(head.kernel) + numpy(head.bias)
    np.testing.assert_allclose(numpy(theirs(IMAGES)), mean, atol=2e-5)


def test_keras_hub_without_class_token(tmp_path: Path) -> None:
    keras_hub = pytest.importorskip("keras_hub", exc_type=ImportError)
    theirs = keras_hub.models.ViTBackbone(
        (32, 32, 3), 16, num_layers=2, use_class_token=False, **SIZES
    )
    fill(theirs)
    ours = ours_beside_keras_hub(num_classes=0, class_token=False, pooling="gap")
    keras_vit.load_weights(ours, as_google_file(theirs, tmp_path / "theirs.npz"))
    tokens = ours.feature_model("encoder_norm")(IMAGES)
    np.testing.assert_allclose(numpy(tokens), numpy(theirs(IMAGES)), atol=2e-5)


def test_pooler_of_transformers(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        image_size=32, patch_size=16, hidden_size=48, num_hidden_layers=1, num_attention_heads=3,
        intermediate_size=96, pooler_output_size=48,
    )  # fmt: skip
    theirs = transformers.ViTModel(config).eval()
    theirs.save_pretrained(tmp_path)
    with torch.no_grad():
        output = theirs(torch.from_numpy(IMAGES.transpose(0, 3, 1, 2).copy())).pooler_output
    ours = keras_vit.from_checkpoint(tmp_path, include_preprocessing=False)
    assert ours.representation_size == 48
    np.testing.assert_allclose(numpy(ours(IMAGES)), output.numpy(), atol=2e-5)


def test_transformers(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        image_size=32, patch_size=16, hidden_size=48, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=96, num_labels=5, attn_implementation="eager",
    )  # fmt: skip
    theirs = transformers.ViTForImageClassification(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0, 0.05)
        theirs.save_pretrained(tmp_path)
        pixels = torch.from_numpy(IMAGES.transpose(0, 3, 1, 2).copy())
        outputs = theirs(pixels, output_hidden_states=True, output_attentions=True)
        last = theirs.vit(pixels).last_hidden_state
    ours = keras_vit.from_checkpoint(tmp_path, include_preprocessing=False)
    assert (ours.activation, ours.norm_epsilon) == ("gelu", 1e-12)

    names = ["tokens", "block_0", "encoder_norm"]
    features = ours.feature_model(names)(IMAGES)
    pairs = [
        (ours(IMAGES), outputs.logits),
        (features["tokens"], outputs.hidden_states[0]),
        (features["block_0"], outputs.hidden_states[1]),
        (features["encoder_norm"], last),
        (keras_vit.inspection.attention_maps(ours, IMAGES)[:, 1], outputs.attentions[1]),
    ]
    for mine, other in pairs:
        np.testing.assert_allclose(numpy(mine), other.detach().numpy(), atol=2e-5)


def test_keras_applications() -> None:
    arguments = inspect.signature(keras.applications.ResNet50).parameters
    assert {"include_top", "weights", "input_tensor", "input_shape", "pooling"} <= {*arguments}
    assert arguments["classifier_activation"].default == "softmax"
    newer = inspect.signature(keras.applications.EfficientNetV2B0).parameters
    assert newer["include_preprocessing"].default is True
