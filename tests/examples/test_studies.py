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


def rows_of(trials: Sequence[Any], *_: Any) -> list[dict[str, Any]]:
    """What `run_study` returns, without training: each trial is better than the one before."""
    return [
        {**one.about, **ROW, "name": one.name, "seed": one.seed, "accuracy": 0.3 + i / 100}
        for i, one in enumerate(trials)
    ]


# The number of trials of each study, and what the page says first of such rows.
STUDIES = {
    "scaling_study": (24, "**Mixer 6 blocks of 128** reaches the highest accuracy, 53.00%"),
    "ablations": (11, "Best by positions: **sines and cosines, 2-D** with 34.00%"),
    "flowers_systems": (16, "**Mixer, AugReg medium1** reaches the highest accuracy, 45.00%."),
    "small_data": (10, "points above the plain"),
}


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_plans_and_writes_its_page(name: str, tmp_path: Path, run_example: Run) -> None:
    """Its plot has panels below each other, and legends outside the axes."""
    script, (count, conclusion) = load_example(name), STUDIES[name]
    words = ["--data", "digits", "--seeds", 1, "--out", tmp_path]
    planned = run_example(script, *words, "--plan").splitlines()
    assert len([line for line in planned if line.startswith("| ")]) == count + 1
    replaced: dict[str, Any] = {"run_study": rows_of}
    if name == "ablations":
        replaced["curve_of"] = lambda *_: [0.2, 0.3]
    figure = plotted(lambda: run_example(script, *words, **replaced))
    page = (tmp_path / "table.md").read_text("utf-8")
    assert conclusion in page
    assert f"python examples/{name}.py --data digits" in page
    positions = [axes.get_position() for axes in figure.axes]
    assert all(a.y0 > b.y1 for a, b in itertools.pairwise(positions))
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    for box in [legend.get_window_extent() for legend in legends if legend]:
        assert figure.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1
        assert not any(box.overlaps(axes.get_window_extent()) for axes in figure.axes)


def test_trials_are_comparable(digits: data.Splits) -> None:
    """Equal work, about equal size, and one model where two tables have the same."""
    script = load_example("small_data")
    trials = script.trials_of(
        replace(recipes.get("small_data").scaled(steps=400), image_size=64), 5
    )
    work = [one.cost(5).macs * one.recipe.steps for one in trials]
    assert max(work) < 1.01 * min(work)
    image = np.random.default_rng(0).normal(size=(1, 8, 6, 2)).astype("float32")
    seen = keras.ops.convert_to_numpy(script.ShiftedPatches(4)(image))
    np.testing.assert_array_equal(seen[..., :2], image)  # and moved along its diagonals
    np.testing.assert_array_equal(seen[:, 2:, 2:, 2:4], image[:, :-2, :-2])
    np.testing.assert_array_equal(seen[:, :-2, :-2, 8:], image[:, 2:, 2:])
    script = load_example("flowers_systems")
    counts = [one.cost(5).parameters for one in script.trials_of(script.RECIPE, False)]
    assert max(counts) < 1.4 * min(counts)
    halved = script.trials_of(script.RECIPE, same_compute=True)
    assert halved[1].recipe.steps == script.RECIPE.steps // 2
    script = load_example("ablations")
    # Table 8's 1-D positions and figure 9's class token are one model.
    assert len({one.identity(digits) for one in script.trials_of(script.RECIPE)}) == 10
    options = study.study_parser("", "runs/s").parse_args(["--only", "a", "Mixr*"])
    with pytest.raises(ValueError, match=r"'Mixr\*' matches none of: a; b"):
        study.select([trial("a"), trial("b")], options)


def test_augreg_cell(tmp_path: Path, run_example: Run) -> None:
    words = ["--data", "digits", "--out", tmp_path, "--plan", "--model", "R+ViT-Ti/16"]
    words += ["--augmentation", "none", "strong2", "--dropout", 0, 0.1]
    printed = run_example(load_example("augreg_cell"), *words)
    assert "| R_Ti_16-aug_none-wd_0.1-do_0-sd_0 |" in printed
    assert "| R_Ti_16-aug_strong2-wd_0.1-do_0.1-sd_0.1 |" in printed
    assert printed.count("32,000") == 4
