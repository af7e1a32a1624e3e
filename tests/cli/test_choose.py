"""`keras-vit choose` and `train --weights auto`: from photographs to the best of some weights."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace as Names
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.curation import embedding, neighbors_answers, ridge_answers
from keras_vit_cli.choose import local_weights as local
from keras_vit_cli.train.weights_choice import best_within_error
from tests.cli.conftest import Command
from tests.cli.helpers import color_photos, rows_of
from tests.data.image_fixtures import write

pytestmark = pytest.mark.usefixtures("inside")
SIZES = {"patch_size": 4, "hidden_dim": 16, "num_heads": 2, "input_shape": (8, 8, 3)}
CHOOSE = "choose photos --out choice --among one.keras"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    color_photos(folder / "photos", 15, ".png", brighter=3)
    for seed, name in enumerate(("one", "other")):
        keras.utils.set_random_seed(seed)
        model = keras_vit.VisionTransformer(**SIZES, depth=1)
        keras_vit.save_weights(model, folder / f"{name}.keras")
    return folder


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


def test_drawn_images_names_and_errors(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr(embedding, "_write_rows", None)
    write(Path("mine"), {"notes.txt": b"mine"})
    for more, words in (
        ("--layers block_9", "No feature 'block_9'"),
        ("--poolings token", "--poolings has no effect"),
        ("--out mine --overwrite", "files that are not of an earlier choice"),
        ("--out photos/choice", "is, holds or lies in photos"),
    ):
        assert words in command(f"{CHOOSE} --out failed {more}", status=2)
        assert not Path("failed").exists()


TRAIN = "train --data photos --out run --image-size 8 --freeze-backbone --weights"


@pytest.mark.thorough
@pytest.mark.usefixtures("no_export")
def test_the_best_weights_are_trained_from(here: Path, command: Command) -> None:
    color_photos(here / "photos", 10, ".png")
    for depth in (1, 2):
        keras.utils.set_random_seed(depth)
        model = keras_vit.VisionTransformer(**SIZES, depth=depth)
        keras_vit.save_weights(model, here / f"zoo/{depth}/model.keras")
    (here / "zoo/broken.safetensors").write_bytes(b"not much")
    printed = command(f"{TRAIN} auto:zoo")
    assert "weights auto: 3 files and folders of weights on this machine" in printed
    assert "zoo/broken.safetensors left out: " in printed
    facts = json.loads(Path("run/report.json").read_text("utf-8"))["weights"]
    assert facts["chosen"] in ("zoo/1", "zoo/2")
    job = json.loads(Path("run/config.json").read_text("utf-8"))["job"]
    assert job["weights"] == facts["chosen"]
    assert "## Weights compared" in Path("run/report.md").read_text("utf-8")
    Path("runs").mkdir()
    Path("run").rename("runs/first")
    error = command(f"{TRAIN} auto:runs --overwrite", status=2)
    assert "none of 1 file or folder of weights can be used" in error
    assert "give images that it has not seen" in error
    assert "there are none in photos: give --weights" in command(f"{TRAIN} auto:photos", status=2)
    error = command(f"{TRAIN} auto:zoo --model ViT-Ti/16 --overwrite", status=2)
    assert "leave --model out" in error


def test_downloads_and_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(FileNotFoundError, match=r"there are none in .*keras_vit and .*hub: give"):
        local.local_weights()
    row = keras_vit.list_weights("ViT-Ti/16")[0]
    (tmp_path / "keras_vit").mkdir()
    (tmp_path / "keras_vit" / row.file_name).write_bytes(bytes(9))
    snapshot = tmp_path / "hub/models--a--b/snapshots/0"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").write_bytes(bytes(3))
    (tmp_path / "hub/models--a--empty").mkdir()
    sizes = local.local_weights()
    assert list(sizes.items()) == [(str(tmp_path / "hub/models--a--b"), 3), (row.name, 9)]


def test_the_smallest_within_one_standard_error() -> None:
    def choice(value: float, parameters: int) -> Any:
        score = Names(value=value, low=value - 0.0392, high=value + 0.0392)  # an error of 0.02
        return Names(probe=score, parameters=parameters)

    choices = [choice(0.9, 30), choice(0.89, 20), choice(0.881, 10), choice(0.87, 1)]
    assert best_within_error(choices).parameters == 10


def test_images_of_a_group_do_not_answer_each_other() -> None:
    random = np.random.default_rng(0)
    x, groups = random.normal(size=(24, 5)), np.repeat(np.arange(8), 3)
    y = x[:, :2] + random.normal(0, 0.1, (24, 2))
    answers = ridge_answers(x, y, penalties=[2.0], groups=groups).answers
    ridge = pytest.importorskip("sklearn.linear_model").Ridge(2.0)
    votes = neighbors_answers(x, y, k=1, groups=groups)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    for row, group in enumerate(groups):
        others = groups != group
        expected = ridge.fit(x[others], y[others]).predict(x[row : row + 1])[0]
        assert answers[row] == pytest.approx(expected, abs=1e-8)
        assert votes[row] == pytest.approx(y[others][(unit[others] @ unit[row]).argmax()])
    with pytest.raises(ValueError, match="two groups at least"):
        ridge_answers(x, y, groups=np.zeros(24))
