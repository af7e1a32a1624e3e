"""Of a linear probe and the weights fine-tuned from it, a run keeps the better ones."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit import data, evaluation
from keras_vit.data.sources.array_splits import ArraySplit
from keras_vit.training.probe_choice import accuracy, choose_probe
from keras_vit.training.recipes import Recipe
from keras_vit.training.refinement import set_head
from keras_vit.training.training_set import hold_out_to_choose
from keras_vit_cli import commands as cli
from keras_vit_cli.train.job import Job
from keras_vit_cli.train.record import note_of_probe
from tests.training.common import assert_equal

pytest.importorskip("sklearn")
pytestmark = pytest.mark.usefixtures("own_cache")

NOTHING = "no held-out training images to compare them with the linear probe"


@pytest.mark.slow
def test_the_better_probe_is_kept(folder: Path, weights: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "run"
    words = ["train", "--data", folder, "--weights", weights, "--out", out, "--image-size", 32]
    words += ["--recipe", "finetune_few", "--batch-size", 16, "--augment", "none", "--epochs", 1]
    # Destroys what the weights know.
    assert cli.main([*map(str, words), "--learning-rate", "8.0"]) == 0
    facts = json.loads((out / "report.json").read_text("utf-8"))
    printed, choice = capsys.readouterr().out, facts["choice"]
    assert (choice["selected"], choice["images"]) == ("linear probe", 5)  # a fifth of 24
    assert choice["fine_tuned"] < choice["linear_probe"]
    line = (
        f"on 5 training images held out: linear probe {choice['linear_probe']:.2%}, after "
        f"fine-tuning {choice['fine_tuned']:.2%}; the linear probe is kept: fine-tuning made it "
        "worse; its head is fitted again, on all 24 training images"
    )
    assert line in printed
    assert facts["report"]["scores"]["accuracy"][0] >= 0.75
    kept = "Kept: the linear probe, as fine-tuning made it worse"
    assert kept in (out / "report.md").read_text("utf-8")
    kept, start = (keras.saving.load_model(path) for path in (out / "model.keras", weights))
    for layer in start.layers:
        if layer.name != "head":
            assert_equal(kept.get_layer(layer.name), layer)


@pytest.fixture(scope="module")
def probed(folder: Path, weights: Path) -> dict[str, Any]:
    rest, part = hold_out_to_choose(data.load(str(folder)))
    model = keras.saving.load_model(weights).with_classifier(3)
    x, y = evaluation.features(model, rest.train)
    set_head(model, evaluation.linear_probe(x, y, x, y))
    return {"start": model.get_weights(), "rest": rest, "part": part}


@pytest.fixture
def parts(probed: dict[str, Any], weights: Path) -> dict[str, Any]:
    model = keras.saving.load_model(weights).with_classifier(3)
    model.set_weights(probed["start"])
    return {**probed, "model": model}


RECIPE = Recipe(source="", model={}, image_size=32, epochs=1, batch_size=16, learning_rate=1e-3)


def test_classes_that_gave_no_image_take_no_part(parts: dict[str, Any]) -> None:
    """They have more images to train on than those that gave one: a prior, and not a skill."""
    model, part, labels = parts["model"], parts["part"], parts["part"].labels()
    absent = labels[0]
    others = part.take(np.flatnonzero(labels != absent))
    before = accuracy(model, others, 16)
    kernel, bias = model.get_layer("head").get_weights()
    bias[absent] += 1e4
    model.get_layer("head").set_weights([kernel, bias])
    assert accuracy(model, others, 16) == before > 0


def test_the_better_weights_are_kept(parts: dict[str, Any]) -> None:
    model, start, part = parts["model"], parts["start"], parts["part"]
    kernel, bias = model.get_layer("head").get_weights()
    model.get_layer("head").set_weights([1.5 * kernel, 1.5 * bias])  # the same classes
    tuned = model.get_weights()
    kept, choice = choose_probe(model, RECIPE, start, part, parts["rest"].train)
    assert_equal(kept, tuned)
    assert (choice.selected, choice.linear_probe) == ("fine-tuned weights", choice.fine_tuned)
    assert "the fine-tuned weights are kept: they classify no fewer" in str(choice)
    assert json.loads(json.dumps(choice.to_dict()))["images"] == len(part)
    _, choice = choose_probe(model, RECIPE, start, None)
    assert str(choice) == f"the fine-tuned weights are kept: there are {NOTHING}"
    # Worse weights give way to the probe.
    model.set_weights([np.zeros_like(values) for values in start])  # the first class for all
    kept, choice = choose_probe(model, replace(RECIPE, tuned_share=0.9, views="flip"), start, part)
    assert_equal(kept, start)
    assert kept.eval_transform.views == "flip"
    assert (choice.selected, choice.images) == ("linear probe", len(part))
    assert choice.linear_probe == accuracy(kept, part, 16) > choice.fine_tuned
    assert str(choice).endswith("the linear probe is kept: fine-tuning made it worse")
    model.set_weights([np.zeros_like(values) for values in start])
    again, choice = choose_probe(model, RECIPE, start, part, parts["rest"].train)
    assert "fitted again, on all 19 training images" in choice.reason
    assert_equal(again, kept)  # these images gave the first probe as well


def test_a_run_below_a_probe_says_so() -> None:
    report = evaluation.classification_report([0, 0, 1, 1], [0, 0, 0, 0], ["a", "b"])
    facts, job = {"probe_scores": {"accuracy": 0.75}}, Job("photos", Path("run"))
    note = note_of_probe(report, facts, job)
    assert "a linear probe on the frozen features has accuracy 0.75" in note
    assert "the trained model 0.5: try --freeze-backbone" in note
    kept = {"probe_scores": {"accuracy": 0.75}, "choice": {"selected": "linear probe"}}
    assert not note_of_probe(report, facts, replace(job, freeze_backbone=True))  # it is that probe
    for facts in ({"probe_scores": {"accuracy": 0.5}}, {}, kept):
        assert not note_of_probe(report, facts, job)


def arrays(counts: list[int]) -> data.Splits:
    labels = np.repeat(np.arange(len(counts)), counts).astype("int32")
    names = tuple(f"{i:03}" for i in range(len(counts)))
    images = np.arange(len(labels), dtype="uint8").repeat(64 * 3).reshape(-1, 8, 8, 3)
    train = ArraySplit("train", names, images, labels)
    return data.Splits("arrays", names, {"train": train, "val": train})


TO_HOLD_OUT = [([50, 50], 20), ([10] * 5, 10), ([8, 8], 3), ([45, 1], 9), ([4000] * 3, 500)]


# The last one is three images of each class, one of them to validate on.
@pytest.mark.parametrize(("counts", "held"), [*TO_HOLD_OUT, ([2] * 200, 80)])
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
