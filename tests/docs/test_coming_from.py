"""What docs/coming_from.md calls equal is equal, with random weights copied from the other side."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from tests.bank import outputs
from tests.docs.stand_ins import fill

# The other side computes on the same backend, or in torch.
pytestmark = pytest.mark.backends("jax", "torch")
SIZES = {"num_heads": 3, "hidden_dim": 48, "mlp_dim": 96}
IMAGES = np.random.default_rng(0).uniform(-1, 1, (2, 32, 32, 3)).astype("float32")
POSITIONS = "Transformer/posembed_input/pos_embedding"
NAMES = {  # of KerasHub, and under which the released code stores them
    "vit_patching_and_embedding/class_token": "cls",
    "vit_patching_and_embedding/patch_embedding/": "embedding/",
    "vit_patching_and_embedding/position_embedding/embeddings": POSITIONS,
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


def equal(mine: Any, theirs: Any) -> None:
    mine, theirs = (keras.ops.convert_to_numpy(value) for value in (mine, theirs))
    np.testing.assert_allclose(mine, theirs, atol=2e-5)


def of_keras_hub(depth: int = 2, **arguments: Any) -> tuple[Any, Any]:
    models = pytest.importorskip("keras_hub", exc_type=ImportError).models
    backbone = models.ViTBackbone((32, 32, 3), 16, num_layers=depth, **SIZES, **arguments)
    return backbone, models.ViTImageClassifier


def ours_with_weights_of(theirs: keras.Model, file: Path, **arguments: Any) -> Any:
    """By a file of KerasHub's weights under the names of the released code."""
    arrays = {}
    for weight in theirs.weights:
        name = weight.path
        for part, released in NAMES.items():
            name = name.replace(part, released)
        array = keras.ops.convert_to_numpy(weight)
        arrays[name] = array[None] if "pos_embedding" in name else array
    np.savez(file, **arrays)
    sizes = {**SIZES, "input_shape": (32, 32, 3), "patch_size": 16, "depth": 2}
    options = {"activation": "gelu", "include_preprocessing": False, **arguments}
    ours = keras_vit.VisionTransformer(**sizes, **options)
    keras_vit.load_weights(ours, file)
    return ours


@pytest.mark.parametrize("size", [None, 12])
def test_keras_hub_classifier(tmp_path: Path, size: int | None) -> None:
    body, classifier = of_keras_hub()
    theirs = classifier(body, 5, intermediate_dim=size)
    fill(theirs)
    own = {"num_classes": 5, "representation_size": size}
    ours = ours_with_weights_of(theirs, tmp_path / "theirs.npz", **own)
    equal(ours(IMAGES), theirs(IMAGES))
    equal(ours.feature_model("encoder_norm")(IMAGES), body(IMAGES))


def test_keras_hub_gap_averages_the_class_token_where_there_is_one(tmp_path: Path) -> None:
    body, classifier = of_keras_hub(depth=1)
    theirs = classifier(body, 5, pooling="gap")
    fill(theirs)
    equal(theirs(IMAGES), theirs.output_dense(outputs(body, IMAGES).mean(1)))
    theirs, _ = of_keras_hub(use_class_token=False)
    fill(theirs)
    options = {"num_classes": 0, "class_token": False, "pooling": "gap"}
    ours = ours_with_weights_of(theirs, tmp_path / "theirs.npz", **options)
    equal(ours.feature_model("encoder_norm")(IMAGES), theirs(IMAGES))


def of_transformers(name: str, folder: Path, **arguments: Any) -> tuple[Any, Any]:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = {"image_size": 32, "patch_size": 16, "hidden_size": 48, "num_attention_heads": 3}
    arguments |= {"intermediate_size": 96, "attn_implementation": "eager"}
    theirs = getattr(transformers, name)(transformers.ViTConfig(**sizes, **arguments)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0, 0.05)
        theirs.save_pretrained(folder)
        pixels = torch.from_numpy(IMAGES.transpose(0, 3, 1, 2).copy())
        results = theirs(pixels, output_hidden_states=True, output_attentions=True)
        results.last = getattr(theirs, "vit", theirs)(pixels).last_hidden_state
    return results, keras_vit.load(folder, include_preprocessing=False)


def test_transformers(tmp_path: Path) -> None:
    pooler = {"num_hidden_layers": 1, "pooler_output_size": 48}
    theirs, ours = of_transformers("ViTModel", tmp_path / "pooler", **pooler)
    assert ours.representation_size == 48
    equal(ours(IMAGES), theirs.pooler_output)
    arguments = {"num_hidden_layers": 2, "num_labels": 5}
    theirs, ours = of_transformers("ViTForImageClassification", tmp_path / "head", **arguments)
    assert (ours.activation, ours.norm_epsilon) == ("gelu", 1e-12)
    features = ours.feature_model(["tokens", "block_0", "encoder_norm"])(IMAGES)
    equal(ours(IMAGES), theirs.logits)
    equal(features["tokens"], theirs.hidden_states[0])
    equal(features["block_0"], theirs.hidden_states[1])
    equal(features["encoder_norm"], theirs.last)
    maps = keras_vit.inspection.attention_maps(ours, IMAGES)
    equal(maps[:, 1], theirs.attentions[1])
