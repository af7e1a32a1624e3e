"""What `plan` says is what the built model has."""

import math
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer
from keras_vit.layers import StandardizedConv2D
from keras_vit.models import model_cost
from keras_vit.models.cost import cost_of
from keras_vit.models.skeleton import without_values
from tests.models.test_common import KINDS, build
from tests.models.test_variants import PARAMETERS

# GMACs at 224 px as timm publishes them; it counts norms and softmax too, so ours are just below.
GMACS = {"ViT-Ti/16": 1.26, "ViT-S/32": 1.15, "ViT-S/16": 4.61, "ViT-B/32": 4.41}
GMACS |= {"ViT-B/16": 17.58, "ViT-B/8": 78.22, "ViT-L/16": 61.6, "ViT-H/14": 167.4}
GMACS |= {"ViT-g/14": 267.2, "ViT-G/14": 484.0, "R+ViT-Ti/16": 0.43}
GMACS |= {"Mixer-S/32": 1.0, "Mixer-S/16": 3.79, "Mixer-B/32": 3.24, "Mixer-B/16": 12.62}


def test_parameters_and_gmacs_are_the_published_ones_and_memory_falls() -> None:
    costs = {name: model_cost(name) for name in PARAMETERS}
    assert {name: cost.parameters for name, cost in costs.items()} == PARAMETERS
    assert {name: costs[name].macs / 1e9 for name in GMACS} == pytest.approx(GMACS, rel=0.009)
    assert model_cost("ViT-B/16", image_size=384).macs / 1e9 == pytest.approx(55.54, rel=0.008)
    less = ({}, {"precision": "mixed_bfloat16"}, {"remat": True})
    whole, half, remat = (model_cost("ViT-B/16", batch_size=32, **options) for options in less)
    assert remat.training_bytes < whole.training_bytes / 2
    for name in ("Mixer-S/32", "BiT-R50x1"):
        assert model_cost(name, remat=True).training_bytes < costs[name].training_bytes
    assert max(half.training_bytes, whole.inference_bytes) < whole.training_bytes


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_without_values_costs_what_the_built_one_does(kind: str) -> None:
    model = build(kind)
    assert cost_of(model).parameters == sum(math.prod(v.shape) for v in model.trainable_variables)
    shapes = without_values(partial(build, kind))
    assert cost_of(shapes) == cost_of(model)
    variables = [[(v.path, v.shape) for v in each.variables] for each in (shapes, model)]
    assert variables[0] == variables[1]


def test_a_model_without_values_leaves_nothing_behind_and_needs_an_image_size() -> None:
    """Keras would fill its variables at the end of the next scope, whoever opens it."""
    giant = without_values(lambda: VisionTransformer(hidden_dim=2**20, depth=1, num_heads=2**10))
    assert giant.count_params() > 2**43
    with keras.StatelessScope():
        pass
    first = keras.layers.Flatten().name
    without_values(lambda: keras.Sequential([keras.layers.Flatten()]))
    number = int(first.partition("_")[2] or 0)
    assert keras.layers.Flatten().name == f"flatten_{number + 1}"
    with pytest.raises(ValueError, match=r"with_input_shape\(\(224, 224, 3\)\)"):
        cost_of(build("token", input_shape=(None, None, 3)))


@pytest.mark.parametrize("version", [1, 2])
def test_every_convolution_of_a_resnet_is_counted(version: int, monkeypatch: Any) -> None:
    """The products of each convolution as it runs, on an image that nothing divides."""
    counted, convolve = [], StandardizedConv2D.convolution_op

    def counting(self: Any, inputs: Any, kernel: Any) -> Any:
        outputs = convolve(self, inputs, kernel)
        counted.append(outputs.shape[1] * outputs.shape[2] * math.prod(kernel.shape))
        return outputs

    model = build("bit", version=version, input_shape=(45, 29, 1))
    monkeypatch.setattr(StandardizedConv2D, "convolution_op", counting)
    model(np.zeros((1, 45, 29, 1), "float32"))
    assert cost_of(model).macs == sum(counted) + 256 * 5


def test_every_convolution_of_a_conv_stem_is_counted() -> None:
    model = build("conv_stem", patch_size=3, input_shape=(45, 29, 1))
    # The maps are 23 x 15; patches of 3 x 3 x 12 values instead of 3 x 3 x 1 of the whole image.
    plain = build("conv_stem", conv_stem=None, patch_size=3, input_shape=(23, 15, 1))
    convolutions, patches = 23 * 15 * 9 * (1 * 8 + 8 * 12), 7 * 5 * 9 * 11 * model.hidden_dim
    assert cost_of(model).macs - cost_of(plain).macs == convolutions + patches
