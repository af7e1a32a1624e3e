"""Of a linear probe and the weights fine-tuned from it, a run keeps the better ones."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import data, evaluation
from keras_vit.data.sources.array_splits import ArraySplit
from keras_vit.training.probe_choice import accuracy, choose_probe, hold_out_to_choose
from keras_vit.training.recipes import Recipe
from keras_vit.training.refinement import set_head
from keras_vit_cli import commands as cli
from keras_vit_cli.train.job import Job
from keras_vit_cli.train.record import note_of_probe
from tests.training.common import assert_equal

image = pytest.importorskip("PIL.Image")
pytest.importorskip("sklearn")

NOTHING = "no held-out training images to compare them with the linear probe"
RUINING = ("--epochs", "1", "--learning-rate", "8.0")  # destroys what the weights know


def photographs(folder: Path, classes: int, count: int, noise: float = 30) -> Path:
    """Each class is a pattern of 16 colors, each image that pattern under noise."""
    random = np.random.default_rng(0)
    for c in range(classes):
        (folder / f"{c:03}").mkdir(parents=True)
        pattern = np.kron(random.integers(40, 216, (4, 4, 3)), np.ones((8, 8, 1)))
        for i in range(count):
            pixels = (pattern + noise * random.normal(size=pattern.shape)).clip(0, 255)
            image.fromarray(pixels.astype("uint8")).save(folder / f"{c:03}" / f"{i}.png")
    return folder


def saved(path: Path, hidden_dim: int = 24) -> Path:
    keras.utils.set_random_seed(0)
    sizes = {"patch_size": 8, "hidden_dim": hidden_dim, "depth": 1, "num_heads": 2}
    keras_vit.VisionTransformer(**sizes, input_shape=(32, 32, 3), num_classes=2).save(path)
    return path


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("weights") / "start.keras")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photographs(tmp_path_factory.mktemp("photographs") / "p", classes=3, count=10)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))


def words_of(folder: Path, weights: Path, out: Path, *options: str) -> list[str]:
    words = ["train", "--data", str(folder), "--weights", str(weights), "--out", str(out)]
    words += ["--recipe", "finetune_few", "--image-size", "32", "--batch-size", "16"]
    return [*words, "--augment", "none", *options]


def run(folder: Path, weights: Path, out: Path, *options: str) -> dict[str, Any]:
    assert cli.main(words_of(folder, weights, out, *options)) == 0
    return json.loads((out / "report.json").read_text("utf-8"))


@pytest.mark.slow
def test_the_better_probe_is_kept(folder: Path, weights: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "run"
    facts = run(folder, weights, out, *RUINING)
    printed, choice = capsys.readouterr().out, facts["choice"]
    assert (choice["selected"], choice["images"]) == ("linear probe", 5)  # a fifth of 24
    assert choice["fine_tuned"] < choice["linear_probe"]
    line = (
        f"on 5 training images held out: linear probe {choice['linear_probe']:.2%}, after "
        f"fine-tuning {choice['fine_tuned']:.2%}; the linear probe is kept: fine-tuning made it "
        "worse; its head is fitted again, on all 24 training images"
    )
    assert line in printed
    assert "1 epoch of 2 steps of 16 images" in printed
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


@pytest.mark.slow
@pytest.mark.parametrize("held_out", ["0", "0.45"])
def test_held_out_is_followed(held_out: str, weights: Path, tmp_path: Path, capsys: Any) -> None:
    """0 trains on all images, and compares nothing; a fraction sets the temperature as well."""
    folder = photographs(tmp_path / "photographs", classes=3, count=20)  # 48 to train on
    facts = run(folder, weights, tmp_path / "run", *RUINING, "--held-out", held_out)
    printed = capsys.readouterr().out
    if held_out == "0":
        assert NOTHING in printed
        assert facts["choice"]["images"] == 0
        assert "note: a linear probe on the frozen features reaches" in printed
    else:
        assert facts["choice"]["images"] == facts["held_out"] == 22
        assert facts["choice"]["selected"] == "linear probe"
        assert "fitted again" not in printed  # on images that set the temperature
        assert "temperature" in facts


@pytest.mark.slow
def test_a_resumed_run_chooses_alike(folder: Path, weights: Path, tmp_path: Path) -> None:
    def interrupted(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    whole, cut, epochs = tmp_path / "whole", tmp_path / "cut", ("--epochs", "2")
    expected = run(folder, weights, whole, *epochs)["choice"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keras_vit_cli.train.run.choose", interrupted)
        assert cli.main(words_of(folder, weights, cut, *epochs)) == 130
    assert run(folder, weights, cut, *epochs, "--resume")["choice"] == expected
    assert_equal(*(keras.saving.load_model(out / "model.keras") for out in (cut, whole)))


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


@pytest.mark.slow
def test_200_classes_of_three_images(tmp_path: Path) -> None:
    folder = photographs(tmp_path / "photographs", classes=200, count=3, noise=10)
    weights, accuracies = saved(tmp_path / "start.keras", hidden_dim=128), {}
    for name, options in (("probe", ["--freeze-backbone"]), ("tuned", ["--epochs", "3"])):
        words = words_of(folder, weights, tmp_path / name)
        if name == "probe":  # features are computed once
            words = words[: words.index("--augment")]
        # Without augmentation, fine-tuning does not average over mirrored views.
        assert cli.main([*words, *options, "--learning-rate", "0.02", "--views", "one"]) == 0
        facts = json.loads((tmp_path / name / "report.json").read_text("utf-8"))
        accuracies[name] = facts["report"]["scores"]["accuracy"][0]
    assert (facts["choice"]["images"], facts["choice"]["selected"]) == (80, "linear probe")
    assert facts["choice"]["linear_probe"] > 0.3
    assert accuracies["tuned"] == accuracies["probe"] > 0.3  # fitted again on all images


@pytest.mark.slow
def test_700_classes_of_three_images_take_less_than_4_gib(tmp_path: Path, run_python: Any) -> None:
    pytest.importorskip("matplotlib")
    folder = photographs(tmp_path / "photographs", classes=700, count=3)
    code = """
import resource, sys
from keras_vit_cli import commands as cli
words = ["--data", sys.argv[1], "--out", sys.argv[2], "--epochs", "1", "--image-size", "32"]
assert cli.main(["train", *words]) == 0
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""
    printed = run_python(code, None, str(folder), str(tmp_path / "run"))
    assert float(printed.split()[-1]) < 4
    assert "the 40 classes with most mistakes of 700" in printed
    assert "1 epoch of" in printed
    assert max(image.open(tmp_path / "run" / "confusion.png").size) < 4000
