"""Files of the official code and other packages, by `load` alone: the same numbers; and back."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_vit.evaluation.prediction import predict_files
from keras_vit.models import ImageModel
from keras_vit.weights import load, save_weights
from keras_vit.weights.tables.layouts import LAYOUTS
from keras_vit.weights.variables import bindings
from tests.backend import at_once, gradients, numpy, rows
from tests.bank import fresh, outputs, pixels, small
from tests.golden.peers import weights
from tests.golden_cases import COMMITTED, golden_case
from tests.weights.models import assert_same_weights, of_torch, refused, suffix

SINCOS, SQUARE = {"position_embedding": "sincos2d"}, {"input_shape": (64, 64, 3)}
# Cases whose file shows everything, and the arguments that the file of others does not show.
SHOWN = ("vit_token", "vit_token_rep", "vit_gap", "vit_tiny_scale", "bv_vit_map", "bv_vit_tok")
SHOWN += ("bv_vit_tok_from_released", "bv_vit_gap_opt_target", "bv_vit_map_inline_probe")
SHOWN += ("bv_vit_map_params_bf16", "bv_vit_map_scan_params_img", "mixer", "mixer_tiny_scale")
SHOWN += ("hybrid_stem", "hybrid_r3", "hybrid_tiny_scale")
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
RESAMPLED = {"interp_token": [None, (96, 96), (32, 32), (112, 112), (80, 48)]}
RESAMPLED["interp_gap"] = [None, (96, 96), (48, 48), (80, 48)]
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
EVERYWHERE = ("vit_token_rep", "vit_nonsquare_patch", "bv_vit_map", "bv_vit_gap_sincos2d_rep")
EVERYWHERE += ("mixer_nonsquare", "bv_bit", "bit_tf_dump")


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


GOOGLE_CASES = ("vit_token", "vit_token_unpooled", "vit_token_rep", "vit_unpooled", "vit_gap")
GOOGLE_CASES += ("vit_nonsquare", "vit_nonsquare_patch")
THERE_AND_BACK = [("b.safetensors", "timm"), ("c.safetensors", "huggingface"), ("d.npz", "google")]
# Cases that no other package has names for, and the layout they were released in.
OWN_LAYOUT = {
    **dict.fromkeys(("hybrid_stem", "hybrid_r3", "hybrid_r3_oddsize", "mixer"), "google"),
    **dict.fromkeys(("mixer_nonsquare", "bv_bit_paper", "bv_bit"), "big_vision"),
    "bit_tf_dump": "google",
}
WRITTEN: dict[str, dict[str, Any]] = {
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
KINDS_OF = {
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


@pytest.mark.parametrize(("layout", "kind"), [(la, k) for la, ks in KINDS_OF.items() for k in ks])
def test_what_is_written_is_read_as_the_same_model(layout: str, kind: str, tmp_path: Path) -> None:
    model = fresh(**WRITTEN[kind])
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
        report = twin.load_report
        assert not report.fresh + report.resized + report.adapted + report.ignored + report.notes


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


# ViT-Ti/16 of AugReg as timm has it. Largest differences of logits of magnitude 13, and
# of tokens, which grow to 50 by the last block.
LOGITS, TOKENS = 2e-5, {"block_0": 2e-5, "block_5": 2e-5, "block_11": 5e-4}


@pytest.fixture(scope="module")
def augreg(shared: Path) -> Path:
    return shared / "weights" / "vit_tiny_patch16_224.augreg_in21k_ft_in1k"


def test_timms_numbers_by_us_and_by_transformers(augreg: Path, tmp_path: Path) -> None:
    model = load(augreg / "model.safetensors", include_preprocessing=False)
    recorded = dict(np.load(augreg / "golden_timm.npz"))
    assert (model.activation, model.norm_epsilon, model.num_heads) == ("gelu", 1e-6, 3)
    features = model.feature_model([*TOKENS, "logits"])
    normal = np.random.default_rng(0).standard_normal((2, 3, 224, 224)).astype("float32")
    for name, images in (("cats", recorded["cats_input_nchw"]), ("normal_seed0", normal)):
        found = {key: numpy(x) for key, x in features(images.transpose(0, 2, 3, 1)).items()}
        assert np.abs(found["logits"] - recorded[f"{name}_logits"]).max() <= LOGITS
        for block, atol in TOKENS.items():
            expected = recorded[f"{name}_{block.replace('_', '')}"]
            assert np.abs(found[block][:1, :8] - expected).max() <= atol, block
    transformers = pytest.importorskip("transformers")
    save_weights(load(augreg / "model.safetensors"), tmp_path / "vit", layout="huggingface")
    theirs = transformers.ViTForImageClassification.from_pretrained(tmp_path / "vit").eval()
    logits = of_torch(theirs, recorded["cats_input_nchw"].transpose(0, 2, 3, 1))
    expected = recorded["cats_logits"]
    assert np.abs(logits - expected).max() <= 1e-5 * np.abs(expected).max()
    assert theirs.config.id2label[281] == "tabby, tabby cat"


def test_the_two_cats(augreg: Path, shared: Path) -> None:
    pytest.importorskip("tensorflow")
    model = load(augreg / "model.safetensors")
    golden = json.loads((augreg / "golden_cats.json").read_text())
    ((_, answer),) = predict_files(model, [shared / "photos" / "cats.png"])
    rows = model.task.describe(answer, top=5)["predictions"]
    assert [row["class"] for row in rows] == [row["label"] for row in golden["top5"]]


NAMES = sorted(path.stem for path in weights.FOLDER.glob("*.json"))
# What the package has and we do not, by words of the error.
REFUSED = {
    **dict.fromkeys(("hf_deit", "hf_deit_odd", "hf_deit_resampled"), "one token of two"),
    "hf_dinov3_odd": "rope_theta=50",
    "timm_beit_shared": "either",
    "timm_eva02_base_odd": "inside the attention",
    "timm_eva02_tiny_odd": "ref_feat_shape",
}
# transformers reads the table of a grid that is not square by columns: a fault of its own.
SUPPORTED = [n for n in NAMES if n not in (*REFUSED, "hf_beit_wide")]
WITH_GRADIENTS = [n for n in SUPPORTED if "gradients" in weights.outputs(n)]


def write(folder: Path, case: weights.Case) -> Path:
    (folder / "config.json").write_text(json.dumps(case["config"]))
    save_file(weights.tensors(case), folder / "model.safetensors")
    return folder


def model_of(folder: Path, case: weights.Case) -> keras.Model:
    shape = tuple(case["images"][1:])
    return load(write(folder, case), include_preprocessing=False, input_shape=shape)


LAYOUT_OF = {"transformers": "huggingface", "timm": "timm"}
FEATURES = {"pooled": "pre_logits"}  # what enters the head: of ViTModel, after the tanh layer
# Of the other cases, every backend computes the options elsewhere, in `test_common.py`.
PEERS_EVERYWHERE = ("hf_clip", "hf_siglip", "hf_dinov2_swiglu", "hf_dinov3", "hf_deit_teacher")
PEERS_EVERYWHERE += ("hf_vit_mae", "hf_depth_anything", "hf_depth_anything_resampled")
PEERS_EVERYWHERE += ("hf_dpt_classes", "hf_eomt_masked", "hf_eomt_resampled", "hf_eomt_dinov3")
PEERS_EVERYWHERE += ("hf_eomt_dinov3_masked", "hf_beit", "hf_vit", "timm_dinov2_reg4", "timm_deit3")
PEERS_EVERYWHERE += ("timm_eva02_tiny", "timm_eva02_base")


@pytest.mark.parametrize("name", rows(SUPPORTED, PEERS_EVERYWHERE))
def test_outputs(name: str, tmp_path: Path) -> None:
    case, expected = weights.case(name), weights.outputs(name)
    model = model_of(tmp_path, case)
    named = "block_|encoder_norm$|pooled$|((mask|class)_)?logits$"
    recorded = [n for n in expected if re.match(named, n)]
    features = {n: FEATURES.get(n, n) for n in recorded}
    found = at_once(model.feature_model(list(features.values())))(weights.images(case))
    for output, feature in features.items():
        values = keras.ops.convert_to_numpy(found[feature]).reshape(expected[output].shape)
        difference = np.abs(values - expected[output]).max()
        assert difference <= 1e-5 * max(np.abs(expected[output]).max(), 1), (output, difference)


# One of each kind of positions and pooling; `test_common.py` has the gradients of each option.
@pytest.mark.parametrize("name", rows(WITH_GRADIENTS, ("hf_siglip", "hf_dinov3", "hf_beit")))
def test_gradients(name: str, tmp_path: Path) -> None:
    """Of every tensor of the file: the norm, and the product with a normal."""
    case, expected = weights.case(name), weights.outputs(name)["gradients"]
    model = model_of(tmp_path, case)
    part = model.feature_model(FEATURES.get(case["output"], case["output"]))
    shape = weights.outputs(name)[case["output"]].shape
    direction = weights.direction(case, shape).reshape(-1, *part.output_shape[1:])
    by_path = gradients(part, weights.images(case), weights=direction)
    canonical = {}
    for binding in bindings(model):
        gradient = by_path.get(binding.variable.path, np.zeros(binding.variable.shape))
        columns = np.split(gradient, len(binding.names), axis=-1)
        canonical.update(zip(binding.names, columns, strict=True))
    # CLIP's projection does not have the bias of a head.
    layout = replace(LAYOUTS[model.load_report.layout], drops_zeros=False)
    if layout.name == "huggingface_clip":
        del canonical["head/bias"]
    of_file = dict(layout.from_canonical(canonical, model.num_heads))
    of_file |= {name.removeprefix(layout.prefix): x for name, x in of_file.items()}
    scale = expected[:, 0].max()
    for tensor, recorded in zip(case["tensors"], expected, strict=True):
        known = tensor if tensor in of_file else tensor.removeprefix(layout.prefix)
        if known in of_file:  # the others are masks, and what this model does not have
            gradient = of_file[known]
            if gradient.shape[:2] != tuple(case["tensors"][tensor][:2]):
                if tensor == "embeddings.position_embeddings.weight":  # of patches alone
                    gradient = gradient[1:]
                else:
                    assert tensor == "pos_embed"
                    first, others = np.split(gradient, [1], axis=1)
                    tokens = [first, of_file.get("reg_token"), others]
                    is_of_fewer = case["tensors"][tensor][1] < 1 + others.shape[1]
                    gradient = others if is_of_fewer else np.concatenate(tokens, axis=1)
            summary = weights.summary(tensor, gradient, case["seed"])
            np.testing.assert_allclose(summary, recorded, rtol=0, atol=1e-5 * scale)
    assert len(of_file) > 40


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, tmp_path: Path) -> None:
    refused(REFUSED[name], model_of, tmp_path, weights.case(name))


def test_a_model_that_only_shares_names_is_refused(tmp_path: Path) -> None:
    case = weights.case("timm_dinov3")
    case = {**case, "config": {**case["config"], "architecture": "vit_small_patch16_rope_224"}}
    refused("computes otherwise", model_of, tmp_path, case)


# The positions of registers become a part of the tokens; one file leaves out biases.
ALTERED = r"timm_vit_reg(?!_odd$)|hf_dinov3_biases$"


@pytest.mark.parametrize("name", [n for n in SUPPORTED if not re.match(ALTERED, n)])
def test_round_trip(name: str, tmp_path: Path) -> None:
    case = weights.case(name)
    model = load(write(tmp_path, case))
    save_weights(model, tmp_path / "ours.safetensors", LAYOUT_OF[case["package"]])
    report = model.load_report.entries
    ignored = {bare(str(entry.source)) for entry in report if entry.status == "ignored"}
    found = {bare(n): x for n, x in load_file(tmp_path / "ours.safetensors").items()}
    tensors = {bare(n): x for n, x in weights.tensors(case).items()}
    expected = {n: x for n, x in tensors.items() if n in found or n not in ignored}
    np.testing.assert_equal(found, expected)


def bare(name: str) -> str:
    return re.sub(
        r"^(vit|deit|beit|dinov2|dinov2_with_registers|vision_model|backbone|dpt)\.", "", name
    )


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_the_package_opens_our_folder(name: str, tmp_path: Path) -> None:
    case, expected = weights.case(name), weights.outputs(name)
    ours = tmp_path / "ours"
    save_weights(load(write(tmp_path, case)), ours, LAYOUT_OF[case["package"]])
    if case["package"] == "timm":
        timm = pytest.importorskip("timm", exc_type=ImportError)
        theirs = timm.create_model(f"local-dir:{ours}", pretrained=True)
    else:
        transformers = pytest.importorskip("transformers")
        config = json.loads((ours / "config.json").read_text())
        network = getattr(transformers, config["architectures"][0])
        theirs, info = network.from_pretrained(ours, output_loading_info=True)
        assert not info["unexpected_keys"]
        unused = "mask_token|pooler|layers.0.residual_layer1"
        assert all(re.search(unused, key) for key in info["missing_keys"]), info
    of_tokens = ("last_hidden_state",) if case["output"] == "encoder_norm" else ()
    names = (*of_tokens, "logits", "image_embeds", "predicted_depth", "pooler_output")
    if "class_logits" in expected:  # EoMT's processor makes its scores of pixels, not its model
        names, expected = ("class_queries_logits",), {case["output"]: expected["class_logits"]}
    found = of_torch(theirs.eval(), weights.images(case), *names)
    np.testing.assert_allclose(found, expected[case["output"]], atol=1e-5)
