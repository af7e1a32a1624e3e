"""Mermaid diagrams as images: drawn once, committed, and looked up while the site is built.

    python -m docs.tools.diagrams      # `make diagrams`: draws new diagrams, deletes unused ones

GitHub draws ```` ```mermaid ```` blocks itself. On the site they would need a script of 3 MB, so
`docs/diagrams` has two images per block, light and dark, whose name is the hash of its text.
Drawing needs Node.js, the network for `npx`, and Chromium; building the site needs neither.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1]
FOLDER = DOCS / "diagrams"
THEMES = {"light": "neutral", "dark": "dark"}
# Labels as SVG text: HTML inside an SVG is not shown by every reader.
SETTINGS = {"flowchart": {"htmlLabels": False}, "htmlLabels": False}


def image_name(text: str, theme: str) -> str:
    """The file of a diagram."""
    return f"{hashlib.sha256(text.strip().encode()).hexdigest()[:12]}.{theme}.svg"


def mermaid_blocks(page: str) -> list[str]:
    """The diagrams of a Markdown page."""
    return re.findall(r"^```mermaid\n(.*?)^```", page, flags=re.S | re.M)


def draw(text: str, theme: str, output: Path) -> None:
    """Draws one diagram with Mermaid's command line."""
    command = shlex.split(os.environ.get("MERMAID", "npx --yes @mermaid-js/mermaid-cli@11"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "diagram.mmd").write_text(text, "utf-8")
        (folder / "mermaid.json").write_text(json.dumps({**SETTINGS, "theme": THEMES[theme]}))
        browser: dict[str, Any] = {"args": ["--no-sandbox"]}
        if chromium := os.environ.get("KERAS_VIT_BROWSER") or shutil.which("chromium"):
            browser["executablePath"] = chromium
        (folder / "browser.json").write_text(json.dumps(browser))
        files = ["-i", "diagram.mmd", "-o", "diagram.svg", "-c", "mermaid.json"]
        options = [*files, "-p", "browser.json", "-b", "transparent", "--quiet"]
        subprocess.run([*command, *options], cwd=folder, check=True)
        output.write_text((folder / "diagram.svg").read_text("utf-8") + "\n", "utf-8")


def main() -> None:
    pages = (page.read_text("utf-8") for page in sorted(DOCS.rglob("*.md")))
    diagrams = {
        image_name(text, theme): (text, theme)
        for page in pages
        for text in mermaid_blocks(page)
        for theme in THEMES
    }
    FOLDER.mkdir(exist_ok=True)
    for name, (text, theme) in diagrams.items():
        if not (FOLDER / name).exists():
            draw(text, theme, FOLDER / name)
            print(f"drawn: docs/diagrams/{name}")
    for file in FOLDER.glob("*.svg"):
        if file.name not in diagrams:
            file.unlink()
            print(f"deleted: docs/diagrams/{file.name}")


if __name__ == "__main__":
    main()
