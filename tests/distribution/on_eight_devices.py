"""Eight simulated devices give what one device gives (run by `test_two_processes.py`)."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from benchmarks._steps import step_cost
from keras_vit.distribution import KINDS
from keras_vit.distribution.kinds import distribution_of
from keras_vit.training.optimizers import DecoupledAdam, MomentumSGD
from tests.backend import refused
from tests.distribution import helpers
from tests.distribution.helpers import CLASSES, assert_as_in_one, assert_same, compiled, on

IMAGES, LABELS = helpers.images_and_labels(43, 32)
thorough = partial(pytest.param, marks=pytest.mark.thorough)


def vit(**arguments: Any) -> keras.Model:
    """Wide enough that its kernels are cut."""
    sizes = {"patch_size": 8, "hidden_dim": 128, "mlp_dim": 256, "num_heads": 8}
    model = helpers.vit(**{**sizes, "input_shape": (32, 32, 3), **arguments})
    return model if "map_head" in arguments else helpers.with_head(model)


def bit() -> keras.Model:
    sizes = {"num_classes": CLASSES, "input_shape": (32, 32, 3)}
    model = keras_vit.models.BiTResNet(depths=(1,), width=64, **sizes)
    return helpers.with_head(model)


def sgd(**options: Any) -> keras.optimizers.Optimizer:
    # Clipped, as rounding grows with the gradients.
    return MomentumSGD(0.01, state_dtype="float32", **{"global_clipnorm": 1.0, **options})


def trained(model: keras.Model) -> keras.Model:
    """Four steps of eight images: each other size of a batch would be compiled, too."""
    compiled(model, sgd()).fit(IMAGES[:16], LABELS[:16], batch_size=8, epochs=2, verbose=0)
    return model


training = partial(helpers.whole_training, vit, sgd, IMAGES, LABELS)


def scores_of_1003() -> Any:
    model = compiled(vit(input_shape=(16, 16, 3)), sgd())
    images, labels = helpers.images_and_labels(1003, 16, seed=1)
    scores = model.evaluate(images, labels, batch_size=100, verbose=0)
    return scores, model.predict(images, batch_size=100, verbose=0)


@pytest.fixture(scope="module")
def on_one_device() -> Any:
    """The training and the scores that each kind is compared with."""
    return on(None, training), on(None, scores_of_1003)


# The others stand for data parallel: they cut weights and batches.
@pytest.mark.parametrize("kind", [thorough("data_parallel"), "fsdp", "tensor_parallel"])
def test_fit(kind: str, on_one_device: Any) -> None:
    helpers.assert_same_training(on_one_device[0], on(kind, training))


@pytest.mark.parametrize("kind", KINDS)
def test_1003_examples(kind: str, on_one_device: Any) -> None:
    scores, logits = on_one_device[1]
    its_scores, its_logits = on(kind, scores_of_1003)
    assert its_logits.shape == (1003, CLASSES)
    assert_same(its_scores, scores, 1e-6)
    assert_same(its_logits, logits, 1e-6 * np.abs(logits).max())


def distillation() -> Any:
    """The teacher is on the devices, too, and sees the rows of a batch that they do not divide."""
    student, teacher = vit(dropout=0.1, input_shape=(16, 16, 3)), vit(mlp_dim=128)
    return helpers.distilled(student, teacher, sgd(), IMAGES[:12], LABELS[:12], 12)


QUICK: dict[str, Callable[[], Any]] = {
    "mixer": lambda: trained(helpers.with_head(helpers.mixer(128, 32))),
    "sharpness-aware steps": lambda: trained(helpers.sharpness_aware(vit(dropout=0.1), rho=0.05)),
    "masked patch prediction": lambda: helpers.masked(vit(), sgd(), IMAGES[:16], 8),
    "distillation": distillation,
    "queries": lambda: helpers.of_queries(vit, sgd(), IMAGES[:20]),
}
THOROUGH: dict[str, Callable[[], keras.Model]] = {
    "merging": lambda: trained(vit(depth=2, token_merging=2)),
    "remat": lambda: trained(vit(remat=True, dropout=0.1)),
    "hybrid": lambda: trained(vit(resnet=(1,), patch_size=4)),
    "bit": lambda: trained(bit()),
}


@pytest.mark.parametrize("name", [*QUICK, *map(thorough, THOROUGH)])
def test_it_is_as_on_one_device(name: str) -> None:
    assert_as_in_one("fsdp", {**QUICK, **THOROUGH}[name])


def test_two_groups_of_four() -> None:
    """Tensor parallel within a group, data parallel between groups."""
    assert_as_in_one("tensor_parallel", lambda: trained(vit(dropout=0.1)), model_devices=4)


def share(variables: list[keras.Variable]) -> float:
    """The part of some variables that one device holds."""
    held = (math.prod(v.value.sharding.shard_shape(v.shape)) for v in variables)
    return sum(held) / sum(math.prod(v.shape) for v in variables)


OPTIMIZERS = {
    "adam": lambda: DecoupledAdam(1e-3, use_ema=True),
    "keras": lambda: keras.optimizers.AdamW(1e-3, gradient_accumulation_steps=2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_and_every_state_are_cut(name: str) -> None:
    def all_by_fsdp() -> Any:
        model = compiled(vit(hidden_dim=512, mlp_dim=2048, num_classes=8), OPTIMIZERS[name]())
        model.fit(IMAGES[:8], LABELS[:8], verbose=0)
        return share(model.variables), share(model.optimizer.variables)

    def blocks_by_tensor_parallel() -> Any:
        model = compiled(vit(hidden_dim=512, mlp_dim=2048), OPTIMIZERS[name]())
        model.optimizer.build(model.trainable_variables)
        blocks = [v for v in model.variables if v.path.startswith("block")]
        return share(blocks), share([v for v in model.optimizer.variables if "block_" in v.path])

    assert max(on("fsdp", all_by_fsdp)) < 0.16
    weights, states = on("tensor_parallel", blocks_by_tensor_parallel)
    assert weights < 0.13
    assert states < 0.16


def test_a_run_resumes_on_other_devices(tmp_path: Any) -> None:

    def job(folder: str, *callbacks: keras.callbacks.Callback) -> keras.Model:
        model = compiled(vit(dropout=0.1), sgd())
        batches = partial(helpers.endless, IMAGES, LABELS, 12)
        helpers.resumable(tmp_path / folder).fit(model, batches, 2, 3 + 2, callbacks, verbose=0)
        return model

    one = on(None, lambda: job("one"))
    with pytest.raises(KeyboardInterrupt):
        on("fsdp", lambda: job("many", helpers.Stop()))
    many = on("fsdp", lambda: job("many"), devices=4)
    helpers.assert_same_weights(many, one, 1e-6)
    many.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    helpers.assert_same_weights(loaded, many, 0)
    again = on("tensor_parallel", lambda: keras.models.load_model(tmp_path / "model.keras"))
    assert share(again.variables) < 0.5


def test_what_is_refused() -> None:
    model = compiled(vit(), sgd())

    def job() -> None:
        refused(r"built before.*model\.copy", model.predict, IMAGES, verbose=0)
        assert model.copy().predict(IMAGES, verbose=0).shape == (43, CLASSES)

    on("fsdp", job)
    model.predict(IMAGES, verbose=0)
    refused("cuts no weight", on, "fsdp", lambda: vit().predict(IMAGES, verbose=0), devices=7)
    refused("cuts no weight", on, "tensor_parallel", lambda: bit().predict(IMAGES, verbose=0))
    refused("there are 8.*XLA_FLAGS", distribution_of, "fsdp", devices=9)
    refused("must be among cpu:0", distribution_of, "fsdp", devices=["tpu:0"])
    refused("at least one", distribution_of, "fsdp", devices=[])
    refused("is for kind='tensor_parallel'", distribution_of, "fsdp", model_devices=2)
    refused("must divide the 8 devices", distribution_of, "tensor_parallel", model_devices=3)


def test_the_cost_of_a_step_needs_no_weights() -> None:
    """As XLA compiles it: FSDP keeps an eighth of the state, and pays in collective operations."""
    whole, cut = (step_cost("ViT-Ti/16", kind, batch_size=8, depth=2) for kind in KINDS[:2])
    parameters = keras_vit.create("ViT-Ti/16", depth=2).count_params()
    assert whole.state > 3 * 4 * parameters  # weights and two moments of AdamW
    assert cut.state < 0.16 * whole.state
    assert cut.collectives > whole.collectives > 4 * parameters  # gradients
