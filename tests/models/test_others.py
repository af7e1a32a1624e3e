"""What is special about hybrids, BiT and MLP-Mixer: first values, and what they refuse."""

from typing import Any

import pytest

import keras_vit
from tests.backend import numpy
from tests.models.test_common import build, built
from tests.training.common import refused

MIXER = {"patch_size": 8, "hidden_dim": 32, "depth": 3, "input_shape": (32, 32, 3)}
ERRORS = [
    (lambda: keras_vit.models.MLPMixer(input_shape=(None, None, 3)), ["(None, None, 3)", "height"]),
    (lambda: keras_vit.models.MLPMixer(pooling="gap"), ["'pooling'", "patch_size"]),
    (lambda: keras_vit.models.MLPMixer(stochastic_depth=1), ["stochastic_depth=1"]),
    (lambda: built("mixer").with_input_shape((48, 32, 3)), ["6 x 4", "4 x 4", "32 x 32"]),
    (lambda: keras_vit.models.BiTResNet(depths=()), ["depths=()", "(3, 4, 6, 3)"]),
    (lambda: keras_vit.models.BiTResNet(depths=(1, 0)), ["depths[1]=0"]),
    (lambda: keras_vit.models.BiTResNet(depths=3), ["depths=3", "(3, 4, 6, 3)"]),
    (lambda: keras_vit.models.BiTResNet(num_classes=-1), ["num_classes=-1", "at least 0"]),
    (lambda: keras_vit.models.MLPMixer(norm_epsilon=-1e-6), ["norm_epsilon=-1e-06", "above 0"]),
    (lambda: keras_vit.models.MLPMixer(tokens_mlp_dim=0), ["mlp_dim=0"]),
    (lambda: keras_vit.models.BiTResNet(width=40), ["width=40", "64"]),
    (lambda: keras_vit.models.BiTResNet(version=3), ["version=3", "1, 2"]),
    (lambda: keras_vit.create("BiT-50x1"), ["'BiT-R50x1'"]),
    (lambda: keras_vit.applications.MixerB16(weights="in22k"), ["'in22k'", "'in21k'"]),
    # The ViT of these sizes has such weights, the Mixer and the hybrid have not.
    (lambda: keras_vit.applications.MixerB16(weights="augreg_in21k"), ["released for", "sam_in1k"]),
    (
        lambda: keras_vit.applications.RViTTi16(weights="deit_in1k"),
        ["released for", "augreg_in21k"],
    ),
    (lambda: build("hybrid", input_shape=(4, 32, 3)), ["4 x 32", "8 x 8"]),
]


@pytest.mark.parametrize(("make", "words"), ERRORS)
def test_errors_say_what_was_given_and_what_is_accepted(make: Any, words: list[str]) -> None:
    with refused(*words):
        make()


def test_grids_are_of_the_stride_of_what_is_before_the_tokens() -> None:
    model = build("mixer", input_shape=(30, 44, 3))
    assert model.position_grid == (4, 6)  # patches that the image fills in part count
    assert model.with_input_shape((32, 48, 3)).position_grid == (4, 6)
    noisy = keras_vit.models.MLPMixer(**MIXER, stochastic_depth=0.2)
    rates = [noisy.get_layer(f"block_{i}").stochastic_depth for i in range(3)]
    assert rates == pytest.approx([0, 0.1, 0.2])
    hybrid = build("hybrid", resnet=(1, 1), patch_size=1, input_shape=(45, 32, 3))
    stem = build("conv_stem", conv_stem=((8, 2), (8, 2)), patch_size=2, input_shape=(45, 32, 3))
    for model in (hybrid, stem):  # the feature map's height is rounded up
        assert (model.patch_pixels, model.position_grid) == ((8, 8), (6, 4))
    with pytest.warns(UserWarning, match="8 x 8 cover 32 x 32 of 33 x 32"):
        assert build("hybrid", input_shape=(33, 32, 3)).position_grid == (4, 4)


@pytest.mark.every_backend  # each draws its own
def test_initial_values_are_the_released_codes() -> None:
    fresh = keras_vit.models.MLPMixer(**MIXER).get_layer("block_0")
    for mixing, inputs in ((fresh.token_mixing, 16), (fresh.channel_mixing, 32)):
        assert numpy(mixing.dense_0.kernel).std() == pytest.approx(inputs**-0.5, rel=0.15)
    assert not numpy(fresh.token_mixing.dense_0.bias).any()
    for version, last in ((1, 0), (2, 1)):
        bit = keras_vit.models.BiTResNet(depths=(1,), width=32, version=version)
        unit = bit.get_layer("stage_1_unit_1")
        assert (numpy(unit.norm_3.gamma) == last).all()
        assert numpy(unit.conv_2.kernel).std() == pytest.approx((9 * 32) ** -0.5, rel=0.05)
