"""Two, three or eight logical CPUs give what one gives (run by `test_many_devices.py`)."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.training.optimizers import MomentumSGD
from keras_vit.training.resume import ResumableRun
from keras_vit_cli.train.job import Job
from keras_vit_cli.train.run import train
from tests.distribution.helpers import (
    assert_same,
    assert_same_training,
    assert_same_weights,
    compiled,
    whole_training,
    with_head,
)

CLASSES = 5
SHAPE = (16, 16, 3)
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (43, *SHAPE)).astype("uint8")
LABELS = RANDOM.integers(0, CLASSES, 43)


@pytest.fixture(scope="session", autouse=True)
def _logical_devices() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, 8 * [tf.config.LogicalDeviceConfiguration()])


def vit(**arguments: Any) -> keras.Model:
    sizes = {"patch_size": 4, "hidden_dim": 16, "mlp_dim": 32, "depth": 1, "num_heads": 2}
    return with_head(
        keras_vit.VisionTransformer(
            **{**sizes, "num_classes": CLASSES, "input_shape": SHAPE, **arguments}
        )
    )


def sgd(rate: float = 0.02, **options: Any) -> keras.optimizers.Optimizer:
    # Clipped, as rounding grows with the gradients.
    return MomentumSGD(rate, state_dtype="float32", **{"global_clipnorm": 1.0, **options})


def on(devices: int | None, job: Callable[[], Any]) -> Any:
    """What a job returns on so many devices; None for no distribution."""
    distribution = devices and keras_vit.distribution.create("data_parallel", devices)
    keras.distribution.set_distribution(distribution)
    keras.utils.set_random_seed(1)
    try:
        return job()
    finally:
        keras.distribution.set_distribution(None)


def trained(model: keras.Model, examples: int = 14, **options: Any) -> keras.Model:
    """In batches of seven, which two devices share as four and three."""
    model.fit(IMAGES[:examples], LABELS[:examples], **{"batch_size": 7, "verbose": 0, **options})
    return model


def test_fit_evaluate_and_predict() -> None:
    def job() -> Any:
        return whole_training(vit, sgd, IMAGES, LABELS)

    assert_same_training(on(None, job), on(3, job))


def test_1003_examples() -> None:
    random = np.random.default_rng(1)
    images = random.integers(0, 256, (1003, *SHAPE)).astype("uint8")
    labels = random.integers(0, CLASSES, 1003)

    def job() -> Any:
        model = compiled(vit(), sgd())
        scores = model.evaluate(images, labels, batch_size=100, verbose=0)
        return scores, model.predict(images, batch_size=100, verbose=0)

    scores, logits = on(None, job)
    its_scores, its_logits = on(8, job)
    assert its_logits.shape == (1003, CLASSES)
    assert_same(its_scores, scores, 1e-6)
    assert_same(its_logits, logits, 1e-6 * np.abs(logits).max())


def test_batches_smaller_than_all_devices() -> None:
    """One image on three devices, of which two compute a copy that counts for nothing; then four.

    Of four images, the devices have two, two and none.
    """

    def job() -> Any:
        model = compiled(vit(stochastic_depth=0.5), sgd())
        logs = [model.train_on_batch(IMAGES[:rows], LABELS[:rows]) for rows in (1, 4)]
        return model, logs, model.predict_on_batch(IMAGES[:1])

    one, *expected = on(None, job)
    three, *its = on(3, job)
    assert_same(its, expected, 1e-5)
    assert_same_weights(three, one, 1e-6)


MODELS: dict[str, Callable[[], keras.Model]] = {
    "remat": lambda: vit(remat=True, dropout=0.1, stochastic_depth=0.2),
    "merging": lambda: vit(depth=2, token_merging=1, pooling="map", patch_dropout=0.25),
    "hybrid": lambda: vit(resnet=(1, 1), patch_size=1, dropout=0.1),
    "mixer": lambda: with_head(
        keras_vit.MLPMixer(
            patch_size=4,
            hidden_dim=16,
            depth=1,
            tokens_mlp_dim=16,
            channels_mlp_dim=32,
            num_classes=CLASSES,
            input_shape=SHAPE,
            stochastic_depth=0.2,
        )
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_other_models(name: str) -> None:
    def job() -> keras.Model:
        return trained(compiled(MODELS[name](), sgd()))

    assert_same_weights(on(2, job), on(None, job), 1e-6)


@pytest.mark.parametrize("options", [{"jit_compile": True}, {"run_eagerly": True}])
def test_compiled_by_xla_or_not_at_all(options: dict[str, bool]) -> None:
    """XLA compiles what each device computes; it draws other random numbers."""

    def job(**options: bool) -> keras.Model:
        model = compiled(vit(), sgd(), **options)
        model.train_on_batch(IMAGES[:7], LABELS[:7])
        return model

    assert_same_weights(on(2, lambda: job(**options)), on(None, job), 1e-6)


OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "clipnorm": lambda: keras.optimizers.SGD(
        0.02, 0.9, clipnorm=0.1, weight_decay=0.1, use_ema=True, ema_overwrite_frequency=2
    ),
    "accumulation": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.CosineDecay(0.05, 10),
        global_clipnorm=0.1,
        gradient_accumulation_steps=2,
    ),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(sgd(gradient_accumulation_steps=2)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_of_keras(name: str) -> None:
    def job() -> keras.Model:
        return trained(compiled(vit(dropout=0.1), OPTIMIZERS[name]()), epochs=2)

    assert_same_weights(on(2, job), on(None, job), 1e-6)


def test_an_adaptive_optimizer() -> None:
    """It divides gradients by their size, also those of the keys' biases, which are rounding."""

    def job() -> Any:
        model = compiled(vit(), keras.optimizers.AdamW(1e-3, global_clipnorm=1.0))
        return trained(model, epochs=2).predict_on_batch(IMAGES)

    assert_same(on(2, job), on(None, job), 1e-4)


def test_sharpness_aware_steps() -> None:
    def job() -> Any:
        model = compiled(vit(dropout=0.1), sgd())
        keras_vit.sharpness_aware(model, rho=0.05, alpha=0.3)
        history = model.fit(IMAGES[:14], LABELS[:14], batch_size=7, verbose=0).history
        return model, history

    (one, history), (two, its_history) = on(None, job), on(2, job)
    assert_same(its_history, history, 1e-5)
    assert_same_weights(two, one, 1e-6)


def test_masked_patch_prediction() -> None:
    def job() -> Any:
        task = keras_vit.MaskedPatchPrediction(vit(dropout=0.1), seed=3)
        task.compile(sgd(), keras.losses.CategoricalCrossentropy(from_logits=True))
        history = task.fit(IMAGES[:14], batch_size=7, epochs=2, verbose=0).history
        return task, history, task.evaluate(IMAGES[:14], batch_size=7, verbose=0)

    one, *expected = on(None, job)
    two, *its = on(2, job)
    assert_same(its, expected, 1e-5)
    assert_same_weights(two, one, 1e-6)


def test_distillation() -> None:
    def job() -> Any:
        task = keras_vit.Distillation(vit(dropout=0.1), vit(hidden_dim=32), weight=0.9)
        task.compile(sgd(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        history = task.fit(IMAGES[:14], LABELS[:14], batch_size=7, epochs=2, verbose=0).history
        return task, history, task.evaluate(IMAGES[:14], LABELS[:14], batch_size=7, verbose=0)

    one, *expected = on(None, job)
    two, *its = on(2, job)
    assert_same(its, expected, 1e-5)
    assert_same_weights(two, one, 1e-6)


def test_losses_and_metrics() -> None:
    """A loss that is not a mean, weights of examples, and metrics that are not means of rows."""
    weights = RANDOM.uniform(0.1, 2, 43).astype("float32")
    rows = keras.utils.to_categorical(LABELS, CLASSES)

    def job() -> Any:
        model = vit()
        loss = keras.losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=0.1, reduction="sum"
        )
        metrics = [keras.metrics.F1Score(average="macro"), keras.metrics.TopKCategoricalAccuracy(2)]
        auc = [keras.metrics.AUC(from_logits=True)]
        model.compile(sgd(), loss, metrics=metrics, weighted_metrics=auc)
        return model, model.fit(IMAGES, rows, 16, sample_weight=weights, verbose=0).history

    one, *expected = on(None, job)
    two, *its = on(2, job)
    assert_same(its, expected, 2e-5)  # the sum over sixteen examples is about thirty
    assert_same_weights(two, one, 1e-6)


def endless(start: int) -> Iterator[Any]:
    """Batches of 11 that depend on their step alone."""
    while True:
        rows = (np.arange(11) + 11 * start) % len(IMAGES)
        yield IMAGES[rows], LABELS[rows]
        start += 1


def test_a_run_resumes_on_other_devices(tmp_path: Path) -> None:
    """Stopped on three, continued on two, it ends as on one. Generators lose no batch."""

    class Stop(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 3:
                raise KeyboardInterrupt

    def job(folder: str, *callbacks: keras.callbacks.Callback) -> keras.Model:
        model = compiled(vit(dropout=0.1), sgd())
        run = ResumableRun(tmp_path / folder, every_steps=1, print_fn=lambda line: None)
        run.fit(model, endless, 2, 5, callbacks, verbose=0)
        return model

    one = on(None, lambda: job("one"))
    with pytest.raises(KeyboardInterrupt):
        on(3, lambda: job("many", Stop()))
    assert_same_weights(on(2, lambda: job("many")), one, 1e-6)


def test_a_model_moves_between_devices() -> None:
    """Built before the distribution is set, trained on two devices, and then on one."""
    one, moving = (on(None, lambda: compiled(vit(dropout=0.1), sgd(0.005))) for _ in range(2))
    for devices in (2, None):
        on(None, lambda: trained(one))
        on(devices, lambda: trained(moving))
        assert_same_weights(moving, one, 1e-6)


def test_files_do_not_depend_on_devices(tmp_path: Path) -> None:
    def job() -> Any:
        model = vit()
        logits = model.predict(IMAGES, verbose=0)
        model.save(tmp_path / "model.keras")
        keras_vit.export_model(model, tmp_path / "1")
        return logits

    logits = on(2, job)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_same(loaded.predict(IMAGES, verbose=0), logits, 1e-5)
    served = tf.saved_model.load(tmp_path / "1").signatures["serving_default"]
    outputs = served(contents=tf.map_fn(tf.io.encode_png, IMAGES[:3], tf.string))
    assert_same(outputs["probabilities"].numpy().sum(axis=1), np.ones(3), 1e-5)


def test_the_command_trains(tmp_path: Path) -> None:
    for i in range(24):
        folder = tmp_path / "images" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        keras.utils.save_img(folder / f"{i}.png", IMAGES[i])
    vit().save(tmp_path / "small.keras")  # one block, as tracing takes the time
    options = {"recipe": "digits", "steps": 2, "batch_size": 5}
    options["weights"] = str(tmp_path / "small.keras")
    distribution = {"distribution": "data_parallel", "devices": 2}
    job = Job(str(tmp_path / "images"), tmp_path / "run", **options, **distribution)
    assert 0 <= train(job, lambda line: None).accuracy <= 1
    assert (tmp_path / "run" / "model.keras").is_file()


def test_a_failed_step_leaves_the_model_usable() -> None:
    def job() -> None:
        model = compiled(vit(), sgd())
        before = model.get_weights()
        with pytest.raises(ValueError, match="not a class"):
            model.fit(IMAGES, LABELS + 7, verbose=0)
        with pytest.raises(ValueError, match="do not fit"):
            model.fit(IMAGES[:, :8], LABELS, verbose=0)
        assert_same(model.get_weights(), before, 0)
        trained(model)

    on(2, job)


BY_HAND = {
    "ours": lambda: sgd(global_clipnorm=0.1, gradient_accumulation_steps=2),
    "keras": lambda: keras.optimizers.SGD(0.02, global_clipnorm=0.1),
}


@pytest.fixture(scope="module")
def strategy() -> tf.distribute.Strategy:
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.mark.parametrize("name", BY_HAND)
def test_strategies_by_hand(name: str, strategy: tf.distribute.Strategy) -> None:
    """In the scope of a strategy of TensorFlow, with batches that its replicas divide."""

    def job() -> keras.Model:
        keras.utils.set_random_seed(1)
        model = compiled(vit(), BY_HAND[name]())
        return trained(model, 16, batch_size=8, epochs=2, shuffle=False)

    with strategy.scope():
        two = job()
    assert_same_weights(two, job(), 1e-6)
    with pytest.raises(ValueError, match=r"built in the scope of a MirroredStrategy"):
        on(2, lambda: trained(two))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"kind": "data_parallel", "devices": 9}, ValueError, "there are 8.*logical_device"),
        ({"kind": "data_parallel", "devices": 0}, ValueError, "devices"),
        ({"kind": "data_parallel", "devices": ["gpu:7"]}, ValueError, "must be among cpu:0"),
        ({"kind": "data_parallel", "model_devices": 2}, ValueError, "tensor_parallel"),
        ({"kind": "fsdp"}, RuntimeError, r'works on JAX.*create\("data_parallel"\) works'),
    ],
)
def test_refused_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        keras_vit.distribution.create(**arguments)


def test_refused_tpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.distribution, "list_devices", lambda: ["tpu:0", "tpu:1"])
    with pytest.raises(RuntimeError, match=r"found TPUs, tpu:0, tpu:1: .*KERAS_BACKEND=jax"):
        keras_vit.distribution.create("data_parallel")


def test_processes_that_join_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    tf.ones(1)  # TensorFlow has computed something
    workers = ["127.0.0.1:1", "127.0.0.1:2"]
    task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(task))
    with pytest.raises(RuntimeError, match=r"call keras_vit\.distribution\.create first"):
        keras_vit.distribution.create("data_parallel")
