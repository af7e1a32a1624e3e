"""Photographs and models for the commands, and what they write."""

import csv
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from PIL import Image

from keras_vit._base.manifest import read_manifest, sha256
from keras_vit.tasks import Classification
from tests import bank
from tests.inspection import pages

COLORS = ("green", "red")
# Names that markup, a terminal, a typesetter or a shell would obey.
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "[/b]",
    "[red]rose[/red]",
    "photo[final]",
    "one|two|",
    "line\nbreak\r\n# heading",
    "\x1b[2J\x1b]0;title\x07",
    "\u202egnp.exe",
    "$\\frac{1}{2$",
    "**a** _b_ `c` ``d` [e](http://f.g) ![h](i.png) ~~j~~ &lt; <!-- \\",
    "'; touch owned; $(touch owned) `touch owned`",
    os.fsdecode(b"caf\xe9"),
)
TRAIN = "train --data photos --out run --batch-size 8 --image-size 16 --learning-rate 0.001"


def color_photos(folder: Path, count: int, suffix: str = ".jpg", brighter: int = 0) -> Path:
    """Files of two classes that differ by color, each perhaps brighter than the one before."""
    random = np.random.default_rng(0)
    for channel, name in enumerate(COLORS):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = random.integers(0, 60, (20, 24, 3)).astype("uint8")
            pixels[..., 1 - channel] += 150 + brighter * i
            Image.fromarray(pixels).save(folder / name / f"{i}{suffix}")
    return folder


def sums(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256(path) for path in files}


def weights_of(run: Path) -> list[np.ndarray]:
    manifest = read_manifest(run)
    assert manifest is not None
    assert manifest.complete
    assert {name: sha256(run / name) for name in manifest.sums} == manifest.sums
    return keras.saving.load_model(run / "model.keras", compile=False).get_weights()


def outcome_of(run: Path) -> list[np.ndarray]:
    report = json.loads((run / "report.json").read_text("utf-8"))
    facts = [report.get(key) for key in ("report", "calibration", "sets", "novelty", "history")]
    return [np.array(json.dumps(facts)), *weights_of(run)]


def save_tiny(file: str | Path, seed: int | None = None, **changes: Any) -> Path:
    if "num_classes" not in changes:
        changes = {"task": Classification(COLORS), **changes}
        changes["num_classes"] = changes["task"].outputs
    model = bank.tiny(**changes)
    if seed is not None:
        bank.fill(model, seed, scale=1)
    model.save(file)
    return Path(file)


def rows_of(file: str | Path) -> list[dict[str, str]]:
    with Path(file).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, strict=True))


def write_rows(file: str | Path, *rows: Iterable[str]) -> None:
    with Path(file).open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, quoting=csv.QUOTE_ALL).writerows(rows)


def elements_of(file: str | Path) -> pages.Elements:
    """A page's elements: its images are in it, its links are to `photos`, its names are texts."""
    elements = pages.Elements(Path(file).read_text("utf-8"))
    sources = {str(each["src"]).partition(",")[0] for each in elements.all("img")}
    assert sources == {"data:image/jpeg;base64"}
    links = [str(each["href"]) for each in elements.all("a")]
    assert all(link.startswith("../photos/") and "<" not in link for link in links)
    assert not elements.all("b")  # of a file's name
    return elements


def page_data(file: str | Path) -> dict[str, Any]:
    return pages.page_data(Path(file).read_text("utf-8"))
