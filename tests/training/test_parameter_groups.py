"""What is trained, and how fast: the table of parameter groups, frozen layers, LoRA."""

from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit.training import parameter_groups
from keras_vit.training.lora import ADAPTED, enable_lora, merged
from keras_vit.training.optimizers import MomentumSGD
from keras_vit.training.parameter_groups import KERNELS_DECAY, ParameterGroup, find_groups, freeze
from tests.backend import reloaded
from tests.bank import TINY, fresh, outputs, pixels, small, tiny
from tests.training.common import QUICK, array, refused


def test_the_first_row_that_fits_the_whole_path_counts() -> None:
    model = small(pooling="map", num_registers=1, layer_scale=0.1)
    paths = [variable.path for variable in model.trainable_variables]
    rows = zip(paths, find_groups(paths, KERNELS_DECAY), strict=True)
    decayed = [path for path, group in rows if group.weight_decay]
    assert decayed == [path for path in paths if path.split("/")[-1] == "kernel"]
    kinds = {path.split("/")[-1] for path in set(paths) - set(decayed)}
    assert {"bias", "gamma", "beta", "embedding", "probe"} <= kinds
    rates = {"block_1/.*": 0.5, "block_1": 0.1, ".*": 1.0}
    table = [ParameterGroup(pattern, learning_rate=rate) for pattern, rate in rates.items()]
    groups = find_groups(["block_1/mlp/kernel", "block_11/mlp/kernel", "block_1"], table)
    assert [group.learning_rate for group in groups] == [0.5, 1.0, 0.1]
    for options, word in (
        ({"pattern": "block_("}, "regular expression"),
        ({"pattern": ".*", "learning_rate": 0.0}, "trainable=False"),
        ({"pattern": ".*", "weight_decay": -1.0}, "0 or more"),
    ):
        with pytest.raises(ValueError, match=word):
            ParameterGroup(**options)
    with pytest.raises(ValueError, match="nothing would train"):
        freeze(small(), [ParameterGroup(".*", trainable=False)])
    with pytest.raises(ValueError, match="rank=0"):
        enable_lora(tiny(), rank=0)
    table = [ParameterGroup(".*/kernel"), ParameterGroup("block_0/.*")]
    with refused("'head/bias'", "'encoder_norm/gamma'", "'block_0/.*'", "'.*'") as error:
        find_groups(["head/kernel", "head/bias", "encoder_norm/gamma"], table)
    assert "head/kernel" not in str(error.value)


@pytest.mark.every_backend
def test_frozen_layers_have_no_gradient_and_stay_so_in_the_file(tmp_path: Path) -> None:
    model = fresh(filled=False)
    patterns = ["(patch|position|class).*", "block_0/.*", "block_1/mlp/.*"]
    table = parameter_groups.frozen_rows(patterns, KERNELS_DECAY)
    freeze(model, table)
    trained = {"block_1", "encoder_norm", "head"}
    assert {v.path.split("/")[0] for v in model.trainable_variables} == trained
    assert not model.get_layer("block_0").trainable
    assert model.get_layer("block_1").trainable
    model.compile(MomentumSGD(0.1, weight_decay=0.1, groups=table), "mse", **QUICK)
    images, labels = pixels(4, 32, 32, 3), np.eye(5)[:4]
    for _ in range(2):
        before = {variable.path: np.array(variable) for variable in model.variables}
        model.fit(images, labels, verbose=0)
        moved = {v.path for v in model.weights if not np.array_equal(before[v.path], v)}
        assert moved <= {variable.path for variable in model.trainable_variables}
        assert {"head/kernel", "block_1/attention/query_key_value/kernel"} <= moved
        model = reloaded(model, tmp_path)
        assert {v.path.split("/")[0] for v in model.trainable_variables} == trained
        # A layer that is frozen in part is known to the optimizer alone.
        assert not any("mlp" in v.path for v in model.trainable_variables)


@pytest.mark.backends("torch")
def test_layerwise_decay_is_timms() -> None:
    timm = pytest.importorskip("timm")
    from timm.optim import param_groups_layer_decay

    depth, decay = 3, 0.7
    sizes = {"img_size": 32, "patch_size": 16, "embed_dim": 16, "num_heads": 2, "num_classes": 4}
    theirs = timm.models.vision_transformer.VisionTransformer(depth=depth, **sizes)
    rates, names = {}, {id(parameter): name for name, parameter in theirs.named_parameters()}
    for group in param_groups_layer_decay(theirs, 0.05, layer_decay=decay):
        rates |= {names[id(parameter)]: group["lr_scale"] for parameter in group["params"]}
    ours = {
        "patch_embed.proj.weight": "patch_embedding/kernel",
        "cls_token": "class_token/embedding",
        "pos_embed": "position_embedding/embedding",
        **{f"blocks.{i}.mlp.fc1.weight": f"block_{i}/mlp/dense_0/kernel" for i in range(depth)},
        **{f"blocks.{i}.norm1.bias": f"block_{i}/norm_0/beta" for i in range(depth)},
        "norm.weight": "encoder_norm/gamma",
        "head.weight": "head/kernel",
    }
    assert set(ours.values()) <= {v.path for v in small(depth=depth).trainable_variables}
    rows = find_groups(ours.values(), parameter_groups.layerwise_decay(depth, decay))
    for (name, path), group in zip(ours.items(), rows, strict=True):
        np.testing.assert_allclose(group.learning_rate, rates[name], err_msg=name)
        assert group.weight_decay == path.endswith("kernel")


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
    model.compile(keras.optimizers.Adam(0.01), loss, **QUICK)
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
    again = reloaded(model, tmp_path)
    assert again.count_params() == plain.count_params()
    np.testing.assert_allclose(outputs(again, images), logits, atol=2e-6)
