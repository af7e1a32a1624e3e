"""`keras-vit choose`, `train --weights auto` and `pretrain`: to the best weights by photographs."""

import json
import os
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace as Names
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.curation import embedding
from keras_vit.data.seen_images import TRAINED, VALIDATED
from keras_vit.models import variants
from keras_vit.tasks.scores import Score
from keras_vit_cli.pretrain import pretrain_command
from keras_vit_cli.train.weights_choice import best_within_error, local_weights
from tests import processes
from tests.backend import refused
from tests.cli.helpers import color_photos, rows_of, sums, weights_of
from tests.conftest import Command
from tests.data.image_fixtures import write

SIZES = {"patch_size": 4, "hidden_dim": 16, "num_heads": 2, "input_shape": (8, 8, 3)}
CHOOSE = "choose photos --out choice --among one.keras"


def save_vit(file: str | Path, seed: int, **sizes: int) -> Any:
    keras.utils.set_random_seed(seed)
    model = keras_vit.VisionTransformer(**SIZES, **sizes)
    keras_vit.save_weights(model, file)
    return model


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    color_photos(folder / "photos", 15, ".png", brighter=3)
    for seed, name in enumerate(("one", "other")):
        save_vit(folder / f"{name}.keras", seed, depth=1)
    return folder


@pytest.mark.usefixtures("inside")
def test_weights_layers_and_sizes(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    more = "--layers pre_logits block_0 --poolings token --sizes 12"
    printed = command(f"{CHOOSE} other.keras {more}")
    assert "24 training images of photos: classification of 2 classes" in printed
    assert "accuracy of 24 images, each answered by all others" in printed
    assert "next: keras-vit train --data photos --weights" in printed
    rows = rows_of("choice/choice.csv")
    layers = [("pre_logits", ""), ("block_0", "token")]
    asked = {(f"{name}.keras", "12", *each) for name in ("one", "other") for each in layers}
    keys = ("weights", "height", "layer", "pooling")
    assert {tuple(row[key] for key in keys) for row in rows} == asked
    scores = [float(row["probe_accuracy"]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > 0.9
    # The second call finds its features, and replaces what the first has written when asked to.
    monkeypatch.setattr(embedding, "_write_rows", None)
    assert "choice is not empty" in command(f"{CHOOSE} {more}", status=2)
    command(f"{CHOOSE} {more} --overwrite")
    of_one = [row for row in rows if row["weights"] == "one.keras"]
    for again, row in zip(rows_of("choice/choice.csv"), of_one, strict=True):
        assert {**again, "images_per_second": row["images_per_second"]} == row


@pytest.mark.usefixtures("inside")
def test_drawn_images_and_names(command: Command) -> None:
    names = ("small/model.keras", "large/model.keras")
    for name, source in zip(names, ("one", "other"), strict=True):
        Path(name).parent.mkdir()
        shutil.copy(f"{source}.keras", name)
    printed = command("choose photos --out drawn --images 12 --among", *names)
    assert "12 of 24 training images of photos" in printed
    assert [row["images"] for row in rows_of("drawn/choice.csv")] == ["12", "12"]
    for name in names:  # files of one name are told apart
        assert f" {name} " in printed  # in the table
        assert f"\n{name}, 8 pixels" in f"\n{printed}"


TRAIN = "train --data photos --out run --freeze-backbone --weights"


@pytest.mark.thorough
@pytest.mark.usefixtures("no_export")
def test_the_best_weights_are_trained_from(here: Path, command: Command) -> None:
    color_photos(here / "photos", 10, ".png")
    for depth in (1, 2):
        save_vit(here / f"zoo/{depth}/model.keras", depth, depth=depth)
    (here / "zoo/broken.safetensors").write_bytes(b"not much")
    printed = command(f"{TRAIN} auto:zoo")
    assert "weights auto: 3 files and folders of weights on this machine" in printed
    assert "zoo/broken.safetensors left out: " in printed
    facts = json.loads(Path("run/report.json").read_text("utf-8"))["weights"]
    assert facts["chosen"] in ("zoo/1", "zoo/2")
    config = json.loads(Path("run/config.json").read_text("utf-8"))
    assert (config["job"]["weights"], config["recipe"]["image_size"]) == (facts["chosen"], 8)
    assert "## Weights compared" in Path("run/report.md").read_text("utf-8")
    assert "run is finished: there is" in command(f"{TRAIN} auto:zoo --resume")
    (here / "runs").mkdir()
    Path("run").rename("runs/first")
    error = command(f"{TRAIN} auto:runs --overwrite", status=2)
    assert "none of 1 file or folder of weights can be used" in error
    assert "give images that it has not seen" in error
    assert "there are none in photos: give --weights" in command(f"{TRAIN} auto:photos", status=2)
    assert "leave --model out" in command(f"{TRAIN} auto:zoo --model ViT-B/8", status=2)


def test_downloads_and_the_hub(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(here / "hub"))
    words = "there are none in .*keras_vit and .*hub: give"
    refused(words, local_weights, error=FileNotFoundError)
    row = keras_vit.list_weights("ViT-Ti/16")[0]
    snapshot = "hub/models--a--b/snapshots/0/model.safetensors"
    write(here, {f"keras_vit/{row.file_name}": bytes(9), snapshot: bytes(3)})
    (here / "hub/models--a--empty").mkdir()
    sizes = local_weights()
    assert list(sizes.items()) == [(str(here / "hub/models--a--b"), 3), (row.name, 9)]


def test_the_smallest_within_one_standard_error() -> None:
    def choice(value: float, parameters: int) -> Any:
        score = Names(value=value, low=value - 0.0392, high=value + 0.0392)  # an error of 0.02
        return Names(probe=score, parameters=parameters)

    choices = [choice(0.9, 30), choice(0.89, 20), choice(0.881, 10), choice(0.87, 1)]
    assert best_within_error(choices).parameters == 10
    best = Names(probe=Score(1.0, -np.inf, np.inf), parameters=40)  # without a mistake
    assert best_within_error([*choices, best]) is best


PRETRAIN = "pretrain photos --weights one.keras --blocks 1 --epochs 2 --batch-size 16 --out out"


@pytest.fixture
def one_and_blind(here: Path) -> None:
    """Photographs, a model with a head, which must not stay, and one that does not see anything."""
    photos = color_photos(here / "photos", 60, ".png")
    shutil.copy(photos / "red/0.png", photos / "red/copy.png")
    write(photos, {"red/broken.png": b"\x89PNG no", "notes.txt": b"mine"})
    model = save_vit("one.keras", 0, depth=2, num_classes=3)
    kernel = model.get_layer("patch_embedding").weights[0]
    kernel.assign(np.zeros(kernel.shape, "float32"))
    keras_vit.save_weights(model, "blind.keras")


def stub(monkeypatch: pytest.MonkeyPatch, becomes: str | None = None) -> list[Any]:
    calls: list[Any] = []

    def train(model: Any, images: Any, folder: Path, **options: Any) -> dict[str, list[float]]:
        calls.append((images, options["method"]))
        if becomes is not None:
            model.set_weights(keras_vit.load(becomes, num_classes=0).get_weights())
        return {"loss": [1.0]}

    monkeypatch.setattr(pretrain_command, "train_on_instances", train)
    return calls


def facts() -> dict[str, Any]:
    return json.loads(Path("out/report.json").read_text("utf-8"))


@pytest.mark.usefixtures("one_and_blind")
def test_the_better_weights_are_kept(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = stub(monkeypatch)
    words = PRETRAIN.replace("one.keras", "blind.keras")
    printed = command(words)
    assert "no gain: kept blind.keras" in printed
    assert facts()["kept"] == "before"
    # One copy and the broken file are left out; what is compared by is not trained on.
    images, _ = calls[0]
    splits = keras_vit.data.load("photos", verify=False)
    apart = {file.name for file in splits.val.files if file.parent.name == "red"}
    trained = {file.name for file in images.files if file.parent.name == "red"}
    assert not apart & trained
    assert len(images) == len({*images.digests()})
    scored = facts()["comparison"]["scored"]
    assert scored in (23, 24)  # a copy may be one of them
    # A gain replaces them, and the model knows which images it was made with.
    stub(monkeypatch, "one.keras")
    printed = command(f"{words} --overwrite")
    assert "a gain of k-NN and linear probe: kept the trained weights" in printed
    model: Any = keras_vit.load("out")
    assert (model.num_classes, facts()["kept"]) == (0, "after")
    assert model.seen_images.counts[TRAINED] == len(images)
    assert model.seen_images.counts[VALIDATED] in (scored, scored - 1)
    for one, other in zip(weights_of(Path("out")), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    stub(monkeypatch, "blind.keras")
    assert "a loss of k-NN and linear probe: kept one" in command(f"{PRETRAIN} --overwrite")


@pytest.mark.usefixtures("one_and_blind")
def test_a_whole_call_and_what_follows(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    small = variants.Width(hidden_dim=16, depth=2, num_heads=2, mlp_dim=16)
    monkeypatch.setitem(variants.WIDTHS, "Ti", small)
    words = PRETRAIN.replace("--weights one.keras --blocks 1", "--weights none --image-size 16")
    printed = command(f"{words} --epochs 1 --budget 1s --keep after --labels none")
    assert "no labels: kept the trained weights, and nothing says that they are better" in printed
    assert facts()["comparison"] is None
    calls = stub(monkeypatch)
    for most, more, method in ((999, "", "diet"), (9, "", "visreg"), (9, "--method diet", "diet")):
        monkeypatch.setattr(pretrain_command, "MANY", most)
        printed = command(f"{words} --keep after --labels none --overwrite {more}")
        assert calls[-1][1] == facts()["method"] == method
        assert ("released weights, where they suit" in printed) == (not more)
    command(f"{PRETRAIN} --out again --weights out --image-size 32 --keep after --labels none")
    assert "with other options" in command(f"{PRETRAIN} --out again --resume", status=2)
    # A score of images that the weights were made with would say nothing.
    error = command(f"{PRETRAIN} --out third --weights out --image-size 16", status=2)
    assert "None of the 24 images of photos can be scored" in error


@pytest.mark.usefixtures("one_and_blind")
@pytest.mark.parametrize("method", ["diet", "visreg"])
def test_a_killed_process_ends_with_the_same_weights(method: str) -> None:
    photos, printed = sums(Path("photos")), Path("printed").absolute()

    def start(more: str) -> processes.WarmProcess:
        words = f"{PRETRAIN} --labels none --keep after --method {method} {more}"
        return processes.start("-m keras_vit_cli", *words.split(), printed=printed)

    whole = start("--out whole")
    assert whole.wait() == 0, whole.output()
    process = start("--checkpoint-every 0")
    while process.poll() is None and not [*Path().glob("out.partial/checkpoints/blocks/**/step-*")]:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, process.output()
    process = start("--resume")
    assert process.wait() == 0, process.output()
    assert "continues with step" in process.output()
    for one, other in zip(weights_of(Path("out")), weights_of(Path("whole")), strict=True):
        np.testing.assert_array_equal(one, other)
    assert sums(Path("photos")) == photos
    assert not Path("out.partial").exists()
