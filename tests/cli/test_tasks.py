"""From folders, tables, masks, maps of depth and bands to a run, its report and predictions."""

import json
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from examples import label_tables
from keras_vit import data, recipes
from keras_vit.evaluation.unseen_images import table_arguments
from keras_vit_cli import commands as cli
from keras_vit_cli.arguments import parse
from keras_vit_cli.train import run as train_run
from keras_vit_cli.train.job import Job
from keras_vit_cli.train.record import begin
from tests.backend import refused
from tests.cli.helpers import color_photos, rows_of, save_tiny
from tests.conftest import Command
from tests.tasks.test_depth import depth_folders
from tests.tasks.test_segmentation import scenes

pytestmark = pytest.mark.usefixtures("small_recipe", "here")
Table = Callable[[str], list[str]]
SHORT = "--steps 3 --augment none --image-size 16"
SCORES = {
    "pairs": ("multilabel", "mean_average_precision", "precision_recall.png"),
    "angles": ("regression", "mae", "numbers.png"),
    "counts": ("ordinal", "quadratic_kappa", "confusion.png"),
}


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    def write(name: str) -> list[str]:
        monkeypatch.setattr(label_tables, "IMAGES", 120)
        monkeypatch.setattr(label_tables, "VALIDATION", 30)
        folder = tmp_path / f"{name}[1]"  # no pattern: there is such a folder, which has the table
        label_tables.write(name, folder, seed=0)
        words = ["--data", str(folder), "--labels", "labels.csv"]
        return words + (["--task", "ordinal"] if name == "counts" else [])

    return write


@pytest.mark.usefixtures("no_export")
@pytest.mark.parametrize(
    "name", ["pairs", *(pytest.param(n, marks=pytest.mark.slow) for n in SCORES if n != "pairs")]
)
def test_from_a_table_to_answers(name: str, table: Table, tmp_path: Path, command: Command) -> None:
    data, out = table(name), tmp_path / "run"
    kind, score, plot = SCORES[name]
    assert f"task {kind}: " in command(f"train --batch-size 16 {SHORT}", *data, "--out", out)
    record = json.loads((out / "report.json").read_text("utf-8"))
    scored = 23 if name == "counts" else 30  # pictures of no shape are copies of each other
    assert (record["report"]["task"]["kind"], record["report"]["examples"]) == (kind, scored)
    assert {plot, "curves.png", "mistakes.png", "report.md"} <= {p.name for p in out.iterdir()}
    card = (out / "report.md").read_text("utf-8")
    assert f"| {score} |" in card
    assert "| training | 90 images: " in card
    assert str(tmp_path) not in card
    value = record["report"]["scores"][score][0]
    assert f"{value:.4g}" in command("evaluate", out, *data)
    command("predict", out, tmp_path / f"{name}[1]" / "0000.png")


def test_the_order_of_grades(table: Table, tmp_path: Path) -> None:
    words, file = table("counts"), tmp_path / "counts[1]" / "labels.csv"
    text = file.read_text("utf-8")
    for number, word in enumerate(("nil", "one", "two", "three", "four", "five")):
        text = text.replace(f",{number},", f",{word},")
    file.write_text(text, "utf-8")
    job = Job(data=words[1], labels=words[3], out=tmp_path / "run", task="ordinal")
    with pytest.raises(ValueError, match=r"Ordinal\(\('five', 'four', 'nil'"):
        train_run.load_splits(job)
    order = "nil, one,two,three,four,five"
    task = train_run.load_splits(replace(job, order=order)).task
    assert task.names == ("nil", "one", "two", "three", "four", "five")
    assert table_arguments(vars(job), task)["task"] == task


@pytest.mark.usefixtures("no_export")  # tests/exporting has one
@pytest.mark.parametrize("head", ["linear", pytest.param("eomt", marks=pytest.mark.slow)])
def test_from_masks_to_maps(head: str, command: Command) -> None:
    scenes(Path.cwd(), 16)
    with Image.open("masks/a/0.png") as first:  # the colors of all
        palette = Image.fromarray(np.asarray(first), "P")
    palette.putpalette([0, 0, 200, 0, 200, 0, 90, 90, 90] + 759 * [0])
    palette.save("masks/a/0.png")
    small = f"--recipe from_scratch_tiny --head {head} --image-size 32 --steps 4"
    command(f"train --data photos --labels masks {small} --out run")
    report = json.loads(Path("run/report.json").read_text())
    assert report["report"]["task"]["names"] == ["sky", "tree", "road"]
    assert {"mean_iou", "boundary_iou", "pixel_accuracy"} == report["report"]["scores"].keys()
    for name in ("report.md", "iou.png", "overlays.png"):
        assert Path("run", name).exists()
    assert "mean_iou" in command("evaluate run --data photos --labels masks --split all")
    command("predict run photos --out rows.csv --maps maps --top 2 --batch-size 8")
    assert Path("rows.csv").read_text().startswith('"file","error","class_1","part_1","class_2"')
    files = sorted(Path("maps").rglob("*.png"))
    assert len(files) == 16
    whole, sums = Path("rows.csv").read_text(), {file: file.read_bytes() for file in files}
    Path("rows.csv").write_text("".join(whole.splitlines(keepends=True)[:9]))  # was stopped
    files[-1].unlink()
    command("predict run photos --out rows.csv --maps maps --top 2 --batch-size 8 --resume")
    assert Path("rows.csv").read_text() == whole
    assert {file: file.read_bytes() for file in files} == sums
    model = keras_vit.load("run")
    assert model.head_kind == head
    splits = data.load("photos", labels="masks", val_fraction=None)["all"]
    _, ours = keras_vit.evaluation.predict_split(model, splits)
    with Image.open(f"maps/{splits.files[0]}") as answer:
        image, colors = np.asarray(answer), answer.getpalette()
    assert image.shape == (40, 48)
    assert colors[:9] == [0, 0, 200, 0, 200, 0, 90, 90, 90]
    shrunk = model.task.answers(ours)[0].argmax(-1)
    middle = np.asarray(Image.fromarray(image).resize((32, 32), Image.Resampling.NEAREST))
    assert (middle == shrunk).mean() > 0.9
    command("predict run photos --maps own --windows own --out own.csv")
    with Image.open(f"own/{splits.files[0]}") as answer:
        assert (answer.size, answer.mode) == ((48, 40), "P")
    out = "evaluate run --data photos --labels masks --split all --windows --out scores"
    printed = command(out)
    assert "mean_iou" in printed
    for text in (printed, Path("scores/report.md").read_text()):
        assert "; seen by --windows model" in text
    told = command("audit photos --masks masks --model run --out audit")
    assert f"was made with {model.seen_images.counts['trained on']} images of these" in told
    command("inspect run photos/a/0.png --out inspection")
    assert "Answers to every pixel" in Path("inspection/index.html").read_text()
    assert "is not an empty folder" in command("predict run photos --maps maps", status=2)
    Image.open("photos/a/0.png").convert("RGB").save("photos/a/0.jpg")
    told = command("predict run photos --maps two --out two.csv --batch-size 1", status=2)
    assert "0.png would be that of another image" in told
    assert len(rows_of("two.csv")) == 1  # none without its map
    Path("photos/a/0.jpg").unlink()
    again = "train --data photos --labels masks --weights run --image-size 32 --epochs 1"
    assert f"recipe {head}_pixels: " in command(f"{again} --out again")
    frozen = "by the recipe linear_pixels" if head == "linear" else "pass the encoder's own blocks"
    for words, message in (
        ("--coverage 0.9", "segmentation has neither"),
        ("--held-out 0.2", "--held-out 0.2 keeps"),
        ("--weights run --freeze-backbone --recipe finetune_small", frozen),
        ("--weights run --recipe measured", "that is for one class per image"),
    ):
        assert message in command(f"train --data photos --labels masks --out b {words}", status=2)


@pytest.mark.slow  # as from masks, but for the files
def test_from_maps_of_depth_to_maps(command: Command) -> None:
    depth_folders(Path.cwd(), 12, (40, 48))
    for file in Path("maps").iterdir():
        depth = np.asarray(Image.open(file)) if file.suffix == ".tiff" else np.load(file)[..., 0]
        depth = np.where((depth > 0) & (depth < 9), depth, 0)
        file.unlink()
        Image.fromarray(np.rint(1000 * depth).astype("uint16")).save(file.with_suffix(".png"))
    small = "--recipe from_scratch_tiny --image-size 32 --steps 8 --task depth --depth-scale 0.001"
    command(f"train --data photos --labels maps {small} --out run")
    report = json.loads(Path("run/report.json").read_text())["report"]
    assert {"delta1", "abs_rel", "rmse"} == report["scores"].keys() == report["constant"].keys()
    assert report["scores"]["abs_rel"][0] < 0.6
    assert "abs_rel" in command("evaluate run --data photos --labels maps --split all")
    command("predict run photos --out rows.csv --maps answers")
    assert Path("rows.csv").read_text().startswith('"file","error","value_minimum","value_median"')
    with Image.open("answers/photos/0.tiff") as file, Image.open("photos/0.png") as photo:
        assert (file.size, file.mode) == (photo.size, "F")
        assert 0.5 < np.median(file) < 9


@pytest.fixture
def tiles(tmp_path: Path) -> None:
    """Five bands of 16 bits, of which the fourth shows the class; a few images end in nodata."""
    tifffile, _ = map(pytest.importorskip, ("tifffile", "grain"))
    random = np.random.default_rng(0)
    for i in range(60):
        image = random.integers(200, 4000, (12, 12, 5)).astype("uint16")
        image[..., 3] = 1500 + 400 * (i % 2) + random.integers(0, 200, (12, 12))
        image[6:] *= i % 4 > 0
        file = tmp_path / "tiles" / ("forest", "water")[i % 2] / f"{i}.tif"
        file.parent.mkdir(parents=True, exist_ok=True)
        options = {"photometric": "minisblack", "planarconfig": "contig"}
        tifffile.imwrite(file, image, **options, extratags=[(42113, "s", 0, "0", True)])


@pytest.mark.slow  # tests/data/test_rasters.py has what differs
@pytest.mark.usefixtures("tiles")
def test_from_tiles_of_bands_to_the_exported_file(monkeypatch: Any, command: Command) -> None:
    small = {"patch_size": 4, "hidden_dim": 16, "depth": 1, "num_heads": 2, "pooling": "gap"}
    recipe = replace(recipes.get("digits"), model=small, epochs=0, steps=60, batch_size=16)
    recipe = recipe.with_augmentation(replace(recipe.augmentation, rand_augment=(2, 10)))
    monkeypatch.setitem(recipes.RECIPES, "digits", recipe)
    printed = command("train --bands 4,2 --image-size 12 --recipe digits --data tiles --out run")
    assert "without rand_augment: bands do not have" in printed
    model = keras_vit.load("run")
    assert (model.input_shape, model.eval_transform.bands) == ((None, 12, 12, 2), (4, 2))
    assert json.loads(Path("run/report.json").read_text())["bands"] == [4, 2]
    for each in ("run", "run/saved_models/run/1"):
        printed = command(f"evaluate {each} --data tiles")
        assert float(printed.split("accuracy")[1].split()[0]) > 0.8
        answers = Path(f"{each[-1]}.csv")
        command(f"predict {each} tiles/water/1.tif tiles/water/3.tif --out {answers}")
        assert answers.read_text().count("water") >= 4
    command("inspect run tiles/water/1.tif --out look")
    command("embed tiles --model run --out index")
    command("search index tiles/water/1.tif --out like.html")
    command("cluster index --clusters 3 --out clusters.html")
    command("audit tiles --model run --index index --out audit")
    for page in ("like.html", "clusters.html", "audit/index.html"):
        text = Path(page).read_text("utf-8")
        assert "data:image/jpeg" in text
        assert "cannot be read" not in text
    assert "unreadable" not in {row["problem"] for row in rows_of("audit/audit.csv")}
    assert "the server takes photographs" in command("serve run", status=2)


@pytest.mark.usefixtures("tiles")
def test_what_a_beginner_gets_wrong_of_bands(command: Command) -> None:
    for words, reason in (
        ("", "--bands all"),
        ("--bands 7", "the file has 5 bands, and band 7 was asked for"),
        ("--bands all --nodata median", "Give mean, refuse, or a number"),
        ("--nodata 0", "is for raster files: give --bands too"),
        ("--bands all --augment randaugment --image-size 12", "bands have a range of their own"),
    ):
        assert reason in command(f"train {words} --out run --data tiles", status=2)


IN_A_RUN = """SHA256SUMS model.keras saved_models report.json report.md report.html curves.png
confusion.png calibration.png mistakes.png best.keras history.csv config.json images.csv"""
LORA = pytest.param("--lora 2 --epochs 1", marks=pytest.mark.slow)


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
    assert str(photographs.parent) not in (run / "report.md").read_text()
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
    words, other = f"train --out runs/cheap --batch-size 8 {options} --data", Path("other")
    assert "weights" in command(words, photographs, status=2)
    (shutil.copytree(photographs, other) / "green").rename(other / "bad")  # as many other classes
    if options == "--freeze-backbone":
        error = command(words, other, "--weights", run, "--epochs", 3, "--patience", 2, status=2)
        assert "--epochs, --patience would have no effect" in error.replace(" and ", ", ")
    with pytest.warns(match=r"\(green, red\), and the data has .* \(bad, red\): the head is new"):
        printed = command(words, other, "--weights", run)
    assert "image size 16: that of the weights, where recipe finetune_few has 224; --im" in printed
    before, after = map(keras.saving.load_model, (run / "model.keras", "runs/cheap/model.keras"))
    assert after.count_params() == before.count_params()  # LoRA's are folded in
    assert after.class_names == ("bad", "red")
    moved = not np.array_equal(*(m.get_layer("block_0").get_weights()[2] for m in (before, after)))
    assert moved == ("--lora" in options)


def test_average(run: Path, photographs: Path, command: Command) -> None:
    model = keras.saving.load_model(run / "model.keras")
    model.set_weights([2 * weights for weights in model.get_weights()])
    model.save("twice.keras")
    words = ["average", run, "twice.keras", "--out", "soup.keras"]
    command(*words)
    assert "overwrite" in command(*words, status=2)
    before, after = map(keras.saving.load_model, (run / "model.keras", "soup.keras"))
    assert after.class_names == ("green", "red")
    for tensor, mean in zip(before.get_weights(), after.get_weights(), strict=True):
        np.testing.assert_allclose(mean, 1.5 * tensor, rtol=1e-5)
    command(*words, "--overwrite", "--start", run)  # Model Stock
    model.class_names = ("green", "blue")
    model.save("other.keras")
    words = ["average", run, "other.keras", "--out", "x.keras"]
    assert "the classes green, blue, and" in command(*words, status=2)
    words = ["evaluate", run / "saved_models/colors/1", "--data", photographs, "--views"]
    assert "is an exported file" in command(*words, "flip", status=2)


@pytest.mark.thorough  # tests/training/test_resume.py resumes a killed one
@pytest.mark.usefixtures("no_export")
def test_a_run_is_resumed(photographs: Path, monkeypatch: Any, command: Command) -> None:
    photographs = Path(shutil.copytree(photographs, "photos"))
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
    words[2] = shutil.copytree(photographs, "copy")
    assert "/copy'. Give the same options" in command(*words, status=2)
    words[2] = f"./{shutil.move(photographs, 'moved')}"
    assert "finished already, at step 4" in command(*words, "--checkpoint-every", "0")
    config = json.loads(Path("colors/config.json").read_text("utf-8"))
    assert config["command"].endswith("--augment tiny"), "the command that started the run"
    assert config["job"]["augment"] == ["tiny"]
    assert "nothing to resume" in command(*words)
    assert "seed was '0', is '1'" in command(*words, "--seed", "1", status=2)
    begin(job := Job("digits", Path("x"), weights="colors"), Path("copy"), str)
    Path("colors/model.keras").write_bytes(b"another")  # in place of the weights that it began with
    refused("what --weights holds was", begin, job, Path("copy"), str)


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
    assert "86,859,496" in command("plan ViT-B/16 --image-size 384 --batch-size 4")
    _, *rows = command("list", "--weights", "dinov2").splitlines()
    assert ["dinov2" in row for row in rows] == [True] * 15
    assert len(command("list", "--weights").splitlines()) > 100


OURS = str(Path(__file__).parents[2] / "keras_vit")  # and keras_vit_cli
# Two say who saw which image and how JPEG files are decoded, and one notes doubts.
# Five name arguments of the library as options, three once per process; two ask what to measure,
# and one thaws at the end what a recipe has frozen.
MOST_TO_THE_LOSS = 43


def own_name(frame: FrameType) -> str:
    file = frame.f_code.co_filename
    function = frame.f_code.co_qualname.split(".<locals>.<")[0]
    return f"{file.removeprefix(OURS)}:{function}" if file.startswith(OURS) else ""


def test_from_the_command_to_the_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the application that run, and those of the library that wait for the loss."""
    walk: dict[str, None] = {}

    def enter(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(f"{OURS}_cli"):
            walk[own_name(frame)] = None

    def stop(*_: Any, **__: Any) -> None:
        sys.setprofile(None)
        waiting = [own_name(frame) for frame, _ in traceback.walk_stack(sys._getframe())]
        walk.update(dict.fromkeys(filter(None, reversed(waiting))))
        raise AssertionError("here the loss is computed")

    monkeypatch.setattr(keras.losses.Loss, "__call__", stop)
    options = parse(f"train --data digits --steps 2 --out {tmp_path / 'run'}".split())
    cli.in_options("", "train")  # whose table is made once
    sys.setprofile(enter)
    try:
        with pytest.raises(AssertionError, match="here the loss is computed"):
            cli.run(options)
    finally:
        sys.setprofile(None)
    assert any("Run.fit" in function for function in walk)
    assert len(walk) <= MOST_TO_THE_LOSS, "\n".join(walk)
