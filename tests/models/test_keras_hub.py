"""KerasHub's own harness for backbones, and its tasks on top of ours."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from tests.models.test_common import JIT, OTHERS, SIZES, build, pixels

harness = pytest.importorskip(
    "keras_hub.src.tests.test_case",
    reason="KerasHub's harness is missing: pip install --no-deps keras-hub==0.32.0, "
    "and pip install kagglehub regex grain portpicker",
    exc_type=ImportError,
)


class Backbone:
    """What KerasHub asks of a backbone and an image model does not have."""

    token_embedding = None


@keras.saving.register_keras_serializable(package="tests")
class VisionTransformerBackbone(Backbone, keras_vit.VisionTransformer):
    pass


@keras.saving.register_keras_serializable(package="tests")
class MLPMixerBackbone(Backbone, keras_vit.MLPMixer):
    pass


@keras.saving.register_keras_serializable(package="tests")
class BiTResNetBackbone(Backbone, keras_vit.BiTResNet):
    pass


VIT = {**SIZES, "depth": 1}
HYBRID = {"resnet": (1,), "resnet_width": 32, "patch_size": 2}
BACKBONES: dict[str, tuple[type, dict[str, Any]]] = {
    "vit": (VisionTransformerBackbone, VIT),
    "hybrid": (VisionTransformerBackbone, {**VIT, **HYBRID}),
    "mixer": (MLPMixerBackbone, {**OTHERS["mixer"][1], "depth": 1}),
    "bit": (BiTResNetBackbone, {**OTHERS["bit"][1], "depths": (1,)}),
}


class TestBackbones(harness.TestCase):
    def run_tests(self, kind: str) -> None:
        backbone, sizes = BACKBONES[kind]
        self.run_backbone_test(
            backbone,
            {**sizes, "num_classes": 5},
            pixels(2, 32, 32, 3),
            (2, 5),
            # It wants all layers in one precision; our normalization and head are in float32.
            run_mixed_precision_check=False,
        )

    def run_saving_tests(self, kind: str) -> None:
        backbone, sizes = BACKBONES[kind]
        self.run_model_saving_test(backbone, {**sizes, "num_classes": 0}, pixels(2, 32, 32, 3))

    def test_vit(self) -> None:
        self.run_tests("vit")

    def test_hybrid(self) -> None:
        self.run_tests("hybrid")

    def test_mixer(self) -> None:
        self.run_tests("mixer")

    def test_bit(self) -> None:
        self.run_tests("bit")

    def test_saving_vit(self) -> None:
        self.run_saving_tests("vit")

    def test_saving_hybrid(self) -> None:
        self.run_saving_tests("hybrid")

    def test_saving_mixer(self) -> None:
        self.run_saving_tests("mixer")

    def test_saving_bit(self) -> None:
        self.run_saving_tests("bit")


@pytest.mark.parametrize("kind", ["token", "hybrid", "mixer", "bit"])
def test_an_image_classifier_on_a_grid_of_features(kind: str, tmp_path: Path) -> None:
    import keras_hub

    sizes = {"depths": (1,)} if kind == "bit" else {"depth": 1}
    model, images = build(kind, num_classes=0, **sizes), pixels(4, 32, 32, 3)
    name = "pre_logits_2d" if kind == "bit" else "encoder_norm"
    classifier = keras_hub.models.ImageClassifier(
        backbone=model.feature_model(name, format="grid"), num_classes=3
    )
    if kind == "token":  # what follows the grid is KerasHub's: one family is enough
        classifier.compile(jit_compile=JIT)
        before = model.get_weights()
        history = classifier.fit(images, np.arange(4) % 3, verbose=0).history
        assert np.isfinite(history["loss"]).all()
        # It has trained our variables, not copies of them.
        assert any((was != now).any() for was, now in zip(before, model.get_weights(), strict=True))
    classifier.save(tmp_path / "classifier.keras")
    loaded = keras.saving.load_model(tmp_path / "classifier.keras")
    np.testing.assert_array_equal(
        *(keras.ops.convert_to_numpy(each(images)) for each in (loaded, classifier))
    )
