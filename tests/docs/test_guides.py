"""Every guide runs and keeps its promise, that of its first paragraph; the site and its tools."""

import functools
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import keras
import pytest

import keras_vit
from docs.tools import gallery, guides, live_page, zoo
from docs.tools.links import dead_links, external_links
from docs.tools.names import ROOMS, markdown
from keras_vit.weights.released import RELEASED
from tests.conftest import REPOSITORY, SHARED
from tests.data.image_fixtures import write

# Numbers of a guide's `result`, and what its first paragraph promises that they are at least.
RESULTS = {
    "digits": {"accuracy": 0.97},
    "finetune_folder": {"accuracy": 0.94},
    "report": {"accuracy": 0.93, "agrees_with_scikit_learn": 1, "evaluate_agrees": 1},
    "coverage": {"coverage": 0.945, "right_answers": 0.97, "noise_found": 0.9},
    "weights": {"comparisons_that_agree": 1, "damaged_files_refused": 1},
    "resolutions": {"worst accuracy at a new size": 0.8},
    "dense": {"mean_iou": 0.75, "f1": 0.85},
    "segmenter": {"mean_iou": 0.85, "large_iou": 0.85},
    "search": {"same_flower_of_12": 0.85, "rand_index": 0.5, "nothing_read_again": 1},
    "choose": {"probe_accuracy": 0.85, "new_photographs": 0.85, "released_before_random": 1},
    "audit": {"wrong_labels_found": 0.8, "duplicates_found": 0.95},
    "inspection": {"rollout on the orange digit": 0.65},
    "distribution": {"equal_decimal_places": 5, "fsdp_saves": 5, "accuracy": 0.9},
    "serve": {"same_class": 1, "accuracy": 0.93},
    "resume": {"weights_equal": 1, "history_equal": 1, "checksums_hold": 1},
    "own_parts": {"fourier_accuracy": 0.9, "saved_model_agrees": 1, "foreign_weights_agree": 1},
}
# The others take minutes, mostly of processes that start and compile; `make guides` runs all.
QUICK = "inspection"
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in RESULTS if name != QUICK]
WEIGHTS = SHARED / "weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k/model.safetensors"
TI16 = {"KERAS_VIT_TI16": WEIGHTS}
PRETRAINED = TI16 | {"KERAS_VIT_FLOWERS": SHARED / "photos/flowers"}
NEEDS_SHARED = {
    **dict.fromkeys(("weights", "segmenter"), TI16),
    **dict.fromkeys(("search", "choose", "audit", "finetune_folder"), PRETRAINED),
}
SITE = REPOSITORY / "site" / "dev"
FIRST_RESULT = "document.querySelector('.cell_output')?.getBoundingClientRect().top ?? null"
SMALL_LETTERS = """[...document.querySelectorAll('article *')].filter(e => e.getClientRects().length
    && [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())
    && parseFloat(getComputedStyle(e).fontSize) < 11.5).map(e => e.outerHTML.slice(0, 90))"""
RUN = """
import json, runpy, sys
print("\\n" + json.dumps(runpy.run_path(sys.argv[1])["result"]))
"""


def test_guides_make_promises_and_have_the_outputs_of_their_scripts() -> None:
    scripts = {script.stem for script in guides.FOLDER.glob("*.py")}
    assert scripts == {*RESULTS} == {*gallery.PICTURES}
    for name in RESULTS:
        script = guides.FOLDER / f"{name}.py"
        assert guides.is_current(script), f"run `make guides GUIDES={name}`"
        assert f"\n{name}\n" in (guides.FOLDER / "index.md").read_text("utf-8")
    # The code of the home page fits.
    code = (guides.FOLDER.parent / "index.md").read_text("utf-8").split("```")[1::2]
    assert max(len(line) for block in code for line in block.splitlines()) < 80


@pytest.mark.backends("jax")  # as their committed outputs did
@pytest.mark.parametrize("name", [QUICK, *OTHERS])
def test_guides_keep_their_promises(name: str) -> None:
    files = NEEDS_SHARED.get(name, {})
    if not all(file.exists() for file in files.values()):
        pytest.skip(f"{SHARED} is missing: the guide would download its weights")
    environment = os.environ | {"MPLBACKEND": "Agg", "KERAS_BACKEND": "jax", "PYTHONWARNINGS": ""}
    environment |= {variable: str(file) for variable, file in files.items()}
    # In a process of its own: a guide chooses devices before its backend starts.
    command = [sys.executable, "-c", RUN, str(guides.FOLDER / f"{name}.py")]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    result = json.loads(run.stdout.splitlines()[-1])
    for number, least in RESULTS[name].items():
        assert result[number] >= least, number


OF_FAMILIES = ("S/14:dinov2_reg4", "B/16:siglip", "Ti/16:deit_distilled", "S/14:eva02_*")
OF_FAMILIES += ("B/16:beit_*", "B/16:clip_openai", "S/16:dinov3")


def test_parameters_in_the_zoo_are_those_of_the_model_and_of_its_file() -> None:
    for name in OF_FAMILIES:
        (row,) = keras_vit.list_weights(f"ViT-{name}")
        options = {"num_classes": row.num_classes, "input_shape": (row.pixels, row.pixels, 3)}
        with keras.StatelessScope(initialize_variables=False):
            model = keras_vit.create("/".join(row.url.split("/")[3:5]), **options)
        assert zoo.cost_of_row(row).parameters == model.count_params(), name
    for row in RELEASED[6::12]:
        assert row.megabytes == round(zoo.cost_of_row(row).parameters * 4 / 1e6), row.name


def test_dead_links(tmp_path: Path) -> None:
    page = b"""<a href="sub/"><a href="sub/#top"><a href="#c"><a href="sub/#low"><img src="no.png">
        <p id="b"><a href="https://example.org/x"><a name="c">"""
    index = b'<h1 id="top"></h1><a href="../a.html#b">'
    write(tmp_path, {"sub/index.html": index, "a.html": page})
    assert dead_links(tmp_path) == ["a.html: no.png", "a.html: sub/#low"]
    assert external_links(tmp_path) == ["https://example.org/x"]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    if not (SITE / "index.html").exists():
        pytest.skip("site/dev is missing: run `make docs`")

    class Quiet(SimpleHTTPRequestHandler):
        log_message = Mock()

    handler = functools.partial(Quiet, directory=str(SITE.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/dev/"
        server.shutdown()


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
        for width in (390, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            shown = page.evaluate("document.documentElement.scrollWidth")
            assert shown <= width, f"{file} is {shown} pixels wide on a screen of {width}"
        first = page.evaluate(FIRST_RESULT)
        assert first is None or first < 900, f"{file}: first result {first} pixels down"
        assert page.evaluate(SMALL_LETTERS) == [], file
    ours = ("http://127.0.0.1", "data:", "blob:")
    assert not [url for url in requests if not url.startswith(ours)]
    assert not [url for url, status in statuses.items() if status >= 400]


def test_the_page_on_the_site_answers(address: str, browser: Any) -> None:
    """Embedded, as a reader meets it: it checks itself, and reads the digits beside it."""
    if not (SITE / "live/digits.html").exists():
        pytest.skip("site/dev was built without the engine of pages")
    page = browser.new_page()
    page.goto(f"{address}page.html")
    live = page.frame_locator("iframe.live")
    live.locator("html[data-verified=true]").wait_for()
    digits = [SITE / f"live/{number}.png" for number in live_page.SAMPLES]
    live.locator("#file").set_input_files(digits)
    live.locator("#status", has_text="Answered").wait_for()
    rows = page.frames[-1].evaluate("rows.map(({row}) => row.predictions[0].class)")
    assert [int(row) for row in rows] == [*live_page.SAMPLES]


def test_a_site_without_the_engine_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERAS_VIT_ENGINE", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    assert live_page.engine() is None
    assert "built without the page" in live_page.shown(tmp_path)
    monkeypatch.setenv("KERAS_VIT_ENGINE", "engine.tgz")
    assert live_page.engine() == ["--runtime", os.path.abspath("engine.tgz")]
    text = (REPOSITORY / "docs/page.md").read_text("utf-8")
    for command in (live_page.TRAIN, live_page.EXPORT):
        assert f"keras-vit {' '.join(command)}" in text
    assert live_page.MARK in text


def test_every_public_name_has_a_line() -> None:
    sections = re.split(r"^## ", markdown(), flags=re.M)[1:]
    assert len(sections) == len(ROOMS) == len(set(ROOMS))
    for room, section in zip(ROOMS, sections, strict=True):
        module = keras_vit
        for part in room.split(".")[1:]:
            module = getattr(module, part)
        rows = re.findall(r"^\| `(\w+)` \| (\S.{5,}) \|$", section, flags=re.M)
        assert [name for name, _ in rows] == list(module.__all__), room
        assert all(line.count("`") % 2 == 0 for _, line in rows), room
