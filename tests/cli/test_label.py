"""`keras-vit label`: from images to a page and a table of labels that train reads."""

import re
from pathlib import Path
from typing import Any

import pytest

import keras_vit
from keras_vit import data
from keras_vit_cli import commands as cli
from tests.browser import assert_fits_and_can_be_read, opened
from tests.cli.conftest import Command
from tests.cli.helpers import (
    COLORS,
    color_photos,
    elements_of,
    page_data,
    rows_of,
    sums,
    write_rows,
)
from tests.curation.photos import tiny_model
from tests.inspection.pages import NAME

pytestmark = pytest.mark.usefixtures("inside")
LABEL = "label photos --model model.keras --index index --count 6"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("label")
    photos = color_photos(folder / "photos", 8, ".png")
    (photos / "red/5.png").rename(photos / "red" / NAME)
    (photos / "red/copy.png").write_bytes((photos / "red/1.png").read_bytes())
    keras_vit.save_weights(tiny_model(), folder / "model.keras")
    before = sums(photos)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        words = [*LABEL.split(), "--count", "17", "--out", "all", "--classes", "green", "=red"]
        assert cli.main(words) == 0
    assert sums(photos) == before
    return folder


def write_labels(file: str, rows: dict[str, str]) -> None:
    write_rows(file, ("file", "label"), *rows.items())


def test_the_page_and_the_table_have_names_of_any_kind() -> None:
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
    printed = command(f"{LABEL} --labels labels.csv --out next")
    # Without a label: 17 less four and a copy of one of these.
    assert re.search(r"6 images to label: of 12 images without a label, \d+ change", printed)
    assert (
        "next: keras-vit train --data photos --labels labels.csv --weights model.keras" in printed
    )
    assert f"{LABEL.partition(' --count')[0]} --labels labels.csv --out next_2" in printed
    rows = rows_of("next/label.csv")
    assert {row["file"]: row["label"] for row in rows[:4]} == first
    chosen = {row["file"] for row in rows[4:]}
    assert len(chosen) == 6
    assert not chosen & {*first, "red/copy.png"}
    photos = page_data("next/label.html")["photos"].values()
    assert {photo["predicted"] for photo in photos} <= {*COLORS}
    with pytest.raises(ValueError, match="label"):
        data.load("photos", labels="next/label.csv", verify=False)
    # Half filled in by hand is as good; other columns stay, and new rows are to train on.
    text = "file,label,split\n" + "".join(f"{f},{c},val\n" for f, c in first.items())
    Path("splits.csv").write_text(text)
    command(f"{LABEL} --labels splits.csv --out splits")
    rows = rows_of("splits/label.csv")
    assert [row["split"] for row in rows] == ["val"] * 4 + ["train"] * 6


def test_what_is_refused(command: Command) -> None:
    write_labels("wrong.csv", {"red/0.png": "red", "nowhere.png": "red"})
    files = (path.relative_to("photos").as_posix() for path in Path("photos").glob("*/*.png"))
    write_labels("complete.csv", {name: name.partition("/")[0] for name in files})
    for words, reason in (
        (f"{LABEL} --labels wrong.csv --out no", "nowhere.png' is not a file in photos"),
        (f"{LABEL} --labels complete.csv --out no", "All 17 images have a label"),
        (f"{LABEL} --out all", "all"),
        (f"{LABEL} --out photos/label", "which is read"),
        ("label index --model model.keras --out no", "is an index already"),
    ):
        assert reason in command(words, status=2), words
        assert not Path("no").exists()


def test_labels_are_downloaded_and_trained_on(browser: Any, tmp_path: Path) -> None:
    write_labels("labels.csv", {f"{color}/{i}.png": color for color in COLORS for i in (0, 1)})
    words = [*LABEL.split(), "--labels", "labels.csv", "--out", "page", "--overwrite"]
    assert cli.main(words) == 0
    place = Path("page/label.html").absolute()
    with opened(browser, place, 1440, ("file", "data", "blob")) as page:
        for width in (390, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            assert_fits_and_can_be_read(page, width)
        labels = page.locator(".photo output")
        page.keyboard.press("1")  # green, and on to the next one
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
        page.reload()  # the browser has kept them
        assert page.text_content("#count") == "3 of 6 labeled"
        with page.expect_download() as waiting:
            page.click("#download")
        waiting.value.save_as(tmp_path / "labels.csv")
    splits = data.load("photos", labels=tmp_path / "labels.csv", verify=False)
    assert sum(map(len, splits.splits.values())) == 7
    assert set(splits.class_names) == {*COLORS, '=new "one"'}
