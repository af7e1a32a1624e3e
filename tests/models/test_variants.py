"""Published sizes, what `plan` says of them, and models by the names of timm and Hugging Face."""

import inspect
import json
import math
import re
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import VisionTransformer
from keras_vit.layers import StandardizedConv2D
from keras_vit.models import model_cost, named_model
from keras_vit.models.cost import cost_of
from keras_vit.models.families import family_of
from keras_vit.models.other_names import OTHER_NAMES
from keras_vit.models.skeleton import without_values
from keras_vit.tasks import Classification
from keras_vit_cli.train import run as jobs
from keras_vit_cli.train.job import Job
from keras_vit_cli.train.job_recipe import recipe_of
from tests.backend import numpy, refused
from tests.golden_cases import COMMITTED
from tests.models.test_common import FAMILIES, KINDS, build, built

# Parameters and GMACs as they are published: tests/golden/README.md says by whom.
FIGURES = json.loads((COMMITTED / "published.json").read_text())
PARAMETERS, GMACS, PUBLISHED = (FIGURES[kind] for kind in ("parameters", "gmacs", "other_names"))


@pytest.mark.parametrize(("name", "arguments", "count"), FIGURES["with_arguments"])
def test_parameter_count(name: str, arguments: dict[str, Any], count: int) -> None:
    with keras.StatelessScope(initialize_variables=False):
        assert keras_vit.create(name, **arguments).count_params() == count


def test_every_registered_model_has_a_count_and_a_python_name() -> None:
    assert set(keras_vit.list_models()) == set(PARAMETERS)
    for name in PARAMETERS:
        constructor = getattr(keras_vit.applications, re.sub("[-/+]", "", name))
        assert name in constructor.__doc__
        assert "num_classes: Number of classes" in constructor.__doc__
        of_class = inspect.signature(family_of(name).model).parameters
        assert {"num_classes", "normalization"} < set(of_class)
    for kind in FAMILIES:
        model = built(kind)
        assert all(hasattr(model, name) for name in inspect.signature(type(model)).parameters)
    model = keras_vit.ViTTi16(num_classes=5)
    assert (model.patch_size, model.hidden_dim, model.name) == ((16, 16), 192, "vit_ti_16")
    assert keras_vit.list_models("vit-s*") == ["ViT-S/32", "ViT-S/16"]


@pytest.mark.every_backend  # each draws its own
def test_initial_values_are_the_released_codes() -> None:
    model = keras_vit.ViTTi16(num_classes=10)
    layer, block, head = model.get_layer, model.get_layer("block_0"), model.get_layer("head")
    kernel = numpy(layer("patch_embedding").kernel)
    assert kernel.std() == pytest.approx((16 * 16 * 3) ** -0.5, rel=0.02)
    # A normal cut at two deviations, and widened so that the deviation comes out right. On torch
    # Keras takes the first of four draws that is inside: one value in 0.0455**-4 = 230,000 is not.
    # Of a normal that is not cut, 2.3 % would be outside.
    assert (abs(kernel) > 2.0001 * (16 * 16 * 3) ** -0.5 / 0.87962566).mean() < 1e-4
    qkv, dense = block.attention.query_key_value, (block.mlp.dense_0, block.mlp.dense_1)
    fans = {qkv: 2 * 192, block.attention.output_projection: 2 * 192} | dict.fromkeys(dense, 960)
    for each, number in fans.items():  # what goes in and out
        assert abs(numpy(each.kernel)).max() == pytest.approx((6 / number) ** 0.5, rel=1e-3)
    for each in dense:
        assert numpy(each.bias).std() == pytest.approx(1e-6, rel=0.2)
    assert numpy(layer("position_embedding").embedding).std() == pytest.approx(0.02, rel=0.02)
    for zero in (layer("class_token").embedding, head.kernel, head.bias, qkv.bias):
        assert not numpy(zero).any()


def test_parameters_and_gmacs_are_the_published_ones_and_memory_falls() -> None:
    costs = {name: model_cost(name) for name in PARAMETERS}
    assert {name: cost.parameters for name, cost in costs.items()} == PARAMETERS
    # timm counts norms and softmax too, so that ours are just below.
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
    refused("with_input_shape", cost_of, build("token", input_shape=(None, None, 3)))


@pytest.mark.parametrize("version", [1, 2])
def test_every_convolution_of_resnets_and_stems_is_counted(version: int, monkeypatch: Any) -> None:
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
    model = build("conv_stem", patch_size=3, input_shape=(45, 29, 1))
    # The maps are 23 x 15; patches of 3 x 3 x 12 values instead of 3 x 3 x 1 of the whole image.
    plain = build("conv_stem", conv_stem=None, patch_size=3, input_shape=(23, 15, 1))
    convolutions, patches = 23 * 15 * 9 * (1 * 8 + 8 * 12), 7 * 5 * 9 * 11 * model.hidden_dim
    assert cost_of(model).macs - cost_of(plain).macs == convolutions + patches


NEAREST = [
    ("vit_base_patch16_clap_224", "vit_base_patch16_clip_224"),
    ("vit_base_r20_s16_224", "vit_base_r50_s16_224"),
    ("microsoft/beit-base-patch16-224", "google/vit-base-patch16-224"),
    ("vit-base-patch16-224", "google/vit-base-patch16-224"),
    ("facebook/dinov2-tiny", "facebook/dinov2-giant"),
    ("resnetv2_50x2_bit", "resnetv2_50x1_bit"),
    ("ViT-B/15", "ViT-B/16"),
]


def named(name: str, **arguments: Any) -> Any:
    return without_values(partial(keras_vit.create, name, **arguments))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameter_counts(name: str) -> None:
    count = PUBLISHED[name] or named(name).count_params()
    assert model_cost(name).parameters == count


def test_the_image_size_is_that_of_the_name_and_bits_that_of_its_tag() -> None:
    name = "vit_tiny_patch16_384"
    assert named(name).input_shape == (None, 384, 384, 3)
    assert named(name, data_format="channels_first").input_shape == (None, 3, 384, 384)
    assert named(name, input_shape=(64, 96, 3)).input_shape == (None, 64, 96, 3)
    sizes = FIGURES["image_sizes"]
    assert {name: named_model(name).image_size for name in sizes} == sizes


@pytest.mark.parametrize(("name", "expected"), FIGURES["arguments"].items())
def test_the_model_computes_what_its_name_says(name: str, expected: dict[str, Any]) -> None:
    config = named(name).get_config()
    assert {key: config[key] for key in expected} == expected


def test_arguments_come_before_the_name_and_the_model_runs() -> None:
    model = named("google/vit-base-patch16-224-in21k", num_classes=5, activation="relu")
    # A head of its own goes without the pooler, as `weights=` does.
    assert (model.num_classes, model.activation, model.representation_size) == (5, "relu", None)
    assert model.name == "google_vit_base_patch16_224_in21k"
    assert named("vit_tiny_patch16_224.augreg_in21k", num_classes=5).num_classes == 5
    model = keras_vit.create("vit_tiny_patch16_224.augreg_in21k", input_shape=(32, 32, 3))
    assert model(keras.ops.zeros((1, 32, 32, 3))).shape == (1, 21_843)


def test_origins_of_released_weights_name_their_model_image_size_and_head() -> None:
    for row in keras_vit.list_weights():
        if "huggingface.co" in row.url:
            named = named_model("/".join(row.url.split("/")[3:5]))  # owner and repository
            found = named.variant, named.image_size, named.arguments.get("num_classes", 1000)
            assert found == (row.model, row.pixels, row.num_classes)


def test_the_nearest_is_proposed_for_a_name_that_we_do_not_have() -> None:
    for name, nearest in NEAREST:
        refused(["No model ", "Did you mean", repr(nearest)], keras_vit.create, name)
    refused("'augreg_in21k'", keras_vit.create, "vit_base_patch16_224.augreg_in2k")
    refused(r"Known: ViT-Ti/16, .*Mixer-H/14\.$", keras_vit.create, "hello")
    assert "vit_base_patch16_224" not in keras_vit.list_models()
    assert len(set(OTHER_NAMES)) == len(OTHER_NAMES)  # those that are proposed
    assert all(named_model(name).variant for name in OTHER_NAMES)


def test_plan_and_train_take_the_names(command: Any, tmp_path: Any) -> None:
    assert f"{22_056_192 + 3850:,}" in command("plan facebook/dinov2-small --num-classes 10")
    job = Job(data="digits", out=tmp_path, model="vit_tiny_patch16_384", image_size=32)
    recipe = recipe_of(job)
    assert recipe.image_size == 32
    large = Job(data="digits", out=tmp_path, model="vit_small_patch16_384", sam=True)
    assert (recipe_of(large).image_size, recipe_of(large).rho) == (384, 0.1)
    model = jobs.build(job, recipe, Classification(size=10), 1)
    assert (model.input_shape, model.num_classes) == ((None, 32, 32, 1), 10)
    assert (model.activation, model.hidden_dim) == ("gelu", 192)
