"""LoRA: trains little, changes only what it may, and leaves a plain model behind."""

from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit.training.lora import ADAPTED, enable_lora, merged
from tests.bank import TINY, fresh, outputs, tiny
from tests.training.common import JIT, array


@pytest.mark.every_backend
def test_only_updates_and_head_are_trained_and_the_merged_model_is_plain(tmp_path: Path) -> None:
    model = fresh(**{**TINY, "depth": 2, "mlp_dim": 32, "num_classes": 3}, filled=False)
    images = np.random.default_rng(0).uniform(0, 255, (12, 16, 16, 3)).astype("float32")
    labels = np.arange(12) % 3
    before = {v.path: array(v).copy() for v in model.variables}
    features = outputs(model.feature_model("pre_logits"), images)

    trained = enable_lora(model, rank=2)
    # A (inputs, 2) and B (2, outputs) of four products in two blocks, and the head.
    pairs = 2 * ((16 + 48) + (16 + 16) + (16 + 32) + (32 + 16))
    assert trained == 2 * pairs + 16 * 3 + 3
    again = outputs(model.feature_model("pre_logits"), images)
    np.testing.assert_allclose(again, features, atol=1e-6)

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, jit_compile=JIT)
    losses = model.fit(images, labels, epochs=8, batch_size=12, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    for variable in model.variables:
        if not variable.path.startswith("head") and variable.path in before:
            np.testing.assert_array_equal(array(variable), before[variable.path])

    plain = merged(model)
    assert {v.path for v in plain.variables} == set(before)
    logits = outputs(model, images)
    np.testing.assert_allclose(outputs(plain, images), logits, atol=2e-6)
    changed = {v.path for v in plain.variables if np.any(array(v) != before[v.path])}
    assert all(p.startswith("head") or p.split("/")[-2] in ADAPTED for p in changed)

    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    assert again.count_params() == plain.count_params()
    np.testing.assert_allclose(outputs(again, images), logits, atol=2e-6)


def test_a_rank_must_be_positive() -> None:
    with pytest.raises(ValueError, match="rank=0"):
        enable_lora(tiny(), rank=0)
