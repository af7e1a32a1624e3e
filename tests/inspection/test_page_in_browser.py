"""The page in a real browser: the slider, the widths of a desk and of a telephone, screenshots."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_vit.inspection import inspect_files
from tests.inspection.browser import Browser
from tests.inspection.models import model_of
from tests.inspection.pages import page_data, write_photographs

pytest.importorskip("matplotlib")
image = pytest.importorskip("PIL.Image")
WIDTHS = (1280, 390)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Path:
    folder = tmp_path_factory.mktemp("page")
    inspect_files(model_of("token"), write_photographs(folder), folder / "out")
    return folder / "out" / "index.html"


def overlay(browser: Browser, index: int = 0) -> np.ndarray:
    """The pixels of a canvas, `(grid_h, grid_w, 4)`."""
    pixels = browser.evaluate(
        f"(() => {{ const c = document.getElementById('overlay-{index}');"
        "return [c.height, c.width, ...c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data]; })()"
    )
    return np.array(pixels[2:]).reshape(*pixels[:2], 4)


def text(browser: Browser, name: str) -> str:
    return browser.evaluate(f"document.getElementById({name!r}).textContent")


@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_and_can_be_read(width: int, page: Path, browser: Browser, tmp_path: Path) -> None:
    browser.open(page.as_uri(), width, 900)
    assert browser.evaluate("innerWidth") == width
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    outside = browser.evaluate(
        "[...document.body.querySelectorAll('*')].filter(e => e.getClientRects().length"
        " && (e.getBoundingClientRect().right > innerWidth + 0.5"
        " || e.getBoundingClientRect().left < -0.5)).map(e => e.outerHTML.slice(0, 90))"
    )
    assert outside == []
    smallest = browser.evaluate(
        "Math.min(...[...document.body.querySelectorAll('*')].filter(e => e.innerText)"
        ".map(e => parseFloat(getComputedStyle(e).fontSize)))"
    )
    assert smallest >= 14
    assert browser.evaluate("[...document.images].every(i => i.naturalWidth > 0)")
    browser.screenshot(tmp_path / f"page_{width}.png")
    with image.open(tmp_path / f"page_{width}.png") as shot:
        assert abs(shot.width - width) <= 16
        assert len(shot.convert("RGB").getcolors(1 << 24)) > 1000
    assert browser.problems == []
    assert {address.split(":")[0] for address in browser.requests} <= {"file", "data"}


def test_the_slider_changes_the_overlay(page: Path, browser: Browser, tmp_path: Path) -> None:
    browser.open(page.as_uri(), 1280, 900)
    shots = {}
    data: dict[str, Any] = page_data(page.read_text("utf-8"))

    def brightness(index: int) -> np.ndarray:
        return 110 + np.floor(0.3 * data["photographs"][0]["maps"][index])

    # The keyboard alone: Tab reaches the slider first, arrows move it by a layer.
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.id") == "layer"
    stops = []
    for key, index in (("End", 6), ("ArrowLeft", 3), ("ArrowLeft", 0)):
        browser.press(key)
        stops.append(text(browser, "stop"))
        assert np.abs(overlay(browser)[..., 3] - brightness(index)).max() <= 1
        browser.screenshot(tmp_path / "shot.png")
        shots[stops[-1]] = (tmp_path / "shot.png").read_bytes()
        assert stops[-1] in browser.evaluate(
            "document.getElementById('overlay-0').getAttribute('aria-label')"
        )
    assert stops == ["rollout", "layer 2", "layer 1"]
    assert len(set(shots.values())) == 3
    assert "% a patch" in text(browser, "peak-0")

    browser.press("Home")
    assert text(browser, "stop") == "photograph alone"
    assert browser.evaluate("document.getElementById('overlay-0').hidden")
    assert browser.evaluate("document.getElementById('head').disabled")
    assert browser.problems == []


def test_a_head_can_be_chosen(page: Path, browser: Browser) -> None:
    browser.open(page.as_uri(), 390, 800)
    data = page_data(page.read_text("utf-8"))
    browser.evaluate(
        "layer.value = 2; layer.dispatchEvent(new Event('input'));"
        "head.value = '1'; head.dispatchEvent(new Event('change'));"
    )
    found = overlay(browser, 1)[..., 3]
    assert np.abs(found - (110 + np.floor(0.3 * data["photographs"][1]["maps"][4]))).max() <= 1
    low, _ = data["photographs"][1]["ranges"][4]
    assert text(browser, "peak-1").startswith(f"{float(f'{100 * low:.2g}'):g} to ")


def test_the_overlay_lies_on_the_photograph(page: Path, browser: Browser) -> None:
    for width in WIDTHS:
        browser.open(page.as_uri(), width, 900)
        photo, canvas = (
            browser.evaluate(
                f"(r => [r.left, r.top, r.width, r.height])"
                f"(document.querySelector('.photo {tag}').getBoundingClientRect())"
            )
            for tag in ("img", "canvas")
        )
        assert canvas == pytest.approx(photo, abs=1)
