"""An interrupted run ends like an uninterrupted one, byte for byte; what its callbacks write."""

import importlib.util
import itertools
import random
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import keras
import ml_dtypes
import numpy as np
import pytest
import safetensors
from safetensors.numpy import save_file

from keras_vit.training import callbacks, resume
from keras_vit.training.callback_state import continue_logs
from keras_vit.training.callbacks import HistoryLog, NonFiniteLossError, Progress, default_callbacks
from keras_vit.training.resume import DamagedCheckpointWarning, ResumableRun, RunMismatchError
from keras_vit.training.state_file import is_state, open_state, write_state
from keras_vit.weights import CheckpointError
from keras_vit_cli.train.job import Job
from keras_vit_cli.train.run import train
from tests import processes
from tests.backend import refused, warned
from tests.cli.helpers import rows_of
from tests.conftest import REPOSITORY
from tests.faults import limited_files
from tests.training import resumable
from tests.training.common import BACKEND, JIT, QUICK, Batches, StopAt, killed

EPOCHS, STEPS = 6, 5


def batches(start_step: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for step in itertools.count(start_step):
        x = np.random.default_rng(step).normal(size=(4, 4)).astype("float32")
        yield x, np.sin(x[:, :1])


def py_dataset(start_step: int) -> Batches:
    left = itertools.islice(batches(start_step), EPOCHS * STEPS - start_step)
    return Batches(*map(np.concatenate, zip(*left, strict=True)))


def small_model(seed: int = 3, rate: float = 0.2, **compile_arguments: Any) -> keras.Model:
    keras.utils.set_random_seed(seed)
    hidden = [keras.layers.Dense(8, "tanh"), keras.layers.Dropout(rate)]
    rest = [keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *hidden, *rest])
    model.compile(**{"optimizer": "adam", "loss": "mse", "jit_compile": JIT, **compile_arguments})
    return model


def weights(model: keras.Model) -> bytes:
    return b"".join(w.tobytes() for w in model.get_weights())


def fit(run: ResumableRun, model: keras.Model, *callbacks: Any, **arguments: Any) -> Any:
    arguments = {"epochs": EPOCHS, "steps_per_epoch": STEPS, "verbose": 0, **arguments}
    return run.fit(model, batches, callbacks=callbacks, **arguments)


def run_in(folder: Path, **options: Any) -> ResumableRun:
    options = {"every_seconds": None, "every_steps": 3, "print_fn": lambda _: None, **options}
    return ResumableRun(folder, **options)


@pytest.mark.every_backend
@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_a_killed_vit_ends_with_the_same_bytes(tmp_path: Path, kills: int) -> None:
    """SIGKILL at random steps, anywhere within them, also while a checkpoint is written."""
    chance, whole, killed = random.Random(), tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    steps = sorted(chance.sample(range(3, resumable.EPOCHS * resumable.STEPS), kills))
    for step in steps:
        words = map(str, (killed, step, chance.uniform(0, 20)))
        files = {"printed": tmp_path / "printed.txt", "cwd": REPOSITORY}
        run = processes.start("-m tests.training.resumable", *words, **files)
        assert run.wait() == -signal.SIGKILL, (step, run.output()[-2000:])
    print("killed at", steps)
    assert resumable.train(killed) == resumable.train(whole), f"killed at {steps}"


def cut_and_resumed(folder: Path, step: int, make: Any, *others: Any, **options: Any) -> Any:
    """A run that stops within `step` and goes on with a model of other initial values and seeds."""
    first = [*(other() for other in others), StopAt(step)]
    killed(fit, run_in(folder), make(3), *first, **options)
    model, callbacks = make(9), [other() for other in others]
    return fit(run_in(folder), model, *callbacks, **options).history, weights(model), callbacks


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, bytes, Path]:
    folder, model = tmp_path_factory.mktemp("whole"), small_model()
    return fit(run_in(folder), model).history, weights(model), folder


def bfloat16_and_averages() -> keras.optimizers.Optimizer:
    keras.config.set_dtype_policy("bfloat16")
    averages = {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 2}
    return keras.optimizers.Adam(0.01, gradient_accumulation_steps=4, **averages)


def loss_scale() -> keras.optimizers.Optimizer:
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), dynamic_growth_steps=4)


@pytest.mark.every_backend
@pytest.mark.parametrize("optimizer", [bfloat16_and_averages, loss_scale])
def test_every_kind_of_optimizer(tmp_path: Path, optimizer: Callable[[], Any]) -> None:
    jit = BACKEND == "jax" or (BACKEND == "tensorflow" and optimizer is bfloat16_and_averages)

    def make(seed: int) -> keras.Model:
        return small_model(seed, optimizer=optimizer(), jit_compile=jit)

    model = make(3)
    history = fit(run_in(tmp_path / "whole"), model).history
    kinds = {v.dtype for v in model.optimizer.variables}
    assert ("bfloat16" in kinds) == (optimizer is bfloat16_and_averages)
    assert cut_and_resumed(tmp_path / "cut", 18, make)[:2] == (history, weights(model))


def test_callbacks_go_on(tmp_path: Path) -> None:
    """Resumed at an epoch's beginning and one step before its end; the seeds differ, too."""

    def watch(folder: Path) -> list[Callable[[], keras.callbacks.Callback]]:
        folder.mkdir()
        best = {"save_best_only": True, "save_weights_only": True}
        known, path = {"monitor": "loss", "min_delta": 10.0}, folder / "best.weights.h5"
        of_keras = keras.callbacks
        return [
            lambda: of_keras.EarlyStopping(**known, patience=4, restore_best_weights=True),
            lambda: of_keras.ReduceLROnPlateau(**known, patience=2),
            # Not to be applied twice to one epoch, as it multiplies what it finds.
            lambda: of_keras.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
            lambda: of_keras.CSVLogger(folder / "log.csv"),
            lambda: of_keras.ModelCheckpoint(path, "loss", **best),
        ]

    model, callbacks = small_model(), [make() for make in watch(tmp_path / "whole")]
    history = fit(run_in(tmp_path / "whole"), model, *callbacks).history
    log = (tmp_path / "whole" / "log.csv").read_text()
    assert [line.split(",")[0] for line in log.split()] == ["epoch", *"01234"]  # it has stopped
    others = watch(folder := tmp_path / "cut")
    killed(fit, run_in(folder), small_model(), *(make() for make in others), StopAt(16))
    actual = cut_and_resumed(folder, 25, small_model, *others)
    assert actual[:2] == (history, weights(model))
    for expected, cut in zip(callbacks[:2], actual[2][:2], strict=True):
        assert (cut.wait, cut.best) == (expected.wait, expected.best)
    assert (folder / "log.csv").read_text() == log


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax")  # Keras has no steps_per_execution on torch
def test_several_steps_an_execution(tmp_path: Path) -> None:
    def make(seed: int) -> keras.Model:
        return small_model(seed, steps_per_execution=5)

    whole, options = make(3), {"steps_per_epoch": 15, "epochs": 2}
    history = fit(run_in(tmp_path / "whole"), whole, **options).history
    assert cut_and_resumed(tmp_path / "cut", 5, make, **options)[:2] == (history, weights(whole))
    with pytest.raises(ValueError, match="steps_per_epoch=7 must be a multiple of"):
        fit(run_in(tmp_path / "cut"), make(9), steps_per_epoch=7)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("checkpoints")
    killed(fit, run_in(folder), small_model(), StopAt(14))
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def checkpoints(recorded: dict[str, bytes], tmp_path: Path) -> Path:
    for name, content in recorded.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_a_pydataset_and_a_finished_run(checkpoints: Path, whole: tuple[Any, bytes, Path]) -> None:
    kept = [path.name for path in sorted(checkpoints.iterdir())]
    assert kept == ["step-000000009.safetensors", "step-000000012.safetensors"]
    model = small_model(9)
    history = run_in(checkpoints).fit(model, py_dataset, EPOCHS, STEPS, verbose=0).history
    assert (history, weights(model)) == whole[:2]
    model, lines = small_model(9), []
    assert fit(run_in(whole[2], print_fn=lines.append), model).history == history
    assert weights(model) == whole[1]
    assert lines == ["finished already, at step 30"]


def newest(folder: Path) -> str | None:
    return next((checkpoint.path.name for checkpoint in resume._undamaged(folder)), None)


DAMAGE: dict[str, Callable[[bytes, int, random.Random], bytes]] = {
    "truncated": lambda good, at, chance: good[:at],
    "one bit": lambda good, at, chance: (
        good[:at] + bytes([good[at] ^ 1 << chance.randrange(8)]) + good[at + 1 :]
    ),
    "appended": lambda good, at, chance: good + chance.randbytes(at + 1),
    # What a file system may leave after a power cut.
    "overwritten by zeros": lambda good, at, chance: good[:at] + bytes(len(good) - at),
}


def test_damage_anywhere(recorded: dict[str, bytes], checkpoints: Path) -> None:
    chance, (older, name) = random.Random(), recorded
    good = recorded[name]
    for damage, _ in itertools.product(DAMAGE, range(25)):
        at = chance.randrange(len(good))
        bad = DAMAGE[damage](good, at, chance)
        if bad != good:
            (checkpoints / name).write_bytes(bad)
            found = warned(name, newest, checkpoints, kind=DamagedCheckpointWarning)
            assert found == older, f"{damage} at byte {at}"
    (checkpoints / name).write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    refused("is damaged: the SHA-256", open_state, checkpoints / name, error=CheckpointError)
    save_file({"weights": np.zeros(3)}, checkpoints / name)
    refused("is not a checkpoint of a run", open_state, checkpoints / name, error=CheckpointError)
    assert not is_state(checkpoints / name)  # and so is never deleted


def test_it_goes_on_from_the_older_one_or_the_start(checkpoints: Path, whole: Any) -> None:
    folder, name = checkpoints, "step-000000012.safetensors"
    good = (folder / name).read_bytes()
    (folder / name).write_bytes(good[:1000])
    (folder / name.replace("12", "99")).write_bytes(good[:-1])
    half = folder / ".step-000000099.abc.part.safetensors"  # as a kill leaves it
    half.write_bytes(good[: len(good) // 2])
    model, lines = small_model(9), []
    run = run_in(folder, print_fn=lines.append)
    warned("the checkpoint before it", fit, run, model, kind=DamagedCheckpointWarning)
    assert weights(model) == whole[1]
    assert "continues with step 10 (epoch 2 of 6, step 5 of 5)" in lines[0]
    # A damaged one does not count as the newest, whatever its step.
    kept = sorted(path.name for path in folder.iterdir())
    assert kept == ["step-000000027.safetensors", "step-000000030.safetensors"]
    for path in folder.iterdir():
        path.write_bytes(b"")
    model = small_model()
    warned("", fit, run_in(folder), model, kind=DamagedCheckpointWarning)
    assert weights(model) == whole[1]


def test_another_run_is_refused(recorded: dict[str, bytes], checkpoints: Path) -> None:
    faster = keras.optimizers.Adam(0.5)
    for changes, options, more, message in (
        ({"optimizer": "sgd"}, {}, {}, "optimizer.* was 'Adam', is 'SGD'"),
        ({"optimizer": faster}, {}, {}, r"optimizer.*learning_rate was 0.001.*, is 0.5"),
        ({"loss": "mae"}, {}, {}, "loss was 'mse', is 'mae'"),
        ({"rate": 0.3}, {}, {}, r"config.rate was 0.2, is 0.3"),
        ({}, {"recipe": {"seed": 1}}, {}, "recipe was None, is {'seed': 1}"),
        ({}, {}, {"epochs": 7}, "epochs was 6, is 7"),
    ):
        given = run_in(checkpoints, **options), small_model(**changes)
        refused(message, fit, *given, error=RunMismatchError, **more)
    assert {path.name: path.read_bytes() for path in checkpoints.iterdir()} == recorded
    fit(run_in(checkpoints), small_model())  # names that Keras counts are no difference


def test_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second a step, ten between checkpoints; or 20 times as long as writing takes."""
    clock, cost, written = Clock(monkeypatch, validation=0), [0.0], []

    def write(path: Path, arrays: Any, state: dict[str, Any]) -> None:
        clock.now += cost[0]
        written.append(state["step"])

    monkeypatch.setattr(resume, "write_state", write)
    model = small_model(**QUICK)
    for cost[0], expected in ((0.0, [10, 20, 30]), (1.0, [10, 30])):
        written.clear()
        fit(run_in(tmp_path, every_seconds=10, every_steps=None), model, clock)
        assert written == expected


@pytest.mark.filterwarnings("ignore:.*ran out of data")  # Keras's own
def test_batches_that_end_early_are_an_error(tmp_path: Path) -> None:
    def short(start_step: int) -> Iterator[Any]:
        yield from itertools.islice(batches(start_step), 12 - start_step)

    model = small_model(**QUICK)
    refused("step 1[12] of 6", run_in(tmp_path).fit, model, short, EPOCHS, STEPS, verbose=0)
    with pytest.raises(ValueError, match="returned 30 batches for the remaining 35 steps"):
        run_in(tmp_path / "other").fit(model, py_dataset, EPOCHS + 1, STEPS, verbose=0)


def test_what_does_not_fit_or_has_diverged(tmp_path: Path) -> None:
    refused("Neither every_seconds nor every_steps", ResumableRun, tmp_path, every_seconds=None)
    refused("every_seconds=-1 must be 0 or more", ResumableRun, tmp_path, every_seconds=-1)
    refused("every_steps=0 must be an integer", ResumableRun, tmp_path, every_steps=0)
    # A subclassed model does not have a configuration to compare, but variables.

    class Custom(keras.Model):
        def __init__(self, units: int) -> None:
            super().__init__()
            self.hidden, self.head = keras.layers.Dense(units), keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.head(self.hidden(x))

    def make(units: int) -> keras.Model:
        model = Custom(units)
        model.compile("sgd", "mse", **QUICK)
        return model

    killed(fit, run_in(tmp_path), make(3), StopAt(5))
    words = r"kernel \(4, 3\) float32.*\(4, 5\) float32"
    refused(words, fit, run_in(tmp_path), make(5), error=RunMismatchError)
    assert len(fit(run_in(tmp_path), make(3)).history["loss"]) == EPOCHS

    def diverging(start_step: int) -> Iterator[Any]:
        for step, (x, y) in enumerate(batches(start_step), start_step):
            yield x, y * (np.nan if step >= 7 else 1)

    folder = tmp_path / "diverged"
    run_in(folder).fit(small_model(**QUICK), diverging, 3, STEPS, verbose=0)
    assert newest(folder) == "step-000000006.safetensors"


def test_the_file_is_safetensors_of_every_dtype(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    kinds = ["float64", "float32", "float16", "int8", "uint8", "int16", "uint32", "int64", "bool"]
    arrays = {kind: chance.integers(0, 2, (3, 5)).astype(kind) for kind in kinds}
    arrays["nan"] = np.array([[np.nan, -0.0, np.inf]], "float32")
    arrays["empty"] = np.zeros((0, 4), "float32")
    arrays["scalar"] = np.array(7, "int64")
    plain = dict(arrays)
    for kind in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        arrays[kind.__name__] = chance.integers(0, 100, (3, 4)).astype("uint8").view(kind)
    path = tmp_path / "state.safetensors"
    write_state(path, arrays, {"step": 3, "best": float("inf")})
    state_file = open_state(path)
    assert state_file.state == {"step": 3, "best": float("inf")}
    for name, values in arrays.items():
        read = state_file.read(name)
        assert (read.dtype, read.tobytes()) == (values.dtype, values.tobytes())
    with safetensors.safe_open(path, framework="numpy") as file:
        assert set(file.keys()) == {*arrays, "state"}
        for name, values in plain.items():
            np.testing.assert_array_equal(file.get_tensor(name), values, strict=True)
    assert list(tmp_path.iterdir()) == [path]


PASSES, FEW, BATCH = 3, 4, 8


def linear_model(**compile_arguments: Any) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(**{"optimizer": "sgd", "loss": "mse", **QUICK, **compile_arguments})
    return model


def noise(start_step: int, diverged: int = -1) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for step in itertools.count(start_step):
        x = np.random.default_rng(step).normal(size=(BATCH, 3)).astype("float32")
        yield x, np.full((BATCH, 1), np.nan if step == diverged else 1.0, "float32")


def fitted(model: keras.Model, *chosen: Any, diverged: int = -1, **changes: Any) -> Any:
    fixed = {"epochs": PASSES, "steps_per_epoch": FEW, "verbose": 0, "shuffle": False}
    return model.fit(noise(0, diverged), callbacks=list(chosen), **{**fixed, **changes})


@pytest.mark.every_backend
def test_the_step_that_diverged_is_named() -> None:
    with pytest.raises(NonFiniteLossError, match=r"loss is nan in step 7 \(epoch 2, step 3\)") as e:
        fitted(linear_model(run_eagerly=False), callbacks.StopAtNonFiniteLoss(), diverged=6)
    assert e.value.step == 7
    assert np.isfinite(e.value.last_finite)
    assert "learning rate was 0.01: try a third" in str(e.value)
    with pytest.raises(NonFiniteLossError, match="it is the first step of its epoch"):
        fitted(linear_model(), callbacks.StopAtNonFiniteLoss(), diverged=4)


def test_step_numbers_after_a_resume(tmp_path: Path) -> None:
    """Diverges in the eighth step of the run, which the second process reaches as its second."""

    def run(*chosen: Any) -> None:
        ours = default_callbacks(tmp_path / "logs", BATCH, "loss", print_fn=lines.append)
        options = {"callbacks": [*ours, *chosen], "verbose": 0}
        resumable = ResumableRun(tmp_path, None, every_steps=3, print_fn=lines.append)
        make = lambda start: noise(start, diverged=7)  # noqa: E731
        resumable.fit(linear_model(), make, PASSES, FEW, **options)

    lines: list[str] = []
    killed(run, StopAt(4))
    refused(r"in step 8 \(epoch 2, step 4\)", run, error=NonFiniteLossError)
    assert lines[0].startswith("continues with step 4 (epoch 1 of 3, step 4 of 4)")
    assert lines[1].startswith("epoch 1/3  step 4/4")


class Clock(keras.callbacks.Callback):
    """A second per step, ten for validation."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, validation: float = 10) -> None:
        super().__init__()
        self.now, self.validation = 0.0, validation
        monkeypatch.setattr("time.monotonic", lambda: self.now)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.now += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.now += self.validation


@pytest.mark.parametrize("columns", [20, 50, 120])
def test_a_line_per_epoch_has_a_bar_and_every_metric(columns: int, monkeypatch, capsys) -> None:
    """The metrics of validation come last, and were cut off in a narrow terminal."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    fitted(linear_model(), Clock(monkeypatch), Progress(BATCH), validation_data=next(noise(0)))
    out = capsys.readouterr().out
    assert (out.count("\n"), out.count("\r")) == (PASSES, PASSES * (FEW + 1))
    shown = out.split("\r")[1:]
    finished = [line.rstrip() for line in shown if "\n" in line]
    assert len(finished) == PASSES
    for epoch, line in enumerate(finished, 1):
        assert re.search(rf"^epoch {epoch}/3[^█]*  loss [\d.e-]+  val_loss [\d.e-]+$", line)
    running = [line for line in shown if "\n" not in line and columns > 20]
    assert {len(line) for line in running} <= {columns - 1}
    cells = [(line.count("█"), line.count("░")) for line in running]
    assert {full + empty for full, empty in cells} <= {12, 24}
    fractions = [full / (full + empty) for full, empty in cells]
    assert columns == 20 or fractions == [step / FEW for step in range(1, FEW + 1)] * PASSES
    assert all("loss" in line for line in running)


def test_bar_clock_and_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    with patch.object(callbacks.sys, "stdout", SimpleNamespace(encoding="ascii")):
        assert callbacks._bar(1, 4, 12) == "###........."
    assert callbacks._bar(5, None, 12) == ""  # `fit` does not know the number of steps
    assert [callbacks._clock(seconds) for seconds in (59.9, 11045)] == ["1:00", "3:04:05"]
    # One per epoch; of long epochs, one per minute.
    lines: list[str] = []
    fitted(linear_model(), Clock(monkeypatch), Progress(BATCH, lines.append))
    assert [line.split("  ")[:4] for line in lines] == [
        ["epoch 1/3", "step 4/4", "8 images/s", "0:08 left"],
        ["epoch 2/3", "step 4/4", "8 images/s", "0:14 left"],  # validation is known by now
        ["epoch 3/3", "step 4/4", "8 images/s", "0:00 left"],
    ]
    lines.clear()
    clock, progress = Clock(monkeypatch), Progress(BATCH, lines.append)
    fitted(linear_model(), clock, progress, epochs=1, steps_per_epoch=150)
    printed = [line.split("  ")[1] for line in lines]
    assert printed == ["step 60/150", "step 120/150", "step 150/150"]


def test_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    chosen = default_callbacks(tmp_path, BATCH, tensorboard=True)
    assert any(isinstance(callback, keras.callbacks.TensorBoard) for callback in chosen)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    listing = "keras_vit_cli.train.run.load_splits"
    monkeypatch.setattr(listing, lambda job: pytest.fail("data were listed"))
    for call in (
        lambda: default_callbacks(tmp_path, BATCH, tensorboard=True),
        lambda: train(Job("digits", tmp_path / "run", tensorboard=True)),
    ):
        refused(r"pip install 'tensorboard' 'keras3-vit", call, error=ImportError)
    assert not list(tmp_path.iterdir())


def test_default_callbacks_write_the_log_and_the_best_model(tmp_path: Path) -> None:
    for options, message in (
        ({"patience": 0}, "patience=0 must be"),
        ({"patience": 3, "monitor": None}, "patience=3 needs a monitor"),
        ({"images_per_step": 0}, "images_per_step=0 must be"),
    ):
        refused(message, default_callbacks, tmp_path, **{"images_per_step": BATCH, **options})
    lines: list[str] = []
    model = linear_model(optimizer=keras.optimizers.SGD(1.0))  # diverges: the first is the best
    ours = default_callbacks(tmp_path / "logs", BATCH, patience=1, print_fn=lines.append)
    options = {"epochs": 9, "steps_per_epoch": 1, "validation_data": next(noise(0))}
    history = fitted(model, *ours, **options).history
    stopped = len(history["loss"])
    assert len(lines) == stopped < 9
    assert f"val_loss {history['val_loss'][0]:.4g}" in lines[0]
    rows = rows_of(tmp_path / "logs" / "history.csv")
    assert [float(row["val_loss"]) for row in rows] == history["val_loss"]
    rates = [float(row["learning_rate"]) for row in rows]
    assert rates == history["learning_rate"] == [1] * stopped
    assert "learning_rate" not in lines[0]
    assert (tmp_path / "logs" / "best.keras").exists()


def test_the_best_model_and_the_history(tmp_path: Path) -> None:
    best, model = callbacks.BestModel(tmp_path / "best.keras"), linear_model()
    fitted(model, epochs=1)
    best.set_model(model)
    for epoch, (loss, bias) in enumerate([(0.7, 1.0), (0.5, 2.0), (0.6, 3.0)]):
        model.layers[0].bias.assign([bias])
        best.on_epoch_end(epoch, {"val_loss": loss})
    assert keras.saving.load_model(tmp_path / "best.keras").layers[0].get_weights()[1] == [2.0]
    path = tmp_path / "history.csv"
    fitted(linear_model(), HistoryLog(path))
    log, before = HistoryLog(path), path.read_bytes()
    with limited_files(2):
        refused("history", continue_logs, [log], epoch=2, error=OSError)
    assert path.read_bytes() == before
    continue_logs([log], epoch=2)
    assert [line[:2] for line in path.read_text().splitlines()] == ["ep", "0,", "1,"]
    fitted(linear_model(), log, epochs=1)
    assert [line[:2] for line in path.read_text().splitlines()] == ["ep", "0,", "1,", "0,"]
    schedule = keras.optimizers.schedules.PolynomialDecay(0.5, PASSES * FEW, 0.1)
    model = linear_model(optimizer=keras.optimizers.SGD(schedule), run_eagerly=False)
    rates = fitted(model, callbacks.LearningRate()).history["learning_rate"]
    expected = [float(schedule(epoch * FEW)) for epoch in range(1, PASSES + 1)]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
