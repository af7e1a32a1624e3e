"""The page in Chromium: its slider and keyboard, and its layout on a desktop and a phone screen."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_vit_cli.inspect.inspect_files import inspect_files
from tests.browser import opened
from tests.inspection.models import model_of
from tests.inspection.pages import page_data, write_images

pytest.importorskip("matplotlib")
image = pytest.importorskip("PIL.Image")
pytest.importorskip("playwright.sync_api")
# Of every name, how many letters its last line has.
LAST_LINES = """[...document.querySelectorAll(".card h2")].map(heading => {
  const walker = document.createTreeWalker(heading, NodeFilter.SHOW_TEXT), tops = [];
  while (walker.nextNode()) for (let i = 0; i < walker.currentNode.length; i++) {
    const range = document.createRange();
    range.setStart(walker.currentNode, i);
    range.setEnd(walker.currentNode, i + 1);
    tops.push(Math.round(range.getBoundingClientRect().top));
  }
  return tops.filter(top => top === tops[tops.length - 1]).length;
})"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> Path:
    folder = tmp_path_factory.mktemp("page")
    inspect_files(model_of("token"), write_images(folder), folder / "out")
    return folder / "out" / "index.html"


@pytest.fixture
def page(browser: Any, address: Path) -> Iterator[Any]:
    with opened(browser, address, 1280, ("file", "data")) as page:
        yield page


def overlay(page: Any, index: int = 0) -> np.ndarray:
    """The pixels of a canvas, `(grid_h, grid_w, 4)`."""
    pixels = page.evaluate(
        f"(() => {{ const c = document.getElementById('overlay-{index}');"
        "return [c.height, c.width, ...c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data]; })()"
    )
    return np.array(pixels[2:]).reshape(*pixels[:2], 4)


@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_and_can_be_read(width: int, page: Any, tmp_path: Path) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("innerWidth") == width
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
    assert page.evaluate("[...document.images].every(i => i.naturalWidth > 0)")
    photo, canvas = (
        page.locator(f".photo {tag}").first.bounding_box() for tag in ("img", "canvas")
    )
    assert canvas == pytest.approx(photo, abs=1)  # the overlay lies on the photograph
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    with image.open(tmp_path / "page.png") as shot:
        assert abs(shot.width - width) <= 16
        assert len(shot.convert("RGB").getcolors(1 << 24)) > 1000


def test_the_slider_changes_the_overlay(page: Any, address: Path) -> None:
    data = page_data(address.read_text("utf-8"))

    def brightness(index: int) -> np.ndarray:
        return 110 + np.floor(0.3 * data["images"][0]["maps"][index])

    # The keyboard alone: Tab reaches the slider first, arrows move it by a layer.
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "layer"
    shots = {}
    for key, index in (("End", 6), ("ArrowLeft", 3), ("ArrowLeft", 0)):
        page.keyboard.press(key)
        assert np.abs(overlay(page)[..., 3] - brightness(index)).max() <= 1
        stop = page.text_content("#stop")
        shots[stop] = page.screenshot(full_page=True)
        assert stop in page.get_attribute("#overlay-0", "aria-label")
    assert list(shots) == ["attribution", "layer 2", "layer 1"]
    assert len(set(shots.values())) == 3
    assert "% per patch" in page.text_content("#peak-0")

    page.keyboard.press("Home")
    assert page.text_content("#stop") == "photograph alone"
    assert page.is_hidden("#overlay-0")
    assert page.is_disabled("#head")


def test_a_head_can_be_chosen(page: Any, address: Path) -> None:
    data = page_data(address.read_text("utf-8"))["images"][1]
    page.evaluate("layer.value = 2; layer.dispatchEvent(new Event('input'))")
    page.select_option("#head", "1")
    assert np.abs(overlay(page, 1)[..., 3] - (110 + np.floor(0.3 * data["maps"][4]))).max() <= 1
    low, _ = data["ranges"][4]
    assert page.text_content("#peak-1").startswith(f"{float(f'{100 * low:.2g}'):g} to ")


def test_a_long_name_does_not_end_in_a_line_of_one_letter(browser: Any, tmp_path: Path) -> None:
    """Photographs of the web are called like this; every length breaks somewhere else."""
    names = [f"{'1234567890' * 3}_{'5632165b04' * 2}"[: 20 + i] + ".jpg" for i in range(24)]
    for name in names:
        image.fromarray(np.zeros((32, 12, 3), "uint8")).save(tmp_path / name)
    inspect_files(model_of("token"), [tmp_path / name for name in names], tmp_path / "out")
    page = browser.new_page()
    page.goto((tmp_path / "out" / "index.html").as_uri())
    for width in (1280, 390, 320):
        page.set_viewport_size({"width": width, "height": 900})
        last_lines = page.evaluate(LAST_LINES)
        assert len(last_lines) == len(names)
        assert min(last_lines) >= len(".jpg"), width
    page.close()
