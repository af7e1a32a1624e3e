"""From layout to layout and back: the same bytes, the same model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_vit.weights import load, save_weights
from tests.bank import fresh, outputs, pixels, small
from tests.golden_cases import golden_case
from tests.weights.models import assert_same_weights, refused, suffix
from tests.weights.test_golden import CASES

GOOGLE_CASES = ("vit_token", "vit_token_unpooled", "vit_token_rep", "vit_unpooled", "vit_gap")
GOOGLE_CASES += ("vit_nonsquare", "vit_nonsquare_patch")
THERE_AND_BACK = [("b.safetensors", "timm"), ("c.safetensors", "huggingface"), ("d.npz", "google")]
# Cases that no other package has names for, and the layout they were released in.
OWN_LAYOUT = {
    **dict.fromkeys(("hybrid_stem", "hybrid_r3", "hybrid_r3_oddsize", "mixer"), "google"),
    **dict.fromkeys(("mixer_nonsquare", "bv_bit_paper", "bv_bit"), "big_vision"),
    "bit_tf_dump": "google",
}
KINDS: dict[str, dict[str, Any]] = {
    "token": {},
    "gap": {"pooling": "gap"},
    "map": {"pooling": "map"},
    "all_tokens": {"pooling": None, "num_classes": 0},
    "pre_logits": {"representation_size": 24},
    "exact": {"activation": "gelu", "norm_epsilon": 1e-12, "normalization": "imagenet"},
    "not_square": {"input_shape": (16, 64, 3)},
    "giant": {"layer_scale": 0.5, "activation": "swiglu", "num_registers": 4, "num_classes": 0},
    "sincos2d": {"position_embedding": "sincos2d", "pooling": "gap"},
}
LAYOUTS = {
    "google": ("token", "gap", "all_tokens", "pre_logits", "exact", "not_square"),
    "big_vision": ("token", "gap", "map", "pre_logits", "exact", "sincos2d"),
    "timm": ("token", "gap", "map", "pre_logits", "exact", "not_square", "giant"),
    "huggingface": ("token", "all_tokens", "pre_logits", "exact", "not_square"),
    "huggingface_dinov2": ("giant",),
}


@pytest.mark.parametrize("name", [*GOOGLE_CASES, *OWN_LAYOUT])
def test_released_keras_others_and_released(name: str, shared: Path, tmp_path: Path) -> None:
    source = golden_case(name, shared).file
    steps = [("d.npz", OWN_LAYOUT[name])] if name in OWN_LAYOUT else THERE_AND_BACK
    model = load(source, **CASES.get(name, {}))
    config = model.get_config()
    for file, layout in [("a.keras", None), *steps]:
        save_weights(model, tmp_path / file, layout=layout)
        # What we write has what tensors cannot show: no argument is needed again.
        model = load(tmp_path / file)
        assert {**model.get_config(), "name": ""} == {**config, "name": ""}
    first, last = np.load(source), np.load(tmp_path / "d.npz")
    assert sorted(first.files) == sorted(last.files)
    for key in first.files:
        assert (first[key].dtype, first[key].shape) == (last[key].dtype, last[key].shape)
        assert first[key].tobytes() == last[key].tobytes(), key


@pytest.mark.parametrize(("layout", "kind"), [(la, k) for la, ks in LAYOUTS.items() for k in ks])
def test_what_is_written_is_read_as_the_same_model(layout: str, kind: str, tmp_path: Path) -> None:
    model = fresh(**KINDS[kind])
    model.class_names = None if model.num_classes == 0 else tuple("abcde")
    model.eval_transform = {"mode": "stretch"}
    file = tmp_path / f"m{suffix(layout)}"
    save_weights(model, file, layout=layout)
    twin, whole = load(file), file.read_bytes()
    save_weights(model, file, layout=layout)
    assert file.read_bytes() == whole
    # With LayerScale a file of timm is Facebook's; with registers there is a layout of its own.
    giant = {"timm": "timm_imagenet", "huggingface_dinov2": "huggingface_dinov2_registers"}
    assert twin.load_report.layout == (giant if kind == "giant" else {}).get(layout, layout)
    either = {"name": None, "layer_scale": None}  # its first value, which the weights replace
    assert {**twin.get_config(), **either} == {**model.get_config(), **either}
    if layout == "big_vision":  # the class token's position went into the token
        images = pixels(2, *model.input_shape[1:])
        np.testing.assert_allclose(outputs(twin, images), outputs(model, images), atol=2e-6)
    else:
        assert_same_weights(twin, model)


NOT_HELD, SAFE = "layout cannot hold '.*", "m.safetensors"


@pytest.mark.parametrize(("changes", "file", "layout", "message"), [
    ({"pooling": "map"}, "m.npz", "google", f"{NOT_HELD}pooling/"),
    ({"num_registers": 2}, "m.npz", "big_vision", f"{NOT_HELD}register_tokens"),
    ({"position_embedding": "learned_2d"}, SAFE, "timm", f"{NOT_HELD}position_embedding/"),
    ({"mlp_norm": True}, SAFE, "huggingface", f"{NOT_HELD}mlp/norm"),
    ({"conv_stem": ((8, 2),), "patch_size": 4}, SAFE, "timm", f"{NOT_HELD}conv_stem/0/kernel"),
    ({}, SAFE, "google", r"should end in '.npz'"),
    ({}, "m.npz", "goggle", "Did you mean 'google'"),
    ({}, "m.npz", None, "Choose the layout"),
])  # fmt: skip
def test_unfit_layouts(changes: Any, file: str, layout: Any, message: str, tmp_path: Path) -> None:
    refused(message, save_weights, small(**changes), tmp_path / file, layout, error=ValueError)
    assert not list(tmp_path.iterdir())
