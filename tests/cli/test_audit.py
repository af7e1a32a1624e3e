"""`keras-vit audit`: from photographs to a page, a table and lists that follow decisions."""

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_vit
from keras_vit import data
from keras_vit.curation import FeatureIndex
from keras_vit.data.sources.label_table import read_file_table
from keras_vit_cli import commands as cli
from keras_vit_cli.audit import decisions as lists
from keras_vit_cli.audit.audit_page import write_audit_page
from keras_vit_cli.audit.findings import COLUMNS, audit_photos
from keras_vit_cli.search.result_table import write_csv
from tests.backend import refused
from tests.browser import assert_fits_and_can_be_read, downloaded, opened
from tests.cli.helpers import elements_of, page_data, rows_of, sums, write_rows
from tests.conftest import Command
from tests.curation.photos import blurred, grainy, in_memory, index_of, picture, tiny_model
from tests.inspection.pages import NAME

pytestmark = pytest.mark.usefixtures("inside")
image = pytest.importorskip("PIL.Image")


def make_photos(folder: Path) -> None:
    random = np.random.default_rng(0)
    for channel, name in enumerate(("green", "red")):
        (folder / name).mkdir(parents=True)
        for i in range(10):
            pixels = np.asarray(grainy(picture(20 * channel + i))) * 0.2
            pixels[..., 1 - channel] += 150 + random.integers(0, 30)
            file = NAME if i == 9 else f"{i}.png"
            image.fromarray(pixels.clip(0, 255).astype("uint8")).save(folder / name / file)
    copies = {"red/copy.png": "red/1.png", "green/other.png": "red/2.png"}
    for name, source in copies.items():
        (folder / name).write_bytes((folder / source).read_bytes())
    wrong = np.asarray(image.open(folder / "red/3.png"))[:, ::-1] // 2 + 20
    image.fromarray(wrong.astype("uint8")).save(folder / "green/wrong.png")
    blurred(image.open(folder / "red/4.png")).save(folder / "red/blurred.png")
    image.new("RGB", (40, 40), (9, 0, 0)).save(folder / "red/dark.png")
    (folder / "red/broken.jpg").write_bytes(b"\xff\xd8 not much more")
    names = sorted(p.relative_to(folder).as_posix() for p in folder.glob("*/*.png"))
    val = [name for name in names if re.search(r"/[01]\.png", name)]
    (folder / "val.txt").write_text("\n".join(val))
    (folder / "train.txt").write_text("\n".join(name for name in names if name not in val))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    make_photos(folder / "photos")
    keras_vit.save_weights(tiny_model(), folder / "model.keras")
    before = sums(folder / "photos")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # a file is broken
        assert cli.main(["audit", "photos", "--model", "model.keras", "--out", "audit"]) == 1
    assert sums(folder / "photos") == before
    return folder


def decide(*rows: tuple[str, str, str]) -> None:
    write_rows("decisions.csv", lists.COLUMNS, *rows)


def test_tables_and_page_have_what_was_planted() -> None:
    found: dict[str, list[dict[str, str]]] = {}
    for row in rows_of("audit/audit.csv"):
        found.setdefault(row["problem"].split(":")[0], []).append(row)
    suggested = {row["file"]: row["suggestion"] for row in found["wrong label"]}
    assert suggested["green/wrong.png"] == "red"
    copies = {(r["file"], r["other"], r["split"], r["other_split"]) for r in found["copy"]}
    of_labels = ("green/other.png", "red/2.png", "train", "train")
    assert copies == {("red/1.png", "red/copy.png", "val", "train"), of_labels}
    assert [row["file"] for row in found["dark"]] == ["red/dark.png"]
    assert "red/blurred.png" in {row["file"] for row in found["blurred"]}
    assert [row["file"] for row in found["unreadable"]] == ["red/broken.jpg"]
    # Without decisions a copy alone is left out, that in train.txt: figures on val.txt stay
    # comparable. Of two labels a person decides.
    kept = {row["file"]: row for row in rows_of("audit/cleaned.csv")}
    assert set(FeatureIndex.open("audit_index").files) - set(kept) == {"red/copy.png"}
    assert kept["green/other.png"]["label"] == "green"
    lines = {name: Path(f"audit/{name}.txt").read_text().splitlines() for name in ("train", "val")}
    splits = {file: split for split, files in lines.items() for file in files}
    assert splits == {file: row["split"] for file, row in kept.items()}
    elements, shown = elements_of("audit/index.html"), page_data("audit/index.html")
    names = {photo["name"]: photo.get("suggestion") for photo in shown["photos"].values()}
    assert names["green/wrong.png"] == "red"
    rows = {each["data-row"] for each in elements.all("div") if "data-row" in each}
    assert rows == set(shown["photos"])


def test_decisions_make_lists_that_train_reads(command: Command) -> None:
    pytest.importorskip("tensorflow")
    decide(
        ("green/wrong.png", "relabel", "red"),
        *((name, "drop", "") for name in ("green/other.png", "red/dark.png", "red/1.png")),
        *((name, "keep", "") for name in ("red/copy.png", f"red/{NAME}")),
    )
    printed = command("audit audit_index --decisions decisions.csv --out cleaned")
    assert "3 dropped, 1 with another label" in printed
    train = "keras-vit train --data photos --labels cleaned/cleaned.csv --task classification"
    assert f"next: {train}" in printed
    assert "1 file cannot stand in train.txt" in command.error
    labels = {row["file"]: row["label"] for row in rows_of("cleaned/cleaned.csv")}
    assert labels["green/wrong.png"] == "red"
    assert not {"green/other.png", "red/dark.png", "red/1.png"} & set(labels)
    assert "red/copy.png" in labels
    splits = data.load("photos", labels="cleaned/cleaned.csv", verify=False)
    assert sum(map(len, splits.splits.values())) == len(labels)
    lines = Path("cleaned/train.txt").read_text("utf-8").splitlines()
    assert "green/wrong.png" not in lines
    assert f"red/{NAME}" in lines


def test_a_table_keeps_its_columns_and_numbers_are_no_classes(
    command: Command, tmp_path: Path
) -> None:
    photos, out = shutil.copytree("photos", tmp_path / "photos"), tmp_path / "audit"
    names = [f"green/{i}.png" for i in range(8)]
    rows = [{"file": n, "age": f"{i // 2}.5", "group": f"p{i % 3}"} for i, n in enumerate(names)]
    write_rows(photos / "t.csv", rows[0], *(row.values() for row in rows))
    printed = command("audit", photos / "t.csv", "--model", "model.keras", "--out", out)
    assert "Wrong labels were not looked for: these are numbers" in printed
    assert rows_of(out / "cleaned.csv") == rows
    index = FeatureIndex.open(tmp_path / "audit_index")
    rows[0]["age"] = "3.5"
    list(lists.write_lists(out, index, lists.clean(index, {0: lists.Decision("relabel", "3.5")})))
    assert rows_of(out / "cleaned.csv") == rows
    # Whole numbers are no classes either; of several labels an image may have none; and a column of
    # splits may have another name.
    ages = [{"file": n, "age": 20 + i % 5, "subset": "tv"[i > 5]} for i, n in enumerate(names)]
    tags = [{"file": n, "tags": ("", "red", "red|sky")[i % 3]} for i, n in enumerate(names)]
    for name, rows in {"ages": ages, "tags": tags}.items():
        rows = [{k: {"t": "train", "v": "val"}.get(v, v) for k, v in row.items()} for row in rows]
        write_rows(photos / f"{name}.csv", rows[0], *(row.values() for row in rows))
        words = ("--model", "model.keras", "--out", tmp_path / name)
        printed = command("audit", photos / f"{name}.csv", *words)
        assert "Wrong labels were not looked for: these are numbers" in printed
        assert rows_of(tmp_path / name / "cleaned.csv") == [
            {k: str(v) for k, v in row.items()} for row in rows
        ]


def test_decisions_and_words_that_are_errors(command: Command) -> None:
    index = FeatureIndex.open("audit_index")
    call = "audit audit_index --decisions decisions.csv --out not_written"
    for row, words in (
        (("nowhere.png", "drop", ""), "'nowhere.png' is not a file of the index"),
        (("red/1.png", "remove", ""), "decision='remove'"),
        (("red/1.png", "relabel", "blue"), "label='blue'"),
        (("x" * 200_000, "drop", ""), "larger than field limit"),
    ):
        decide(row)
        assert words in command(call, status=2)
        assert "decisions.csv, line 2" in command.error
    other = ("red/2.png", "drop", "", index.sums[0])
    write_rows("decisions.csv", (*lists.COLUMNS, lists.DIGEST), other)
    assert "line 2: 'red/2.png' in audit_index is another image" in command(call, status=2)
    decide(("red/1.png", "drop", ""), ("red/1.png", "keep", ""))
    refused("another decision before", lists.read_decisions, Path("decisions.csv"), index)
    refused("have a column 'decision'", lists.read_decisions, Path("audit/cleaned.csv"), index)


def test_the_folder_has_changed_since(command: Command, tmp_path: Path) -> None:
    photos, model = shutil.copytree("photos", tmp_path / "photos"), Path("model.keras").absolute()
    (photos / "red/broken.jpg").unlink()
    out = tmp_path / "audit"
    command("audit", photos, "--model", model, "--out", out)
    (photos / "red/1.png").unlink()  # listed in val.txt: the copy in train.txt stays now
    shutil.copy(photos / "red/3.png", photos / "green/4.png")
    shutil.copy(photos / "red/3.png", photos / "red/new.png")
    decide(("green/4.png", "relabel", "red"))
    words = ("--decisions", "decisions.csv", "--out", tmp_path / "cleaned")
    command("audit", tmp_path / "audit_index", *words)
    assert "1 file (red/1.png) is gone since the index was made" in command.error
    assert "2 files (green/4.png, red/new.png) are new or changed since" in command.error
    kept = {row["file"]: row["split"] for row in rows_of(tmp_path / "cleaned/cleaned.csv")}
    assert kept["red/copy.png"] == "train"
    assert not {"red/1.png", "green/4.png", "red/new.png"} & set(kept)


def test_copies_and_what_is_decided_of_them() -> None:
    """A dropped copy leaves another; a relabeled one takes no place of one evaluated on."""
    drop, keep = lists.Decision("drop"), lists.Decision("keep")
    index = dataclasses.replace(in_memory(np.zeros((3, 4))), sums=("a", "a", "a"))
    for decisions, rows in (({0: drop}, [1]), ({1: keep}, [1]), ({0: keep, 2: keep}, [0, 2])):
        assert list(lists.clean(index, decisions).rows) == rows
    splits, labels = ("train", "val", "train"), np.array([0, 1, 1])
    two = {"splits": splits, "labels": labels, "class_names": ("cat", "dog")}
    index = dataclasses.replace(index, sums=("a", "a", "b"), **two)
    assert lists.clean(index, {0: lists.Decision("relabel", "dog")}).rows == {1: "dog", 2: "dog"}
    assert lists.clean(index, {0: keep, 2: keep}).rows == {0: "cat", 1: "dog", 2: "dog"}


def test_a_class_of_one_scene_and_blank_pages(tmp_path: Path) -> None:
    """A fold then has one class to train on; blank pages are one finding each time."""
    for i in range(10):
        for name, seed in (("burst", 0), ("other", i + 1)):
            (tmp_path / name).mkdir(exist_ok=True)
            picture(seed).save(tmp_path / name / f"{i}.jpg", quality=70 + 2 * i)
    for i in range(4):
        image.new("RGB", (64, 48), (3, 3, 3 + i)).save(tmp_path / "other" / f"blank{i}.png")
    found = {problem.name: problem for problem in audit_photos(index_of(tmp_path), seed=0).problems}
    (dark,) = found["dark"].findings
    assert (len(dark.rows), len(found["dark"].table)) == (4, 4)


def test_photographs_without_labels_and_splits(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for i, name in enumerate(("0", "1", "=2")):
        grainy(picture(i)).save(photos / f"{name}.png")
    (photos / "=again.png").write_bytes((photos / "0.png").read_bytes())
    index = index_of(photos)
    found = audit_photos(index, seed=0)
    assert "Wrong labels were not looked for" in found.skipped
    assert [row[1] for row in found.table() if row[0] == "0.png"] == ["copy"]
    write_csv(tmp_path / "audit.csv", COLUMNS, found.table())
    texts = {cell for row in rows_of(tmp_path / "audit.csv") for cell in row.values()}
    assert "'=again.png" in texts
    assert not [text for text in texts if text.startswith(("=", "@"))]  # of a spreadsheet
    write_audit_page(tmp_path / "index.html", tmp_path, index, found, most=5)
    assert "<select" not in (tmp_path / "index.html").read_text("utf-8").partition("<script")[0]
    assert list(lists.write_lists(tmp_path, index, lists.clean(index, {}))) == []
    kept = rows_of(tmp_path / "cleaned.csv")
    assert kept == [{"file": "0.png"}, {"file": "1.png"}, {"file": "'=2.png"}]
    again = read_file_table(Path(shutil.copy(tmp_path / "cleaned.csv", photos)))
    assert [name for name, *_ in again] == ["0.png", "1.png", "=2.png"]


def test_decisions_are_downloaded(browser: Any, tmp_path: Path) -> None:
    make_photos(tmp_path)
    (tmp_path / "red/broken.jpg").unlink()
    index, place = index_of(tmp_path), tmp_path / "index.html"
    write_audit_page(place, tmp_path, index, audit_photos(index, seed=0), most=50)
    with opened(browser, place, 1440, ("file", "data", "blob")) as page:

        def decided(name: str) -> Any:
            return page.locator(f'.photo[data-row="{index.files.index(name)}"]')

        assert_fits_and_can_be_read(page, 390, 1440)
        assert page.is_disabled("#download")
        wrong = decided("green/wrong.png").first
        wrong.focus()
        page.keyboard.press("r")  # to what is suggested, and on to the next one
        assert wrong.locator("select").input_value() == "red"
        decided("red/dark.png").first.locator("text=drop").click()
        # A photograph may have several problems, and has one decision.
        states = {each.get_attribute("data-decision") for each in decided("red/dark.png").all()}
        assert states == {"drop"}
        select = decided("red/copy.png").first.locator("select")
        select.focus()  # fills it
        select.select_option("green")
        # One tap each: the suggestion, and one of a group with the rest dropped.
        wrong.locator("text=accept: red").click()
        assert wrong.get_attribute("data-decision") is None  # it was chosen by the key
        wrong.locator("text=accept: red").click()
        only = decided("green/other.png").locator("text=keep this, drop the rest")
        only.click()
        assert decided("red/2.png").first.get_attribute("data-decision") == "drop"
        only.click()  # undoes both
        for name, key in (("red/2.png", "k"), ("red/1.png", "d"), ("red/1.png", "u")):
            decided(name).first.focus()
            page.keyboard.press(key)
        assert page.text_content("#count").startswith("1 kept, 2 relabeled, 1 dropped, of ")
        (tmp_path / "decisions.csv").write_bytes(downloaded(page, "#download"))
        assert [*rows_of(tmp_path / "decisions.csv")[0]] == [*lists.COLUMNS, lists.DIGEST]
        decisions = lists.read_decisions(tmp_path / "decisions.csv", index)
        assert {index.files[row]: decision for row, decision in decisions.items()} == {
            "green/wrong.png": lists.Decision("relabel", "red"),
            "red/dark.png": lists.Decision("drop"),
            "red/copy.png": lists.Decision("relabel", "green"),
            "red/2.png": lists.Decision("keep"),
        }
        only.click()
        wrong.last.focus()  # the last of all
        page.keyboard.press("r")
        page.keyboard.press("d")  # of none
        page.reload()
        assert only.get_attribute("aria-pressed") == "true"
        assert wrong.get_attribute("data-decision") == "relabel"
