"""The models give the numbers of the official code, layer by layer."""

from pathlib import Path

import keras
import numpy as np
import pytest

from tests.golden_cases import GoldenCase, golden_case, vit_of

# Our name of each recorded intermediate.
RECORDED = {"embedding": "patches", "with_posemb": "tokens", "encoded": "encoder_norm"}
CASES = (
    "vit_token",
    "vit_token_rep",
    "vit_gap",
    "vit_unpooled",
    "vit_token_unpooled",
    "vit_nonsquare",
    "vit_nonsquare_patch",
    "vit_indivisible",
    "vit_tiny_scale",
)
SIZES = {
    "interp_token": [(96, 96), (32, 32), (112, 112), (80, 48)],
    "interp_gap": [(96, 96), (48, 48), (80, 48)],
}


def compare(model: keras.Model, case: GoldenCase, size: tuple[int, int] | None = None) -> None:
    recorded = case.outputs(size)
    depth = model.depth
    names = ["embedding", "with_posemb", "encoded", "pre_logits", "logits"]
    names += [f"block_{i}" for i in range(depth)]
    ours = {name: RECORDED.get(name, name) for name in names}
    found = model.feature_model(list(ours.values()))(recorded["images"])
    for name, own in ours.items():
        difference = np.abs(keras.ops.convert_to_numpy(found[own]) - recorded[name]).max()
        assert difference <= case.tolerance(name, size), (case.folder.name, size, name)


@pytest.mark.filterwarnings("ignore:Patches of")
@pytest.mark.parametrize("name", CASES)
def test_equals_the_official_code(name: str, shared: Path) -> None:
    case = golden_case(name, shared)
    compare(vit_of(case), case)


@pytest.mark.parametrize("name", ["vit_token", "vit_gap"])
def test_attention_probabilities_equal_the_official_code(name: str, shared: Path) -> None:
    case = golden_case(name, shared)
    model, recorded = vit_of(case), case.outputs()
    for i in range(model.depth):
        block = model.get_layer(f"block_{i}")
        before = recorded["with_posemb" if i == 0 else f"block_{i - 1}"]
        found = block.attention.attention_probabilities(block.norm_0(before))
        difference = np.abs(keras.ops.convert_to_numpy(found) - recorded[f"attn_{i}"]).max()
        assert difference <= case.tolerance(f"attn_{i}")


@pytest.mark.parametrize(("name", "size"), [(n, s) for n, sizes in SIZES.items() for s in sizes])
def test_another_size_equals_the_official_code(name: str, size, shared: Path) -> None:
    case = golden_case(name, shared)
    model = vit_of(case).with_input_shape((*size, 3))
    positions = keras.ops.convert_to_numpy(model.get_layer("position_embedding").embedding)
    assert np.abs(positions - case.outputs(size)["pos_embedding"]).max() <= 1e-6
    compare(model, case, size)


@pytest.mark.parametrize("name", SIZES)
def test_resampling_in_the_graph_equals_the_official_code(name: str, shared: Path) -> None:
    case = golden_case(name, shared)
    model = vit_of(case).with_input_shape((None, None, 3))
    compare(model, case)
    for size in SIZES[name]:
        recorded = case.outputs(size)
        # Compiled by the backend with sizes unknown, as predict and export run it.
        found = model.predict(recorded["images"], verbose=0)
        assert np.abs(found - recorded["logits"]).max() <= case.tolerance("logits", size)
