"""KerasHub's own harness for backbones, and its tasks on top of ours."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from tests.backend import reloaded
from tests.bank import KIND_SIZES, outputs
from tests.models.test_common import JIT, KINDS, ONE_BLOCK, OTHERS, build, pixels

HUB = "pip install --no-deps keras-hub==0.32.0; pip install kagglehub regex grain portpicker"
CASE = "keras_hub.src.tests.test_case"
harness = pytest.importorskip(CASE, reason=f"KerasHub is missing: {HUB}", exc_type=ImportError)


def backbone(model: type) -> type:
    """With what KerasHub asks of a backbone and an image model does not have."""
    cls = type(f"{model.__name__}Backbone", (model,), {"token_embedding": None})
    return keras.saving.register_keras_serializable(package="tests")(cls)


VIT = backbone(keras_vit.VisionTransformer)
BACKBONES: dict[str, tuple[type, dict[str, Any]]] = {
    "token": (VIT, KIND_SIZES),
    "hybrid": (VIT, {**KIND_SIZES, **KINDS["hybrid"]}),
    **{kind: (backbone(model), sizes) for kind, (model, sizes) in OTHERS.items()},
}


@pytest.fixture
def hub() -> Any:
    case = harness.TestCase()
    case.setUp()
    yield case
    case.tearDown()
    case.doCleanups()


@pytest.mark.parametrize("kind", BACKBONES)
def test_backbones(kind: str, hub: Any) -> None:
    cls, sizes = BACKBONES[kind]
    sizes, images = {**sizes, **ONE_BLOCK.get(kind, {"depth": 1})}, pixels(2, 32, 32, 3)
    # It wants all layers in one precision; our normalization and head are in float32.
    options = {"run_mixed_precision_check": False}
    hub.run_backbone_test(cls, {**sizes, "num_classes": 5}, images, (2, 5), **options)
    hub.run_model_saving_test(cls, {**sizes, "num_classes": 0}, images)


def test_an_image_classifier_on_a_grid_of_features(tmp_path: Path) -> None:
    import keras_hub

    model, images = build("token", num_classes=0, depth=1), pixels(4, 32, 32, 3)
    grid = model.feature_model("encoder_norm", format="grid")
    classifier = keras_hub.models.ImageClassifier(backbone=grid, num_classes=3)
    classifier.compile(jit_compile=JIT)
    before = model.get_weights()
    history = classifier.fit(images, np.arange(4) % 3, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert not all(map(np.array_equal, before, model.get_weights()))  # ours, not copies
    found = outputs(reloaded(classifier, tmp_path), images)
    np.testing.assert_array_equal(found, outputs(classifier, images))
