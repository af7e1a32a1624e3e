"""Files of the official code, by `load` alone: the same numbers."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_vit.models import ImageModel
from keras_vit.weights import load
from tests.backend import at_once, numpy, rows
from tests.golden_cases import COMMITTED, golden_case
from tests.weights.models import assert_same_weights

SINCOS, SQUARE = {"position_embedding": "sincos2d"}, {"input_shape": (64, 64, 3)}
# Cases whose file shows everything, and the arguments that the file of others does not show.
SHOWN = (
    *("vit_token", "vit_token_rep", "vit_gap", "vit_tiny_scale", "bv_vit_map", "bv_vit_tok"),
    *("bv_vit_tok_from_released", "bv_vit_gap_opt_target", "bv_vit_map_inline_probe"),
    *("bv_vit_map_params_bf16", "bv_vit_map_scan_params_img", "mixer", "mixer_tiny_scale"),
    *("hybrid_stem", "hybrid_r3", "hybrid_tiny_scale"),
)
CASES: dict[str, dict[str, Any]] = {
    **{name: {} for name in SHOWN},
    "vit_unpooled": {"pooling": None},
    "vit_token_unpooled": {"pooling": None},
    "vit_nonsquare": {"input_shape": (80, 48, 3)},
    "vit_nonsquare_patch": {"input_shape": (64, 48, 3)},
    "vit_indivisible": {"input_shape": (70, 53, 3)},
    "bv_vit_gap_learn": {"input_shape": (64, 48, 3)},
    "bv_vit_gap_sincos2d_rep": {**SINCOS, **SQUARE},
    "bv_vit_none": {**SINCOS, **SQUARE, "pooling": None},
    "mixer_nonsquare": {"input_shape": (64, 96, 3)},
    "hybrid_r3_oddsize": {"input_shape": (60, 44, 3)},
    **dict.fromkeys(("bv_bit", "bv_bit_paper", "bit_tf_dump"), SQUARE),
}
RESAMPLED = {
    "interp_token": [None, (96, 96), (32, 32), (112, 112), (80, 48)],
    "interp_gap": [None, (96, 96), (48, 48), (80, 48)],
}
OURS = {"encoded": "encoder_norm", "embedding": "patches", "norm_pre_head": "norm"}
OURS |= {"with_posemb": "tokens"}


def own_names(recorded: dict[str, np.ndarray], model: ImageModel) -> dict[str, str]:
    names = {name: OURS.get(name, name) for name in recorded if name != "images"}
    for name in sorted(recorded):  # a stage's is that of its last unit, which comes last
        if stage := re.match(r"(?:resnet_block|stage)(\d)", name):
            names = {n: layer for n, layer in names.items() if layer != f"stage_{stage[1]}"}
            names[name] = f"stage_{stage[1]}"
    if "with_posemb" in recorded and recorded["with_posemb"].shape != recorded["encoded"].shape:
        names.pop("with_posemb", None)  # big_vision's class token joins behind it
    return {name: layer for name, layer in names.items() if layer in model.feature_names}


def compare(model: ImageModel, recorded: dict[str, np.ndarray], atol: dict[str, float]) -> None:
    names = own_names(recorded, model)
    blocks = [name for name in model.feature_names if name.startswith(("block_", "stage_"))]
    assert {*blocks, "pre_logits"} <= set(names.values())
    features = at_once(model.feature_model([*names.values()]))(recorded["images"])
    for name, layer in names.items():
        assert np.abs(numpy(features[layer]) - recorded[name]).max() <= atol[name], name


# One of each family, and of sizes that are not squares.
EVERYWHERE = (
    *("vit_token_rep", "vit_nonsquare_patch", "bv_vit_map", "bv_vit_gap_sincos2d_rep"),
    *("mixer_nonsquare", "bv_bit", "bit_tf_dump"),
)


@pytest.mark.filterwarnings("ignore:Patches of")
@pytest.mark.parametrize("name", rows(CASES, EVERYWHERE))
def test_a_released_file_gives_the_numbers_of_the_official_code(name: str, request: Any) -> None:
    # Two cases lie in the repository, and are compared where the folder of all is missing.
    committed = (COMMITTED / name).is_dir()
    case = golden_case(name, COMMITTED if committed else request.getfixturevalue("shared"))
    model = load(case.file, include_preprocessing=False, **CASES[name])
    assert not model.load_report.fresh
    compare(model, case.outputs(), case.tolerances())


@pytest.mark.parametrize("name", ["mixer", "mixer_nonsquare", "mixer_tiny_scale"])
def test_the_first_mixers_named_everything_otherwise(name: str, shared: Path) -> None:
    case = golden_case(name, shared)
    old = load(case.folder / "weights_oldnames.npz", **CASES[name])
    assert_same_weights(old, load(case.file, **CASES[name]))


SIZES = [(name, size) for name, sizes in RESAMPLED.items() for size in sizes]


@pytest.mark.parametrize(("name", "size"), rows(SIZES, lambda row: row[1] == (80, 48)))
def test_at_another_resolution(name: str, size: tuple[int, int] | None, shared: Path) -> None:
    case = golden_case(name, shared)
    recorded, tolerances = case.outputs(size), case.tolerances(size)
    resolution = {} if size is None else {"input_shape": (*size, 3)}
    model = load(case.file, include_preprocessing=False, **resolution)
    compare(model, recorded, tolerances)
    if size is not None:
        embedding = numpy(model.get_layer("position_embedding").embedding)
        assert np.abs(embedding - recorded["pos_embedding"]).max() <= 1e-6
        dynamic = load(case.file, include_preprocessing=False, input_shape=(None, None, 3))
        found = dynamic.predict(recorded["images"], verbose=0)  # compiled with sizes unknown
        assert np.abs(found - recorded["logits"]).max() <= tolerances["logits"]


@pytest.mark.parametrize("side", [3, 4, 6])
def test_flexivit_with_patches_of_another_size(side: int, shared: Path) -> None:
    case = golden_case("bv_flexivit", shared)
    # The layout has big_vision's names, and another rule for positions.
    sizes = {"layout": "flexivit", "patch_size": 48 // side, "input_shape": (48, 48, 3)}
    model = load(case.file, include_preprocessing=False, **sizes)
    prefix = f"seqhw{side}/"
    recorded, atol = case.outputs(), case.meta["tolerance"]["atol"]
    of_side, tolerances = (
        {k.removeprefix(prefix): v for k, v in table.items() if k.startswith(prefix)}
        for table in (recorded, atol)
    )
    compare(model, {"images": recorded["images"], **of_side}, tolerances)


def test_the_source_decides_on_numerics(shared: Path) -> None:
    file = golden_case("vit_token", shared).file
    model = load(file)
    assert (model.activation, model.norm_epsilon) == ("gelu_tanh", 1e-6)
    assert model.include_preprocessing is True
    assert load(file, activation="gelu").activation == "gelu"
