"""The gallery of the site's home: a card per guide, with a picture of what it shows.

The pictures are outputs of the guides, made smaller when the site is built; a guide without one has
that of a page, which `python -m docs.tools.screenshots` draws.
"""

import base64
import io
import json
import re
from pathlib import Path

from PIL import Image

DOCS = Path(__file__).resolve().parents[1]
FOLDER = DOCS / "generated" / "gallery"
WIDTH = 480  # pixels, twice that of a card
# Which of the pictures of a guide, from 0; or a file.
PICTURES: dict[str, int | str] = {
    **{"digits": 0, "finetune_folder": 0, "report": 2, "coverage": 2, "weights": 0},
    **{"resolutions": 0, "segmenter": 2, "dense": 0, "search": 2, "choose": 0},
    **{"audit": "audit_page.png", "inspection": 1, "distribution": 0, "serve": 0, "resume": 0},
    "own_parts": 0,
}
ROW = re.compile(r"^\| \[(?P<title>.+?)\]\((?P<name>\w+)\.ipynb\) \| (?P<result>.+) \|$", re.M)


def markdown() -> str:
    """A list of cards, from the table of the guides; writes their pictures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    lines = [":::{container} gallery"]
    for row in ROW.finditer((DOCS / "guides" / "index.md").read_text("utf-8")):
        title, name = row["title"], row["name"]
        _write(name, _picture(name))
        image = f"![{title}](generated/gallery/{name}.png)"
        lines.append(f"- [{image} {title}](guides/{name}.ipynb): {row['result']}")
    return "\n".join([*lines, ":::"])


def _picture(name: str) -> Image.Image:
    source = PICTURES[name]
    if isinstance(source, str):
        return Image.open(DOCS / source)
    notebook = json.loads((DOCS / "guides" / f"{name}.ipynb").read_text("utf-8"))
    pictures = [
        content if isinstance(content, str) else "".join(content)
        for cell in notebook["cells"]
        for output in cell.get("outputs", ())
        for kind, content in output.get("data", {}).items()
        if kind.startswith("image/")
    ]
    return Image.open(io.BytesIO(base64.b64decode(pictures[source])))


def _write(name: str, image: Image.Image) -> None:
    white = Image.new("RGBA", image.size, "white")
    white.alpha_composite(image.convert("RGBA"))
    white.thumbnail((WIDTH, WIDTH))
    buffer, file = io.BytesIO(), FOLDER / f"{name}.png"
    white.convert("RGB").quantize().save(buffer, "PNG", optimize=True)
    if not file.exists() or file.read_bytes() != buffer.getvalue():
        file.write_bytes(buffer.getvalue())
