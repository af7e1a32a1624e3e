"""The page of a search in Chromium: its layout, its images, and names that are texts."""

from pathlib import Path
from typing import Any

import pytest

from keras_vit.curation import find_similar
from keras_vit_cli.search.result_page import write_result_page
from keras_vit_cli.search.search_command import sections_of
from tests.browser import opened
from tests.curation.photos import index_of, picture
from tests.inspection.pages import NAME

pytest.importorskip("playwright.sync_api")


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> Path:
    folder = tmp_path_factory.mktemp("search")
    names = (NAME, "gone.png", "a" * 200 + ".png", *(f"{i}.png" for i in range(9)))
    for i, name in enumerate(names):
        picture(i).save(folder / name)
    index = index_of(folder)
    result = find_similar(index, [folder / NAME, folder / "3.png"])
    (folder / "gone.png").unlink()
    failed = {folder / "<i>broken.jpg": "cut off"}
    file = folder / "similar.html"
    write_result_page(file, f"Like {NAME}", "12 photographs", sections_of(index, result), failed)
    return file


@pytest.mark.parametrize("width", [1440, 390])
def test_it_fits_and_shows_its_images_and_names(browser: Any, page_file: Path, width: int) -> None:
    with opened(browser, page_file, width, ("file", "data")) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        images = page.locator("img")
        for image in images.all():
            image.scroll_into_view_if_needed()  # they are loaded when they are seen
        page.wait_for_function("[...document.images].every(image => image.complete)")
        assert page.evaluate("Math.min(...[...document.images].map(i => i.naturalWidth))") > 0
        assert images.count() == 2 + 2 * 11  # those searched for, and all but the gone one
        assert page.locator(".gone").count() == 2
        assert page.locator("b, i, main script").count() == 0
        text = page.inner_text("body")
        assert NAME in text
        assert "<i>broken.jpg: cut off" in text
        assert page.locator("a").first.get_attribute("href")
        page.locator("a").first.click()
        assert page.url.startswith(page_file.parent.as_uri())
        assert page.evaluate("document.images[0].naturalWidth") == 85  # the file itself
