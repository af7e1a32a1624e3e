"""What the official code recorded beyond blocks and logits: `tests/weights/test_golden.py`."""

from pathlib import Path

import numpy as np
import pytest

from keras_vit import load
from tests.backend import numpy
from tests.golden_cases import golden_case

pytestmark = pytest.mark.every_backend
SIZES = {"interp_token": [(96, 96), (32, 32), (112, 112), (80, 48)]}
SIZES["interp_gap"] = [(96, 96), (48, 48), (80, 48)]


@pytest.mark.parametrize("name", ["vit_token", "vit_gap"])
def test_attention_probabilities_equal_the_official_code(name: str, shared: Path) -> None:
    case = golden_case(name, shared)
    model, recorded = load(case.file, include_preprocessing=False), case.outputs()
    for i in range(model.depth):
        block = model.get_layer(f"block_{i}")
        before = recorded["with_posemb" if i == 0 else f"block_{i - 1}"]
        found = block.attention.attention_probabilities(block.norm_0(before))
        assert np.abs(numpy(found) - recorded[f"attn_{i}"]).max() <= case.tolerances()[f"attn_{i}"]


@pytest.mark.parametrize("name", SIZES)
def test_resampling_equals_the_official_code(name: str, shared: Path) -> None:
    case = golden_case(name, shared)
    model = load(case.file, include_preprocessing=False)
    dynamic = load(case.file, include_preprocessing=False, input_shape=(None, None, 3))
    for size in SIZES[name]:
        recorded = case.outputs(size)
        found = dynamic.predict(recorded["images"], verbose=0)  # compiled with sizes unknown
        assert np.abs(found - recorded["logits"]).max() <= case.tolerances(size)["logits"]
        layer = model.with_input_shape((*size, 3)).get_layer("position_embedding")
        assert np.abs(numpy(layer.embedding) - recorded["pos_embedding"]).max() <= 1e-6
