"""The command line, as a user types it."""

import json
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest

from keras_vit_cli import commands as cli
from tests.cli.conftest import Command
from tests.cli.helpers import color_photos, save_tiny

pytestmark = pytest.mark.usefixtures("small_recipe", "here")
IN_A_RUN = """SHA256SUMS model.keras saved_models report.json report.md report.html curves.png
confusion.png calibration.png mistakes.png best.keras history.csv config.json images.csv"""
LORA = pytest.param("--lora 2 --epochs 1", marks=pytest.mark.thorough)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = color_photos(tmp_path_factory.mktemp("photographs") / "of", 20)
    (folder / "red" / "broken.jpg").write_bytes(b"\xff\xd8 not much more")
    return folder


def training(photographs: Path, out: str | Path = "colors", epochs: int = 1) -> list[str]:
    words = ["train", "--data", str(photographs), "--out", str(out), "--epochs", str(epochs)]
    return [*words, "--image-size", "16", "--batch-size", "8"]


@pytest.fixture(scope="module")
def run(photographs: Path, small_recipe: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "colors"
    keras.utils.set_random_seed(0)
    assert cli.main([*training(photographs, out, 6), "--learning-rate", "0.001"]) == 0
    return out


@pytest.mark.every_backend
def test_train_writes_everything(run: Path, photographs: Path, command: Command) -> None:
    assert {path.name for path in run.iterdir()} == set(IN_A_RUN.split())
    assert (run / "saved_models" / "colors" / "1" / "saved_model.pb").is_file()
    facts = json.loads((run / "report.json").read_text())
    assert facts["report"]["scores"]["accuracy"][0] >= 0.9
    assert facts["data"] == {"train": 32, "val": 8}
    assert [Path(path).name for path, _ in facts["bad_files"]] == ["broken.jpg"]
    page = (run / "report.md").read_text()
    assert str(photographs.parent) not in page
    model = keras.saving.load_model(run / "model.keras")
    assert model.class_names == ("green", "red")
    assert not model.compiled  # the optimizer would triple the file
    files = [photographs / "green/0.jpg", photographs / "red/3.jpg"]
    printed = command("predict", run, *files, "--top", "1")
    first, second = [line for line in printed.splitlines() if "%" in line]
    assert "green" in first.split("│")[2]
    assert "red" in second.split("│")[2]
    assert "--overwrite" in command("train", "--data", photographs, "--out", run, status=2)


def test_evaluate_lists_left_out_files(tmp_path: Path, photographs: Path, command: Command) -> None:
    folder = shutil.copytree(photographs, tmp_path / "photographs")
    (folder / "red" / "notes.txt").write_text("of the trip")
    model = save_tiny(tmp_path / "m.keras")
    with warnings.catch_warnings():  # as outside of pytest, which keeps them for itself
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = lambda *seen: sys.stderr.write(warnings.formatwarning(*seen[:4]))
        printed = command("evaluate", model, "--data", folder)
    for file in ("notes.txt", "broken.jpg"):
        assert (printed + command.error).count(f"{folder / 'red' / file}") == 1
    assert command.error.startswith("keras-vit: warning: 1 of 41 files cannot be decoded")


@pytest.mark.usefixtures("no_export")
@pytest.mark.parametrize("options", [LORA, "--freeze-backbone"])
def test_lora_and_frozen_body(options: str, run: Path, photographs: Path, command: Command) -> None:
    words = f"train --out runs/cheap --image-size 16 --batch-size 8 {options} --data"
    assert "weights" in command(words, photographs, status=2)
    command(words, photographs, "--weights", run / "model.keras")
    files = (run / "model.keras", "runs/cheap/model.keras")
    before, after = map(keras.saving.load_model, files)
    assert after.count_params() == before.count_params()  # LoRA's are folded in
    moved = not np.array_equal(*(m.get_layer("block_0").get_weights()[2] for m in (before, after)))
    assert moved == ("--lora" in options)


def test_average(run: Path, photographs: Path, command: Command) -> None:
    model = keras.saving.load_model(run / "model.keras")
    model.set_weights([2 * weights for weights in model.get_weights()])
    model.save("twice.keras")
    words = ["average", run, "twice.keras", "--out", "soup.keras"]
    command(*words)
    before, after = map(keras.saving.load_model, (run / "model.keras", "soup.keras"))
    assert after.class_names == ("green", "red")
    for tensor, mean in zip(before.get_weights(), after.get_weights(), strict=True):
        np.testing.assert_allclose(mean, 1.5 * tensor, rtol=1e-5)
    command(*words, "--overwrite", "--start", run)  # Model Stock
    model.class_names = ("green", "blue")
    model.save("other.keras")
    for more, reason in (
        ("twice.keras --out soup.keras", "overwrite"),  # it is there
        ("--out one.keras", "two or more"),
        ("twice.keras --out soup.h5", ".keras"),
        ("other.keras --out x.keras", "the classes green, blue, and"),
    ):
        assert reason in command("average", run, *more.split(), status=2)
    words = ["evaluate", run / "saved_models/colors/1", "--data", photographs, "--views"]
    assert "is an exported file" in command(*words, "flip", status=2)


@pytest.mark.thorough  # test_kills resumes a killed one
@pytest.mark.usefixtures("no_export")
def test_a_run_is_resumed_with_its_own_options(
    photographs: Path, monkeypatch: Any, command: Command
) -> None:
    words = [*training(photographs), "--sam", "--patience", "3", "--augment", "tiny"]
    with monkeypatch.context() as patch:
        stop = mock.Mock(side_effect=KeyboardInterrupt)
        patch.setattr("keras_vit_cli.train.run.predict_outcomes", stop)
        patch.setattr("sys.argv", ["keras-vit", *words])
        command(*words, status=130)
    assert not Path("colors").exists()
    assert "--resume" in command(*words, status=2)  # something would be lost
    words.append("--resume")
    monkeypatch.setattr("sys.argv", ["keras-vit", *words])
    assert "seed was '0', is '1'" in command(*words, "--seed", "1", status=2)
    photo, *_, other = sorted(photographs.rglob("*.jpg"))[:30]
    contents = photo.read_bytes()
    photo.write_bytes(other.read_bytes())
    assert "images_sha256 was" in command(*words, status=2)  # of those it trained on
    photo.write_bytes(contents)
    assert "finished already, at step 4" in command(*words, "--checkpoint-every", "0")
    config = json.loads(Path("colors/config.json").read_text("utf-8"))
    assert config["command"].endswith("--augment tiny"), "the command that started the run"
    assert config["job"]["augment"] == ["tiny"]
    assert "nothing to resume" in command(*words)
    assert "seed was '0', is '1'" in command(*words, "--seed", "1", status=2)


def test_next_commands_and_damaged_models(photographs: Path, command: Command) -> None:
    keras.saving.load_model(save_tiny("m.keras")).with_classifier(0).save("body.keras")
    photo = photographs / "red/3.jpg"
    for words, last in (
        (["convert m.keras", "my weights.keras"], "keras-vit predict 'my weights.keras' photo.jpg"),
        (["convert body.keras bare.keras"], "keras-vit evaluate bare.keras --data DATA --probe"),
        (["average m.keras m.keras --out soup.keras"], "keras-vit evaluate soup.keras --data DATA"),
        (["inspect m.keras", photo, "--out", "pages"], "open pages/index.html in a browser"),
        (["export m.keras --out colors/2"], "keras-vit predict colors/2 photo.jpg"),
    ):
        assert command(*words).splitlines()[-1] == f"next: {last}"
    command("predict soup.keras", photo)
    command("evaluate soup.keras --data", photographs)
    words = ["predict m.keras", photo, "--max-pixels"]  # large images are left out
    assert "cannot be read" in " ".join(command(*words, "479", status=1).split())  # of 20 x 24
    assert "%" in command(*words, "480")
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save("other.keras")
    assert "not a model of keras_vit" in command("predict other.keras", photo, status=2)


def test_list_and_plan(command: Command) -> None:
    printed = command("list", "ViT-B*")
    assert "86,567,656" in printed
    assert "ViT-L" not in printed
    printed = command("plan ViT-B/16 --image-size 384 --batch-size 4")
    assert "86,859,496" in printed
    _, *rows = command("list", "--weights", "dinov2").splitlines()
    assert ["dinov2" in row for row in rows] == [True] * 15
    assert len(command("list", "--weights").splitlines()) > 100
