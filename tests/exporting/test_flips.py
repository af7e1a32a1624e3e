"""Quantized files: whose answers change, what that costs, and the smallest that keeps them."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta
from sklearn.metrics import accuracy_score

import keras_vit
from keras_vit import data
from keras_vit.exporting import ExportedModel, check, export_smallest, load_exported, smallest
from keras_vit.exporting.comparison import Comparison, compare, size_of
from keras_vit.exporting.smallest import Smallest, Trial
from keras_vit_cli import commands as cli
from tests import bank
from tests.exporting.artifacts import DIGITS, PATHS, Artifacts, contract, formats, probabilities
from tests.models.test_task import TASKS, vit


@pytest.fixture(scope="module")
def digits() -> Any:
    return data.load("digits").val


# Random, and decided: some of its answers are right.
digits_model = partial(vit, task=DIGITS, input_shape=(8, 8, 1), patch_size=4)


def test_whose_answers_change(digits: Any) -> None:
    """The scores are scikit-learn's, of the answers themselves; the interval is that of pairs."""
    model, images = digits_model(), digits.as_arrays()[0]
    noise = np.random.default_rng(0).dirichlet(np.ones(10), 32)
    file = ExportedModel(
        Path(__file__),
        contract(),
        lambda x: [0.3 * probabilities(model, x) + 0.7 * noise[: len(x)]],
    )
    found, labels = compare(model, file, digits), digits.labels()
    before, after = (
        each.argmax(1) for each in (probabilities(model, images), file.predict(images))
    )
    assert found.score == pytest.approx(accuracy_score(labels, before), abs=1e-12)
    assert found.exported_score == pytest.approx(accuracy_score(labels, after), abs=1e-12)
    flipped = before != after
    assert 10 < flipped.sum() < 200
    assert found.flips == pytest.approx(flipped.mean())
    assert len(found.changed) == flipped.sum()
    assert found.agreement == pytest.approx(1 - found.flips)
    change = (after == labels).astype(float) - (before == labels)
    assert found.change.value == pytest.approx(change.mean())
    error = change.std() / len(change) ** 0.5
    half = (found.change.high - found.change.low) / 2
    assert half == pytest.approx(1.96 * error, rel=0.15)
    lost = -np.bincount(labels, change, 10)
    assert lost.max() > 0
    assert found.suffers.startswith(f"{lost.argmax()}: ")
    first = int(np.flatnonzero(flipped)[0])
    assert found.changed[0].startswith(f"image {first}: {before[first]} ")
    assert found.changed[0].endswith(f"it is {labels[first]}")
    assert f"and {flipped.sum() - 20:,} more" in str(found)


@pytest.mark.parametrize("kind", ["multilabel", "regression", "ordinal"])
def test_changes_of_other_tasks(kind: str) -> None:
    task, random = TASKS[kind], np.random.default_rng(0)
    targets = {
        "multilabel": random.integers(0, 2, (40, task.size)),
        "ordinal": random.integers(0, task.size, 40),
    }
    target = targets.get(kind, random.normal(0, 10, (40, task.size)))
    answers, others = (
        random.dirichlet(np.ones(max(task.size, 2)), 40)[:, : task.size] for _ in range(2)
    )
    changes = task.score_changes(target, answers, others, resamples=50)
    first, second = (task.scores(target, each, resamples=0) for each in (answers, others))
    for name, change in changes.items():
        assert change.value == pytest.approx(second[name].value - first[name].value, nan_ok=True)
        assert not change.low > change.value
        assert not change.value > change.high


@formats("litert", of=("onnx", "litert", "openvino"))
def test_float16_halves_the_weights(format: str, artifacts: Artifacts, tmp_path: Path) -> None:
    model = artifacts.model("large")
    path = keras_vit.export(model, tmp_path / PATHS[format], format, quantize="float16")
    assert size_of(path) < 0.65 * 4 * model.count_params()
    images = bank.pixels(8, 32, 32, 3)
    np.testing.assert_allclose(
        load_exported(path).predict(images), probabilities(model, images), atol=2e-3
    )
    assert check(path).ok


def test_bounds_are_checked_before_any_work(tmp_path: Path, digits: Any, capsys: Any) -> None:
    for bound in (0, -1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="max_flips="):
            export_smallest(digits_model(), tmp_path / "m.onnx", split=digits, max_flips=bound)
    with pytest.raises(ValueError, match="is not quantized"):
        export_smallest(digits_model(), tmp_path / "m", split=digits)
    file = tmp_path / "m.keras"
    bank.tiny().save(file)
    export = ["export", str(file), "--format", "onnx", "--out", str(tmp_path / "m.onnx")]
    for words, message in (
        (["--quantize", "auto", "--max-flips", "0"], "above 0 and at most 100"),
        (["--quantize", "auto", "--max-flips", "101%"], "above 0 and at most 100"),
        (["--quantize", "int8", "--max-flips", "1%"], "no effect without --quantize auto"),
        (["--quantize", "auto"], "give --data"),
    ):
        assert cli.main([*export, *words]) == 2
        assert message in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["m.keras"]


@pytest.mark.parametrize(("images", "flips"), [(450, 0), (450, 2), (5000, 10), (5000, 45)])
def test_what_a_bound_promises_of_other_images(images: int, flips: int) -> None:
    """It prints where the interval, nearly that of Clopper and Pearson, reaches above the bound."""
    of_images = (images, "accuracy", 0.9, 0.9, 1, "class", 10, 40)
    trial = Trial("int8", Comparison(*of_images, flips=flips / images))
    printed = str(Smallest((trial,), trial, 0.01))
    exact = beta.ppf(0.975, flips + 1, images - flips)
    assert ("of others up to" in printed) == (exact > 0.01)
    high = float(printed.split(" to ")[1].split("%")[0]) / 100
    assert exact <= high + 1e-4 < exact + 1e-3


@pytest.mark.thorough
def test_the_smallest_that_holds_the_bound(
    tmp_path: Path, digits: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    model = digits_model()
    model.save(file := tmp_path / "m.keras")
    out = tmp_path / "m.onnx"
    words = ["--format", "onnx", "--out", str(out), "--data", "digits", "--quantize", "auto"]
    assert cli.main(["export", str(file), *words, "--max-flips", "100%"]) == 0
    printed = capsys.readouterr().out
    assert all(f" {name} " in printed for name in ("int8", "float16", "float32"))
    assert f"written to {out}, " in printed
    assert check(out).ok
    assert load_exported(out).contract.quantize in ("int8", "float16")
    real, sizes = smallest.compare, []

    def flipping(*arguments: Any) -> Any:
        found = real(*arguments)
        sizes.append(found.size)
        return replace(found, flips=0.02)

    monkeypatch.setattr(smallest, "compare", flipping)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        export_smallest(model, out, split=digits)
    assert not sizes
    made = export_smallest(model, out, split=digits, overwrite=True)
    assert (made.chosen.name, load_exported(out).contract.quantize) == ("float32", None)
    assert "No quantization holds the bound" in str(made)
    assert size_of(out) == sizes[-1] == max(sizes)
