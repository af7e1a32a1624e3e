"""The page of an audit in Chromium: decisions by key and button, and its layout."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_vit.curation import FeatureIndex
from keras_vit_cli.audit.audit_page import write_audit_page
from keras_vit_cli.audit.decisions import Decision, read_decisions
from keras_vit_cli.audit.findings import audit_photos
from tests.browser import opened
from tests.cli.test_audit import make_photos
from tests.curation.photos import index_of

image = pytest.importorskip("PIL.Image")
pytest.importorskip("playwright.sync_api")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> FeatureIndex:
    folder = tmp_path_factory.mktemp("audit")
    make_photos(folder)
    (folder / "red/broken.jpg").unlink()
    index = index_of(folder)
    write_audit_page(folder / "index.html", folder, index, audit_photos(index, seed=0), most=50)
    return index


@pytest.fixture
def page(browser: Any, index: FeatureIndex) -> Iterator[Any]:
    with opened(browser, index.folder / "index.html", 1440, ("file", "data", "blob")) as page:
        yield page


@pytest.mark.parametrize("width", [1440, 390])
def test_it_fits_and_can_be_read(width: int, page: Any, tmp_path: Path) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    outside = page.evaluate(
        "[...document.body.querySelectorAll('*')].filter(e => e.getClientRects().length"
        " && (e.getBoundingClientRect().right > innerWidth + 0.5"
        " || e.getBoundingClientRect().left < -0.5)).map(e => e.outerHTML.slice(0, 90))"
    )
    assert outside == []
    smallest = page.evaluate(
        "Math.min(...[...document.body.querySelectorAll('*')].filter(e => e.innerText)"
        ".map(e => parseFloat(getComputedStyle(e).fontSize)))"
    )
    assert smallest >= 14
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    with image.open(tmp_path / "page.png") as shot:
        assert len(np.unique(np.asarray(shot.convert("L")))) > 50


def test_decisions_are_downloaded(page: Any, index: FeatureIndex, tmp_path: Path) -> None:
    def decided(name: str) -> Any:
        return page.locator(f'.photo[data-row="{index.files.index(name)}"]')

    assert page.is_disabled("#download")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement === document.querySelector('.photo')")
    wrong = decided("green/wrong.png").first
    wrong.focus()
    page.keyboard.press("r")  # to what is suggested, and on to the next one
    assert wrong.locator("select").input_value() == "red"
    assert not wrong.evaluate("card => card.contains(document.activeElement)")
    decided("red/dark.png").first.locator("text=drop").click()
    # A photograph may have several problems, and has one decision.
    states = {each.get_attribute("data-decision") for each in decided("red/dark.png").all()}
    assert states == {"drop"}
    select = decided("red/copy.png").first.locator("select")
    select.focus()  # fills it
    select.select_option("green")
    decided("red/2.png").first.focus()
    page.keyboard.press("k")
    decided("red/1.png").first.focus()
    page.keyboard.press("d")
    decided("red/1.png").first.focus()
    page.keyboard.press("u")
    assert page.text_content("#count").startswith("1 kept, 2 relabeled, 1 dropped, of ")
    with page.expect_download() as waiting:
        page.click("#download")
    waiting.value.save_as(tmp_path / "decisions.csv")
    with (tmp_path / "decisions.csv").open(newline="") as file:
        assert next(csv.reader(file)) == ["file", "decision", "label"]
    decisions = read_decisions(tmp_path / "decisions.csv", index)
    assert {index.files[row]: decision for row, decision in decisions.items()} == {
        "green/wrong.png": Decision("relabel", "red"),
        "red/dark.png": Decision("drop"),
        "red/copy.png": Decision("relabel", "green"),
        "red/2.png": Decision("keep"),
    }
    page.reload()
    assert wrong.get_attribute("data-decision") == "relabel"
    page.evaluate("localStorage.clear()")
