"""Two processes, on JAX of two devices each, give what one gives (of `test_two_processes.py`)."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.ops import from_all_processes
from keras_vit.training.callbacks import BestModel, HistoryLog
from keras_vit.training.optimizers import DecoupledAdam, MomentumSGD
from tests.backend import refused
from tests.distribution import helpers
from tests.distribution.helpers import assert_as_in_one, assert_same, assert_same_weights, on
from tests.distribution.resumable_in_processes import KIND, ON_JAX, train

RANK = int(os.environ.get("RANK", 0))
FOLDER = Path(os.environ.get("TEST_FOLDER", ""))
IMAGES, LABELS = helpers.images_and_labels(43, 16)
endless = partial(helpers.endless, IMAGES, LABELS, 11)
together = partial(on, "data_parallel")
# On JAX in smaller steps, as rounding grows with the width.
sgd = partial(MomentumSGD, 0.01 if ON_JAX else 0.02, state_dtype="float32")

pytestmark = pytest.mark.backends("jax", "torch")
# How torch shares a step. On JAX processes run the program of one: see `on_eight_devices.py`.
of_torch = pytest.mark.backends("torch")
thorough_on_jax = pytest.mark.thorough if ON_JAX else lambda test: test


@pytest.fixture(scope="module", autouse=True)
def _processes() -> None:
    keras_vit.distribution.initialize()


def vit(**arguments: Any) -> keras.Model:
    # On JAX wide enough that FSDP cuts its kernels over eight devices.
    sizes = {"hidden_dim": 128, "mlp_dim": 256} if ON_JAX else {"depth": 2}
    return helpers.vit(**{**sizes, **arguments})


def compiled(model: keras.Model, **options: Any) -> keras.Model:
    return helpers.compiled(model, sgd(global_clipnorm=1.0), **options)


@thorough_on_jax
def test_fit_evaluate_and_predict() -> None:
    """On JAX by FSDP; other tests here train, evaluate and predict in data parallel."""
    job = partial(helpers.whole_training, vit, sgd, IMAGES, LABELS)
    helpers.assert_same_training(on(None, job), on(KIND, job))


@of_torch
def test_a_process_computes_its_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight of sixteen, in `fit`, `evaluate` and `predict`; without a distribution, all."""

    def job() -> list[int]:
        model, rows = compiled(vit()), []
        model.train_on_batch(IMAGES[:16], LABELS[:16])  # builds the metrics, by symbols
        layer = model.get_layer("patch_embedding")
        call = layer.call

        def counted(images: Any, *arguments: Any, **options: Any) -> Any:
            rows.append(images.shape[0])
            return call(images, *arguments, **options)

        monkeypatch.setattr(layer, "call", counted)
        model.fit(IMAGES[:16], LABELS[:16], batch_size=16, verbose=0)
        model.evaluate(IMAGES[:16], LABELS[:16], batch_size=16, verbose=0)
        model.predict(IMAGES[:16], batch_size=16, verbose=0)
        return rows

    assert together(job) == [8, 8, 8]
    assert on(None, job) == [16, 16, 16]


@of_torch
def test_a_process_without_a_distribution_waits_for_no_other() -> None:
    if RANK == 0:
        on(None, lambda: trained(vit()).predict(IMAGES, verbose=0))
    assert together(lambda: from_all_processes(RANK)) == [0, 1]


def trained(model: keras.Model, rows: int = 11, batch_size: int = 8, epochs: int = 1) -> Any:
    compiled(model).fit(IMAGES[:rows], LABELS[:rows], batch_size, epochs, verbose=0)
    return model


def sharpness_aware() -> keras.Model:
    return trained(helpers.sharpness_aware(vit(dropout=0.1), rho=0.05, alpha=0.3), 19, epochs=2)


def smaller_than_all_processes(rows: int) -> Any:
    """One row: the second process computes a copy of it, which counts for nothing."""
    model = compiled(vit(stochastic_depth=0.5))
    history = model.fit(IMAGES[:rows], LABELS[:rows], epochs=3, verbose=0).history
    return model, history, model.predict_on_batch(IMAGES[:rows])


def distillation() -> Any:
    student, teacher = vit(dropout=0.1), vit(hidden_dim=32)
    return helpers.distilled(student, teacher, sgd(), IMAGES[:14], LABELS[:14], 7)


JOBS: dict[str, tuple[Callable[[], Any], float]] = {
    "sharpness-aware steps": (sharpness_aware, 2e-6),
    "one row": (lambda: smaller_than_all_processes(1), 1e-6),
    "three rows": (lambda: smaller_than_all_processes(3), 1e-6),
    "merging": (lambda: trained(vit(token_merging=1, pooling="map", patch_dropout=0.25)), 2e-6),
    "hybrid": (lambda: trained(vit(resnet=(1, 1), patch_size=1, dropout=0.1)), 2e-6),
    "mixer": (lambda: trained(helpers.mixer(16, 16, stochastic_depth=0.2)), 2e-6),
    # Three rows per process, as many as it draws numbers per patch.
    "masked": (lambda: helpers.masked(vit(dropout=0.1), sgd(), IMAGES[:17], 6), 1e-6),
    "distillation": (distillation, 1e-6),
    "queries": (lambda: helpers.of_queries(vit, sgd(), IMAGES[:11]), 2e-6),
}


@of_torch
@pytest.mark.parametrize("name", JOBS)
def test_it_is_as_in_one_process(name: str) -> None:
    job, tolerance = JOBS[name]
    assert_as_in_one("data_parallel", job, tolerance)


@of_torch
def test_weights_and_classes() -> None:
    """A loss that is not a plain mean, and metrics that are not means of rows."""
    weights = np.random.default_rng(0).uniform(0.1, 2, 43).astype("float32")

    def job() -> Any:
        model = vit()
        loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
        metrics = [keras.metrics.F1Score(average="macro"), keras.metrics.TopKCategoricalAccuracy(2)]
        auc = [keras.metrics.AUC(from_logits=True)]
        model.compile(DecoupledAdam(1e-3), loss, metrics=metrics, weighted_metrics=auc)
        rows = keras.utils.to_categorical(LABELS, helpers.CLASSES)
        history = model.fit(IMAGES, rows, 16, sample_weight=weights, verbose=0).history
        return history, model.evaluate(IMAGES, rows, 16, 0, sample_weight=weights)

    assert_same(together(job), on(None, job), 1e-5)


def test_generators_and_data_loaders() -> None:
    torch = pytest.importorskip("torch")
    dataset = torch.utils.data.TensorDataset(torch.tensor(IMAGES), torch.tensor(LABELS))

    def job() -> keras.Model:
        model = compiled(vit())
        model.fit(endless(0), steps_per_epoch=3, verbose=0)
        generator = torch.Generator().manual_seed(3) if ON_JAX else None
        batches = torch.utils.data.DataLoader(dataset, 16, shuffle=True, generator=generator)
        model.fit(batches, epochs=2, verbose=0)
        return model

    assert_as_in_one("data_parallel", job, 2e-6)  # as the order of rows alone makes


@of_torch
def test_processes_start_from_the_first_one() -> None:
    def job() -> keras.Model:
        return trained(vit(dropout=0.1), len(IMAGES), 16, epochs=2)

    assert_same_weights(together(job, seed=7 + RANK), on(None, job, seed=7), 1e-6)


def test_the_same_data_and_one_folder_in_every_process() -> None:
    def other_data() -> None:
        model = compiled(vit())
        with pytest.raises(ValueError, match="does not have the same batch as the others"):
            model.fit(IMAGES[RANK:], LABELS[RANK:], shuffle=False, verbose=0)
        model.fit(IMAGES, LABELS, verbose=0)

    def other_folders() -> None:
        run = helpers.resumable(FOLDER / f"of-{RANK}")
        run.fit(compiled(vit()), endless, 1, 2, verbose=0)
        refused("that every machine sees", run.fit, compiled(vit()), endless, 1, 2, verbose=0)

    together(other_data)
    together(other_folders)


@of_torch
def test_what_processes_cannot_share() -> None:
    def job() -> None:
        model = compiled(vit(), jit_compile=True)
        refused("jit_compile=False", model.fit, IMAGES, LABELS, verbose=0)
        model = compiled(vit())
        model.get_layer("head").kernel.regularizer = keras.regularizers.L2(0.1)
        refused("weight_decay", model.fit, IMAGES, LABELS, verbose=0)
        refused("features are computed in one", keras_vit.evaluation.features, model, None)
        refused("there are 2 processes", keras_vit.distribution.data_parallel, devices=3)

    together(job)


def test_the_first_process_writes() -> None:
    """Stopped in both processes, continued in both: the files and weights of one process."""

    def job(folder: Path, *callbacks: keras.callbacks.Callback) -> Any:
        model = compiled(vit(dropout=0.1))
        logs = [HistoryLog(folder / "history.csv"), BestModel(folder / "best.keras", "loss")]
        logs.append(keras.callbacks.EarlyStopping("loss", patience=1))
        run = helpers.resumable(folder / "checkpoints")
        return model, run.fit(model, endless, 2, 5, [*logs, *callbacks], verbose=0).history

    alone, shared = FOLDER / f"alone-{RANK}", FOLDER / "together"
    one, history = on(None, lambda: job(alone))
    with pytest.raises(KeyboardInterrupt):
        on(KIND, lambda: job(shared, helpers.Stop()))
    two, its_history = on(KIND, lambda: job(shared))
    assert_same_weights(two, one, 2e-6)
    assert_same(its_history, history, 1e-5)
    assert {path.name for path in shared.iterdir()} == {"checkpoints", "history.csv", "best.keras"}
    assert len((shared / "history.csv").read_text().splitlines()) == 3
    assert (alone / "best.keras").exists() == (RANK == 0)
    keras_vit.distribution.initialize()  # again: does nothing


def test_a_run_whose_process_died_continues() -> None:
    """`test_two_processes.py` has ended one in this folder, and looks at the weights."""
    weights = on(KIND, lambda: train(FOLDER / "run"))
    np.savez(FOLDER / f"weights-{RANK}.npz", *weights)
