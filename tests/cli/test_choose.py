"""`keras-vit choose`: from photographs and weights to a table and a plot."""

import itertools
import shutil
from pathlib import Path

import keras
import pytest

import keras_vit
from keras_vit.curation import embedding
from tests.cli.conftest import Command
from tests.cli.helpers import COLORS, color_photos, rows_of
from tests.data.image_fixtures import write

pytestmark = pytest.mark.usefixtures("inside")
SIZES = {"patch_size": 4, "hidden_dim": 16, "depth": 1, "num_heads": 2}
CHOOSE = "choose photos --out choice --among one.keras"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    photos = color_photos(folder / "photos", 15, ".png", brighter=3)
    rows = ["file,weight,colors"]
    for name, i in itertools.product(COLORS, range(15)):
        rows.append(f"{name}/{i}.png,{3 * i / 2},{name}{'|bright' if i > 7 else ''}")
    (photos / "labels.csv").write_text("\n".join(rows))
    for seed, name in enumerate(("one", "other")):
        keras.utils.set_random_seed(seed)
        model = keras_vit.VisionTransformer(**SIZES, input_shape=(8, 8, 3))
        keras_vit.save_weights(model, folder / f"{name}.keras")
    return folder


def test_weights_layers_and_sizes(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    more = "--layers pre_logits block_0 --poolings token --sizes 12"
    printed = command(f"{CHOOSE} other.keras {more}")
    assert "24 training images of photos: classification of 2 classes" in printed
    assert "accuracy of 24 images, each answered by all others" in printed
    assert "next: keras-vit train --data photos --weights" in printed
    assert printed.rstrip().endswith("--image-size 12")
    rows = rows_of("choice/choice.csv")
    layers = [("pre_logits", ""), ("block_0", "token")]
    asked = {(f"{name}.keras", "12", *each) for name in ("one", "other") for each in layers}
    keys = ("weights", "height", "layer", "pooling")
    assert {tuple(row[key] for key in keys) for row in rows} == asked
    scores = [float(row["probe_accuracy"]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > 0.9
    assert Path("choice/choice.png").read_bytes().startswith(b"\x89PNG")
    # The second call finds its features, and replaces what the first has written when asked to.
    monkeypatch.setattr(embedding, "_write_rows", None)
    assert "choice is not empty" in command(f"{CHOOSE} {more}", status=2)
    command(f"{CHOOSE} {more} --overwrite")
    of_one = [row for row in rows if row["weights"] == "one.keras"]
    for again, row in zip(rows_of("choice/choice.csv"), of_one, strict=True):
        assert {**again, "images_per_second": row["images_per_second"]} == row


@pytest.mark.parametrize(
    ("columns", "task", "measure"),
    [("weight", "regression", "r2"), ("colors", "multilabel", "mean_average_precision")],
)
def test_a_table_has_other_tasks(columns: str, task: str, measure: str, command: Command) -> None:
    more = f"--labels photos/labels.csv --label-columns {columns} --task {task}"
    command(f"{CHOOSE} --out {task} {more}")
    rows = rows_of(f"{task}/choice.csv")
    assert [row["measure"] for row in rows] == [measure]
    assert all(row[f"probe_{measure}"] for row in rows)


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
        ("--sizes 3", "3"),
        ("--task regression", "--task has no effect without --labels"),
        ("--among nowhere.keras", "nowhere.keras"),
        ("--out mine --overwrite", "files that are not of an earlier choice"),
        ("--out photos/choice", "is, holds or lies in photos"),
    ):
        assert words in command(f"{CHOOSE} --out failed {more}", status=2)
        assert not Path("failed").exists()
