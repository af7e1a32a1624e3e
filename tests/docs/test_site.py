"""The tools of the site, and the built pages in a browser where both are there."""

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import keras
import pytest

import keras_vit
from docs.tools import zoo
from docs.tools.build import versions, write_versions
from docs.tools.links import dead_links, external_links
from keras_vit.weights.released import RELEASED
from tests.conftest import REPOSITORY
from tests.data.image_fixtures import write

SITE = REPOSITORY / "site" / "dev"
WIDTHS = (390, 1440)
FIRST_RESULT = "document.querySelector('.cell_output')?.getBoundingClientRect().top ?? null"
SMALL_LETTERS = """[...document.querySelectorAll('article *')].filter(e => e.getClientRects().length
    && [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())
    && parseFloat(getComputedStyle(e).fontSize) < 11.5).map(e => e.outerHTML.slice(0, 90))"""


@pytest.mark.slow  # the site is built by each run of the continuous integration
def test_every_released_row_is_in_the_zoo() -> None:
    text = zoo.markdown()
    assert all(f"| `{row.name}` |" in text for row in RELEASED)
    assert text.count("| `") == len(RELEASED)


@pytest.mark.parametrize("start", [pytest.param(0, marks=pytest.mark.slow), 6])
def test_the_size_of_a_released_file_is_that_of_its_parameters(start: int) -> None:
    for row in RELEASED[start :: 12 if start else 1]:
        assert row.megabytes == round(zoo.cost_of_row(row).parameters * 4 / 1e6), row.name
    (row,) = keras_vit.list_weights("ViT-B/16:orig_in21k")  # its pre-logits are counted
    assert zoo.cost_of_row(row).parameters == 103_186_515  # tests/models/test_variants.py


@pytest.mark.parametrize(
    "name",
    ["ViT-S/14:dinov2_reg4", "ViT-B/16:siglip", "ViT-Ti/16:deit_distilled", "ViT-S/14:eva02_*",
     "ViT-B/16:beit_*", "ViT-B/16:clip_openai", "ViT-S/16:dinov3", "ViT-giant/14:dinov2"],
)  # fmt: skip
def test_parameters_in_the_zoo_are_those_of_the_model(name: str) -> None:
    (row,) = keras_vit.list_weights(name)
    repository = "/".join(row.url.split("/")[3:5])
    size = (row.pixels, row.pixels, 3)
    with keras.StatelessScope(initialize_variables=False):
        model = keras_vit.create(repository, num_classes=row.num_classes, input_shape=size)
    assert zoo.cost_of_row(row).parameters == model.count_params()


def test_dead_links_and_versions(tmp_path: Path) -> None:
    page = b"""<a href="sub/"><a href="sub/#top"><a href="#c"><a href="sub/#low"><img src="no.png">
        <p id="b"><a href="https://example.org/x"><a name="c">"""
    index = b'<h1 id="top"></h1><a href="../a.html#b">'
    write(tmp_path, {"sub/index.html": index, "a.html": page})
    assert dead_links(tmp_path) == ["a.html: no.png", "a.html: sub/#low"]
    assert external_links(tmp_path) == ["https://example.org/x"]
    site = tmp_path / "site"
    write(site, {f"{name}/index.html": b"" for name in ("dev", "0.9.0", "0.10.0")})
    assert versions(site) == ["0.10.0", "0.9.0", "dev"]
    write_versions(site)
    assert 'href="0.10.0/index.html"' in (site / "index.html").read_text()
    assert (site / "switcher.json").read_text().count('"url"') == 3


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The built site behind HTTP."""
    if not (SITE / "index.html").exists():
        pytest.skip("site/dev is missing: run `make docs`")

    class Quiet(SimpleHTTPRequestHandler):
        log_message = Mock()

    handler = functools.partial(Quiet, directory=str(SITE.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/dev/"
        server.shutdown()


def test_links_of_the_built_site(address: str) -> None:
    assert not dead_links(SITE)


def test_no_page_scrolls_sideways(address: str, browser: Any) -> None:
    """On a phone and on a wide screen; figures load, letters can be read, and a guide's first
    result is on its first screen. Nothing is requested from another server, and nothing is missing.
    """
    page = browser.new_page()
    requests: list[str] = []
    statuses: dict[str, int] = {}
    page.on("request", lambda request: requests.append(request.url))
    page.on("response", lambda answer: statuses.update({answer.url: answer.status}))
    for file in sorted(SITE.rglob("*.html")):
        if "_modules" in file.parts:
            continue
        page.goto(address + file.relative_to(SITE).as_posix())
        broken = "[...document.images].filter(i => i.complete && !i.naturalWidth).length"
        assert page.evaluate(broken) == 0, file
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            shown = page.evaluate("document.documentElement.scrollWidth")
            assert shown <= width, f"{file} is {shown} pixels wide on a screen of {width}"
        first = page.evaluate(FIRST_RESULT)
        assert first is None or first < 900, f"{file}: first result {first} pixels down"
        assert page.evaluate(SMALL_LETTERS) == [], file
    assert not [url for url in requests if not url.startswith(("http://127.0.0.1", "data:"))]
    assert not [url for url, status in statuses.items() if status >= 400]
