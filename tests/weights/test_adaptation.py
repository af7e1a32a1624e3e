"""Weights in models of other sizes, what the report records, and the rules of resampling."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit import create
from keras_vit.tasks import Classification
from keras_vit.weights import arguments_for, load, load_weights, save_weights
from keras_vit.weights.resampling import RULES, resample_grid, resample_patches
from keras_vit.weights.variables import canonical_values
from tests.backend import warned
from tests.bank import SIZES, fill, fresh, outputs, pixels, small
from tests.weights.models import assert_same_weights, refused, saved, stripped

HEAD, RELU = ("head/kernel", "head/bias"), {"activation": "relu"}
IMAGES = pixels(2, 32, 32, 3)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return saved(tmp_path)


def values(model: keras.Model, name: str) -> np.ndarray:
    return canonical_values(model)[name]


@pytest.mark.parametrize(("of_file", "of_model", "is_fresh", "ignored"), [
    ({}, {"num_classes": 3}, HEAD, HEAD),
    ({}, {"num_classes": 0}, (), HEAD),
    ({"num_classes": 0}, {}, HEAD, ()),
    # As wide as the tokens: the head's shape would fit, its meaning would not.
    ({"representation_size": 32}, {}, HEAD, (*HEAD, "pre_logits/kernel", "pre_logits/bias")),
])  # fmt: skip
def test_heads(of_file: Any, of_model: Any, is_fresh: Any, ignored: Any, tmp_path: Path) -> None:
    model = fresh(**of_model)
    report = load_weights(model, saved(tmp_path, **of_file))
    assert str(report).startswith(f"model.npz (google): {len(report.loaded)} loaded")
    assert report.fresh == is_fresh
    assert set(report.ignored) == set(ignored)
    as_json = json.loads(report.to_json())
    assert (as_json["layout"], as_json["counts"]["fresh"]) == ("google", len(is_fresh))
    assert {"status", "name", "source", "shape", "detail"} == set(as_json["entries"][0])
    if model.num_classes == 3:  # a head for other classes is zero
        assert not outputs(model, IMAGES).any()
        assert "5 classes in the file, 3 in the model" in str(report)
    if of_file == {"num_classes": 0}:  # a head that was trained already stays
        assert_same_weights(model, small())


@pytest.mark.parametrize("size", [(24, 64), (8, 40)])
@pytest.mark.parametrize("layout", ["google", "timm", "huggingface"])
def test_positions_follow_the_rule_of_the_authors(layout: str, size: Any, tmp_path: Path) -> None:
    rule = {"google": "zoom", "timm": "bicubic_antialias", "huggingface": "bicubic"}[layout]
    model = load(saved(tmp_path, layout), input_shape=(*size, 3))
    assert model.load_report.resized == ("position_embedding",)
    assert f"4 x 4 -> {size[0] // 8} x {size[1] // 8}, {rule}" in str(model.load_report)
    positions, resampled = (values(m, "position_embedding") for m in (small(), model))
    grid = resample_grid(positions[0, 1:].reshape(4, 4, 32), (size[0] // 8, size[1] // 8), rule)
    np.testing.assert_array_equal(resampled[:, :1], positions[:, :1])
    np.testing.assert_allclose(resampled[0, 1:], grid.reshape(-1, 32), atol=1e-7)


def test_positions_that_are_no_square_need_a_word(tmp_path: Path) -> None:
    shape = {"input_shape": (32, 16, 3)}
    np.savez(file := saved(tmp_path, **shape), **np.load(file))  # as others do, without our notes
    refused("input_shape=", load, file)
    refused("file_grid=", load_weights, small(), file)
    assert_same_weights(load(file, **shape), small(**shape))
    resized = load(file, input_shape=(64, 16, 3), file_grid=(4, 2))
    assert "4 x 2 -> 8 x 2" in str(resized.load_report)
    refused("file_grid=", load_weights, small(), file, file_grid=(3, 3))


def test_images_of_any_size_channels_first_and_another_patch_size(file: Path) -> None:
    any_size = load(file, input_shape=(None, None, 3))
    assert any_size.position_grid == (4, 4)  # that of the file
    assert not any_size.load_report.resized
    first = load(file, data_format="channels_first")
    assert first.input_shape == (None, 3, 32, 32)
    for logits in (outputs(any_size, IMAGES), outputs(first, IMAGES.transpose(0, 3, 1, 2))):
        np.testing.assert_allclose(logits, outputs(small(), IMAGES), atol=1e-5)
    assert_same_weights(load(file, dtype="mixed_bfloat16"), small())  # in float32
    model = load(file, patch_size=16)
    assert model.input_shape == (None, 32, 32, 3)
    assert set(model.load_report.resized) == {"patch_embedding/kernel", "position_embedding"}
    assert "8 x 8 -> 16 x 16 pixels, pseudo-inverse" in str(model.load_report)


def test_images_of_any_size_keep_the_positions_whatever_a_folder_crops_to(tmp_path: Path) -> None:
    save_weights(small(), folder := tmp_path / "vit", layout="huggingface")
    stripped(folder / "model.safetensors")
    processor = {"crop_size": 16, "size": {"shortest_edge": 20}, "resample": 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    assert load(folder).image_size == (16, 16)
    sizes = {k: v for k, v in SIZES.items() if k != "input_shape"}
    assert arguments_for(folder, **sizes, input_shape=(None, None, 3))["position_grid"] == (4, 4)
    any_size = load(folder, input_shape=(None, None, 3))
    assert (any_size.position_grid, any_size.load_report.resized) == ((4, 4), ())


@pytest.mark.parametrize("channels", [1, 2, 4, 13])
def test_other_channels(channels: int, file: Path) -> None:
    model = load(file, input_shape=(32, 32, channels))
    assert model.load_report.adapted == ("patch_embedding/kernel",)
    assert f"3 -> {channels} channels" in str(model.load_report)
    gray = np.repeat(pixels(2, 32, 32, 1), channels, axis=-1)
    expected = outputs(small(), np.repeat(gray[..., :1], 3, axis=-1))
    np.testing.assert_allclose(outputs(model, gray), expected, atol=1e-5)


def test_a_standardized_stem_of_other_channels_is_told(tmp_path: Path) -> None:
    file = saved(tmp_path, resnet=(1,), resnet_width=32, patch_size=2)
    warned("features are not those of the file", load, file, input_shape=(32, 32, 1))


def test_older_names_and_a_trainings_state(file: Path) -> None:
    """Every kind of module numbered separately, below a prefix, beside an optimizer's moments."""
    arrays = dict(np.load(file))
    for old, new in (("Norm_2", "Norm_1"), ("Attention_1", "Attention_0"), ("Block_3", "Block_0")):
        arrays = {name.replace(old, new): values for name, values in arrays.items()}
    state = {f"opt/target/{name}": values for name, values in arrays.items()}
    state |= {f"opt/state/{name}/mu": values for name, values in arrays.items()}
    state["opt/state/step"] = np.int64(3)
    np.savez(file, **state)
    model = load(file)
    assert_same_weights(model, small())
    assert model.load_report.layout == "google"
    assert len(model.load_report.ignored) == len(arrays) + 1
    assert len(str(model.load_report).splitlines()) < 20


def test_a_class_token_too_many_or_too_few(file: Path, tmp_path: Path) -> None:
    model = load(file, pooling="gap", class_token=False)
    report = model.load_report
    assert (report.adapted, report.ignored) == (("position_embedding",), ("cls",))
    expected = values(small(), "position_embedding")[:, 1:]
    np.testing.assert_array_equal(values(model, "position_embedding"), expected)
    file, model = saved(tmp_path, pooling="gap"), fresh()
    refused(r"fresh=\('class_token',\)", load_weights, model, file)
    assert_same_weights(model, small())  # untouched
    report = load_weights(model, file, fresh=["class_token"])
    assert (report.fresh, report.adapted) == (("class_token",), ("position_embedding",))
    assert not values(model, "position_embedding")[:, 0].any()
    np.testing.assert_array_equal(values(model, "class_token"), values(small(), "class_token"))
    report = load(saved(tmp_path, "big_vision")).load_report
    assert report.adapted == ("position_embedding",)
    assert "zero entry for the class token" in str(report)


def test_fresh_by_pattern_keeps_the_models_values(file: Path) -> None:
    model = fresh()
    fill(model, 1)
    expected = values(model, "block_1/query/kernel")
    message = "Did you mean 'encoder_norm'"
    refused(message, load_weights, model, file, fresh=["encoder_nrom"], error=ValueError)
    report = load_weights(model, file, fresh=("block_1/*/kernel", "encoder_norm"))
    assert set(report.fresh) >= {"block_1/query/kernel", "encoder_norm/scale"}
    assert "block_1/query/bias" in report.loaded
    assert len(report.ignored) == len(report.fresh)
    np.testing.assert_array_equal(values(model, "block_1/query/kernel"), expected)


@pytest.mark.parametrize(("changes", "message"), [
    ({"depth": 3}, "'block_2/norm_0/scale' of the model is not in the file"),
    ({"depth": 1}, "block_1/.* does not belong to the model"),
    ({"hidden_dim": 64}, "where the model has"),
    ({"mlp_dim": 64}, "mlp/dense_0"),
    ({"pooling": "map"}, "'pooling/probe' of the model is not in the file"),
    ({"position_embedding": "sincos2d"}, "position_embedding.* does not belong"),
    ({"num_registers": 2}, "register_tokens"),
    ({"layer_scale": 1.0}, "scale_0"),
    ({"representation_size": 8}, "pre_logits"),
])  # fmt: skip
def test_a_model_of_another_size_is_left_alone(changes: Any, message: str, file: Path) -> None:
    model = fresh(**changes)
    refused(message, load_weights, model, file)
    assert_same_weights(model, small(**changes))


def test_what_differs_and_what_nothing_states_is_noted(tmp_path: Path) -> None:
    file = saved(tmp_path, activation="gelu", norm_epsilon=1e-12)
    notes = " ".join(load_weights(small(), file).notes)
    assert "activation='gelu'" in notes
    assert "norm_epsilon=1e-12" in notes
    assert "pooling='token', the model has 'gap'" in str(load(file, pooling="gap").load_report)
    model = load(stripped(saved(tmp_path, "timm")))
    assert f"does not state num_heads: {model.num_heads}" in " ".join(model.load_report.notes)
    named = stripped(saved(tmp_path, "timm", hidden_dim=192, num_heads=3))
    assert not load(named).load_report.notes


def test_what_comes_with_the_weights(tmp_path: Path) -> None:
    model = fresh(num_classes=3)
    model.class_names = ("one", "two", "three")
    for file, layout in (("m.npz", "google"), ("m.safetensors", "timm")):
        save_weights(model, tmp_path / file, layout=layout)
        assert load(tmp_path / file).class_names == model.class_names
        assert load(tmp_path / file, num_classes=2).class_names is None
    file, given = saved(tmp_path, num_classes=1000), Classification(tuple(map(str, range(1000))))
    names = [load(file, **task).class_names[281] for task in ({}, {"task": given})]
    assert names == ["tabby, tabby cat", "281"]
    file = saved(tmp_path, "timm", activation="gelu", pooling="gap")
    sizes = {name: SIZES[name] for name in ("patch_size", "hidden_dim", "depth")}
    inherited = arguments_for(file, **sizes)
    assert inherited.items() >= {("activation", "gelu"), ("pooling", "gap"), ("class_token", False)}
    assert "num_classes" not in inherited
    named = [create("ViT-Ti/16", weights=file, **SIZES, **given) for given in ({}, RELU)]
    assert [model.activation for model in named] == ["gelu", "relu"]
    file = saved(tmp_path, representation_size=24)
    assert arguments_for(file, **sizes, num_classes=5)["representation_size"] == 24
    assert "representation_size" not in arguments_for(file, **sizes, num_classes=3)


def test_torch_files(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    file, state = tmp_path / "m.pth", load_file(saved(tmp_path, "timm"))
    for content in (state, {"model": state, "epoch": 3}, {"state_dict": state}):
        torch.save(content, file)
        assert_same_weights(load(file, num_heads=4), small())
    torch.save({name: values.bfloat16() for name, values in state.items()}, file)
    kernels = [values(m, "head/kernel") for m in (load(file, num_heads=4), small())]
    np.testing.assert_allclose(*kernels, rtol=0.01)
    # DINOv2's spelling: registers, gated MLPs, and a token that only its training needs.
    giant = {"layer_scale": 0.5, "activation": "swiglu", "num_registers": 2, "num_classes": 0}
    state = load_file(saved(tmp_path, "timm", **giant))
    for ours, theirs in {"reg_token": "register_tokens", "fc1": "w12", "fc2": "w3"}.items():
        state = {name.replace(ours, theirs): values for name, values in state.items()}
    torch.save({**state, "mask_token": torch.zeros(1, 32)}, file)
    model = load(file, num_heads=4, input_shape=(48, 48, 3))
    report = model.load_report
    assert (report.layout, report.ignored) == ("dinov2", ("mask_token",))
    assert "4 x 4 -> 6 x 6, bicubic_offset" in str(report)
    options = (model.activation, model.num_registers, model.normalization)
    assert options == ("swiglu", 2, "imagenet")


GRIDS = [((14, 14), (24, 24)), ((24, 24), (14, 14)), ((7, 9), (10, 4)), ((5, 5), (1, 8))]


def torch_rule(scaled: bool = False, **options: Any) -> Callable[..., np.ndarray]:
    """Scaled: as in dinov2/models/vision_transformer.py, which gives a scale, not a size."""

    def resample(x: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        torch = pytest.importorskip("torch")
        images = torch.as_tensor(x).permute(2, 0, 1)[None]
        scale = tuple((new + 0.1) / old for new, old in zip(size, x.shape, strict=False))
        sizes = {"scale_factor": scale} if scaled else {"size": size}
        resized = torch.nn.functional.interpolate(images, **sizes, **options)
        return resized[0].permute(1, 2, 0).numpy()

    return resample


def scipy_zoom(x: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    ndimage = pytest.importorskip("scipy.ndimage")
    factors = (size[0] / x.shape[0], size[1] / x.shape[1], 1)
    return ndimage.zoom(x.astype("float64"), factors, order=1)


def jax_linear(x: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    jax = pytest.importorskip("jax")
    return np.asarray(jax.image.resize(x, (*size, x.shape[-1]), "linear"))


ORIGINALS = {
    "zoom": scipy_zoom,
    "linear_antialias": jax_linear,
    "bicubic_antialias": torch_rule(mode="bicubic", antialias=True),
    "bicubic": torch_rule(mode="bicubic"),
    "bicubic_offset": torch_rule(mode="bicubic", scaled=True),
    "bilinear": torch_rule(mode="bilinear"),
}


@pytest.mark.parametrize(("old", "new"), GRIDS)
@pytest.mark.parametrize("rule", [r for r in RULES if r != "geometric"])  # in the recorded peers
def test_rule_equals_the_package_it_comes_from(rule: str, old: Any, new: Any) -> None:
    x = np.random.default_rng(0).normal(0, 1, (*old, 6)).astype("float32")
    expected = ORIGINALS[rule](x, new)
    np.testing.assert_allclose(resample_grid(x, new, rule), expected, atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("size", [(4, 4), (6, 6), (10, 10), (16, 16), (12, 20)])
def test_patches_equal_flexivits(size: tuple[int, int], shared: Any) -> None:
    folder = shared / "golden" / "bv_flexivit"
    kernel = np.load(folder / "weights.npz")["embedding/kernel"]
    recorded = np.load(folder / "io.npz")[f"patchemb_{size[0]}x{size[1]}"]
    assert np.abs(resample_patches(kernel, size) - recorded).max() <= 1e-5
