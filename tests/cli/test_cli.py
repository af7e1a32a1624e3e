"""The command line, as a user types it."""

import json
import shutil
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.training import recipes
from keras_vit_cli import commands as cli
from tests.data.image_fixtures import disorderly_folder
from tests.models.test_common import build

image = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes that differ by color, and a file that is not an image."""
    folder, random = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0)
    for channel, name in enumerate(("green", "red")):
        (folder / name).mkdir()
        for i in range(20):
            pixels = random.integers(0, 60, (40, 50, 3)).astype("uint8")
            pixels[..., 1 - channel] += 150
            image.fromarray(pixels).save(folder / name / f"{i}.jpg")
    (folder / "red" / "broken.jpg").write_bytes(b"\xff\xd8 not much more")
    return folder


@pytest.fixture(scope="module", autouse=True)
def _small_recipe() -> Iterator[None]:
    """One block instead of many: what is tested is what the commands make of their arguments."""
    recipe = recipes.get("from_scratch_tiny")
    small = {**recipe.model, "hidden_dim": 32, "mlp_dim": 64, "depth": 1, "num_heads": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(recipes.RECIPES, "from_scratch_tiny", replace(recipe, model=small))
        yield


@pytest.fixture
def _no_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SavedModel takes a third of a short training; `run` has one."""
    monkeypatch.setattr(keras_vit, "export_model", lambda *_, **__: None)


@pytest.fixture(scope="module")
def run(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "colors"
    keras.utils.set_random_seed(0)
    status = cli.main(
        [
            "train",
            "--data",
            str(photographs),
            "--out",
            str(out),
            "--epochs",
            "6",
            "--batch-size",
            "8",
            "--image-size",
            "16",
            "--learning-rate",
            "0.001",
        ]
    )
    assert status == 0
    return out


@pytest.mark.every_backend
def test_train_writes_everything(run: Path, photographs: Path) -> None:
    names = {path.name for path in run.iterdir()}
    assert names == {
        "SHA256SUMS",
        "model.keras",
        "saved_models",
        "report.json",
        "report.md",
        "curves.png",
        "confusion.png",
        "calibration.png",
        "mistakes.png",
        "best.keras",
        "history.csv",
        "config.json",
    }
    assert (run / "saved_models" / "colors" / "1" / "saved_model.pb").is_file()
    facts = json.loads((run / "report.json").read_text())
    assert facts["accuracy"] >= 0.9
    assert facts["data"] == {"train": 32, "val": 8}
    assert [Path(path).name for path, _ in facts["bad_files"]] == ["broken.jpg"]
    assert len((run / "history.csv").read_text().splitlines()) == 7
    config = json.loads((run / "config.json").read_text())
    assert config["job"]["epochs"] == 6
    assert config["recipe"]["learning_rate"] == 0.001
    page = (run / "report.md").read_text()
    assert "| green |" in page
    assert str(photographs.parent) not in page
    assert "| image size | 16 x 16 pixels, color |" in page
    model = keras.saving.load_model(run / "model.keras")
    assert model.class_names == ("green", "red")
    assert not model.compiled  # the optimizer would triple the file


@pytest.mark.usefixtures("_no_export")
def test_a_disorderly_folder_trains_to_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    folder, out = disorderly_folder(tmp_path / "wüst"), tmp_path / "Blüten"
    words = ["train", "--data", str(folder), "--out", str(out), "--epochs", "1"]
    assert cli.main([*words, "--image-size", "16", "--batch-size", "32"]) == 0
    printed = capsys.readouterr().out
    facts = json.loads((out / "report.json").read_text("utf-8"))
    left_out = facts["bad_files"] + facts["ignored"]
    assert len(left_out) == 9
    shown = "\n".join([printed, *(str(warning.message) for warning in recwarn)])
    for path, reason in left_out:
        assert shown.count(f"{path}: {reason}") == 1
    assert facts["data"] == {"train": 59, "val": 8}


def test_evaluation_lists_the_files_that_it_leaves_out(
    tmp_path: Path, photographs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each once, and without a line of our code."""
    folder = shutil.copytree(photographs, tmp_path / "photographs")
    (folder / "red" / "notes.txt").write_text("of the trip")
    build("token", num_classes=2).save(tmp_path / "m.keras")
    words = ["evaluate", str(tmp_path / "m.keras"), "--data", str(folder)]
    with warnings.catch_warnings():  # as outside of pytest, which keeps them for itself
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = lambda *warning: sys.stderr.write(
            warnings.formatwarning(*warning[:4])
        )
        assert cli.main(words) == 0
    printed, noted = capsys.readouterr()
    for file in ("notes.txt", "broken.jpg"):
        assert (printed + noted).count(f"{folder / 'red' / file}") == 1
    assert noted.startswith("keras-vit: warning: 1 of 41 files cannot be decoded")
    assert "commands.py" not in noted


@pytest.mark.usefixtures("_no_export")
@pytest.mark.parametrize("options", [["--lora", "2", "--epochs", "1"], ["--freeze-backbone"]])
def test_lora_and_frozen_backbone_start_from_weights(
    options: list[str],
    run: Path,
    photographs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    out = tmp_path / "runs" / "cheap"
    words = ["train", "--data", str(photographs), "--out", str(out), "--image-size", "16"]
    assert cli.main([*words, *options]) == 2
    assert "weights" in capsys.readouterr().err
    status = cli.main(
        [*words, *options, "--weights", str(run / "model.keras"), "--batch-size", "8"]
    )
    assert status == 0
    before = keras.saving.load_model(run / "model.keras")
    after = keras.saving.load_model(out / "model.keras")
    assert after.count_params() == before.count_params()  # LoRA's are folded in
    moved = not np.array_equal(*(m.get_layer("block_0").get_weights()[2] for m in (before, after)))
    assert moved == ("--lora" in options)
    assert json.loads((out / "report.json").read_text())["accuracy"] >= 0.9


@pytest.mark.slow
def test_recipe_auto_starts_from_a_probe_where_images_are_few(
    run: Path,
    photographs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    out = tmp_path / "few"
    words = ["train", "--data", str(photographs), "--out", str(out), "--image-size", "16"]
    words += ["--weights", str(run / "model.keras"), "--epochs", "1", "--batch-size", "8"]
    assert cli.main([*words, "--recipe", "auto", "--held-out", "0.65"]) == 0
    printed = capsys.readouterr().out
    assert "recipe finetune_few: 2 classes of about 16 training images each, and" in printed
    assert "linear probe" in printed
    assert "from 21 training images that were not trained on" in printed
    facts = json.loads((out / "report.json").read_text())
    assert facts["held_out"] == 21
    assert 0.05 <= facts["temperature"] <= 20
    card = (out / "report.md").read_text()
    assert "Recipe `finetune_few`: " in card
    assert "| held out | 21 training images, not trained on, that set the temperature |" in card
    config = json.loads((out / "config.json").read_text())
    assert config["recipe"]["probe_first"]
    model = keras.saving.load_model(out / "model.keras")
    assert model.eval_transform.views == "flip"
    # One view, two or ten: the same classes on images that are this simple.
    for views in ("one", "flip", "crops"):
        files = [str(photographs / "green/0.jpg"), "--views", views, "--top", "1"]
        assert cli.main(["predict", str(out), *files]) == 0
        assert "green" in capsys.readouterr().out
    assert cli.main(["evaluate", str(out), "--data", str(photographs), "--views", "crops"]) == 0
    exported = str(out / "saved_models" / "few" / "1")
    evaluation = ["evaluate", exported, "--data", str(photographs)]
    assert cli.main([*evaluation, "--views", "flip"]) == 2
    assert "is an exported file" in capsys.readouterr().err
    assert cli.main([*evaluation, "--views", "one"]) == 0


def test_average(
    run: Path, photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = keras.saving.load_model(run / "model.keras")
    for variable in model.weights:
        variable.assign(2 * variable)
    model.save(tmp_path / "twice.keras")
    soup, twice = tmp_path / "soup.keras", str(tmp_path / "twice.keras")
    words = ["average", str(run), twice, "--out", str(soup)]
    assert cli.main(words) == 0
    assert f"keras-vit evaluate {soup}" in capsys.readouterr().out
    before, after = (keras.saving.load_model(path) for path in (run / "model.keras", soup))
    assert after.class_names == ("green", "red")
    for tensor, mean in zip(before.get_weights(), after.get_weights(), strict=True):
        np.testing.assert_allclose(mean, 1.5 * tensor, rtol=1e-5)
    assert cli.main(words) == 2  # it is there
    assert "overwrite" in capsys.readouterr().err
    assert cli.main([*words, "--overwrite", "--start", str(run)]) == 0  # Model Stock
    for words, reason in (
        (["average", str(run), "--out", str(tmp_path / "one.keras")], "two or more"),
        (["average", str(run), twice, "--out", str(tmp_path / "soup.h5")], ".keras"),
    ):
        assert cli.main(words) == 2
        assert reason in capsys.readouterr().err
    model.class_names = ("green", "blue")
    model.save(tmp_path / "other.keras")
    words = ["average", str(run), str(tmp_path / "other.keras"), "--out", str(tmp_path / "x.keras")]
    assert cli.main(words) == 2
    assert "the classes green, blue, and" in capsys.readouterr().err


def colors(photographs: Path, out: Path) -> list[str]:
    """The words of a short training."""
    words = ["train", "--data", str(photographs), "--out", str(out), "--epochs", "1"]
    return [*words, "--image-size", "16", "--batch-size", "8"]


def interrupt(words: list[str], function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a training that is interrupted where the job calls this function."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"keras_vit_cli.train.run.{function}", interrupted)
        patch.setattr("sys.argv", ["keras-vit", *words])
        assert cli.main(words) == 130


@pytest.mark.usefixtures("_no_export")
def test_an_interrupted_run_is_resumed(
    photographs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "colors"
    words = [*colors(photographs, out), "--sam", "--patience", "3"]
    interrupt(words, "predict_outcomes", monkeypatch)
    assert not out.exists()
    capsys.readouterr()
    assert cli.main(words) == 2
    assert "--resume" in capsys.readouterr().err
    assert cli.main([*words, "--resume"]) == 0
    assert "finished already, at step 4" in capsys.readouterr().out
    assert (out / "model.keras").is_file()
    assert cli.main([*words, "--resume"]) == 0
    assert "nothing to resume" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("_no_export")
def test_a_run_without_a_checkpoint_is_resumed_with_its_own_options(
    photographs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "colors"
    words = colors(photographs, out)
    interrupt(words, "fit", monkeypatch)
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["keras-vit", *words, "--resume"])
    assert cli.main([*words, "--seed", "1", "--resume"]) == 2
    assert "seed was '0', is '1'" in capsys.readouterr().err
    assert cli.main([*words, "--checkpoint-every", "0", "--resume"]) == 0
    assert "no checkpoint yet" in capsys.readouterr().out
    config = json.loads((out / "config.json").read_text("utf-8"))
    assert config["command"].endswith("--batch-size 8"), "the command that started the run"
    assert not config["job"]["resume"]


@pytest.mark.slow
@pytest.mark.usefixtures("_no_export")
def test_an_augmentation_of_a_run_belongs_to_it(
    photographs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "colors"
    words = [*colors(photographs, out), "--augment"]
    interrupt([*words, "tiny"], "predict_outcomes", monkeypatch)
    capsys.readouterr()
    assert cli.main([*words, "none", "--resume"]) == 2
    assert "augment was " in capsys.readouterr().err
    assert cli.main([*words, "tiny", "--resume"]) == 0
    assert (out / "model.keras").is_file()
    config = json.loads((out / "config.json").read_text("utf-8"))
    assert config["job"]["augment"] == ["tiny"]


@pytest.mark.every_backend
def test_predict(run: Path, photographs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(photographs / "green/0.jpg"), str(photographs / "red/3.jpg")]
    assert cli.main(["predict", str(run), *files, "--top", "1"]) == 0
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if "%" in line]
    assert len(rows) == 2
    assert "green" in rows[0].split("│")[2]
    assert "red" in rows[1].split("│")[2]


def test_predict_marks_a_bad_file_and_goes_on(
    run: Path, photographs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(photographs / "red/broken.jpg"), str(photographs / "red/3.jpg")]
    assert cli.main(["predict", str(run / "model.keras"), *files]) == 1
    printed = capsys.readouterr().out
    assert "cannot be read" in " ".join(printed.split())
    assert "%" in printed


def test_predict_leaves_large_images_out(
    tmp_path: Path, photographs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build("token").save(tmp_path / "m.keras")
    words = ["predict", str(tmp_path / "m.keras"), str(photographs / "red/1.jpg"), "--max-pixels"]
    assert cli.main([*words, "1999"]) == 1  # of 40 x 50
    assert "cannot be read" in " ".join(capsys.readouterr().out.split())
    assert cli.main([*words, "2000"]) == 0


def test_commands_that_write_end_with_the_next_command(
    run: Path, photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, photo = str(run / "model.keras"), str(photographs / "red" / "3.jpg")
    weights, soup = tmp_path / "my weights.keras", tmp_path / "soup.keras"
    features, pages = tmp_path / "features.keras", tmp_path / "pages"
    backbone = keras.saving.load_model(model).with_classifier(0)
    backbone.save(features)
    bare = tmp_path / "bare.keras"
    for words, command in (
        (["convert", model, str(weights)], f"predict '{weights}' photo.jpg"),
        (
            ["convert", str(features), str(bare)],
            f"evaluate {bare} --data DATA --probe",
        ),
        (["average", model, model, "--out", str(soup)], f"evaluate {soup} --data DATA"),
        (["inspect", model, photo, "--out", str(pages)], None),
    ):
        assert cli.main(words) == 0, words
        last = capsys.readouterr().out.splitlines()[-1]
        expected = f"next: keras-vit {command}"
        if command is None:
            expected = f"next: open {pages / 'index.html'} in a browser"
        assert last == expected
    # The commands are right: the placeholders alone are filled in.
    assert cli.main(["predict", str(soup), photo]) == 0
    assert cli.main(["evaluate", str(soup), "--data", str(photographs)]) == 0


def test_export(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "saved_models" / "colors" / "2"
    assert cli.main(["export", str(run), "--out", str(target)]) == 0
    assert capsys.readouterr().out.endswith(f"next: keras-vit predict {target} photo.jpg\n")
    assert (target / "saved_model.pb").is_file()
    assert cli.main(["export", str(run), "--out", str(target)]) == 2
    assert "overwrite" in capsys.readouterr().err


def test_a_run_is_not_overwritten_by_accident(
    run: Path, photographs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "--data", str(photographs), "--out", str(run)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert (run / "model.keras").is_file()


def test_list_and_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "ViT-B*"]) == 0
    printed = capsys.readouterr().out
    assert "86,567,656" in printed
    assert "ViT-L" not in printed
    assert cli.main(["plan", "ViT-B/16", "--image-size", "384", "--batch-size", "4"]) == 0
    printed = capsys.readouterr().out
    assert "86,859,496" in printed
    assert "GMACs" in printed


def test_list_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--weights", "dinov2"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("model")
    assert len(rows) == 15
    assert all("dinov2" in row for row in rows)
    assert cli.main(["list", "ViT-H/14", "--weights"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert cli.main(["list", "--weights"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 100


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "--data", "no/such/folder"], "There is no no/such/folder"),
        (["train", "--data", "digits", "--recipe", "digit"], "'digits'"),
        (["train", "--data", "digits", "--epochs", "0"], "--epochs: '0'"),
        (["predict", "nowhere", "a.jpg"], "There is no model at nowhere"),
        (["plan", "ViT-B"], "ViT-B"),
        (["plan", "ViT-B/16", "--image-size", "15"], "15 x 15 pixels is smaller than one patch"),
        (["list", "ResNet*"], "No model matches"),
        (["list", "--weights", "dinov9"], "No released weights match 'dinov9'"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("keras-vit: ")
    assert words in error
    assert "Traceback" not in error


def test_help_reads_well(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["train", "--help"], ["predict", "--help"]):
        with pytest.raises(SystemExit) as stop:
            cli.main(arguments)
        assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert "example: keras-vit train" in printed


def damaged_models(folder: Path) -> list[Path]:
    """A model's file, cut, changed in one bit at twenty places, and files of something else."""
    build("token").save(whole := folder / "whole.keras")
    content = whole.read_bytes()
    versions = {
        f"cut_{fraction}": content[: int(fraction * len(content))] for fraction in (0.2, 0.9)
    }
    for position in np.linspace(0, 0.95 * len(content), 20).astype(int):
        flipped = bytearray(content)
        flipped[position] ^= 1
        versions[f"bit_{position}"] = bytes(flipped)
    versions |= {"empty": b"", "text": b"not a model", "zip": b"PK\x05\x06" + bytes(18)}
    files = [folder / f"{name}.keras" for name in versions]
    for file, damaged in zip(files, versions.values(), strict=True):
        file.write_bytes(damaged)
    return files


def test_damaged_models_are_one_line(
    tmp_path: Path, photographs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = damaged_models(tmp_path)
    assert len(files) == 25
    for file in files:
        assert cli.main(["predict", str(file), str(photographs / "red/1.jpg")]) == 2
        printed, error = capsys.readouterr()
        assert not printed
        assert error.startswith("keras-vit: ")
        assert str(file) in error
        assert error.count("\n") == 1
        assert "KERAS_VIT_TRACEBACK" not in error  # which marks an unexpected error


def test_a_model_of_another_package_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(tmp_path / "other.keras")
    assert cli.main(["predict", str(tmp_path / "other.keras"), "a.jpg"]) == 2
    assert "not a model of keras_vit" in capsys.readouterr().err


def test_predict_without_names_numbers_the_classes(
    tmp_path: Path, photographs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build("token").save(tmp_path / "m.keras")
    assert cli.main(["predict", str(tmp_path / "m.keras"), str(photographs / "red/1.jpg")]) == 0
    assert capsys.readouterr().out.count("%") == 5
