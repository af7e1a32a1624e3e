"""Heads, probes and fine-tuning are compared on unseen training images: the better is kept."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import data, evaluation
from keras_vit.data.sources.array_splits import ArraySplit
from keras_vit.tasks import Regression
from keras_vit.training import measured_fit as measured_module
from keras_vit.training import measured_tuning
from keras_vit.training.first_look import first_look
from keras_vit.training.head_choice import choose_head, mean_and_error
from keras_vit.training.measured_fit import Prepared, measured_fit, prepare
from keras_vit.training.measured_tuning import Tuning, TuningPlan, compare, plan_tuning
from keras_vit.training.probe_choice import accuracy, choose_probe
from keras_vit.training.recipes import Recipe, get
from keras_vit.training.refinement import set_head
from keras_vit.training.training_set import hold_out_to_choose
from keras_vit_cli.train import job_recipe
from keras_vit_cli.train.job import Job
from keras_vit_cli.train.record import note_of_probe
from tests.backend import refused
from tests.cli.helpers import color_photos, save_tiny
from tests.conftest import Command
from tests.training import common
from tests.training.common import assert_equal

pytest.importorskip("sklearn")
pytestmark = pytest.mark.usefixtures("here")
RECIPE = Recipe(
    source="", model={}, image_size=8, epochs=2, batch_size=8, learning_rate=1e-4,
)  # fmt: skip
LABELS = np.arange(40) % 4


def test_a_choice_follows_the_features() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 16)) + 3 * np.eye(16)[LABELS]
    choice = choose_head(x, LABELS, 4)
    names = [row.name for row in choice.candidates]
    assert names == ["class means", "ridge", "logistic regression", "nearest neighbors"]
    assert choice.method == min(choice.candidates[:3], key=lambda row: row.log_loss).name
    assert choice.candidates[-1].note == "not a head"
    # Of noise nobody knows more than chance, and the standard error says so.
    noise = choose_head(noise_of(40), LABELS, 4)
    assert all(row.score < 0.25 + 4 * (row.error or 1) for row in noise.candidates)
    assert all(row.log_loss > 1.2 for row in noise.candidates)
    assert not choose_head(x, LABELS, 4, groups=np.zeros(40)).candidates  # one patient
    for groups in (None, [0, 0, 1, 2]):
        alone = choose_head(x[:4], LABELS[:4], 4, groups=groups)
        assert alone.reason.startswith("no class has two images")
    few = np.flatnonzero((LABELS != 3) | (np.arange(40) < 4))  # one image of the last class
    for groups in (None, few):
        assert choose_head(x[few], LABELS[few], 4, groups=groups).measure == "balanced_accuracy"
    # Of copies, one would answer for the other.
    once = noise_of(20), LABELS[:20], range(20)
    twice, labels, groups = (np.repeat(a, 2, axis=0) for a in once)
    alone, grouped = (choose_head(twice, labels, 4, groups=g) for g in (None, groups))
    assert alone.candidates[-1].score > 0.9 > 0.6 > grouped.candidates[-1].score


def noise_of(count: int) -> np.ndarray:
    return np.random.default_rng(2).normal(size=(count, 16))


def outcomes(gain: float, spread: float, count: int = 40, expected: bool = False) -> Any:
    rng, labels = np.random.default_rng(1), np.arange(count) % 4
    frozen = rng.normal(size=(count, 4)) + 1.5 * np.eye(4)[labels]
    better = gain + spread * rng.normal(size=count)
    tuned = frozen + better[:, None] * np.eye(4)[labels]
    tuning = Tuning(None, RECIPE, TuningPlan(3, 0, is_expected=expected), Path(), {})
    choice = choose_head(frozen, labels, 4)
    return compare(choice, tuning, labels, frozen, tuned)


def test_fine_tuned_weights_win_by_a_standard_error_or_not_at_all() -> None:
    better, equal, worse = (outcomes(gain, 0.5) for gain in (1.0, 0.0, -1.0))
    assert [one.is_kept for one in (better, equal, worse)] == [True, False, False]
    assert "does not win by more than a standard error on 40 unseen" in equal.reason
    better, worse = (outcomes(gain, 0.5, expected=True) for gain in (0.1, -0.05))  # by little
    assert [one.is_kept for one in (better, worse)] == [True, False]
    assert "fine-tuning wins on 40" in better.reason
    of_one = outcomes(9.0, 0.0, count=1)
    assert (of_one.is_kept, of_one.candidates[1].error) == (False, None)
    # Copies of an image are one witness.
    values, ones = np.array([0.3, -0.1, 0.2, 0.4]), np.ones(8)
    once = mean_and_error(values, ones[:4], np.arange(4))
    twice = mean_and_error(np.repeat(values, 2), ones, np.repeat(np.arange(4), 2))
    assert twice == pytest.approx(once)
    assert mean_and_error(values[:1], ones[:1], np.arange(1))[1] == float("inf")


def test_a_plan_fits_its_limit() -> None:
    recipe = replace(get("finetune_measured"), epochs=10)
    limits = [plan_tuning(100, recipe, most) for most in (None, 4000, 1500, 10)]
    assert [plan and plan.folds for plan in limits] == [3, 3, 0, None]
    assert plan_tuning(50_000, recipe).folds == 0  # one fine-tuning there always is
    many = replace(recipe, epochs=30, batch_size=32)  # whose last batches are short
    assert {plan_tuning(count, many).folds for count in range(190, 205)} == {3}
    folds = [plan_tuning(100, recipe, **{way: False}).folds for way in ("is_expected", "can_fold")]
    assert [*folds, plan_tuning(100, recipe, is_expected=True).folds] == [3, 0, 2]
    refused("most_passes=0", plan_tuning, 100, recipe, 0)


def splits_of(count: int = 24, noise: float = 40) -> data.Splits:
    rng, labels = np.random.default_rng(0), np.arange(count) % 3
    patterns = rng.integers(60, 196, (3, 8, 8, 3))
    pixels = patterns[labels] + noise * rng.normal(size=(count, 8, 8, 3))
    pixels = pixels.clip(0, 255).astype("uint8")
    return common.splits_of(tuple("abc"), pixels, labels, (pixels[:6], labels[:6]))


def small_model(**changes: Any) -> Any:
    keras.utils.set_random_seed(0)
    sizes = {"patch_size": 4, "hidden_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 3}
    return keras_vit.VisionTransformer(**sizes, input_shape=(8, 8, 3), **changes)


def test_the_head_answers_as_the_closed_form(tmp_path: Path) -> None:
    splits, model = splits_of(), small_model(distilled=True)
    x, mirrored = (evaluation.features(model, splits.train, mirrored=m)[0] for m in (False, True))
    pixels = np.flip(splits.train.as_arrays()[0], 2)
    flipped = ArraySplit("train", ("a", "b", "c"), pixels.copy(), splits.train.labels())
    np.testing.assert_allclose(mirrored, evaluation.features(model, flipped)[0], atol=1e-5)
    head = choose_head(x, splits.train.labels(), 3).fit(x, splits.train.labels())
    model.get_layer("head_distillation").set_weights([np.ones((16, 3)), np.ones(3)])
    set_head(model, head)
    _, scores = evaluation.predict_split(model, splits.train)
    np.testing.assert_allclose(scores, head.scores(x), atol=1e-3)
    prepared = prepare(model, RECIPE, splits, tmp_path)._replace(plan=None)
    twin, options = small_model(distilled=True), {"prepared": prepared, "print_fn": str}
    fitted, choice, history = measured_fit(twin, RECIPE, splits, tmp_path, **options)
    np.testing.assert_allclose(evaluation.predict_split(fitted, splits.train)[1], scores, atol=1e-3)
    assert (history, choice.images, choice.left_out) == ({}, 0, "fine-tuning")
    # The mean with the mirror image would be that of two of these classes.
    sides = common.splits_of(("left", "right", "on"), *splits.train.as_arrays())
    options["prepared"] = prepared._replace(splits=sides)
    fitted, *_ = measured_fit(
        small_model(), replace(RECIPE, views="flip"), sides, tmp_path, **options
    )
    assert fitted.eval_transform.views is None


def test_files_that_occur_twice_do_not_answer_for_each_other(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 8, 8, 3), np.uint8).repeat(2, axis=0)
    twice = common.splits_of(tuple("abc"), pixels, np.repeat(np.arange(24) % 3, 2))
    prepared = prepare(small_model(), RECIPE, twice, tmp_path)._replace(plan=None)
    options = {"prepared": prepared, "print_fn": str}
    _, choice, _ = measured_fit(small_model(), RECIPE, twice, tmp_path, **options)
    assert choice.candidates[-1].score < 0.7  # of noise; its copy would say it


@pytest.mark.parametrize("wins", [False, True])
def test_the_winner_is_kept(wins: bool, tmp_path: Path, monkeypatch: Any) -> None:
    seen: list[int] = []

    def train(model: Any, recipe: Recipe, splits: Any, folder: Path, **_: Any) -> dict[str, Any]:
        """Moves the last bias by its learning rate, away from or toward every answer."""
        seen.append(len(splits.train))
        (folder / "checkpoints").mkdir(parents=True)
        head = model.get_layer("head")
        kernel, bias = head.get_weights()
        head.set_weights([kernel * (1 if wins else -1), bias + 1e4 * recipe.learning_rate])
        return {"loss": [0.5]}

    monkeypatch.setattr(measured_tuning, "fit", train)
    monkeypatch.setattr(measured_tuning.Comparison, "is_kept", wins)
    monkeypatch.setattr(measured_tuning.Comparison, "is_worse", not wins)
    splits, model = splits_of(), small_model()
    fitted, choice, history = measured_fit(model, RECIPE, splits, tmp_path, print_fn=str)
    assert choice.candidates[-1].name == "fine-tuned"
    if wins:
        assert (choice.selected, history, *seen) == ("fine-tuned", {"loss": [0.5]}, 16, 16, 16, 24)
    else:
        assert choice.selected in ("class means", "ridge", "logistic regression")
        assert seen == [16]  # the first fold was enough
        assert fitted is model
        x, labels = evaluation.features(model, splits.train)
        head = choose_head(x, labels, 3).fit(x, labels)
        np.testing.assert_allclose(
            evaluation.predict_split(fitted, splits.train)[1], head.scores(x), atol=1e-3
        )


def test_a_class_of_one_image_does_not_decide(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(measured_tuning.Comparison, "is_worse", False)  # every fold is tried
    splits, judge, seen = splits_of(), measured_tuning.judge, list[int]()

    def noted(labels: Any, scores: Any, weights: Any) -> Any:
        seen.extend(labels[weights > 0])
        return judge(labels, scores, weights)

    monkeypatch.setattr(measured_tuning, "judge", noted)
    train = splits.train.take(np.flatnonzero((np.arange(24) % 3 < 2) | (np.arange(24) == 2)))
    splits = replace(splits, splits={**splits.splits, "train": train})
    _, choice, _ = measured_fit(small_model(), RECIPE, splits, tmp_path, print_fn=str)
    assert choice.images == 16
    assert set(seen) == {0, 1}  # neither could know the last one
    # One known image says nothing of how sure a difference is.
    assert mean_and_error(np.ones(3), np.eye(3)[0], np.arange(3))[1] == float("inf")


def test_heads_of_some_images_know_every_class(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(measured_module, "MOST_COMPARED", 6)
    splits, labels = splits_of(), np.arange(24) % 3
    train = splits.train.take(np.flatnonzero((labels < 2) | (np.arange(24) == 5)))
    splits = replace(splits, splits={**splits.splits, "train": train})
    options = {"prepared": Prepared(None, splits), "print_fn": str}
    crops = replace(RECIPE, views="crops")
    fitted, *_ = measured_fit(small_model(), crops, splits, tmp_path, **options)
    assert np.asarray(fitted.get_layer("head").bias).min() > -100
    assert fitted.eval_transform.views == "crops"


def test_many_images_hold_some_out(tmp_path: Path) -> None:
    splits, model = splits_of(1200), small_model()
    prepared = prepare(model, RECIPE, splits, tmp_path)
    assert (len(prepared.held_out), len(prepared.splits.train), prepared.refits) == (201, 999, True)
    timed = prepare(model, RECIPE, splits, tmp_path, budget=3600)
    assert timed.plan == prepare(model, RECIPE, splits, tmp_path, budget=3600).plan
    refused("budget=-1", prepare, model, RECIPE, splits, tmp_path / "other", budget=-1)


TRAIN = "train --data photos --weights start.keras --recipe measured --image-size 32"
TRAIN += " --batch-size 16 --epochs 1 --out"


@pytest.mark.thorough
def test_a_killed_run_ends_with_the_same_table_and_weights(command, monkeypatch) -> None:
    monkeypatch.setattr(keras_vit, "export", lambda *_, **__: None)
    monkeypatch.setattr(measured_tuning.Comparison, "is_worse", False)  # every fold is tried
    color_photos(Path("photos"), 10)
    save_tiny("start.keras", hidden_dim=24, input_shape=(32, 32, 3))
    fit, calls = measured_tuning.fit, []
    printed = command(f"{TRAIN} whole")
    facts = json.loads(Path("whole/report.json").read_text("utf-8"))
    choice = facts["choice"]
    assert [row["name"] for row in choice["candidates"]][-1] == "fine-tuned"
    assert f"kept: {choice['selected']}, as fine-tuning" in printed
    assert f"Kept: {choice['selected']}, as " in Path("whole/report.md").read_text("utf-8")

    def interrupted(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return fit(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measured_tuning, "fit", interrupted)
        assert "--resume goes on" in command(f"{TRAIN} cut", status=130) + command.error
        photo = Path("photos/red/0.jpg").rename("photos/red/x.jpg")
        assert "images or labels have changed since" in command(f"{TRAIN} cut --resume", status=2)
        photo.rename("photos/red/0.jpg")
        assert "images, finished before" in command(f"{TRAIN} cut --resume")
    resumed = json.loads(Path("cut/report.json").read_text("utf-8"))
    assert (resumed["choice"], resumed["report"]) == (choice, facts["report"])
    assert_equal(*(keras.saving.load_model(f"{out}/model.keras") for out in ("whole", "cut")))


def test_auto_measures_where_it_was_shown_to_win(command: Command, monkeypatch: Any) -> None:
    def job(recipe: str | None) -> Job:
        return Job("photos", Path("run"), weights="file.npz", recipe=recipe)

    few, more = splits_of(57), splits_of(60)
    assert job_recipe.obstacle_to_measuring(job(None), few) == ""
    assert "20 images per class or more" in job_recipe.obstacle_to_measuring(job(None), more)
    assert job_recipe.obstacle_to_measuring(job("measured"), more) == ""
    monkeypatch.setattr(job_recipe, "FEW", 50)
    assert "10 images per class or more" in job_recipe.obstacle_to_measuring(job(None), few)
    lora, plain = replace(job("measured"), lora=4), replace(job("measured"), weights=None)
    refused(["recipe='measured'", "give weights="], job_recipe.recipe_of, plain)
    words = ["recipe='measured' compares ways of training", "--lora is one way"]
    refused(words, job_recipe.suited_recipe, lora, job_recipe.recipe_of(lora), more, print)
    for one, why in ((lora, "--lora is one way"), (plain, "with --weights")):
        words = ["budget=", why, "Leave it out"]
        refused(words, job_recipe.check_budget, replace(one, budget=60.0), more)
    job_recipe.check_budget(replace(job("measured"), budget=60.0), more)
    budgets = {"0.5s": "Give a time from 1s to 30d"}
    budgets |= {"10m --recipe deit": "--budget has no effect with --recipe deit"}
    for words, message in budgets.items():
        assert message in command(f"train --data x --weights y --out z --budget {words}", status=2)


@pytest.fixture
def parts() -> dict[str, Any]:
    rest, part = hold_out_to_choose(splits_of())
    model = small_model()
    x, y = evaluation.features(model, rest.train)
    set_head(model, evaluation.linear_probe(x, y, x, y))
    return {"model": model, "start": model.get_weights(), "rest": rest, "part": part}


def test_classes_that_gave_no_image_take_no_part(parts: dict[str, Any]) -> None:
    """They have more images to train on than those that gave one: a prior, and not a skill."""
    model, part, labels = parts["model"], parts["part"], parts["part"].labels()
    absent = labels[0]
    others = part.take(np.flatnonzero(labels != absent))
    before = accuracy(model, others, RECIPE)
    kernel, bias = model.get_layer("head").get_weights()
    bias[absent] += 1e4
    model.get_layer("head").set_weights([kernel, bias])
    assert accuracy(model, others, RECIPE) == before > 0


def test_the_better_weights_are_kept(parts: dict[str, Any]) -> None:
    model, start, part = parts["model"], parts["start"], parts["part"]
    kernel, bias = model.get_layer("head").get_weights()
    model.get_layer("head").set_weights([1.5 * kernel, 1.5 * bias])  # the same classes
    tuned = model.get_weights()
    kept, choice = choose_probe(model, RECIPE, start, part, parts["rest"].train)
    assert_equal(kept, tuned)
    assert (choice.selected, choice.linear_probe) == ("fine-tuned weights", choice.fine_tuned)
    assert "the fine-tuned weights are kept: they classify no fewer" in str(choice)
    assert json.loads(json.dumps(asdict(choice)))["images"] == len(part)
    for nothing in (None, part.take(np.arange(0))):
        _, choice = choose_probe(model, RECIPE, start, nothing)
        assert "weights are kept: there are no held-out training images" in str(choice)
    # Worse weights give way to the probe.
    model.set_weights([np.zeros_like(values) for values in start])  # the first class for all
    kept, choice = choose_probe(model, replace(RECIPE, tuned_share=0.9, views="flip"), start, part)
    assert_equal(kept, start)
    assert kept.eval_transform.views == "flip"
    assert (choice.selected, choice.images) == ("linear probe", len(part))
    assert choice.linear_probe == accuracy(kept, part, RECIPE) > choice.fine_tuned
    assert str(choice).endswith("the linear probe is kept: fine-tuning made it worse")
    model.set_weights([np.zeros_like(values) for values in start])
    again, choice = choose_probe(model, RECIPE, start, part, parts["rest"].train)
    assert "fitted again, on all 19 training images" in choice.reason
    assert_equal(again, kept)  # these images gave the first probe as well
    model.set_weights([np.zeros_like(values) for values in start])
    train = parts["rest"].train
    train = train.take(np.flatnonzero(train.labels() < 2))  # without the last class
    narrow, _ = choose_probe(model, RECIPE, start, part, train)
    assert np.asarray(narrow.get_layer("head").bias)[2] < -100


def test_a_run_below_a_probe_says_so() -> None:
    report = evaluation.classification_report([0, 0, 1, 1], [0, 0, 0, 0], ["a", "b"])
    facts, job = {"probe_scores": {"accuracy": 0.75}}, Job("photos", Path("run"))
    note = note_of_probe(report, facts, job)
    assert "a linear probe on the frozen features has accuracy 0.75" in note
    assert "the trained model 0.5: try --freeze-backbone" in note
    kept = {"probe_scores": {"accuracy": 0.75}, "choice": {"selected": "linear probe"}}
    assert not note_of_probe(report, facts, replace(job, freeze_backbone=True))  # it is that probe
    for facts in ({"probe_scores": {"accuracy": 0.5}}, {"probe_scores": {}}, {}, kept):
        assert not note_of_probe(report, facts, job)
    numbers = np.arange(20.0)[:, None]  # R2 of equal numbers is not defined
    train, val = (numbers, numbers.astype("float32")), (numbers[:4], np.ones((4, 1), "float32"))
    assert first_look(Regression(("x",)), train, val, RECIPE)[1].keys() == {"mae", "rmse"}


def arrays(counts: list[int]) -> data.Splits:
    labels = np.repeat(np.arange(len(counts)), counts).astype("int32")
    names = tuple(f"{i:03}" for i in range(len(counts)))
    images = np.arange(len(labels), dtype="uint8").repeat(64 * 3).reshape(-1, 8, 8, 3)
    return common.splits_of(names, images, labels)


@pytest.mark.parametrize(("counts", "held"), [
    ([50, 50], 20), ([10] * 5, 10), ([8, 8], 3), ([45, 1], 9), ([4000] * 3, 500), ([2] * 200, 80),
])  # fmt: skip
def test_what_is_held_out_leaves_enough(counts: list[int], held: int) -> None:
    splits = arrays(counts)
    rest, part = hold_out_to_choose(splits, seed=3)
    assert (len(part), len(rest.train)) == (held, sum(counts) - held)
    kept, given = (np.bincount(p.labels(), minlength=len(counts)) for p in (rest.train, part))
    assert kept.min() >= 1
    assert (kept > 1).sum() >= 2 or min(counts) == 1  # of two classes a probe needs two images
    assert (given <= np.ceil(0.2 * np.array(counts))).all()
    assert rest.val is splits.val
    np.testing.assert_array_equal(hold_out_to_choose(splits, seed=3)[1].labels(), part.labels())


def test_records_and_too_few_images_are_all_trained_on() -> None:
    splits = arrays([50, 50])  # and not an `IndexedSplit` to train on
    records = replace(splits, splits={**splits.splits, "train": SimpleNamespace(name="train")})
    for splits in (*map(arrays, ([2, 2], [1, 1, 1], [2, 1])), records):
        assert hold_out_to_choose(splits) == (splits, None)
