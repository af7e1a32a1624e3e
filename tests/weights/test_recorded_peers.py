"""Other packages' models, recorded: ours of the same files predict the same, on every backend."""

import json
import re
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_vit.weights import load, save_weights
from keras_vit.weights.tables.layouts import LAYOUTS
from keras_vit.weights.variables import bindings
from tests.backend import at_once, gradients, rows
from tests.golden.peers import weights
from tests.weights.models import of_torch, refused

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
EVERYWHERE = (
    *("hf_clip", "hf_siglip", "hf_dinov2_swiglu", "hf_dinov3", "hf_deit_teacher", "hf_vit_mae"),
    *("hf_depth_anything", "hf_depth_anything_resampled", "hf_dpt_classes"),
    *("hf_eomt_masked", "hf_eomt_resampled", "hf_eomt_dinov3", "hf_eomt_dinov3_masked"),
    *("hf_beit", "hf_vit", "timm_dinov2_reg4", "timm_deit3", "timm_eva02_tiny", "timm_eva02_base"),
)


@pytest.mark.parametrize("name", rows(SUPPORTED, EVERYWHERE))
def test_outputs(name: str, tmp_path: Path) -> None:
    case, expected = weights.case(name), weights.outputs(name)
    model = model_of(tmp_path, case)
    recorded = [
        n for n in expected if re.match("block_|encoder_norm$|pooled$|((mask|class)_)?logits$", n)
    ]
    features = {n: FEATURES.get(n, n) for n in recorded}
    found = at_once(model.feature_model(list(features.values())))(weights.images(case))
    for output, feature in features.items():
        values = keras.ops.convert_to_numpy(found[feature]).reshape(expected[output].shape)
        difference = np.abs(values - expected[output]).max()
        assert difference <= 1e-5 * max(np.abs(expected[output]).max(), 1), (output, difference)


def positions_of_file(gradients: dict[str, np.ndarray], count: int) -> np.ndarray:
    """Of a file without a position for the class token, or with one for each register."""
    first, others = np.split(gradients["pos_embed"], [1], axis=1)
    fewer = count < 1 + others.shape[1]
    return others if fewer else np.concatenate([first, gradients["reg_token"], others], axis=1)


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
                    gradient = positions_of_file(of_file, case["tensors"][tensor][1])
            summary = weights.summary(tensor, gradient, case["seed"])
            np.testing.assert_allclose(summary, recorded, rtol=0, atol=1e-5 * scale)
    assert len(of_file) > 40


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, tmp_path: Path) -> None:
    refused(REFUSED[name], model_of, tmp_path, weights.case(name))


# The positions of registers become a part of the tokens; one file leaves out biases.
ALTERED = r"timm_vit_reg(?!_odd$)|hf_dinov3_biases$"


@pytest.mark.parametrize("name", [n for n in SUPPORTED if not re.match(ALTERED, n)])
def test_round_trip(name: str, tmp_path: Path) -> None:
    case = weights.case(name)
    model = load(write(tmp_path, case))
    save_weights(model, tmp_path / "ours.safetensors", LAYOUT_OF[case["package"]])
    ignored = {
        bare(str(entry.source)) for entry in model.load_report.entries if entry.status == "ignored"
    }
    found = {bare(n): x for n, x in load_file(tmp_path / "ours.safetensors").items()}
    tensors = {bare(n): x for n, x in weights.tensors(case).items()}
    expected = {n: x for n, x in tensors.items() if n in found or n not in ignored}
    np.testing.assert_equal(found, expected)


def bare(name: str) -> str:
    """Without the prefix that a model has inside one with a head."""
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
        assert all(
            re.search("mask_token|pooler|layers.0.residual_layer1", key)
            for key in info["missing_keys"]
        ), info
    of_tokens = ("last_hidden_state",) if case["output"] == "encoder_norm" else ()
    names = (*of_tokens, "logits", "image_embeds", "predicted_depth", "pooler_output")
    if "class_logits" in expected:  # EoMT's processor makes its scores of pixels, not its model
        names, expected = ("class_queries_logits",), {case["output"]: expected["class_logits"]}
    found = of_torch(theirs.eval(), weights.images(case), *names)
    np.testing.assert_allclose(found, expected[case["output"]], atol=1e-5)
