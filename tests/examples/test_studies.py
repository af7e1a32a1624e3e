"""Studies: results survive an interruption, and the scripts list the trials that they should."""

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
from tests.cli.helpers import rows_of as rows_of_file
from tests.data.image_fixtures import write
from tests.examples import Run, load_example

Figure = pytest.importorskip("matplotlib.figure").Figure
Text = pytest.importorskip("matplotlib.text").Text
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
        (before,) = study.read_rows(tmp_path)
        rows = study.run_study(trials, digits, tmp_path, lines.append)
    assert (before["name"], rows[0]) == ("narrow", before)
    assert "trained before" in lines[0]
    assert [(row["width"], row["images"]) for row in rows] == [(8, 48), (16, 48)]
    assert rows == study.read_rows(tmp_path)
    table = rows_of_file(tmp_path / "results.csv")
    assert table == [{name: str(value) for name, value in row.items()} for row in rows]


def test_a_diverged_trial_is_a_row(digits: data.Splits, tmp_path: Path) -> None:
    """And of the files of a run, its checkpoints alone are deleted."""
    diverged = NonFiniteLossError("The loss is nan in step 2", 2, math.nan, None)
    with patch.object(study, "fit", side_effect=diverged):
        rows = study.run_study([trial("a")], digits, tmp_path / "diverged", str)
    assert math.isnan(float(rows[0]["accuracy"]))
    assert study.to_markdown(rows, {"accuracy": "{accuracy:.1%}"}).endswith("| – |")
    one = trial("smallest")
    folder = study.run_folder(one, digits, tmp_path) / "checkpoints"
    write(folder, {"step-000000001.txt": b"mine"})
    (row,) = study.run_study([one], digits, tmp_path, str)
    assert [path.name for path in folder.iterdir()] == ["step-000000001.txt"]
    curve = study.curve_of(tmp_path, row["identity"])
    assert curve[-1] == pytest.approx(row["accuracy"], abs=1e-5)


def test_identity_is_all_that_the_accuracy_depends_on(digits: data.Splits) -> None:
    first = trial("first")
    same = replace(first, name="other", about={}, recipe=replace(RECIPE, hardware="a phone"))
    assert first.identity(digits) == same.identity(digits)
    augmented = replace(RECIPE, augmentation=data.Augmentation(min_area=0.5))
    others: list[dict[str, Any]] = [{}, {"seed": 1}, {"sizes": {**VIT, "mlp_dim": 9}}]
    others += [{"recipe": one} for one in (replace(RECIPE, learning_rate=1.0), augmented)]
    identities = [replace(first, **changes).identity(digits) for changes in others]
    identities.append(first.identity(data.load("digits/half")))
    plain, *_ = load_example("small_data").trials_of(recipes.get("small_data"), 10)
    identities += [one.identity(digits) for one in (plain, replace(plain, shifted=True))]
    assert len(identities) == len(set(identities)) == 8


def test_models_of_trials() -> None:
    recipe = replace(RECIPE, image_size=32, dropout=0.1, stochastic_depth=0.2)
    models = []
    for name, sizes in SIZES.items():
        one = Trial("one", name, sizes, recipe, {})
        models.append(one.build(num_classes=5))
        assert one.cost(num_classes=5).parameters == models[-1].count_params(), name
        assert models[-1].eval_transform == data.EvalTransform("stretch"), name
    vit, *_, mixer = models
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
    script, (count, conclusion) = load_example(name), STUDIES[name]
    words = ["--data", "digits", "--seeds", 1, "--out", tmp_path]
    planned = run_example(script, *words, "--plan").splitlines()
    assert len([line for line in planned if line.startswith("| ")]) == count + 1
    replaced: dict[str, Any] = {"run_study": rows_of}
    if name == "ablations":
        replaced["curve_of"] = lambda *_: [0.2, 0.3]
    with patch.object(Figure, "savefig", autospec=True, side_effect=Figure.savefig) as save:
        run_example(script, *words, **replaced)
    figure = save.call_args_list[0].args[0]
    assert figure.get_figwidth() <= 5.5  # legible on a phone
    assert min(text.get_fontsize() for text in figure.findobj(Text) if text.get_text()) >= 9
    page = (tmp_path / "table.md").read_text("utf-8")
    assert conclusion in page
    assert f"python examples/{name}.py --data digits" in page


def test_trials_are_comparable(digits: data.Splits) -> None:
    script = load_example("small_data")
    recipe = replace(recipes.get("small_data").scaled(steps=400), image_size=64)
    work = [one.cost(5).macs * one.recipe.steps for one in script.trials_of(recipe, 5)]
    assert max(work) < 1.01 * min(work)
    image = np.random.default_rng(0).normal(size=(1, 8, 6, 2)).astype("float32")
    seen = keras.ops.convert_to_numpy(script.ShiftedPatches(4)(image))
    np.testing.assert_array_equal(seen[..., :2], image)  # and moved along its diagonals
    np.testing.assert_array_equal(seen[:, 2:, 2:, 2:4], image[:, :-2, :-2])
    # Table 8's 1-D positions and figure 9's class token are one model.
    script = load_example("ablations")
    assert len({one.identity(digits) for one in script.trials_of(script.RECIPE)}) == 10


def test_augreg_cell(tmp_path: Path, run_example: Run) -> None:
    words = ["--data", "digits", "--out", tmp_path, "--plan", "--model", "R+ViT-Ti/16"]
    words += ["--augmentation", "none", "strong2", "--dropout", 0, 0.1]
    printed = run_example(load_example("augreg_cell"), *words)
    assert "| R_Ti_16-aug_strong2-wd_0.1-do_0.1-sd_0.1 |" in printed
    assert printed.count("32,000") == 4
