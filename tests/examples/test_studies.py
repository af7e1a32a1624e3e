"""Studies: results survive an interruption, and the scripts list the trials that they should."""

import csv
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import data
from keras_vit.training import recipes
from keras_vit.training.callbacks import NonFiniteLossError
from tests.examples import Run, load_example, plotted

pytest.importorskip("tensorflow")
study = load_example("study")
Trial = study.Trial

VIT = {"patch_size": 4, "hidden_dim": 8, "depth": 1, "num_heads": 1, "mlp_dim": 8}
MIXER = {"patch_size": 8, "hidden_dim": 8, "depth": 1, "tokens_mlp_dim": 4, "channels_mlp_dim": 8}
# A named model of each family, and smaller sizes for it.
SIZES: dict[str, dict[str, Any]] = {
    "ViT-Ti/16": VIT,
    "R+ViT-Ti/16": {**VIT, "patch_size": 1, "resnet": (1,), "resnet_width": 32},
    "BiT-R50x1": {"depths": (1, 1), "width": 32},
    "Mixer-S/16": MIXER,
}
RECIPE = recipes.get("digits").scaled(steps=3, batch_size=16)
# Of a study's results.
ROW = {"seconds": 1.0, "parameters": 1, "macs": 1, "images": 1, "identity": "x", "seed": 0}


def trial(name: str, **sizes: Any) -> Any:
    about = {"width": sizes.get("hidden_dim", 8)}
    return Trial(name, "ViT-Ti/16", {**VIT, **sizes}, RECIPE, about)


def test_an_interrupted_study_keeps_its_rows(digits: data.Splits, tmp_path: Path) -> None:
    trials, lines = [trial("narrow"), trial("wide", hidden_dim=16)], []
    with patch.object(study, "fit", side_effect=[None, KeyboardInterrupt, None]):
        with pytest.raises(KeyboardInterrupt):
            study.run_study(trials, digits, tmp_path, str)
        before = study.read_rows(tmp_path)
        rows = study.run_study(trials, digits, tmp_path, lines.append)
    assert [row["name"] for row in before] == ["narrow"]
    assert rows[0] == before[0]
    assert "trained before" in lines[0]
    assert [row["width"] for row in rows] == [8, 16]
    assert rows == study.read_rows(tmp_path)
    table = list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
    assert table == [{name: str(value) for name, value in row.items()} for row in rows]
    assert rows[1]["images"] == 48


def test_a_diverged_trial_is_a_row(digits: data.Splits, tmp_path: Path) -> None:
    """And of the files of a run, its checkpoints alone are deleted."""
    diverged = NonFiniteLossError("The loss is nan in step 2", 2, math.nan, None)
    trials, runs = [trial("a"), trial("b", depth=2)], tmp_path / "diverged"
    with patch.object(study, "fit", side_effect=diverged):
        rows = study.run_study(trials, digits, runs, str)
    assert [math.isnan(float(row["accuracy"])) for row in rows] == [True, True]
    assert study.to_markdown(rows[:1], {"accuracy": "{accuracy:.1%}"}).endswith("| – |")
    one = trial("smallest")
    folder = study.run_folder(one, digits, tmp_path) / "checkpoints"
    folder.mkdir(parents=True)
    for name in ("notes.txt", "step-000000001.txt"):
        (folder / name).write_text("mine")
    (row,) = study.run_study([one], digits, tmp_path, str)
    assert sorted(path.name for path in folder.iterdir()) == ["notes.txt", "step-000000001.txt"]
    curve = study.curve_of(tmp_path, row["identity"])
    assert curve[-1] == pytest.approx(row["accuracy"], abs=1e-5)


def test_identity_is_all_that_the_accuracy_depends_on(digits: data.Splits) -> None:
    first = trial("first")
    same = replace(first, name="other", about={}, recipe=replace(RECIPE, hardware="a phone"))
    assert first.identity(digits) == same.identity(digits)
    augmented = replace(RECIPE, augmentation=data.Augmentation(min_area=0.5))
    others: list[dict[str, Any]] = [{"seed": 1}, {"sizes": {**VIT, "mlp_dim": 9}}]
    others += [{"recipe": one} for one in (replace(RECIPE, learning_rate=1.0), augmented)]
    identities = {replace(first, **changes).identity(digits) for changes in [{}, *others]}
    identities.add(first.identity(data.load("digits/half")))
    assert len(identities) == 6
    # A field of a subclass is part of it.
    plain, *_ = load_example("small_data").trials_of(recipes.get("small_data"), 10)
    assert plain.identity(digits) != replace(plain, shifted=True).identity(digits)


def test_models_of_trials() -> None:
    """What they cost is counted, and dropout goes where there is one."""
    plain, dropped = replace(RECIPE, image_size=32), []
    for name, sizes in SIZES.items():
        one = Trial("one", name, sizes, plain, {})
        model = one.build(num_classes=5)
        assert one.cost(num_classes=5).parameters == model.count_params(), name
        assert model.eval_transform == data.EvalTransform("stretch"), name
        recipe = replace(plain, dropout=0.1, stochastic_depth=0.2)
        dropped.append(replace(one, recipe=recipe).build(5))
    vit, _, _, mixer = dropped
    assert (vit.dropout, vit.stochastic_depth, mixer.stochastic_depth) == (0.1, 0.2, 0.2)


def test_options_and_words(digits: data.Splits, tmp_path: Path) -> None:
    """The trials that are chosen and planned, and what a page says of them."""
    options = study.study_parser("", "runs/s").parse_args(["--only", "b", "--seeds", "2"])
    trials = study.select([trial("a"), trial("b")], options)
    assert [(one.name, one.seed) for one in trials] == [("b", 0), ("b", 1)]
    options = study.study_parser("", "runs/s").parse_args(["--only", "a", "Mixr*"])
    with pytest.raises(ValueError, match=r"'Mixr\*' matches none of: a; b"):
        study.select([trial("a"), trial("b")], options)
    one = Trial("small", "ViT-Ti/16", {**VIT, "patch_size": 8}, recipes.get("digits"), {})
    assert study.plan([one], digits).splitlines()[-1] == "| small | 0.0 | 70,656 | 100% |"
    words = ["/here/examples/small_data.py", "--data", str(tmp_path), "--markdown", "docs/page.md"]
    words += ["--only", "ViT base"]
    expected = f"python examples/small_data.py --data {tmp_path.name} --only 'ViT base'"
    with patch("sys.argv", words):
        assert study.command_line() == expected
    runs = [{"name": "a", "seed": 0, "accuracy": 0.4}, {"name": "a", "seed": 1, "accuracy": 0.6}]
    runs += [{"name": "b", "seed": 0, "accuracy": 0.5}]
    rows = [{**run, "seconds": 2.0} for run in runs]
    first, second = study.averaged(rows)
    assert first["accuracy"] == pytest.approx(0.5)
    assert first["spread"] == pytest.approx(0.1414, abs=1e-4)
    assert (second["runs"], math.isnan(float(second["spread"]))) == (1, True)
    # The seconds of interrupted processes count.
    watch = study.Stopwatch()
    watch.on_train_begin()
    watch.load_state_dict({"seconds": 100.0})
    assert 100 <= watch.state_dict()["seconds"] < 101


def assert_legible(folder: Path, script: Any, *arguments: Any) -> None:
    """A script's plot has panels below each other, and legends outside the axes."""
    figure = plotted(script.plot, *arguments, folder / "plot.png")
    assert (folder / "plot.png").exists()
    positions = [axes.get_position() for axes in figure.axes]
    assert all(a.y0 > b.y1 for a, b in itertools.pairwise(positions))
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    for box in [legend.get_window_extent() for legend in legends if legend]:
        assert figure.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1
        assert not any(box.overlaps(axes.get_window_extent()) for axes in figure.axes)


def rows_of(trials: Sequence[Any], **values: Any) -> list[dict[str, Any]]:
    rows = [{"name": one.name, **one.about, **ROW} for one in trials]
    grown = [{"accuracy": 0.3 + i / 100, "gmacs": 10.0 + i} for i in range(len(rows))]
    return [row | more | values for row, more in zip(rows, grown, strict=True)]


def test_scaling_study(tmp_path: Path) -> None:
    script = load_example("scaling_study")
    for setup, classes in ((script.SMALL, 10), (script.IMAGENET, 1000)):
        trials = script.trials_of(setup)
        assert len({one.name for one in trials}) == len(trials) > 15
        costs = {one.name: one.cost(classes) for one in trials}
        assert costs["ViT base"].macs > costs["ViT depth 2"].macs
        assert {one.model for one in trials} >= set(SIZES if setup is script.SMALL else ())
    # The named models of ImageNet are those of the table.
    for name in ("BiT-R50x1", "Mixer-B/16"):
        assert costs[name].parameters == keras_vit.models.model_cost(name).parameters
    trials = script.trials_of(script.SMALL)
    assert_legible(tmp_path, script, rows_of(trials))
    rows = rows_of(trials, accuracy=0.5)
    rows[3]["accuracy"], rows[-1]["accuracy"] = 0.6, 0.7
    assert script.conclusion(rows, 1000) == (
        "**Mixer 6 blocks of 128** reaches the highest accuracy, 70.00%, at 33 GMACs × images; "
        "of the ViTs **ViT depth 8** does, 60.00% at 13. Each accuracy has a standard error of "
        "up to 1.6 points from the choice of the 1,000 images alone."
    )
    assert script.conclusion([{**rows[0], "accuracy": math.nan}], 1000) == ""


def test_ablations(digits: data.Splits, tmp_path: Path) -> None:
    script = load_example("ablations")
    trials = script.trials_of(script.RECIPE)
    assert len(trials) == 11
    # Table 8's 1-D positions and figure 9's class token are one model.
    assert len({one.identity(digits) for one in trials}) == 10
    with patch.object(script, "curve_of", lambda *_: [0.2, 0.3]):
        assert_legible(tmp_path, script, rows_of(trials), tmp_path)
    rows = rows_of(trials, accuracy=0.3, spread=0.02)
    means = [row for row in rows if row["kind"] != "map"]
    means[1]["accuracy"], means[4]["accuracy"] = 0.35, 0.36
    assert script.conclusion("positions", means[:5]) == (
        "Best by positions: **sines and cosines, 2-D** with 36.00%, 1.00 points above "
        "**learned, 1-D**, a lead within the seeds' standard deviation."
    )
    means[4]["accuracy"] = 0.41
    assert script.conclusion("positions", means[:5]).endswith("6.00 points above **learned, 1-D**.")


def test_flowers_systems(tmp_path: Path) -> None:
    script = load_example("flowers_systems")
    trials = script.trials_of(script.RECIPE, same_compute=False)
    assert len(trials) == 16
    counts = [one.cost(5).parameters for one in trials]
    assert max(counts) < 1.4 * min(counts)
    assert {one.recipe.steps for one in trials} == {script.RECIPE.steps}
    assert [one.recipe.rho > 0 for one in trials[:4]] == [False, True, False, False]
    halved = script.trials_of(script.RECIPE, same_compute=True)
    assert halved[1].recipe.steps == script.RECIPE.steps // 2
    assert_legible(tmp_path, script, rows_of(trials), 0.02)
    rows = rows_of(trials[:-1], accuracy=0.5)
    assert "| Mixer | 50.00% | 50.00% | 50.00% | – | 1 | 0.0 |" in script.table(rows)
    seeds = [*rows, *({**row, "accuracy": 0.6, "seed": 1} for row in rows)]
    assert "| BiT | 55.00% ± 7.07 | 55" in script.table(seeds)
    for number, row in enumerate(rows):
        row["accuracy"] = 0.5 + 0.1 * (row["treatment"] == "plain") + 0.001 * number
    rows[9]["accuracy"] = 0.9
    assert script.conclusion(rows) == (
        "**BiT, SAM** reaches the highest accuracy, 90.00%. Of the ways to train, plain is "
        "best for ViT, hybrid and Mixer; SAM is best for BiT."
    )


def test_small_data(tmp_path: Path) -> None:
    script = load_example("small_data")
    recipe = replace(recipes.get("small_data").scaled(steps=400), image_size=64)
    trials = script.trials_of(recipe, 5)
    work = [one.cost(5).macs * one.recipe.steps for one in trials]
    assert max(work) < 1.01 * min(work)
    assert max(one.cost(5).parameters for one in trials) < 1.1e6
    assert {one.build(5).output_shape for one in trials[2:5]} == {(None, 5)}
    assert_legible(tmp_path, script, script.averaged(rows_of(trials)), "digits", 2)
    rows = rows_of(trials, accuracy=0.5, spread=0.01)
    rows[0]["accuracy"], rows[1]["accuracy"] = 0.6, 0.3
    assert script.conclusion(rows) == (
        "At equal compute, no variant is better than the plain ViT, 60.00%: the next, **shifted "
        "patches**, reaches 50.00%, the last, **RandAugment (better plain ViT)**, 30.00%."
    )
    rows[4]["accuracy"] = 0.7
    best = "**conv stem, attention pooling (CCT)** is best, 70.00%, 10.00 points above the plain"
    assert best in script.conclusion(rows)
    rows[-1]["accuracy"] = 0.2
    assert "which is made for 180 epochs: stopped this early" in script.conclusion(rows)
    # Shifted patches are the image moved along its diagonals.
    image = np.random.default_rng(0).normal(size=(1, 8, 6, 2)).astype("float32")
    seen = keras.ops.convert_to_numpy(script.ShiftedPatches(4)(image))
    np.testing.assert_array_equal(seen[..., :2], image)
    np.testing.assert_array_equal(seen[:, 2:, 2:, 2:4], image[:, :-2, :-2])
    np.testing.assert_array_equal(seen[:, :-2, :-2, 8:], image[:, 2:, 2:])


def test_augreg_cell(tmp_path: Path, run_example: Run) -> None:
    words = ["--data", "digits", "--out", tmp_path, "--plan", "--model", "R+ViT-Ti/16"]
    words += ["--augmentation", "none", "strong2", "--dropout", 0, 0.1]
    printed = run_example(load_example("augreg_cell"), *words)
    assert "| R_Ti_16-aug_none-wd_0.1-do_0-sd_0 |" in printed
    assert "| R_Ti_16-aug_strong2-wd_0.1-do_0.1-sd_0.1 |" in printed
    assert printed.count("32,000") == 4
