"""Zero-shot classification: transformers' CLIP and SigLIP, of files with both towers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_vit.evaluation import zero_shot
from keras_vit.weights import from_checkpoint

TOWER = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
TOWER |= {"num_attention_heads": 3}
IMAGES = np.random.default_rng(0).normal(size=(3, 16, 16, 3)).astype("float32")


def both_towers(transformers: Any, kind: str) -> Any:
    texts = {**TOWER, "vocab_size": 50, "max_position_embeddings": 8, "eos_token_id": 2}
    images = {**TOWER, "image_size": 16, "patch_size": 4}
    if kind == "clip":
        config = transformers.CLIPConfig(text_config=texts, vision_config=images, projection_dim=16)
        return transformers.CLIPModel(config).eval()
    texts["projection_size"] = 24
    config = transformers.SiglipConfig(text_config=texts, vision_config=images)
    return transformers.SiglipModel(config).eval()


@pytest.mark.every_backend
@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_as_transformers(kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    theirs = both_towers(transformers, kind)
    theirs.save_pretrained(tmp_path)
    pixels = torch.as_tensor(IMAGES.transpose(0, 3, 1, 2).copy())
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor([[5, 6, 7, 2], [9, 8, 3, 2]]), pixel_values=pixels)
    tower = from_checkpoint(tmp_path, include_preprocessing=False)
    options = {"logit_scale": float(np.exp(theirs.logit_scale.item())), "activation": None}
    options["logit_bias"] = theirs.logit_bias.item() if kind == "siglip" else 0.0
    model = zero_shot(tower, expected.text_embeds.numpy(), ["one", "two"], **options)
    found = model.predict(IMAGES, verbose=0)
    np.testing.assert_allclose(found, expected.logits_per_image.numpy(), rtol=1e-5, atol=1e-5)
    assert model.class_names == ("one", "two")
    assert any("text_model" in e.name for e in tower.load_report.entries if e.status == "ignored")
