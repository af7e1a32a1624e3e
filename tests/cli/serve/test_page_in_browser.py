"""The page in Chromium: a dropped photograph, the overlay, errors, a phone screen."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import opened
from tests.cli.serve.helpers import SERVE, Server, jpeg

DROP = """([content, name]) => {
  const bytes = Uint8Array.from(atob(content), letter => letter.charCodeAt(0));
  const data = new DataTransfer();
  data.items.add(new File([bytes], name, {type: "image/jpeg"}));
  document.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true}));
}"""


@pytest.fixture(scope="module")
def address(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("page")
    server = Server(folder, SERVE, "serve", file, "--max-bytes", "100000", "--port", "0")
    yield f"http://127.0.0.1:{server.port}/"
    server.stop()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    with opened(browser, address, 1000, (address, "data:", "blob:"), expected="422") as page:
        yield page


def drop(page: Any, content: bytes, name: str = "photo.jpg") -> None:
    page.evaluate(DROP, [base64.b64encode(content).decode(), name])


@pytest.mark.parametrize("width", [1000, 390])
def test_a_dropped_photograph(width: int, page: Any) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    drop(page, jpeg())
    page.wait_for_selector("#look:not([hidden])")
    rows = page.locator("#classes li")
    shown = [float(text.split()[0]) for text in rows.locator(".probability").all_text_contents()]
    assert (len(shown), shown) == (3, sorted(shown, reverse=True))
    # Bars are as long as the probabilities, and the overlay lies on the image.
    track = rows.first.locator(".track").bounding_box()["width"]
    bar = rows.first.locator(".bar").bounding_box()["width"]
    assert bar == pytest.approx(track * shown[0] / 100, abs=1)
    assert '<b>"rose"</b>\\x1b[31m' in rows.locator(".class").all_text_contents()
    photo, canvas = (page.locator(name).bounding_box() for name in ("#image", "#overlay"))
    assert canvas == pytest.approx(photo, abs=1)
    shades = page.evaluate(
        "[...at('overlay').getContext('2d').getImageData(0, 0, 3, 4).data]"
        ".filter((_, i) => i % 4 === 3)"
    )
    assert (min(shades), max(shades)) == (0, 190)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.uncheck("#shown")
    assert page.is_hidden("#overlay")


def test_a_chosen_file_and_errors(page: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(jpeg())
    page.set_input_files("#file", tmp_path / "a.jpg")
    page.wait_for_selector("#look:not([hidden])")
    drop(page, b"no image", "notes.txt")
    page.wait_for_selector("#status.wrong")
    assert "not a JPEG" in page.text_content("#status")
    assert page.is_hidden("#result")
    drop(page, bytes(100_001))
    page.wait_for_function("at('status').textContent.includes('100,001 bytes')")
    drop(page, jpeg())
    page.wait_for_selector("#look:not([hidden])")
    assert page.text_content("#status") == ""
