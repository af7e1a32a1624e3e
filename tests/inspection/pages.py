"""Images with awkward names, and a parser of the page made of them."""

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

NAME = 'rose & <b>"thorn"<!--<script>.png'


def write_images(folder: Path) -> list[Path]:
    random = np.random.default_rng(3)
    files = [folder / name for name in (NAME, "gray.jpg", "small.png", "broken.jpg")]
    for file, shape in zip(files, ((60, 40, 3), (30, 50), (32, 12, 3)), strict=False):
        Image.fromarray(random.integers(0, 256, shape).astype("uint8")).save(file)
    files[3].write_bytes(b"\xff\xd8 not much more")
    return files


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text outside of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def page_data(page: str) -> dict[str, Any]:
    """What a page's script reads, maps of images as uint8 `(maps, grid_h, grid_w)`."""
    match = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)
    assert match is not None
    data = json.loads(match[1])
    for image in data.get("images", ()):
        flat = np.frombuffer(base64.b64decode(image["maps"]), "uint8")
        image["maps"] = flat.reshape(-1, *data["grid"])
    return data
