"""The page of `docs/page.md` that runs a model: trained and exported while the site is built.

The engine of pages is not downloaded here. Where neither `KERAS_VIT_ENGINE` names its npm package
nor Keras's cache has its files, the site has a line about how to write such a page instead.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from keras_vit import data
from keras_vit.exporting.page_engine import SUMS, engine_folder

MARK = "<!-- live page -->"
FOLDER, PAGE = "live", "digits.html"
# The two commands that docs/page.md shows.
TRAIN = ["train", "--data", "digits", "--epochs", "12", "--out", "runs/digits"]
EXPORT = ["export", "runs/digits", "--format", "html", "--out", PAGE]
SAMPLES = (3, 5, 8)
LEFT_OUT = (
    "This copy of the site was built without the page: the engine of pages was not on the machine. "
    "The two commands write it."
)


def engine() -> list[str] | None:
    """Return the options that name the engine; None where it would have to be downloaded."""
    if package := os.environ.get("KERAS_VIT_ENGINE"):
        return ["--runtime", os.path.abspath(package)]
    return [] if all((engine_folder() / name).is_file() for name in SUMS) else None


def write(folder: Path, options: list[str]) -> None:
    """Writes the page, and images of digits that its model was not trained on."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        for command in (TRAIN, [*EXPORT, *options]):
            program = [sys.executable, "-m", "keras_vit_cli", *command]
            done = subprocess.run(program, cwd=place, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"keras-vit {' '.join(command)}: {done.stderr[-2000:]}")
        (folder / PAGE).write_bytes(Path(place, PAGE).read_bytes())
    held_out: Any = data.load("digits").val
    images, labels = held_out.as_arrays()
    for digit in SAMPLES:
        image = images[list(labels).index(digit)]
        Image.fromarray(image.astype("uint8")[..., 0]).save(folder / f"{digit}.png")


def shown(site: Path) -> str:
    """Return the page as the site shows it, or that it was left out."""
    if not (site / FOLDER / PAGE).exists():
        return f'<p class="admonition">{LEFT_OUT}</p>'
    samples = " ".join(
        f'<a href="{FOLDER}/{n}.png" download><img src="{FOLDER}/{n}.png" alt="a digit"></a>'
        for n in SAMPLES
    )
    return (
        f'<p class="samples">{samples} Save one of these, and choose it in the page below, or '
        f'<a href="{FOLDER}/{PAGE}">open the page</a> by itself. To keep it, '
        f'<a href="{FOLDER}/{PAGE}" download>download it</a>, and open it with a double click.</p>'
        f'<iframe class="live" src="{FOLDER}/{PAGE}" title="A page that reads digits"></iframe>'
    )


def _show(app: Any, document: Any) -> None:
    """Shows the page where a Markdown page has `<!-- live page -->`."""
    from docutils import nodes  # which tests do not have

    for raw in list(document.findall(nodes.raw)):
        if raw.astext().strip() == MARK:
            raw.replace_self(nodes.raw("", shown(Path(app.outdir)), format="html"))


def _write(app: Any) -> None:
    folder, options = Path(app.outdir, FOLDER), engine()
    if options is not None:
        write(folder, options)
    elif not (folder / PAGE).exists():
        print(f"docs/page.md: {LEFT_OUT} KERAS_VIT_ENGINE may name its .tgz.")


def setup(app: Any) -> dict[str, bool]:
    """Writes the page before Sphinx reads `docs/page.md`, which it reads at every build."""
    app.connect("builder-inited", _write)
    app.connect("env-get-outdated", lambda *_: ["page"])
    app.connect("doctree-read", _show)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
