"""A page in Chromium, which the fixture `browser` of conftest.py starts."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def opened(browser: Any, file: Path, width: int, schemes: Collection[str]) -> Iterator[Any]:
    """The open page; fails where it reports an error or requests anything but by these schemes."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    problems, requests = [], []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    yield page
    page.close()
    assert problems == []
    assert {url.split(":")[0] for url in requests} <= set(schemes)
