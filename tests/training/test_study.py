"""A study: rows that survive a kill, a table that holds, and the scripts that are made of them."""

import importlib.util
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import keras_vit
from keras_vit import data
from keras_vit.training import recipes, study
from keras_vit.training.callbacks import NonFiniteLossError
from keras_vit.training.results_table import ResultsTable
from keras_vit.training.study import FAMILIES, Trial, averaged, run_study

pytestmark = pytest.mark.once

pytest.importorskip("tensorflow")

VIT = {"patch_size": 4, "hidden_dim": 8, "depth": 1, "num_heads": 1, "mlp_dim": 8}
SIZES: dict[str, dict[str, Any]] = {
    "ViT": VIT,
    "hybrid": {**VIT, "patch_size": 1, "resnet": (1,), "resnet_width": 32},
    "BiT": {"depths": (1, 1), "width": 32},
    "Mixer": {
        "patch_size": 8, "hidden_dim": 8, "depth": 1, "tokens_mlp_dim": 4, "channels_mlp_dim": 8
    },
}  # fmt: skip
RECIPE = recipes.get("digits").scaled(steps=3, batch_size=16)
EXAMPLES = Path(__file__).parents[2] / "examples"
QUIET: Any = {"say": lambda line: None}


@pytest.fixture(scope="module")
def digits() -> data.Splits:
    return data.load("digits")


def trial(name: str, **sizes: Any) -> Trial:
    return Trial(name, "ViT", {**VIT, **sizes}, RECIPE, {"width": sizes.get("hidden_dim", 8)})


def example(name: str) -> ModuleType:
    pytest.importorskip("matplotlib")
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def test_a_killed_study_keeps_its_rows(
    digits: data.Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = [trial("narrow"), trial("wide", hidden_dim=16)]
    trained: list[str] = []

    def fit_until_killed(model: Any, *_: Any, **__: Any) -> None:
        if trained:
            raise KeyboardInterrupt
        trained.append(model.name)

    monkeypatch.setattr(study, "fit", fit_until_killed)
    with pytest.raises(KeyboardInterrupt):
        run_study(trials, digits, tmp_path, **QUIET)
    before = ResultsTable(tmp_path / "results.csv").rows()
    assert [row["name"] for row in before] == ["narrow"]
    trained.clear()
    lines: list[str] = []
    rows = run_study(trials, digits, tmp_path, lines.append)
    assert rows[0] == before[0]
    assert "done before" in lines[0]
    assert not any("narrow" in line for line in lines[1:])
    assert [row["width"] for row in rows] == [8, 16]
    assert rows == ResultsTable(tmp_path / "results.csv").rows()
    assert rows[1]["images"] == 48
    assert 0 <= float(rows[1]["accuracy"]) <= 1


def test_a_lost_loss_is_a_row_and_the_study_goes_on(
    digits: data.Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any, **__: Any) -> None:
        raise NonFiniteLossError("The loss is nan in step 2", 2, math.nan, None)

    monkeypatch.setattr(study, "fit", lost)
    rows = run_study([trial("a"), trial("b", depth=2)], digits, tmp_path, **QUIET)
    assert [math.isnan(float(row["accuracy"])) for row in rows] == [True, True]
    assert len(ResultsTable(tmp_path / "results.csv").rows()) == 2
    assert study.to_markdown(rows[:1], {"accuracy": "{accuracy:.1%}"}).endswith("| – |")


def test_identity_is_all_that_the_accuracy_depends_on(digits: data.Splits) -> None:
    first = trial("first")
    same = replace(first, name="other", about={}, recipe=replace(RECIPE, hardware="a phone"))
    assert first.identity(digits) == same.identity(digits)
    others = [
        replace(first, seed=1),
        replace(first, sizes={**VIT, "mlp_dim": 9}),
        replace(first, recipe=replace(RECIPE, learning_rate=1.0)),
        replace(first, recipe=replace(RECIPE, augmentation=data.Augmentation(min_area=0.5))),
    ]
    identities = {one.identity(digits) for one in [first, *others]}
    identities.add(first.identity(data.load("digits/half")))
    assert len(identities) == 6


def test_a_new_option_of_the_recipes_changes_no_identity() -> None:
    assert study._said(data.Augmentation()) == {}
    assert study._said(data.Augmentation(min_area=0.3)) == {"min_area": 0.3}


@pytest.mark.parametrize("family", FAMILIES)
def test_cost_is_that_of_the_model(family: str) -> None:
    one = Trial("one", family, SIZES[family], replace(RECIPE, image_size=32), {})
    model = one.build(num_classes=5)
    assert one.cost(num_classes=5).parameters == model.count_params()
    assert model.eval_transform == {"mode": "stretch"}


def test_dropout_goes_where_there_is_one() -> None:
    recipe = replace(RECIPE, image_size=32, dropout=0.1, stochastic_depth=0.2)
    vit = Trial("vit", "ViT", SIZES["ViT"], recipe, {}).build(5)
    mixer = Trial("mixer", "Mixer", SIZES["Mixer"], recipe, {}).build(5)
    Trial("bit", "BiT", SIZES["BiT"], recipe, {}).build(5)
    assert (vit.dropout, vit.stochastic_depth, mixer.stochastic_depth) == (0.1, 0.2, 0.2)


def test_an_unknown_family() -> None:
    with pytest.raises(ValueError, match="'hybrid'"):
        Trial("x", "ResNeXt", {}, RECIPE, {})


ROW: dict[str, study.Value] = {"name": "a, b", "accuracy": 0.25, "identity": "123456789012"}


class TestResultsTable:
    def test_many_writers_lose_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "results.csv"
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda i: ResultsTable(path).append({**ROW, "name": i}), range(40)))
        assert sorted(int(row["name"]) for row in ResultsTable(path).rows()) == list(range(40))
        assert path.read_text().count("identity") == 1
        assert [file.name for file in tmp_path.iterdir()] == ["results.csv"]

    def test_a_row_that_was_cut_off(self, tmp_path: Path) -> None:
        table = ResultsTable(tmp_path / "results.csv")
        table.append(ROW)
        table.append(ROW)
        table.path.write_text(table.path.read_text()[:-5])
        with pytest.warns(UserWarning, match="1 rows are cut off"):
            assert table.rows() == [ROW]
        table.append({**ROW, "name": "c"})
        with pytest.warns(UserWarning, match="1 rows are cut off"):
            assert [row["name"] for row in table.rows()] == ["a, b", "c"]

    def test_other_columns(self, tmp_path: Path) -> None:
        table = ResultsTable(tmp_path / "results.csv")
        table.append(ROW)
        with pytest.raises(ValueError, match="Give another folder"):
            table.append({"name": "b", "identity": "123456789012"})


def test_seconds_of_a_run_that_was_killed_count() -> None:
    watch = study.Stopwatch()
    watch.on_train_begin()
    watch.load_state_dict({"seconds": 100.0})
    assert 100 <= watch.state_dict()["seconds"] < 101
    watch.on_train_end()
    assert watch.total == watch.total


def test_only_of_an_unknown_name() -> None:
    options = study.study_parser("", out="runs/s").parse_args(["--only", "a", "Mixr*"])
    with pytest.raises(ValueError, match=r"'Mixr\*' fits none of: a; b"):
        study.chosen([trial("a"), trial("b")], options)


class TestExamples:
    def test_scaling_study(self, tmp_path: Path) -> None:
        script = example("scaling_study")
        for setup, classes in ((script.SMALL, 10), (script.IMAGENET, 1000)):
            trials = script.trials_of(setup)
            assert len({one.name for one in trials}) == len(trials) > 15
            costs = {one.name: one.cost(classes) for one in trials}
            assert costs["ViT base"].macs > costs["ViT depth 2"].macs
            assert {one.family for one in trials} == set(FAMILIES)
        rows = [
            {"name": one.name, **one.about, "gmacs": 10.0 + i, "accuracy": 0.5}
            for i, one in enumerate(script.trials_of(script.SMALL))
        ]
        script.plot(rows, tmp_path / "scaling.png")
        script.plot(rows[:1], tmp_path / "one.png")

    def test_named_models_of_imagenet_are_those_of_the_table(self) -> None:
        script = example("scaling_study")
        named = {one.name: one for one in script.trials_of(script.IMAGENET)}
        for name in ("BiT-R50x1", "R50+ViT-B/16", "Mixer-B/16"):
            wanted = keras_vit.models.model_cost(name).parameters
            assert named[name].cost(1000).parameters == wanted

    def test_ablations(self, digits: data.Splits, tmp_path: Path) -> None:
        script = example("ablations")
        trials = script.trials_of(script.RECIPE)
        assert len(trials) == 11
        # Table 8's 1-D positions and figure 9's class token are one model.
        assert len({one.identity(digits) for one in trials}) == 10
        row = {"accuracy": 0.5, "seconds": 1.0, "identity": "none"}
        rows = [{"name": one.name, **one.about, **row} for one in trials]
        script.plot(rows, tmp_path, tmp_path / "ablations.png")
        assert (tmp_path / "ablations.png").exists()

    def test_flowers_systems(self, tmp_path: Path) -> None:
        script = example("flowers_systems")
        trials = script.trials_of(script.RECIPE, same_compute=False)
        assert len(trials) == 16
        counts = [one.cost(5).parameters for one in trials]
        assert max(counts) < 1.4 * min(counts)
        assert {one.recipe.steps for one in trials} == {script.RECIPE.steps}
        assert [one.recipe.rho > 0 for one in trials[:4]] == [False, True, False, False]
        halved = script.trials_of(script.RECIPE, same_compute=True)
        assert halved[1].recipe.steps == script.RECIPE.steps // 2
        row = {"parameters": 1, "macs": 1, "images": 1, "accuracy": 0.5, "seconds": 1, "seed": 0}
        rows = [{"name": one.name, **one.about, **row} for one in trials[:-1]]
        script.plot(rows, 0.02, tmp_path / "systems.png")
        text = script.tables(rows)
        assert "| Mixer | 50.0% | 50.0% | 50.0% | – |" in text

    def test_augreg_cell(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        script = example("augreg_cell")
        command = ["augreg_cell.py", "--data", "digits", "--out", str(tmp_path), "--plan"]
        command += ["--model", "R+ViT-Ti/16", "--augmentation", "none", "strong2"]
        monkeypatch.setattr(sys, "argv", [*command, "--dropout", "0", "0.1"])
        script.main()
        printed = capsys.readouterr().out
        assert "| R_Ti_16-aug_none-wd_0.1-do_0-sd_0 |" in printed
        assert "| R_Ti_16-aug_strong2-wd_0.1-do_0.1-sd_0.1 |" in printed
        assert printed.count("32,000") == 4


def test_mean_and_spread_over_seeds() -> None:
    rows: list[study.Row] = [
        {"name": name, "seed": seed, "accuracy": accuracy, "seconds": 2.0}
        for name, seed, accuracy in (("a", 0, 0.4), ("a", 1, 0.6), ("b", 0, 0.5))
    ]
    first, second = averaged(rows)
    assert first["accuracy"] == pytest.approx(0.5)
    assert first["spread"] == pytest.approx(0.1414, abs=1e-4)
    assert (second["runs"], math.isnan(float(second["spread"]))) == (1, True)
