"""A page in Chromium or Firefox, which the fixture `browser` of conftest.py starts."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def opened(
    browser: Any, place: Path | str, width: int, sources: Sequence[str], expected: str | None = None
) -> Iterator[Any]:
    """The open page; fails where it reports an error or requests anything but from these sources.

    `sources` are the beginnings of addresses, `expected` is part of the errors that may be.
    """
    page = browser.new_page(viewport={"width": width, "height": 900})
    problems, requests = [], []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    page.on("request", lambda request: requests.append(request.url))
    page.goto(place.as_uri() if isinstance(place, Path) else place)
    yield page
    page.close()
    assert [text for text in problems if expected is None or expected not in text] == []
    assert all(url.startswith(tuple(sources)) for url in requests)


def downloaded(page: Any, button: str) -> bytes:
    """What this button of the page downloads."""
    with page.expect_download() as download:
        page.click(button)
    return Path(download.value.path()).read_bytes()


def assert_fits_and_can_be_read(page: Any, *widths: int) -> None:
    """Nothing sticks out of a window of these widths, and no letter is smaller than 14 pixels."""
    for width in widths:
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
