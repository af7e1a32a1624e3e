"""Attention, rollout, positions, filters: as recorded, as defined, and of nested models."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers
from sklearn.decomposition import PCA

from keras_vit import inspection, load
from keras_vit.inspection import attention_maps, pooling_attention, position_similarity
from keras_vit.inspection.forward_pass import ForwardPass
from tests import bank
from tests.backend import numpy, refused, rows
from tests.conftest import REPOSITORY
from tests.docs.blocks import python_blocks
from tests.golden_cases import golden_case
from tests.inspection.models import KINDS, SHAPE, images_for, maps_of, model_of, untrained
from tests.weights.test_golden import CASES

# big_vision ran the bfloat16 file in bfloat16.
WITH_PROBE = "bv_vit_map_inline_probe"
RECORDED = [name for name in CASES if name.startswith("vit_")]
RECORDED += ["bv_vit_tok", "bv_vit_gap_learn", WITH_PROBE]


def distances(maps: np.ndarray, columns: int, patch: tuple[int, int]) -> np.ndarray:
    """Figure 11 of the ViT paper, in pixels, of `(images, depth, heads, patches, patches)`."""
    row, column = np.divmod(np.arange(maps.shape[-1]), columns)
    down, right = (place[:, None] - place for place in (row, column))
    weights = maps.astype("float64") / maps.sum(axis=-1, keepdims=True, dtype="float64")
    return (weights * np.hypot(down * patch[0], right * patch[1])).sum(-1).mean(axis=(0, 3))


def joint_attention(maps: np.ndarray) -> np.ndarray:
    """As Abnar and Zuidema define it: `(depth, heads, tokens, tokens)` to `(tokens, tokens)`."""
    joint = np.eye(maps.shape[-1])
    for layer in maps.astype("float64"):
        raw = sum(layer) / len(layer) + np.eye(maps.shape[-1])
        joint = (raw / raw.sum(axis=1)[:, None]) @ joint
    return joint


def cosines(vectors: np.ndarray) -> np.ndarray:
    flat = vectors.reshape(-1, vectors.shape[-1]).astype("float64")
    unit = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    return (unit @ unit.T).reshape(2 * vectors.shape[:2])


@pytest.mark.filterwarnings("ignore:Patches of")
@pytest.mark.parametrize("name", rows(RECORDED, ["vit_token", WITH_PROBE]))
def test_what_is_recorded(name: str, shared: Path) -> None:
    case = golden_case(name, shared)
    model = load(case.file, include_preprocessing=False, **CASES[name])
    outputs, prefix = case.outputs(), model.num_prefix_tokens
    images = outputs["images"]
    expected = np.stack([outputs[f"attn_{i}"] for i in range(model.depth)], axis=1)
    maps = attention_maps(model, images)
    assert maps.shape == expected.shape
    assert np.abs(maps - expected).max() <= 1e-5
    if name == WITH_PROBE:
        probe = pooling_attention(model, images)
        assert np.abs(probe - outputs["attn_map_head"][:, :, 0]).max() <= 1e-5
    if name == "vit_token":
        rollout = inspection.attention_rollout(model, images)
        its_rollout = np.load(case.folder / "rollout.npz")["cls_to_patches"]
        assert np.abs(rollout.reshape(2, 16) - its_rollout).max() <= 1e-5
    if name == "vit_nonsquare":
        table = np.load(case.file)["Transformer/posembed_input/pos_embedding"]
        similarity, grid = position_similarity(model), model.position_grid
        assert similarity.shape == (*grid, *grid)
        assert np.abs(similarity - cosines(table[0, prefix:].reshape(*grid, -1))).max() < 1e-6
    if name == "vit_nonsquare_patch":
        patch = model.patch_size
        of_patches = distances(expected[..., prefix:, prefix:], 48 // patch[1], patch)
        assert np.abs(inspection.attention_distance(model, images) - of_patches).max() < 1e-3


@pytest.mark.parametrize("kind", rows(KINDS, ["map"]))
def test_maps_equal_the_fused_kernel(kind: str) -> None:
    model, images, maps = model_of(kind), images_for(kind), maps_of(kind)
    assert np.abs(maps.sum(axis=-1) - 1).max() < 1e-5
    for i in range(2):
        block = model.get_layer(f"block_{i}")
        before = model.feature_model("tokens" if i == 0 else f"block_{i - 1}")(images)
        normed = block.norm_0(before)
        kernel, bias = map(numpy, block.attention.query_key_value.weights)
        value = (numpy(normed) @ kernel + bias)[..., -16:].reshape(len(images), -1, 2, 8)
        heads = np.einsum("bhqk,bkhd->bqhd", maps[:, i], value).reshape(*value.shape[:2], 16)
        kernel, bias = map(numpy, block.attention.output_projection.weights)
        assert np.abs(heads @ kernel + bias - numpy(block.attention(normed))).max() < 1e-4


@pytest.mark.backends("torch")  # and on GPUs JAX
def test_training_and_inference_use_the_fused_kernel(monkeypatch) -> None:
    model, images = untrained(), images_for("token")
    with monkeypatch.context() as patched:
        patched.setattr("keras_vit.layers.attention.attention_probabilities", None)
        model(images, training=True)
        model(images)
        refused("not callable", attention_maps, model, images, error=TypeError)
    attention_maps(model, images)


def test_layers_batches_and_errors() -> None:
    model, images = model_of("token"), images_for("token")
    twice = np.concatenate([images, images[::-1]])
    some = attention_maps(model, twice, layers=[-1, 0], batch_size=3)
    expected = maps_of("token")[:, [1, 0]]
    assert np.abs(some - np.concatenate([expected, expected[::-1]])).max() < 1e-6
    without = keras.Sequential([keras.layers.Dense(1)])
    refused(r"depth 2.*0 to 1", attention_maps, model, images, layers=[2])
    refused(r"\(32, 12, 3\).*images\[None\]", attention_maps, model, images[0])
    refused("at least one", attention_maps, model, images[:0])
    refused("without encoder blocks", attention_maps, without, images)
    refused('pooling="map"', pooling_attention, model, images)
    refused("'learned', 'learned_2d', 'sincos2d'", position_similarity, model_of("registers"))
    refused(r"components=28.*Give 15 or fewer", inspection.embedding_filters, model)
    refused("without a patch embedding", inspection.embedding_filters, without)
    # Distances of patches without attention are not NaN.
    nothing = SimpleNamespace(patch_pixels=(8, 4), grid=(2, 2), prefix=1, blocks=[None])
    nothing.attention = lambda layer: np.eye(5)[np.zeros((1, 2, 5), int)]  # on the class token
    assert not ForwardPass.distances(nothing).any()


@pytest.mark.parametrize("kind", rows(KINDS, ["token", "map"]))
def test_readout_rollout_and_distance_equal_their_definitions(kind: str) -> None:
    model, images, maps = model_of(kind), images_for(kind), maps_of(kind)
    prefix, tokens = model.num_prefix_tokens, maps.shape[-1]
    row = np.zeros((3, tokens))  # how much the prediction is made from each token
    if kind == "map":
        row += pooling_attention(model, images).mean(axis=1)
    elif kind in ("gap", "gap_registers", "all_tokens"):
        row[:, prefix:] = 1 / (tokens - prefix)
    else:
        row[:, 0] = 1
    read = np.einsum("iq,idhqk->idhk", row, maps)[..., prefix:].reshape(3, 2, 2, 4, 3)
    assert np.abs(inspection.readout_attention(model, images) - read).max() < 1e-6
    rollout = inspection.attention_rollout(model, images)
    assert rollout.shape == (3, 4, 3)
    for its_rollout, its_row, its_maps in zip(rollout, row, maps, strict=True):
        expected = its_row @ joint_attention(its_maps)
        assert np.abs(its_rollout.ravel() - expected[prefix:]).max() < 1e-6
    if kind in ("token", "registers", "map", "any_size"):
        expected = distances(maps[..., prefix:, prefix:], 3, (8, 4))
        assert np.abs(inspection.attention_distance(model, images) - expected).max() < 1e-4


def test_similarity_of_positions_and_principal_components_of_filters() -> None:
    model = model_of("map")
    layer = model.get_layer("position_embedding")
    down, across = numpy(layer.rows), numpy(layer.columns)
    vectors = np.array([[np.concatenate([row, column]) for column in across] for row in down])
    assert np.abs(position_similarity(model) - cosines(vectors)).max() < 1e-6
    # Sines and cosines know nothing but the offset: the same at every place with this offset.
    fixed = position_similarity(model_of("gap"))
    assert np.abs(fixed[0, 0, 2, 1] - fixed[1, 1, 3, 2]) < 1e-6
    zeros = untrained()
    embedding = zeros.get_layer("position_embedding").embedding
    embedding.assign(np.zeros(embedding.shape))
    assert not position_similarity(zeros).any()  # and not NaN
    model = model_of("token")
    kernel = numpy(model.get_layer("patch_embedding").kernel).astype("float64")
    expected = PCA(15, svd_solver="full").fit(kernel.reshape(-1, 16).T).components_
    filters = inspection.embedding_filters(model, components=15)
    flat = filters.reshape(15, -1)
    signs = np.sign((flat * expected).sum(axis=1))
    assert np.abs(flat - signs[:, None] * expected).max() < 1e-5
    assert (flat[np.arange(15), np.abs(flat).argmax(axis=1)] > 0).all()


MAPS = (attention_maps, inspection.readout_attention, inspection.attention_rollout)
MAPS += (inspection.attention_distance,)


def classified(images: Any, features: Any) -> keras.Model:
    return keras.Model(images, layers.Dense(2)(features))


def around(model: Any, *before: Any, shape: Any = None) -> keras.Model:
    images = x = keras.Input(shape or model.input_shape[1:])
    for layer in (*before, model):
        x = layer(x)
    return classified(images, x)


class Subclass(keras.Model):
    def __init__(self, vit: keras.Model) -> None:
        super().__init__()
        self.scale, self.vit, self.head = layers.Rescaling(0.5), vit, layers.Dense(2)

    def call(self, images: Any) -> Any:
        return self.head(self.vit(self.scale(images)))


class NotCalled(Subclass):
    def call(self, images: Any) -> Any:
        return self.head(layers.Flatten()(images))


SHAPES: dict[str, Callable[[Any], keras.Model]] = {
    "on its output": lambda m: classified(m.input, m.output),
    "on its pooled token": lambda m: classified(m.inputs, m.get_layer("pooling").output),
    "its features": lambda m: m.feature_model("pre_logits"),
    "inside": around,
    "its features inside": lambda m: around(m.feature_model("pre_logits")),
    "inside, two deep": lambda m: around(around(m)),
    "behind a rescaling": lambda m: around(m, layers.Rescaling(0.5)),
    "in a Sequential": lambda m: keras.Sequential([layers.Rescaling(0.5), m, layers.Dense(2)]),
    "augmented": lambda m: keras.Sequential([layers.RandomFlip(), layers.RandomRotation(0.2), m]),
    "in a subclass": Subclass,
}
RESCALED = ("behind a rescaling", "in a Sequential", "in a subclass")


EVERYWHERE = ("augmented", "in a subclass")
NESTED = [(shape, "token") for shape in SHAPES]
NESTED += [("inside", kind) for kind in ("map", "channels_first", "registers")]


@pytest.mark.parametrize(("shape", "kind"), rows(NESTED, lambda row: row[0] in EVERYWHERE))
def test_it_is_that_of_the_transformer_inside(shape: str, kind: str) -> None:
    vit, images = model_of(kind), images_for(kind).astype("float32")
    model, scale = SHAPES[shape](vit), np.float32(0.5 if shape in RESCALED else 1)
    for measure in (*MAPS, *[inspection.pooling_attention] * (kind == "map")):
        expected = measure(vit, images * scale)
        np.testing.assert_allclose(measure(model, images), expected, atol=2e-5, rtol=1e-4)
    if kind == "token":
        filters, similarity = inspection.embedding_filters, inspection.position_similarity
        np.testing.assert_array_equal(filters(model, 4), filters(vit, 4))
        np.testing.assert_array_equal(similarity(model), similarity(vit))


def test_blocks_up_to_the_third_and_of_a_hybrid() -> None:
    vit, images = model_of("token"), images_for("token")
    maps = inspection.attention_maps(vit.feature_model("block_0"), images)
    np.testing.assert_allclose(maps, inspection.attention_maps(vit, images, layers=[0]), atol=1e-6)
    hybrid = bank.small(resnet=(1,), resnet_width=32, patch_size=1, input_shape=(32, 24, 3))
    pixels = bank.pixels(1, 32, 24, 3)
    expected = inspection.attention_distance(hybrid, pixels)
    distances = inspection.attention_distance(classified(hybrid.input, hybrid.output), pixels)
    np.testing.assert_allclose(distances, expected, atol=1e-4)
    assert 4 < expected.mean() < 40  # patches are of 4 pixels, not 1


def test_the_overlay_lies_on_the_image_that_is_resized() -> None:
    pytest.importorskip("matplotlib")
    model = around(model_of("token"), layers.Resizing(32, 12), shape=(64, 48, 3))
    images = bank.pixels(1, 64, 48, 3).astype("float32")
    for plot in (inspection.plot_rollout, inspection.plot_attribution):
        original, darkened = (axes.images[0].get_array() for axes in plot(model, images).axes)
        assert original.shape == darkened.shape == (64, 48, 3)
        assert (darkened > 0).any(axis=2).mean() > 0.9  # no strip is left out


def test_what_is_ambiguous_is_named() -> None:
    vit, other = model_of("token"), model_of("gap").copy(name="other")
    inputs, images = keras.Input(SHAPE), images_for("token").astype("float32")
    two = keras.Model(inputs, vit(inputs) + other(inputs))
    siamese = keras.Model(inputs, vit(inputs) - vit(layers.Rescaling(0.5)(inputs)))
    frames = keras.Input((2, *SHAPE))
    of_frames = keras.Model(frames, layers.TimeDistributed(vit)(frames))
    with pytest.raises(ValueError, match=r"sequences for 3 images|several times"):
        inspection.attention_maps(of_frames, bank.pixels(3, 2, *SHAPE).astype("float32"))
    for model, reason in (
        (two, r"several Vision Transformers.*get_layer\('vision.*\(a Vis.*, model\."),
        (siamese, r"several times.*get_layer\('vision_transformer.*with the images that it gets"),
        (NotCalled(vit), r"did not call them"),
    ):
        for measure in (*MAPS, inspection.class_attribution):
            refused(reason, measure, model, images)


def test_poolings_of_others_and_without_attention() -> None:
    vit, images = model_of("token"), images_for("token")
    tokens = vit.get_layer("encoder_norm").output
    model = classified(vit.input, layers.GlobalAveragePooling1D()(tokens))
    assert inspection.attention_maps(model, images).shape == (3, 2, 2, 13, 13)
    assert inspection.class_attribution(model, images).shape == (3, 4, 3)
    for measure in (inspection.attention_rollout, inspection.readout_attention):
        refused(r"layers that are not of keras_vit.*MeanPooling", measure, model, images)
    for kind in ("mixer", "bit"):
        for measure in (inspection.attention_maps, inspection.class_attribution):
            refused("Grad-CAM", measure, bank.small_kind(kind), np.zeros((1, 32, 32, 3)))


@pytest.mark.backends("tensorflow", "torch")  # those of JAX run in tests/docs
def test_the_blocks_of_the_page() -> None:
    names: dict = {}
    for block in python_blocks(REPOSITORY / "docs/inspection/README.md"):
        exec(compile(block.code, str(block), "exec"), names)
    assert names["speaks"].shape == names["rollout"].shape == (2, 4, 4)
    assert names["maps"].shape == (2, 2, 2, 17, 17)
    # Grad-CAM: the mean of the patches is classified linearly, so that the gradient is known.
    kernel = keras.ops.convert_to_numpy(names["classifier"].get_layer("head").kernel)[:, 1]
    np.testing.assert_allclose(names["gradient"], np.broadcast_to(kernel / 16, (2, 16, 32)), 1e-5)
    expected = np.maximum(names["features"] @ kernel / 16, 0).reshape(2, 4, 4)
    np.testing.assert_allclose(names["cam"], expected, atol=1e-6)
    assert names["cam"].max() > 0


def test_the_rollouts_mass_lies_on_the_flower(shared: Path) -> None:
    """Inside boxes drawn by hand."""
    pytest.importorskip("matplotlib")
    from docs.inspection import contact_sheet as sheet

    flowers, boxes = shared / "photos" / "flowers", sheet.boxes()
    weights = shared / "weights" / "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    others, model = sheet.others(flowers, 4), load(weights / "model.safetensors")
    maps = sheet.rollouts(model, flowers, [*boxes, *others])
    baseline = maps[len(boxes) :].mean(axis=0)
    for rollout, (name, box) in zip(maps, boxes.items(), strict=False):
        mass, area = sheet.fractions(rollout, box, 16)
        baseline_mass, _ = sheet.fractions(baseline, box, 16)
        assert mass >= 1.3 * area, name
        assert mass >= 1.15 * baseline_mass, name
