"""What `plan` says is what the built model has."""

import math
from typing import Any

import numpy as np
import pytest

from keras_vit import BiTResNet
from keras_vit.layers import StandardizedConv2D
from keras_vit.models import model_cost
from keras_vit.models.cost import resnet_cost, vit_cost
from tests.models.test_common import SIZES, build
from tests.models.test_variants import PARAMETERS

# GMACs at 224 px as timm publishes them; it counts norms and softmax too, so ours are just below.
GMACS = {"ViT-Ti/16": 1.26, "ViT-S/32": 1.15, "ViT-S/16": 4.61, "ViT-B/32": 4.41}
GMACS |= {"ViT-B/16": 17.58, "ViT-B/8": 78.22, "ViT-L/16": 61.6, "ViT-H/14": 167.4}
GMACS |= {"ViT-g/14": 267.2, "ViT-G/14": 484.0, "R+ViT-Ti/16": 0.43}
GMACS |= {"Mixer-S/32": 1.0, "Mixer-S/16": 3.79, "Mixer-B/32": 3.24, "Mixer-B/16": 12.62}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(name: str) -> None:
    assert model_cost(name).parameters == PARAMETERS[name]


@pytest.mark.parametrize("name", GMACS)
def test_gmacs_are_the_published_ones(name: str) -> None:
    assert model_cost(name).macs / 1e9 == pytest.approx(GMACS[name], rel=0.009)


def test_gmacs_at_384() -> None:
    assert model_cost("ViT-B/16", image_size=384).macs / 1e9 == pytest.approx(55.54, rel=0.008)


def test_parameters_equal_a_built_model() -> None:
    model = build("token", input_shape=(24, 40, 1), mlp_dim=48)
    sizes = {key: SIZES[key] for key in ("patch_size", "hidden_dim", "depth", "num_heads")}
    found = vit_cost(**sizes, mlp_dim=48, image_size=(24, 40), channels=1, num_classes=5)
    assert found.parameters == model.count_params()


@pytest.mark.parametrize("version", [1, 2])
def test_every_convolution_of_a_resnet_is_counted(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The products of each convolution as it runs, on an image that nothing divides."""
    counted = []
    convolve = StandardizedConv2D.convolution_op

    def counting(self: Any, inputs: Any, kernel: Any) -> Any:
        outputs = convolve(self, inputs, kernel)
        counted.append(outputs.shape[1] * outputs.shape[2] * math.prod(kernel.shape))
        return outputs

    sizes = {"depths": (1, 1), "width": 32, "version": version}
    model = BiTResNet(**sizes, num_classes=5, input_shape=(45, 29, 1))
    monkeypatch.setattr(StandardizedConv2D, "convolution_op", counting)
    model(np.zeros((1, 45, 29, 1), "float32"))
    found = resnet_cost(**sizes, image_size=(45, 29), channels=1, num_classes=5)
    assert found.macs == sum(counted) + 256 * 5
    assert found.parameters == model.count_params()
    hybrid = build("hybrid", resnet=(2, 1, 1), patch_size=1, input_shape=(45, 29, 1))
    names = ("patch_size", "resnet", "resnet_width", "hidden_dim", "depth", "num_heads", "mlp_dim")
    found = vit_cost(
        **{name: getattr(hybrid, name) for name in names},
        image_size=(45, 29),
        channels=1,
        num_classes=5,
    )
    assert found.parameters == hybrid.count_params()


def test_every_parameter_and_convolution_of_a_conv_stem_is_counted() -> None:
    stem = ((8, 2), (12, 1))
    model = build("conv_stem", conv_stem=stem, patch_size=3, input_shape=(45, 29, 1))
    sizes = {name: getattr(model, name) for name in ("hidden_dim", "depth", "num_heads", "mlp_dim")}
    options = {"image_size": (45, 29), "channels": 1, "num_classes": 5, "class_token": False}
    found = vit_cost(**sizes, patch_size=3, conv_stem=stem, pooling="gap", **options)
    assert found.parameters == model.count_params()
    # The maps are 23 x 15; patches of 3 x 3 x 12 values instead of 3 x 3 x 1 of the whole image.
    plain = vit_cost(**sizes, patch_size=3, **{**options, "image_size": (23, 15)})
    convolutions = 23 * 15 * 9 * (1 * 8 + 8 * 12)
    assert found.macs - plain.macs == convolutions + 7 * 5 * 9 * 11 * model.hidden_dim


def test_memory_falls_with_what_should_lower_it() -> None:
    whole = model_cost("ViT-B/16", batch_size=32)
    assert (
        model_cost("ViT-B/16", batch_size=32, remat=True).training_bytes < whole.training_bytes / 2
    )
    half = model_cost("ViT-B/16", batch_size=32, precision="mixed_bfloat16")
    assert half.training_bytes < whole.training_bytes
    assert whole.inference_bytes < whole.training_bytes
