"""`keras-vit embed`, `search`, `cluster` and `label`: from photographs to a page and a table."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import data
from keras_vit._base.manifest import write_manifest
from keras_vit.curation import FeatureIndex, find_similar
from keras_vit_cli import commands as cli
from keras_vit_cli.search.result_page import write_result_page
from keras_vit_cli.search.search_command import sections_of
from tests import bank
from tests.browser import assert_fits_and_can_be_read, downloaded, opened
from tests.cli import helpers
from tests.cli.helpers import COLORS, color_photos, elements_of, page_data, rows_of
from tests.conftest import Command
from tests.curation.photos import index_of, picture, tiny_model
from tests.inspection.pages import NAME, Elements

pytestmark = pytest.mark.usefixtures("inside")
image = pytest.importorskip("PIL.Image")
EMBED = "embed photos --model model.keras --out index"
LABEL = "label photos --model model.keras --index index --count 6"
NAMES = ("files.jsonl", "index.json", "modified.npy")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    photos = color_photos(folder / "photos", 8, ".png")
    for color in COLORS:
        (photos / color / "5.png").rename(photos / color / NAME)
    (photos / "red/copy.png").write_bytes((photos / "red/1.png").read_bytes())
    (photos / "red/broken.jpg").write_bytes(b"\xff\xd8 not much more")
    (photos / "red/notes.txt").touch()
    keras_vit.save_weights(tiny_model(), folder / "model.keras")
    image.new("RGB", (24, 20), (180, 30, 30)).save(folder / "new.png")
    before = helpers.sums(photos)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        words = [*LABEL.split(), "--count", "17", "--out", "all", "--classes", "green", "=red"]
        assert cli.main(words) == cli.main(EMBED.split()) == 1  # a file is broken
    assert helpers.sums(photos) == before
    return folder


def test_embed_and_a_search_without_a_model(command: Command, tmp_path: Path) -> None:
    assert "17 images of 16 numbers, 0 read now, 1 cannot be read" in command(EMBED, status=1)
    assert "red/broken.jpg cannot be read" in command.error
    error = command(f"{EMBED} --layer pooled --dtype float32", status=2)
    assert "made with another layer: 'pre_logits', and this is 'pooled'" in error
    # Its features are there; another one's need the model, and that of the index.
    assert "red/1.png" in command("search index photos/red/1.png --top 2")
    other = tiny_model()
    bank.fill(other, seed=1)
    keras_vit.save_weights(other, tmp_path / "other.keras")
    words = ["--top", "1", "--model", tmp_path / "other.keras"]
    command("search index photos/red/1.png", *words)
    assert "made with other weights" in command("search index new.png", *words, status=2)
    decoder = "pillow" if keras.backend.backend() == "tensorflow" else "tensorflow"
    command(f"{EMBED} --out decoded --decoder {decoder}", status=1)
    assert "red/1.png" in command("search decoded new.png --top 17")


def test_embed_writes_a_table_as_predict_does(command: Command, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "features.parquet"
    words = ("embed photos --model model.keras --out", out)
    printed = command(*words, status=1)
    assert f"written to {out}: 18 rows" in printed
    assert f"next: keras-vit search {out}_index photo.jpg" in printed
    rows, index = parquet.read_table(out).to_pylist(), FeatureIndex.open(f"{out}_index")
    assert [row["file"] for row in rows if row["error"] is None] == [
        f"photos/{name}" for name in index.files
    ]
    (broken,) = (row for row in rows if row["error"])
    assert broken["file"] == "photos/red/broken.jpg"
    assert (broken["label"], broken["split"], broken["features"]) == ("red", None, None)
    features = [row["features"] for row in rows if row["error"] is None]
    np.testing.assert_array_equal(np.array(features, "float32"), index.rows())
    assert f"{out} exists. Give another --out" in command(*words, status=2)
    out.unlink()
    assert ", 0 read now" in command(*words, status=1)
    for place in ("s3://bucket/index", "s3://bucket/features.parquet"):
        assert f"--out {place} is in a bucket" in command(words[0], place, status=2)
    refused = command("embed s3://bucket/photos --model model.keras --out new", status=2)
    assert "embed with --ray s3://BUCKET/FOLDER" in refused


def test_an_index_of_others_opens_no_file_elsewhere(command: Command, tmp_path: Path) -> None:
    other, far = tmp_path / "theirs/index", tmp_path / "far.keras"
    other.parent.mkdir()
    os.mkfifo(other.with_name("pipe"))
    far.write_text("mine")
    other.with_name("link").symlink_to(far)
    for source, reason in {
        "ViT-Ti/16:augreg_in21k": "would be downloaded: if you trust it, give --model ViT-Ti/16",
        "../pipe": f"keras-vit: {other.with_name('pipe')} is a named pipe",
        "no\0name": "'source' is 'no",
        **dict.fromkeys((str(far), "../../far.keras", "../link"), f"names the model {far}, which"),
        "/dev/zero": "names the model /dev/zero, which lies neither beside it nor in this folder",
        "~/a.keras": "keras-vit: There is no model at",
    }.items():
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree("index", other)
        info = json.loads((other / "index.json").read_text("utf-8"))
        (other / "index.json").write_text(json.dumps({**info, "source": source}), "utf-8")
        write_manifest(other, "feature index", NAMES, complete=True)
        assert reason in command("search", other, "new.png", status=2), source
    assert list(Path("cache").glob("*")) == []


def test_search_and_cluster_write_a_page_and_a_table(command: Command) -> None:
    words = "search index new.png photos/green/0.png nowhere.jpg --top 5 --out pages/similar.html"
    assert "next: open pages/similar.html" in command(words, status=1)
    assert "nowhere.jpg cannot be read" in command.error
    rows = rows_of("pages/similar.csv")
    assert [row["label"] for row in rows] == ["red"] * 5 + ["green"] * 5
    assert (rows[5]["file"], rows[5]["rank"]) == ("green/0.png", "1")
    assert len(elements_of("pages/similar.html").all("img")) == 2 + 10
    printed = command("cluster index --clusters 2 --examples 4 --out groups.html")
    assert "2 clusters of 17 images: 9, 8" in printed
    assert len({(row["label"], row["cluster"]) for row in rows_of("groups.csv")}) == 2
    page = Path("groups.html").read_text("utf-8")
    assert len(Elements(page).all("img")) == 2 * 4
    assert "labeled 100% red" in Elements(page).text
    Path("mine.html").write_text("<p>mine")
    Path("sums.csv").write_text("mine")
    for out, reason in (
        ("mine.html", "was not written by"),
        ("sums.html", "sums.csv would be replaced"),
        ("page.txt", "must end in .html"),
    ):
        assert reason in command(f"cluster index --overwrite --out {out}", status=2)
    words = "cluster index --clusters 2 --out again.html"
    command(words)
    command(words, status=2)
    away = Path("photos/red/1.png").rename("away.png")
    assert "red/1.png, moved, deleted or changed since" in command(words, "--overwrite")
    assert "note: 1 photograph of the results" in command("search index new.png --top 17")
    away.rename("photos/red/1.png")


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search")
    names = (NAME, "gone.png", "a" * 200 + ".png", *(f"{i}.png" for i in range(9)))
    for i, name in enumerate(names):
        picture(i).save(folder / name)
    index = index_of(folder)
    result = find_similar(index, [folder / NAME, folder / "3.png"])
    (folder / "gone.png").unlink()
    failed, file = {folder / "<i>broken.jpg": "cut off"}, folder / "similar.html"
    write_result_page(file, f"Like {NAME}", "12 photographs", sections_of(index, result), failed)
    return file


@pytest.mark.parametrize("width", [1440, 390])
def test_it_fits_and_shows_its_images_and_names(browser: Any, page_file: Path, width: int) -> None:
    with opened(browser, page_file, width, ("file", "data")) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        images = page.locator("img")
        for each in images.all():
            each.scroll_into_view_if_needed()  # they are loaded when they are seen
        page.wait_for_function("[...document.images].every(image => image.complete)")
        assert page.evaluate("Math.min(...[...document.images].map(i => i.naturalWidth))") > 0
        assert images.count() == 2 + 2 * 11  # those searched for, and all but the gone one
        assert page.locator(".gone").count() == 2
        assert page.locator("b, i, main script").count() == 0
        text = page.inner_text("body")
        assert NAME in text
        assert "<i>broken.jpg: cut off" in text
        page.locator("a").first.click()
        assert page.url.startswith(page_file.parent.as_uri())
        assert page.evaluate("document.images[0].naturalWidth") == 85  # the file itself


def write_labels(file: str, rows: dict[str, str]) -> None:
    helpers.write_rows(file, ("file", "label"), *rows.items())


def test_the_page_and_the_table_of_labels_have_names_of_any_kind() -> None:
    rows = rows_of("all/label.csv")
    elements_of("all/label.html")
    shown = page_data("all/label.html")
    assert {row["file"] for row in rows} == {each["name"] for each in shown["photos"].values()}
    assert f"red/{NAME}" in {row["file"] for row in rows}
    # Files with the same bytes are one image.
    assert len(rows) == 16
    assert {row["label"] for row in rows} == {""}


def test_a_second_call_goes_on(command: Command) -> None:
    first = {f"{color}/{i}.png": color for color in COLORS for i in (0, 1)}
    write_labels("labels.csv", {**first, "green/2.png": ""})
    printed = command(f"{LABEL} --labels labels.csv --out next", status=1)
    # Without a label: 17 less four and a copy of one of these.
    assert re.search(r"6 images to label: of 12 images without a label, \d+ change", printed)
    train = "keras-vit train --data photos --labels labels.csv --task classification"
    assert f"next: {train} --weights model.keras" in printed
    assert f"{LABEL.partition(' --count')[0]} --labels labels.csv --out next_2" in printed
    rows = rows_of("next/label.csv")
    assert {row["file"]: row["label"] for row in rows[:4]} == first
    assert page_data("all/label.html")["key"] != page_data("next/label.html")["key"]  # of a task
    chosen = {row["file"] for row in rows[4:]}
    assert len(chosen) == 6
    assert not chosen & {*first, "red/copy.png"}
    photos = page_data("next/label.html")["photos"].values()
    assert {photo["predicted"] for photo in photos} <= {*COLORS}
    with pytest.raises(ValueError, match="label"):
        data.load("photos", labels="next/label.csv", verify=False)
    # Half filled in by hand is as good; rows stay as they are, and new ones are to train on.
    own = {f"{color}/{i}.png": ("train", "test")[i == 2] for color in COLORS for i in (2, 3, 4)}
    text = "file,label,split,group\n" + "".join(f"{f},{c},val,a\n" for f, c in first.items())
    Path("splits.csv").write_text(text + "".join(f"{f},,{s},{f}\n" for f, s in own.items()))
    assert "fill in the group" in command(f"{LABEL} --labels splits.csv --out splits", status=1)
    rows = rows_of("splits/label.csv")
    assert [row["split"] for row in rows] == ["val"] * 4 + ["train"] * 6
    assert "test" not in {own.get(row["file"]) for row in rows}
    assert all(row["group"] == row["file"] for row in rows[4:] if row["file"] in own)


def test_labels_that_are_refused(command: Command) -> None:
    write_labels("wrong.csv", {"red/0.png": "red", "nowhere.png": "red"})
    files = (path.relative_to("photos").as_posix() for path in Path("photos").glob("*/*.png"))
    write_labels("complete.csv", {name: name.partition("/")[0] for name in files})
    for words, reason in (
        (f"{LABEL} --labels wrong.csv --out no", "nowhere.png' is not a file in photos"),
        (f"{LABEL} --labels complete.csv --out no", "All 17 images have a label"),
        (f"{LABEL} --out all", "all"),
        ("label index --model model.keras --out no", "is an index already"),
    ):
        assert reason in command(words, status=2), words
        assert not Path("no").exists()


def test_labels_are_downloaded_and_trained_on(browser: Any, tmp_path: Path) -> None:
    write_labels("labels.csv", {f"{color}/{i}.png": color for color in COLORS for i in (0, 1)})
    words = [*LABEL.split(), "--labels", "labels.csv", "--out", "page", "--overwrite"]
    assert cli.main(words) == 1
    place = Path("page/label.html").absolute()
    with opened(browser, place, 1440, ("file", "data", "blob")) as page:
        assert_fits_and_can_be_read(page, 390, 1440)
        labels = page.locator(".photo output")
        with page.expect_popup() as popup:
            page.evaluate("open(location.href)")
        tab = popup.value
        page.keyboard.down("1")  # green, and on to the next one
        page.keyboard.down("1")  # held down
        page.keyboard.press("Enter")  # what is predicted
        page.keyboard.press("2")
        page.keyboard.press("Backspace")  # undo
        first, second, third, *_ = labels.all_text_contents()
        assert (first, second in COLORS, third) == ("green", True, "")
        page.fill("#name", '=new "one"')
        page.press("#name", "Enter")
        page.keyboard.press("3")  # the key of the new class
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("0")
        assert labels.all_text_contents()[2:] == ['=new "one"', "", "", ""]
        color = COLORS[second == COLORS[0]]
        tab.click(f"#classes >> text={color}")
        tab.keyboard.press("Enter")  # what is predicted, and not the button again
        page.reload()  # the browser has kept them, of both tabs
        assert page.text_content("#count") == "3 of 6 labeled"
        assert labels.all_text_contents()[:3] == [color, second, '=new "one"']
        (tmp_path / "labels.csv").write_bytes(downloaded(page, "#download"))
        assert page.evaluate("['-33.5', '-a'].map(quoted)") == ['"-33.5"', '"\'-a"']
        page.evaluate("() => { Storage.prototype.setItem = () => { throw Error('full') } }")
        for key in "2222232":  # the last one behind the last image
            page.keyboard.press(key)
        assert labels.all_text_contents() == ["red"] * 5 + ['=new "one"']
        assert "download it before you close" in page.text_content("#kept")
        assert not page.evaluate("dispatchEvent(new Event('beforeunload', {cancelable: true}))")
    splits = data.load("photos", labels=tmp_path / "labels.csv", verify=False)
    assert sum(map(len, splits.splits.values())) == 7
    assert set(splits.class_names) == {*COLORS, '=new "one"'}
