"""A page: one HTML file whose answers, in a browser without a network, are those of `predict`."""

import base64
import csv
import gzip
import hashlib
import io
import json
import re
import tarfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms

import keras_vit
from keras_vit import tasks
from keras_vit.data import EvalTransform
from keras_vit.data.decode.pillow import decode_with_pillow
from keras_vit.data.preprocessing import EVAL_TRANSFORMS, evaluation_image
from keras_vit.evaluation import fit_novelty
from keras_vit.evaluation.answer_row import answer_row
from keras_vit.evaluation.novelty import classifier_head
from keras_vit.evaluation.prediction import predict_files
from keras_vit.exporting import check, load_exported, page_engine, page_file
from keras_vit.exporting.format_table import QUANTIZATIONS
from keras_vit.exporting.page_engine import ENGINE, PACKAGE, WASM, engine_files
from keras_vit.inspection import attention_rollout
from keras_vit.models.scoring import has_novelty
from keras_vit.tasks import PredictionSets
from keras_vit.weights import CheckpointError
from keras_vit_cli.predict.answer_files import Csv
from keras_vit_cli.predict.schema import Schema
from keras_vit_cli.report.page_card import card_of_run
from tests import bank
from tests.backend import refused
from tests.browser import assert_fits_and_can_be_read, downloaded, opened
from tests.conftest import Command
from tests.data.image_fixtures import IMAGE, encode, orientation, png_of_twelve_bits, write
from tests.exporting.artifacts import IMAGES, Artifacts
from tests.exporting.test_one_preparation import sensitive_model
from tests.models.test_task import TASKS, vit

HOSTILE = (
    "</script><script>alert(1)</script>",
    "=cmd|' /C calc'!A0",
    "<img src=x onerror=alert(1)>",
)
READY = "#state.good, #state.wrong"


def part_of(page: str, name: str) -> str:
    return re.search(f'id="part-{name}">([^<]*)<', page)[1]  # type: ignore[index]


def test_a_page_holds_its_model(artifacts: Artifacts, tmp_path: Path) -> None:
    model = artifacts.model("hostile", lambda: vit(task=tasks.Classification(HOSTILE)))
    card = {"<script>alert(2)</script>": "</script>"}
    path = keras_vit.export(model, tmp_path / "a<b>.html", card=card)
    page, file = path.read_text("utf-8"), load_exported(path)
    assert file.contract.format == "html"
    assert file.class_names == HOSTILE
    expected = model.task.answers(bank.outputs(model, IMAGES))
    np.testing.assert_allclose(file.predict(IMAGES), expected, atol=1e-5)
    run = page_file.runner(path, ["attention"])
    np.testing.assert_allclose(run(IMAGES)[0], attention_rollout(model, IMAGES), atol=1e-5)
    assert not any(name in page for name in (*HOSTILE, "alert(", "a<b>"))
    policy = re.search('Content-Security-Policy" content="([^"]*)"', page)[1]  # type: ignore[index]
    for rule in ("default-src 'none'", "connect-src 'none'", "form-action 'none'"):
        assert rule in policy
    for tag in ("style", "script"):
        content = re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1]  # type: ignore[index]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert len(re.findall("<script", page)) == 1 + 7 + 1  # the script, the parts, their sums
    assert not re.findall(r"(src|href)=\"http", page)
    texts = re.findall(r'^  (\w+): "', page, re.MULTILINE)
    assert {*QUANTIZATIONS, "float32", *TASKS} <= {*texts}


def test_a_page_in_a_folder(artifacts: Artifacts, command: Command, tmp_path: Path) -> None:
    model = artifacts.model("hostile", lambda: vit(task=tasks.Classification(HOSTILE)))
    folder, mine = tmp_path / "flowers", write(tmp_path / "mine", {"index.html": b"mine"})
    with pytest.raises(FileExistsError, match="files that are not of an earlier page"):
        keras_vit.export(model, mine, "html", overwrite=True)
    write(keras_vit.export(model, folder, "html"), {"notes.txt": b"mine"})
    model.save(tmp_path / "m.keras")
    words = ("--format", "html", "--out", folder, "--overwrite")
    assert "python -m http.server" in command("export", tmp_path / "m.keras", *words)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert re.search(b"default-src 'none'; [^>]*connect-src 'self'; ", files["index.html"])
    assert json.loads(files["manifest.webmanifest"])["name"] == "flowers"
    kept = json.loads(re.search(b"FILES = ({.*?});", files["worker.js"], re.DOTALL)[1])  # type: ignore[index]
    files["./"] = files.pop("index.html")
    assert files.keys() - kept == {"worker.js", "SHA256SUMS", "notes.txt"}
    assert kept == {name: hashlib.sha256(files[name]).hexdigest() for name in kept}
    assert check(folder).ok
    (folder / "worker.js").write_bytes(b"")
    refused("worker.js: changed or missing", check, folder, error=CheckpointError)
    (folder / "wasm.bin").write_bytes(files["graph.bin"])
    refused("part wasm was changed", check, folder, error=CheckpointError)


def test_what_a_page_does_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, bands, floors, gray = (bank.fresh(**bank.TINY) for _ in range(4))
    raw.task = None
    floors.eval_transform = EvalTransform("big_vision")
    bands = bank.fresh(**{**bank.TINY, "input_shape": (16, 16, 4)})
    for model, options, words in (
        (raw, {}, r"A page shows what a task answers.*model\.task = "),
        (bands, {}, "A page reads photographs.*4 channels"),
        (floors, {}, "'big_vision' rounds pixels down"),
        (gray, {"format": "onnx", "runtime": "x.tgz"}, "runtime is for format='html'"),
        (gray, {"format": "onnx", "card": {}}, "card is for format='html'"),
    ):
        path = tmp_path / ("m.onnx" if options else "m.html")
        refused(words, keras_vit.export, model, path, **options)
    assert not list(tmp_path.iterdir())


def test_the_engine_is_known_by_its_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the npm package, or downloaded once into the cache; else it is said how to get it."""
    files = {ENGINE: b"export default 1", WASM: b"\0asm"}
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setattr(page_engine, "URL", f"{tmp_path.as_uri()}/{{name}}")
    with tarfile.open(tmp_path / "engine.tgz", "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"package/dist/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    words = f"not of {PACKAGE}: the sum.*npm pack {PACKAGE}"
    refused(words, engine_files, tmp_path / "engine.tgz")
    (tmp_path / "no.tgz").write_bytes(b"no archive")
    refused(f"is not the npm package {PACKAGE}", engine_files, tmp_path / "no.tgz")
    monkeypatch.setattr(page_engine, "SUMS", sums)
    assert engine_files(tmp_path / "engine.tgz") == files
    missing = f"cannot be downloaded.*npm pack {PACKAGE}.*runtime=FILE"
    refused(missing, engine_files, error=FileNotFoundError)
    write(tmp_path, {ENGINE: files[ENGINE], WASM: b"an error page"})
    refused("came with another sum", engine_files, error=FileNotFoundError)
    write(tmp_path, files)
    assert engine_files() == files
    for name in files:
        (tmp_path / name).unlink()
    assert engine_files() == files  # of the cache
    (page_engine.engine_folder() / WASM).write_bytes(b"damaged")
    refused(r"is damaged.*Delete it", engine_files)


def test_the_card_of_a_run(tmp_path: Path) -> None:
    assert card_of_run(tmp_path) == {}
    job = {"data": "/home/ada/flowers", "model": None, "weights": None}
    scores = {"scores": {"accuracy": [0.9, 0.8, 0.95]}, "constant": {"accuracy": [0.5, 0.4, 0.6]}}
    report = {"task": tasks.Classification(("a", "b")).get_config(), "examples": 40, **scores}
    report |= {"constant_of": "validation", "names": {}, "facts": {}}
    report |= dict.fromkeys(("pairs", "calibration", "sets", "novelty"))
    record = {"report": report, "targets": {"train": "90 images"}, "model": "ViT-Ti/16"}
    (tmp_path / "config.json").write_text(json.dumps({"job": job}))
    (tmp_path / "report.json").write_text(json.dumps(record))
    card = card_of_run(tmp_path)
    assert card["data"] == "flowers"  # without the folders of its user
    assert card["accuracy"] == "0.9 (95 % interval 0.8 to 0.95)"
    assert (card["training images"], card["started from"]) == ("90 images", "random")
    (tmp_path / "report.json").write_text("{}")
    refused("is damaged", card_of_run, tmp_path)


# In a browser, with the engine.

NOISE = np.random.default_rng(0).integers(0, 256, (60, 90, 4)).astype("uint8")
PHOTO = IMAGE.resize((240, 170), Image.Resampling.BICUBIC)
WIDE = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
ALPHA = Image.fromarray(NOISE)
# Files by kind. What every browser decodes to Pillow's pixels, and what may differ by levels.
EXACT: dict[str, bytes] = {
    "noise.png": encode(Image.fromarray(NOISE[..., :3]), "PNG"),
    "exact size.png": encode(Image.fromarray(NOISE[:16, :24, :3]), "PNG"),
    "tall.png": encode(Image.fromarray(NOISE[..., :3]).resize((31, 300)), "PNG"),
    "gray.png": encode(PHOTO.convert("L"), "PNG"),
    "gray and alpha.png": encode(ALPHA.convert("LA"), "PNG"),
    "transparent.png": encode(ALPHA, "PNG"),
    "palette.png": encode(PHOTO.quantize(32), "PNG", transparency=bytes(range(32))),
    "one bit.png": encode(PHOTO.convert("1"), "PNG"),
    "profile.png": encode(PHOTO, "PNG", icc_profile=WIDE),
    "turned.png": encode(PHOTO, "PNG", exif=orientation(5)),
    "lossless.webp": encode(PHOTO, "WEBP", lossless=True),
    "transparent.webp": encode(ALPHA, "WEBP", lossless=True, exact=True),
    "first frame.gif": encode(PHOTO.quantize(16), "GIF"),
    "image.bmp": encode(PHOTO, "BMP"),
    "420.jpg": encode(PHOTO, "JPEG", quality=90, subsampling="4:2:0"),
    "422.jpg": encode(PHOTO, "JPEG", quality=90, subsampling="4:2:2"),
    "444.jpg": encode(PHOTO, "JPEG", quality=95, subsampling="4:4:4"),
    "progressive.jpg": encode(PHOTO, "JPEG", quality=70, progressive=True),
    "gray.jpg": encode(PHOTO.convert("L"), "JPEG"),
    "profile.jpg": encode(PHOTO, "JPEG", icc_profile=WIDE),
    **{f"turned {n}.jpg": encode(PHOTO, "JPEG", exif=orientation(n)) for n in range(1, 9)},
}
NEAR: dict[str, bytes] = {
    "cmyk.jpg": encode(PHOTO.convert("CMYK"), "JPEG"),
    "lossy.webp": encode(PHOTO, "WEBP", quality=80),
    "turned.webp": encode(PHOTO, "WEBP", quality=80, exif=orientation(8)),
    "16 bits.png": png_of_twelve_bits(),
}
HALF_TRANSPARENT = {"gray and alpha.png", "transparent.png", "transparent.webp"}
UNREADABLE = {
    "cut.jpg": EXACT["420.jpg"][:200],
    **{f"cut {name}": content[:-40] for name, content in EXACT.items()},
    "no image.jpg": b"no image",
    "empty.png": b"",
    "vector.png": b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>",
}


def answered(page: Any, files: list[Path]) -> list[dict[str, Any]]:
    page.set_input_files("#file", files)
    page.locator("#status", has_text="Answered").wait_for()
    return page.evaluate("rows.map(({row}) => row)")


def numbers(row: dict[str, Any]) -> list[float]:
    named = sorted(
        (next(iter(e.values())), [v for v in e.values() if isinstance(v, float | int)])
        for e in row["predictions"]
    )
    return [row.get("novelty", 0.0), *(value for _, values in named for value in values)]


def assert_same(row: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    assert row.keys() == expected.keys()
    np.testing.assert_allclose(numbers(row), numbers(expected), rtol=tolerance, atol=tolerance)
    for key in ("set", "labels", "grade", "novel"):
        assert row.get(key) == expected.get(key), (key, row["file"])


def rows_of(model: Any, files: list[Path]) -> list[dict[str, Any]]:
    found = predict_files(model, files)
    rows = [answer_row(model.task, file, answer, 5, has_novelty(model)) for file, answer in found]
    return [{**row, "file": Path(row["file"]).name} for row in rows]


@pytest.fixture
def page_of(real_engine: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setattr("keras_vit.exporting.formats.engine_files", lambda _: real_engine)
    export = partial(keras_vit.export, format="html", overwrite=True)
    return lambda model, out=tmp_path / "flowers.html", **more: export(model, out, **more)


def test_a_folder_opens_without_its_server(page_of: Any, browser: Any, tmp_path: Path) -> None:
    """The second time; and another export takes its place when its tabs are closed."""
    folder, photo = page_of(bank.tiny(), out=tmp_path / "flowers"), tmp_path / "noise.png"
    photo.write_bytes(EXACT["noise.png"])
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    host = f"http://127.0.0.1:{server.server_port}/"
    with opened(browser, host + "flowers/", 390, [host, "blob:", "about:"]) as page:
        page.locator("#kept", has_text="Kept on this computer").wait_for()
        page_of(bank.tiny(), out=folder, class_names="xy")
        page.reload()
        page.locator("#facts", has_text="0, 1").wait_for()  # all of it of one export
        page.wait_for_function("navigator.serviceWorker.ready.then(r => r.waiting !== null)")
        page.goto("about:blank")
        page.wait_for_timeout(3000)  # the browser notices a moment later
        page.goto(host + "flowers/")
        page.locator("#facts", has_text="x, y").wait_for()
        assert page.evaluate("caches.keys().then(keys => keys.length)") == 1
        server.shutdown()
        server.server_close()
        page.goto(host + "flowers/index.html")
        page.wait_for_selector("#state.good")
        assert_same(answered(page, [photo])[0], rows_of(load_exported(folder), [photo])[0], 1e-5)
        assert_fits_and_can_be_read(page, 390, 1440)


def test_the_answers_of_a_page(page_of: Any, browser: Any, tmp_path: Path) -> None:
    model = sensitive_model()
    model.class_names = HOSTILE
    model.eval_transform = EvalTransform(decoder="pillow")
    path = page_of(model, card={"data": "<b>flowers</b>"})
    files = sorted(write(tmp_path / "images", {**EXACT, **NEAR, **UNREADABLE}).iterdir())
    expected = rows_of(model, files)
    with opened(browser, path, 390, [path.as_uri(), "blob:"]) as page:
        page.wait_for_selector(READY)
        state = page.locator("#state").inner_text()
        assert page.evaluate("document.documentElement.dataset.verified") == "true", state
        assert re.search(r"largest difference \d(\.\d)?e-[5-9] on 3 stored images", state), state
        has_webgl = page.evaluate("!!document.createElement('canvas').getContext('webgl')")
        assert has_webgl or browser.browser_type.name == "firefox"  # headless, it may have none
        rows = answered(page, files)
        assert [row["file"] for row in rows] == [row["file"] for row in expected]
        for row, other in zip(rows, expected, strict=True):
            if row["file"] in UNREADABLE:
                assert all((row["error"], other["error"]))
            elif row["file"] in HALF_TRANSPARENT and not has_webgl:
                assert "half-transparent pixels" in str(row["error"]), row
            elif row["file"] in EXACT:
                assert row["error"] is None, row
                assert_same(row, other, 1e-5)
        levels = page.evaluate(DECODED, [base64.b64encode(c).decode() for c in NEAR.values()])
        for (name, content), found in zip(NEAR.items(), levels, strict=True):
            pixels = decode_with_pillow(content, 3).ravel().astype(int)
            assert np.abs(pixels - found).max() <= 3, name  # of 255, between two decoders
        lines = list(csv.reader(io.StringIO(downloaded(page, "#csv").decode())))
        written = Csv(schema := Schema(model.task, 5))
        first = next(csv.reader([written.text(schema.row(files[0], np.zeros(3)))]))
        assert lines[0] == list(schema.columns)
        assert len(lines) == 1 + len(files)
        assert {"'" + HOSTILE[1], HOSTILE[0]} <= {cell for line in lines for cell in line}
        assert len(first) == len(lines[1])
        assert json.loads(downloaded(page, "#json")) == rows
        assert_fits_and_can_be_read(page, 390, 1440)
        page.click("#open-card")
        assert "<b>flowers</b>" in page.locator("#card").inner_text()
        assert_fits_and_can_be_read(page, 390, 1440)
        page.keyboard.press("Escape")
        page.set_input_files("#file", files)
        page.locator("#status", has_text="Looking at").wait_for()
        page.click("#clear")  # what is waiting as well
        assert page.evaluate("document.activeElement.id") == "file"  # by keyboard from here on
        assert not page.locator("#all").is_visible()
        assert answered(page, files[:1]) == rows[:1]
        assert page.evaluate(WRITTEN) == ["b", "", "1234567", "0.5"]
        page.evaluate(GONE)
        page.locator("#rows", has_text="cannot open it").wait_for()


# A grade that is not among those listed, a large number; and a folder.
WRITTEN = """[...inShort({grade: "b", predictions: [{grade: "a", probability: 0.9}]}),
    number(1234567), number(0.50001)]"""
GONE = "add([Object.assign(new File([], 'a'), {arrayBuffer: () => Promise.reject(Error())})])"
DECODED = """async files => Promise.all(files.map(async file =>
    Array.from((await decode(bytesOf(file), 3, Infinity)).data)))"""
PREPARED = """([pixels, height, width, channels, size, transform]) => Array.from(
    prepare({data: Uint8Array.from(pixels), height, width, channels}, size, transform).pixels)"""


def test_prepares_as_in_evaluation(page_of: Any, browser: Any) -> None:
    """Every mode but one, at sizes that are rounded: bytes to the level, floats to 1e-3 of it."""
    random, path = np.random.default_rng(0), page_of(bank.tiny())
    with opened(browser, path, 900, [path.as_uri(), "blob:"]) as page:
        page.wait_for_selector(READY)
        for mode in sorted(set(EVAL_TRANSFORMS) - {"big_vision"}):
            of_pillow = mode.startswith(("timm", "huggingface"))
            for size in ((16, 16), (16, 24), (30, 20)):
                for filter in ("bilinear", "lanczos", None) if of_pillow else (None,):
                    transform = EvalTransform(mode, 0.9, filter)
                    strip = (331, 3) if (size, filter) == ((16, 24), None) else None
                    height, width = strip or random.integers(5, 90, 2).tolist()
                    image = random.integers(0, 256, (height, width, 3)).astype("uint8")
                    values = [image.ravel().tolist(), height, width, 3, size, transform.to_dict()]
                    found = np.reshape(page.evaluate(PREPARED, values), (*size, 3))
                    expected = evaluation_image(image, size, transform)
                    most = 0 if of_pillow else 1e-3
                    np.testing.assert_allclose(found, expected, atol=most, err_msg=str(transform))


@pytest.mark.parametrize("kind", TASKS)
def test_every_task_in_a_page(kind: str, page_of: Any, browser: Any, tmp_path: Path) -> None:
    model = vit(task=TASKS[kind])
    if kind == "classification":
        sets = PredictionSets("raps", 0.9, (0.05, 0.2, -0.05), 100, penalty=0.05)
        model = vit(task=tasks.Classification(("cat", "dog", "cow"), sets=sets))
        rows = bank.outputs(model.feature_model("pre_logits"), IMAGES)
        model.set_novelty(fit_novelty(rows[::2], rows[1::2], 0.4, classifier_head(model)))
    elif kind == "regression":
        config = {**TASKS[kind].get_config(), "margins": [4.0], "coverage": 0.9}
        model = vit(task=tasks.get(config))
    files = sorted(write(tmp_path / "images", dict(list(EXACT.items())[:4])).iterdir())
    path = page_of(model, quantize="float16" if kind == "multilabel" else None)
    model = load_exported(path)
    with opened(browser, path, 900, [path.as_uri(), "blob:"]) as page:
        page.wait_for_selector("#state.good")
        rows = answered(page, files)
        for row, expected in zip(rows, rows_of(model, files), strict=True):
            assert_same(row, expected, 1e-5)
        shown = page.locator("#decided").inner_text() + page.locator("#predictions").inner_text()
        words = {"classification": "90 %", "multilabel": "from 30 % on", "ordinal": "Grade: "}
        assert words.get(kind, "for 90 % of new images") in shown


def test_a_damaged_page_refuses(page_of: Any, browser: Any, tmp_path: Path) -> None:
    whole, broken = page_of(bank.tiny()).read_text("utf-8"), tmp_path / "broken.html"
    graph, script = part_of(whole, "graph"), whole.index('"use strict"')
    other = graph[:-9] + "AAAA" + graph[-5:]
    packed = base64.b64decode(part_of(whole, "checks"))
    checks = json.loads(gzip.decompress(packed))
    checks["images"][0]["outputs"]["probabilities"][0] += 0.01
    changed = gzip.compress(json.dumps(checks).encode())
    answers = whole.replace(part_of(whole, "checks"), base64.b64encode(changed).decode())
    before, after = (hashlib.sha256(content).hexdigest() for content in (packed, changed))
    cases = {
        "is cut off": whole[: len(whole) // 2],
        "part “graph” of this page was changed": whole.replace(graph, other),
        "part “wasm”": whole.replace('id="part-wasm">H', 'id="part-wasm">G'),
        "If this line stays": whole[:script] + "/* edited */" + whole[script:],
        "differ from the stored answers": answers.replace(before, after),  # a part and its sum
    }
    for words, content in cases.items():
        broken.write_text(content, "utf-8")
        blocked = "script-src" if "stays" in words else None
        with opened(browser, broken, 900, [broken.as_uri(), "blob:"], blocked) as page:
            page.locator("#state", has_text=words).wait_for()
            assert page.evaluate("document.documentElement.dataset.verified") == "false"
            assert not page.locator("#main").is_visible()
