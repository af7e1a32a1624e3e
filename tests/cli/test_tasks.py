"""From tables, masks, maps of depth and bands to a run, its report and its predictions."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import keras_vit
from examples import label_tables
from keras_vit import data, recipes
from keras_vit.evaluation.unseen_images import table_arguments
from keras_vit_cli.train import run
from keras_vit_cli.train.job import Job
from tests.cli.conftest import Command
from tests.cli.helpers import rows_of
from tests.tasks.test_depth import depth_folders
from tests.tasks.test_segmentation import scenes

pytestmark = pytest.mark.usefixtures("small_recipe")
Table = Callable[[str], list[str]]
SHORT = "--steps 3 --augment none --image-size 16"
SCORES = {
    "pairs": ("multilabel", "mean_average_precision", "precision_recall.png"),
    "angles": ("regression", "mae", "numbers.png"),
    "counts": ("ordinal", "quadratic_kappa", "grades.png"),
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
    printed = command(f"train --batch-size 16 {SHORT}", *data, "--out", out)
    assert f"task {kind}: " in printed
    record = json.loads((out / "report.json").read_text("utf-8"))
    assert (record["report"]["task"]["kind"], record["report"]["examples"]) == (kind, 30)
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
        run.load_splits(job)
    order = "nil, one,two,three,four,five"
    task = run.load_splits(replace(job, order=order)).task
    assert task.names == ("nil", "one", "two", "three", "four", "five")
    assert table_arguments(vars(job), task)["task"] == task


@pytest.mark.usefixtures("here", "no_export")  # tests/exporting has one
def test_from_masks_to_maps(command: Command) -> None:
    scenes(Path.cwd(), 16)
    with Image.open("masks/a/0.png") as first:  # the colors of all
        palette = Image.fromarray(np.asarray(first), "P")
    palette.putpalette([0, 0, 200, 0, 200, 0, 90, 90, 90] + 759 * [0])
    palette.save("masks/a/0.png")
    small = "--recipe from_scratch_tiny --image-size 32 --steps 4"
    command(f"train --data photos --labels masks {small} --out run")
    report = json.loads(Path("run/report.json").read_text())
    assert report["report"]["task"]["names"] == ["sky", "tree", "road"]
    assert {"mean_iou", "pixel_accuracy"} == report["report"]["scores"].keys()
    for name in ("report.md", "iou.png", "overlays.png"):
        assert Path("run", name).exists()
    assert "mean_iou" in command("evaluate run --data photos --labels masks --split all")
    command("predict run photos --out rows.csv --maps maps --top 2")
    assert Path("rows.csv").read_text().startswith('"file","error","class_1","part_1","class_2"')
    files = sorted(Path("maps").rglob("*.png"))
    assert len(files) == 16
    model = keras_vit.load("run")
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
    assert "mean_iou" in command(out)
    command("inspect run photos/a/0.png --out inspection")
    page = Path("inspection/index.html").read_text()
    assert "Answers to every pixel" in page
    assert "is not an empty folder" in command("predict run photos --maps maps", status=2)
    Image.open("photos/a/0.png").convert("RGB").save("photos/a/0.jpg")
    told = command("predict run photos --maps two --batch-size 1", status=2)
    assert "0.png would be that of another image" in told
    Path("photos/a/0.jpg").unlink()
    for words, message in (
        ("--coverage 0.9", "segmentation has neither"),
        ("--held-out 0.2", "--held-out 0.2 keeps"),
        ("--weights run --freeze-backbone --recipe finetune_small", "by the recipe linear_pixels"),
        ("--weights run --recipe measured", "that is for one class per image"),
    ):
        wrong = f"train --data photos --labels masks --out b {words}"
        assert message in command(wrong, status=2)


@pytest.mark.slow  # as from masks, but for the files
@pytest.mark.usefixtures("here")
def test_from_maps_of_depth_to_maps(command: Command) -> None:
    depth_folders(Path.cwd(), 12, (40, 48))
    for file in Path("maps").iterdir():
        depth = np.asarray(Image.open(file)) if file.suffix == ".tiff" else np.load(file)[..., 0]
        depth = np.where((depth > 0) & (depth < 9), depth, 0)
        file.unlink()
        Image.fromarray(np.rint(1000 * depth).astype("uint16")).save(file.with_suffix(".png"))
    small = "--recipe from_scratch_tiny --image-size 32 --steps 8 --task depth"
    wrong = f"train --data photos --labels maps {small} --out run"
    error = command(wrong, status=2)
    assert "give --depth-scale, what 1 is worth, such as --depth-scale 0.001" in error
    command(f"{wrong} --depth-scale 0.001")
    report = json.loads(Path("run/report.json").read_text())["report"]
    assert {"delta1", "abs_rel", "rmse"} == report["scores"].keys() == report["constant"].keys()
    assert report["scores"]["abs_rel"][0] < 0.6
    assert "abs_rel" in command("evaluate run --data photos --labels maps --split all")
    command("predict run photos --out rows.csv --maps answers")
    assert Path("rows.csv").read_text().startswith('"file","error","value_minimum","value_median"')
    with Image.open("answers/photos/0.tiff") as file, Image.open("photos/0.png") as photo:
        assert (file.size, file.mode) == (photo.size, "F")
        found = np.asarray(file)
    assert 0.5 < np.median(found) < 9
    assert Path("answers/photos/0.color.png").exists()
    wrong = f"{wrong}2 --coverage 0.9 --depth-scale 1"
    assert "depth has neither" in command(wrong, status=2)
    wrong = "export run --format html --out page.html"
    assert "depth answers every pixel" in command(wrong, status=2)


@pytest.fixture
def tiles(tmp_path: Path) -> Path:
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
    return tmp_path / "tiles"


@pytest.mark.thorough  # tests/data/test_rasters.py has what differs
def test_from_tiles_of_bands_to_the_exported_file(
    tiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    small = {"patch_size": 4, "hidden_dim": 16, "depth": 1, "num_heads": 2, "pooling": "gap"}
    recipe = replace(recipes.get("digits"), model=small, epochs=0, steps=60, batch_size=16)
    recipe = recipe.with_augmentation(replace(recipe.augmentation, rand_augment=(2, 10)))
    monkeypatch.setitem(recipes.RECIPES, "digits", recipe)
    run = tmp_path / "run"
    words = "train --bands 4,2 --image-size 12 --recipe digits --data", tiles, "--out", run
    assert "without rand_augment: bands do not have" in command(*words)
    model = keras_vit.load(run)
    assert (model.input_shape, model.eval_transform.bands) == ((None, 12, 12, 2), (4, 2))
    report = json.loads((run / "report.json").read_text())
    assert report["bands"] == [4, 2]
    files = [tiles / "water" / f"{i}.tif" for i in (1, 3)]
    for each in (run, run / "saved_models" / "run" / "1"):
        printed = command("evaluate", each, "--data", tiles)
        assert float(printed.split("accuracy")[1].split()[0]) > 0.8
        answers = tmp_path / f"{each.name}.csv"
        command("predict", each, *files, "--out", answers)
        assert answers.read_text().count("water") >= 4
    command("inspect", run, files[0], "--out", tmp_path / "look")
    index, names = tmp_path / "index", ("like.html", "clusters.html", "audit/index.html")
    pages = [tmp_path / name for name in names]
    command("embed", tiles, "--model", run, "--out", index)
    command("search", index, files[0], "--out", pages[0])
    command("cluster", index, "--clusters", "3", "--out", pages[1])
    command("audit", tiles, "--model", run, "--index", index, "--out", pages[2].parent)
    for page in pages:
        text = page.read_text("utf-8")
        assert "data:image/jpeg" in text
        assert "cannot be read" not in text
    assert "unreadable" not in {row["problem"] for row in rows_of(tmp_path / "audit/audit.csv")}
    assert "the server takes photographs" in command("serve", run, status=2)


@pytest.mark.usefixtures("here")
def test_what_a_beginner_gets_wrong_of_bands(tiles: Path, command: Command) -> None:
    for words, reason in (
        ("", "--bands all"),
        ("--bands 7", "the file has 5 bands, and band 7 was asked for"),
        ("--bands all --nodata median", "Give mean, refuse, or a number"),
        ("--nodata 0", "is for raster files: give --bands too"),
        ("--bands all --augment randaugment --image-size 12", "bands have a range of their own"),
    ):
        assert reason in command(f"train {words} --out run --data", tiles, status=2)
