"""Position similarity and embedding filters, against their definitions."""

from pathlib import Path

import keras
import numpy as np
import pytest
from sklearn.decomposition import PCA

from keras_vit.inspection import embedding_filters, position_similarity
from tests.backend import numpy
from tests.inspection.models import model_of, recorded, untrained


def cosines(vectors: np.ndarray) -> np.ndarray:
    """`(grid_h, grid_w, dim)` to the cosine of every pair, one by one."""
    rows, columns, _ = vectors.shape
    similarity = np.zeros((rows, columns, rows, columns))
    for i, j, k, m in np.ndindex(similarity.shape):
        a, b = vectors[i, j].astype("float64"), vectors[k, m].astype("float64")
        similarity[i, j, k, m] = a @ b / (np.sqrt(a @ a) * np.sqrt(b @ b))
    return similarity


def test_similarity_of_a_released_file(shared: Path) -> None:
    case, model = recorded("vit_nonsquare", shared)
    table = np.load(case.file)["Transformer/posembed_input/pos_embedding"]
    grid = model.position_grid
    vectors = table[0, model.num_prefix_tokens :].reshape(*grid, -1)
    similarity = position_similarity(model)
    assert similarity.shape == (*grid, *grid)
    assert np.abs(similarity - cosines(vectors)).max() < 1e-6


def test_similarity_of_other_kinds() -> None:
    model = model_of("map")
    layer = model.get_layer("position_embedding")
    rows, columns = numpy(layer.rows), numpy(layer.columns)
    vectors = np.array([[np.concatenate([row, column]) for column in columns] for row in rows])
    assert np.abs(position_similarity(model) - cosines(vectors)).max() < 1e-6
    # Sines and cosines know nothing but the offset: the same at every place with this offset.
    fixed = position_similarity(model_of("gap"))
    assert np.abs(fixed[0, 0, 2, 1] - fixed[1, 1, 3, 2]) < 1e-6
    assert position_similarity(model_of("any_size")).shape == (3, 2, 3, 2)
    zeros = untrained()
    embedding = zeros.get_layer("position_embedding").embedding
    embedding.assign(np.zeros(embedding.shape))
    assert not position_similarity(zeros).any()  # and not NaN
    for kind in ("registers", "gap_registers"):
        with pytest.raises(ValueError, match="'learned', 'learned_2d', 'sincos2d'"):
            position_similarity(model_of(kind))


def test_filters_are_principal_components() -> None:
    model = model_of("token")
    kernel = numpy(model.get_layer("patch_embedding").kernel).astype("float64")
    expected = PCA(15, svd_solver="full").fit(kernel.reshape(-1, 16).T).components_
    filters = embedding_filters(model, components=15)
    assert filters.shape == (15, 8, 4, 3)
    flat = filters.reshape(15, -1)
    signs = np.sign((flat * expected).sum(axis=1))
    assert np.abs(flat - signs[:, None] * expected).max() < 1e-5
    assert (flat[np.arange(15), np.abs(flat).argmax(axis=1)] > 0).all()
    assert np.abs(embedding_filters(model, 4) - filters[:4]).max() == 0
    with pytest.raises(ValueError, match=r"components=28.*Give 15 or fewer"):
        embedding_filters(model)
    with pytest.raises(ValueError, match="without a patch embedding"):
        embedding_filters(keras.Sequential([keras.layers.Dense(1)]))
