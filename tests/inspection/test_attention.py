"""Attention maps, rollout and distances, positions and filters: as recorded and as defined."""

from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from sklearn.decomposition import PCA

from keras_vit import inspection, load
from keras_vit.inspection import attention_maps, pooling_attention, position_similarity
from keras_vit.inspection.forward_pass import ForwardPass
from tests.backend import numpy, refused, rows
from tests.golden_cases import golden_case
from tests.inspection.models import KINDS, images_for, maps_of, model_of, untrained
from tests.weights.test_golden import CASES

# big_vision ran the bfloat16 file in bfloat16.
WITH_PROBE = "bv_vit_map_inline_probe"
RECORDED = [name for name in CASES if name.startswith("vit_")]
RECORDED += ["bv_vit_tok", "bv_vit_gap_learn", WITH_PROBE]


def distances(maps: np.ndarray, columns: int, patch: tuple[int, int]) -> np.ndarray:
    """As the ViT paper defines them (figure 11), in pixels per layer and head.

    `maps` are of patches alone, `(images, depth, heads, patches, patches)`.
    """
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
    """`(grid_h, grid_w, dim)` to the cosine of every pair."""
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
    for reason, call in (
        (r"depth 2.*0 to 1", lambda: attention_maps(model, images, layers=[2])),
        (r"\(32, 12, 3\).*images\[None\]", lambda: attention_maps(model, images[0])),
        ("at least one", lambda: attention_maps(model, images[:0])),
        ("without encoder blocks", lambda: attention_maps(without, images)),
        ('pooling="map"', lambda: pooling_attention(model, images)),
        ("'learned', 'learned_2d', 'sincos2d'", lambda: position_similarity(model_of("registers"))),
        (r"components=28.*Give 15 or fewer", lambda: inspection.embedding_filters(model)),
        ("without a patch embedding", lambda: inspection.embedding_filters(without)),
    ):
        refused(reason, call)


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


def test_distances_of_patches_without_attention_are_not_nan() -> None:
    nothing = SimpleNamespace(patch_pixels=(8, 4), grid=(2, 2), prefix=1, blocks=[None])
    nothing.attention = lambda layer: np.eye(5)[np.zeros((1, 2, 5), int)]  # on the class token
    assert not ForwardPass.distances(nothing).any()


def test_similarity_of_positions() -> None:
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


def test_filters_are_principal_components() -> None:
    model = model_of("token")
    kernel = numpy(model.get_layer("patch_embedding").kernel).astype("float64")
    expected = PCA(15, svd_solver="full").fit(kernel.reshape(-1, 16).T).components_
    filters = inspection.embedding_filters(model, components=15)
    flat = filters.reshape(15, -1)
    signs = np.sign((flat * expected).sum(axis=1))
    assert np.abs(flat - signs[:, None] * expected).max() < 1e-5
    assert (flat[np.arange(15), np.abs(flat).argmax(axis=1)] > 0).all()
