"""Draws `docs/report_page.png` and `docs/audit_page.png`: a run's report and an audit, of digits.

    python -m docs.tools.screenshots

Trains on scikit-learn's digits, puts some of them into the folders of others and some beside
themselves once more, audits them, and takes both pages in Chromium (that of KERAS_VIT_BROWSER, or
Playwright's). It takes a few minutes.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

DOCS = Path(__file__).resolve().parents[1]
SIDE = 96  # pixels of a digit, which has 8
WIDTH, HEIGHT = 1000, 760
STYLE = """body { font: 15px/1.5 sans-serif; margin: 24px 32px; max-width: 60rem; }
table { border-collapse: collapse; } td, th { border: 1px solid #ccc; padding: 3px 10px; }
img { max-width: 100%; }"""


def write_digits(folder: Path) -> None:
    """600 digits by class, 12 of them with the label of another, and 12 twice."""
    from sklearn.datasets import load_digits

    random, digits = np.random.default_rng(0), load_digits()
    for i in range(600):
        image = Image.fromarray((digits.images[i] * 15.9).astype("uint8"))
        image = image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        label = int(digits.target[i])
        if i % 50 == 7:
            label = (label + int(random.integers(1, 10))) % 10
        names = [f"{i}.png", *([f"{i}_again.png"] if i % 50 == 9 else [])]
        for name in names:
            (folder / str(label)).mkdir(parents=True, exist_ok=True)
            image.save(folder / str(label) / name)


def run(folder: Path, *words: str) -> None:
    """A command of the command line, in a folder."""
    command = [sys.executable, "-m", "keras_vit_cli", *words]
    done = subprocess.run(command, cwd=folder, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(done.returncode)


def take(pages: dict[str, Path]) -> None:
    """The beginning of each page, as a file of 64 colors."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as engine:
        browser = engine.chromium.launch(
            executable_path=os.environ.get("KERAS_VIT_BROWSER"), args=["--no-sandbox"]
        )
        for name, page in pages.items():
            tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            tab.goto(page.as_uri())
            tab.screenshot(path=DOCS / name)
            with Image.open(DOCS / name) as image:
                small = image.convert("RGB").quantize(64)
            small.save(DOCS / name, optimize=True)
        browser.close()


def main() -> None:
    from markdown_it import MarkdownIt

    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        write_digits(work / "photos")
        run(
            work,
            "train",
            "--data",
            "photos",
            "--recipe",
            "digits",
            "--epochs",
            "12",
            "--out",
            "runs/photos",
        )
        run(work, "audit", "photos", "--model", "runs/photos", "--out", "audit")
        text = MarkdownIt("commonmark", {"html": True}).enable("table")
        report = work / "runs/photos/report.md"
        body = f"<style>{STYLE}</style>{text.render(report.read_text('utf-8'))}"
        (page := report.with_suffix(".html")).write_text(body, "utf-8")
        take({"report_page.png": page, "audit_page.png": work / "audit/index.html"})


if __name__ == "__main__":
    main()
