"""Files that version 0.1 wrote still load, and give the same logits."""

import keras
import numpy as np
import pytest

import keras_vit
from tests.backend import at_once, numpy, rows
from tests.conftest import REPOSITORY

FILES = REPOSITORY / "tests" / "golden" / "keras_files"
EXPECTED = np.load(FILES / "logits.npz")


KINDS = ("vit", "vit_merging", "hybrid", "mixer", "bit")


@pytest.mark.parametrize("kind", rows(KINDS, ["vit_merging", "bit"]))
def test_an_older_file_gives_the_same_logits(kind: str) -> None:
    file = FILES / f"{kind}.keras"
    loaded = keras.saving.load_model(file)
    for model in (loaded, keras_vit.weights.load(file)):
        logits = numpy(at_once(model)(EXPECTED["images"]))
        # Recorded on JAX; between backends, the tolerance of the golden cases.
        assert np.abs(logits - EXPECTED[kind]).max() <= 5e-6 * np.abs(EXPECTED[kind]).max()
    assert loaded.class_names == ("ant", "bee", "cat", "dog", "elk")
    assert loaded.get_config()["evaluation"] == {"mode": "stretch"}
    frozen = {layer.path for layer in loaded._flatten_layers() if not layer.trainable}
    expected = {"block_0/mlp", "block_1"} if kind == "vit" else set()
    assert {path for path in frozen if path in ("block_0/mlp", "block_1")} == expected
