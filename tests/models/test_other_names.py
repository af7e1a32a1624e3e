"""Models by the names that timm and Hugging Face give them."""

from typing import Any

import keras
import pytest

import keras_vit
from keras_vit.models import model_cost, named_model
from keras_vit.models.other_names import OTHER_NAMES
from keras_vit.tasks import Classification
from keras_vit_cli import commands as cli
from keras_vit_cli.train import run as jobs
from keras_vit_cli.train.job import Job
from keras_vit_cli.train.job_recipe import recipe_of

# As timm (its results-imagenet.csv and model cards) and Hugging Face publish them. DINOv2 of
# Hugging Face also has a mask token, as wide as the tokens, which is no weight of the network.
PARAMETERS: dict[str, int | None] = {
    "vit_base_patch16_224": 86_567_656,
    "timm/vit_base_patch16_224.augreg_in21k_ft_in1k": 86_567_656,
    "vit_base_patch16_224.augreg_in21k": 102_595_923,
    "vit_base_patch16_224_in21k": 102_595_923,
    "vit_base_patch16_224.dino": 85_798_656,
    "vit_tiny_patch16_384": 5_790_376,
    "vit_base_patch32_384": 88_297_192,
    "vit_giant_patch14_224": 1_012_611_432,
    "vit_gigantic_patch14_224": 1_844_440_680,
    "deit_tiny_patch16_224": 5_717_416,
    "deit_base_patch16_224.fb_in1k": 86_567_656,
    "vit_small_patch14_dinov2.lvd142m": 22_056_192,
    "mixer_b16_224": 59_880_472,
    "mixer_b16_224.goog_in21k": 75_908_739,
    "mixer_l16_224": 208_196_168,
    "resnetv2_50x1_bit.goog_in21k": 68_256_659,
    "resnetv2_101x3_bit": 387_934_888,
    "vit_tiny_r_s16_p8_384": 6_355_944,
    "vit_small_r26_s32_224": 36_431_912,
    "vit_base_r50_s16_384": 98_950_952,
    "vit_large_r50_s32_384": 329_092_136,
    "google/vit-base-patch16-224": 86_567_656,
    "google/vit-base-patch16-224-in21k": 86_389_248,
    "google/vit-large-patch32-384": 306_632_680,
    "google/vit-hybrid-base-bit-384": 98_950_952,
    "facebook/deit-small-patch16-224": 22_050_664,
    "facebook/dino-vits8": 21_670_272,
    "facebook/dinov2-base": 86_580_480 - 768,
    "facebook/dinov2-giant": 1_136_480_768 - 1536,
    "facebook/dinov2-with-registers-base": 86_583_552 - 768,
    "vit_base_patch16_clip_224": 86_192_640 + 512,  # and a bias for the projection
    "google/siglip-base-patch16-224": 92_884_224,
    "google/siglip-so400m-patch14-384": 428_225_600,
    "vit_small_patch16_dinov3": None,  # where nobody publishes it: as the built model's
    "deit_tiny_distilled_patch16_224": 5_910_800,
    "beit_base_patch16_224": 86_530_984,
    "eva02_tiny_patch14_336": None,
}
SAYS: list[tuple[str, dict[str, Any]]] = [
    ("vit_tiny_patch16_224", {"activation": "gelu", "norm_epsilon": 1e-6}),
    ("google/vit-base-patch16-224", {"activation": "gelu", "norm_epsilon": 1e-12}),
    ("mixer_s32_224", {"activation": "gelu"}),
    ("deit3_small_patch16_224", {"layer_scale": 1e-6, "normalization": "imagenet"}),
    ("vit_small_patch16_224.dino", {"num_classes": 0, "normalization": "imagenet"}),
    ("vit_small_patch14_reg4_dinov2", {"num_registers": 4, "num_classes": 0}),
    ("facebook/dinov2-small", {"layer_scale": 1.0, "norm_epsilon": 1e-6, "num_registers": 0}),
    ("facebook/dinov2-with-registers-small", {"num_registers": 4}),
    ("facebook/dinov2-giant", {"activation": "swiglu", "mlp_dim": 4096}),
    ("google/vit-base-patch16-224-in21k", {"num_classes": 0, "representation_size": 768}),
]
NEAREST = [
    ("vit_base_patch16_clap_224", "vit_base_patch16_clip_224"),
    ("vit_base_r20_s16_224", "vit_base_r50_s16_224"),
    ("microsoft/beit-base-patch16-224", "google/vit-base-patch16-224"),
    ("google/vit-base-patch16", "google/vit-base-patch16-224"),
    ("vit-base-patch16-224", "google/vit-base-patch16-224"),
    ("facebook/dinov2-tiny", "facebook/dinov2-giant"),
    ("resnetv2_50x2_bit", "resnetv2_50x1_bit"),
    ("ViT-B/15", "ViT-B/16"),
]


def without_values(name: str, **arguments: Any) -> Any:
    with keras.StatelessScope(initialize_variables=False):
        return keras_vit.create(name, **arguments)


@pytest.mark.parametrize("name", PARAMETERS)
def test_published_parameter_counts(name: str) -> None:
    count = PARAMETERS[name] or without_values(name).count_params()
    assert model_cost(name).parameters == count


def test_the_image_size_is_that_of_the_name_and_bits_that_of_its_tag() -> None:
    name = "vit_tiny_patch16_384"
    assert without_values(name).input_shape == (None, 384, 384, 3)
    assert without_values(name, data_format="channels_first").input_shape == (None, 3, 384, 384)
    assert without_values(name, input_shape=(64, 96, 3)).input_shape == (None, 64, 96, 3)
    sizes = {
        "facebook/deit-tiny-patch16-384": 384,
        "resnetv2_50x1_bit.goog_in21k": 224,
        "resnetv2_50x1_bit.goog_in21k_ft_in1k": 448,
        "resnetv2_50x1_bitm": 448,
        "resnetv2_152x4_bit.goog_in21k_ft_in1k": 480,
        "resnetv2_152x2_bit.goog_teacher_in21k_ft_in1k_384": 384,
    }
    assert {name: named_model(name).image_size for name in sizes} == sizes


@pytest.mark.parametrize(("name", "expected"), SAYS)
def test_the_model_computes_what_its_name_says(name: str, expected: dict[str, Any]) -> None:
    config = without_values(name).get_config()
    assert {key: config[key] for key in expected} == expected


def test_arguments_come_before_the_name_and_the_model_runs() -> None:
    model = without_values("google/vit-base-patch16-224-in21k", num_classes=5, activation="relu")
    # A head of its own goes without the pooler, as `weights=` does.
    assert (model.num_classes, model.activation, model.representation_size) == (5, "relu", None)
    assert model.name == "google_vit_base_patch16_224_in21k"
    assert without_values("vit_tiny_patch16_224.augreg_in21k", num_classes=5).num_classes == 5
    model = keras_vit.create("vit_tiny_patch16_224.augreg_in21k", input_shape=(32, 32, 3))
    assert model(keras.ops.zeros((1, 32, 32, 3))).shape == (1, 21_843)


def test_origins_of_released_weights_name_their_model_image_size_and_head() -> None:
    for row in keras_vit.list_weights():
        if "huggingface.co" in row.url:
            named = named_model("/".join(row.url.split("/")[3:5]))  # owner and repository
            found = named.variant, named.image_size, named.arguments.get("num_classes", 1000)
            assert found == (row.model, row.pixels, row.num_classes)


@pytest.mark.parametrize(("name", "nearest"), NEAREST)
def test_the_nearest_is_proposed_for_a_model_that_we_do_not_have(name: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=r"No model .* Did you mean") as raised:
        keras_vit.create(name)
    assert repr(nearest) in str(raised.value)


def test_misspelled_tags_and_other_names_are_errors() -> None:
    with pytest.raises(ValueError, match=r"not have a tag 'augreg_in2k'.*'augreg_in21k'"):
        keras_vit.create("vit_base_patch16_224.augreg_in2k")
    with pytest.raises(ValueError, match=r"Known: ViT-Ti/16, .*Mixer-H/14\.$"):
        keras_vit.create("hello")
    assert "vit_base_patch16_224" not in keras_vit.list_models()
    assert len(set(OTHER_NAMES)) == len(OTHER_NAMES)  # those that are proposed
    assert all(named_model(name).variant for name in OTHER_NAMES)


def test_plan_and_train_take_the_names(capsys: Any, tmp_path: Any) -> None:
    assert cli.main(["plan", "facebook/dinov2-small", "--num-classes", "10"]) == 0
    assert f"{22_056_192 + 3850:,}" in capsys.readouterr().out
    job = Job(data="digits", out=tmp_path, model="vit_tiny_patch16_384", image_size=32)
    recipe = recipe_of(job)
    assert recipe.image_size == 32
    large = Job(data="digits", out=tmp_path, model="vit_small_patch16_384", sam=True)
    assert (recipe_of(large).image_size, recipe_of(large).rho) == (384, 0.1)
    model = jobs.build(job, recipe, Classification(size=10), 1)
    assert (model.input_shape, model.num_classes) == ((None, 32, 32, 1), 10)
    assert (model.activation, model.hidden_dim) == ("gelu", 192)
