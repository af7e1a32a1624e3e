"""The folder that `keras-vit inspect` writes, its page in Chromium, and plots."""

import io
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit import inspection
from keras_vit.data import read_image
from keras_vit.inspection import class_attribution, readout_attention
from keras_vit.inspection.plots import draw_maps
from keras_vit.models.answers import answers_of
from keras_vit.tasks import Classification
from keras_vit_cli.serve.model import load_served
from tests.backend import refused
from tests.browser import assert_fits_and_can_be_read, opened
from tests.conftest import Command
from tests.inspection.models import images_for, inspect_files, model_of, randomized, untrained
from tests.inspection.pages import Elements, page_data, write_images

pytest.importorskip("matplotlib")
image = pytest.importorskip("PIL.Image")
PLOTS = {"attention.png", "attribution.png", "attention_distance.png"}
PLOTS |= {"position_similarity.png", "embedding_filters.png"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def written(files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("inspection") / "out"
    assert list(inspect_files(model_of("token"), files, out, title="<Ti/16>", top=2)) == [files[3]]
    return out


def page_in(folder: Path) -> str:
    return (folder / "index.html").read_text("utf-8")


def test_the_page_needs_no_other_file_and_is_accessible(written: Path, files: list[Path]) -> None:
    assert {path.name for path in written.iterdir()} == {*PLOTS, "index.html"}
    elements = Elements(page_in(written))
    for tag, attributes in elements.elements:
        for name in ("src", "href", "srcset", "data", "poster", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith("data:"), (tag, value)
    assert "http" not in elements.text
    assert not re.search(r"@import|url\(", page_in(written))
    policy = next(a["content"] for a in elements.all("meta") if "http-equiv" in a)
    assert policy.startswith("default-src 'none'")
    assert len(elements.all("img")) == 3 + 5
    assert all(image["alt"] for image in elements.all("img"))
    (slider,) = elements.all("input")
    assert slider["id"] in [label.get("for") for label in elements.all("label")]
    assert (slider["type"], slider["min"], slider["max"]) == ("range", "0", "3")
    assert not elements.all("b")  # names are text
    assert files[0].name in elements.text
    assert "Where <Ti/16> looks" in elements.text
    assert elements.text.count("broken.jpg: not a JPEG, PNG, BMP, GIF, WebP, TIFF, AVIF") == 1


def test_the_overlays_are_the_attention(written: Path, files: list[Path]) -> None:
    model = model_of("token")
    images = np.stack([read_image(file, (32, 12)) for file in files[:3]])
    heads, whole = readout_attention(model, images), class_attribution(model, images)
    data = page_data(page_in(written))
    assert (data["depth"], data["heads"], data["grid"]) == (2, 2, [4, 3])
    for image, (one, two), of_class in zip(data["images"], heads, whole, strict=True):
        expected = [one.mean(0), *one, two.mean(0), *two, of_class]
        overlays = zip(image["maps"], image["ranges"], expected, strict=True)
        for levels, (low, high), values in overlays:
            assert (low, high) == pytest.approx((values.min(), values.max()), rel=6e-3)
            restored = low + levels / 255 * (high - low)
            assert np.abs(restored - values).max() < 0.01 * high


def test_the_answers_are_those_of_all_views(files: list[Path], tmp_path: Path) -> None:
    """Of a class that only the mean of both views is for, as `predict` and the server answer."""
    model = randomized(untrained(num_classes=3, task=Classification(("a", "b", "c"))))
    pixels = read_image(files[0], (32, 12))[None]
    both = model.with_views("flip")
    middle = (model.predict(pixels, verbose=0) + both.predict(pixels, verbose=0))[0] / 2
    head = model.get_layer("head")
    head.bias.assign(head.bias - middle)
    answers = answers_of(model, both.predict(pixels, verbose=0))[0]
    assert answers.argmax() != model.predict(pixels, verbose=0).argmax()
    model.eval_transform = replace(model.eval_transform, views="flip")
    inspect_files(model, files[:1], tmp_path)
    best = model.class_names[answers.argmax()]
    assert re.search(rf"{best}{answers.max():.1%}", Elements(page_in(tmp_path)).text)
    (of_page,) = page_data(page_in(tmp_path))["images"]
    assert of_page["explained"] == best
    model.save(tmp_path / "model.keras")
    served = load_served(tmp_path / "model.keras")
    np.testing.assert_allclose(served.predict(pixels)[0], answers, atol=1e-5)
    assert served.explain(pixels, "attribution", None).class_name == best


@pytest.mark.parametrize("name", [*sorted(PLOTS), "index.html"])
def test_files_of_others_are_not_replaced(files: list[Path], tmp_path: Path, name: str) -> None:
    for file in (name, "notes.txt"):
        (tmp_path / file).write_bytes(b"theirs")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match=rf"{name} was not written by keras-vit inspect"):
            inspect_files(model_of("registers"), files, tmp_path, overwrite=overwrite)
        found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        assert found == {name: b"theirs", "notes.txt": b"theirs"}


def test_overwriting_replaces_only_ours(written: Path, files: list[Path], tmp_path: Path) -> None:
    """Also a plot that is not made again: here, of similarity, which the page explains."""
    refused("overwrite", inspect_files, model_of("token"), files, written, error=FileExistsError)
    out = Path(shutil.copytree(written, tmp_path / "out"))
    (out / "notes.txt").write_bytes(b"theirs")
    inspect_files(model_of("registers"), files, out, overwrite=True)
    files_now = {*PLOTS, "index.html", "notes.txt"} - {"position_similarity.png"}
    assert {path.name for path in out.iterdir()} == files_now
    reason = "position_embedding='relative' does not have position embeddings"
    assert reason in Elements(page_in(out)).text
    given = model_of("token"), files, out / "notes.txt"
    refused("is a file", inspect_files, *given, overwrite=True, error=NotADirectoryError)


def test_a_name_that_is_not_utf_8(files: list[Path], tmp_path: Path) -> None:
    file, missing = tmp_path / "p\udcff\n.png", tmp_path / "missing\udcfe.png"
    out = tmp_path / "out"
    shutil.copy(files[2], file)
    # Features without a head: no class is predicted.
    assert list(inspect_files(model_of("all_tokens"), [file, missing], out)) == [missing]
    assert page_data(page_in(out))["images"][0]["name"] == r"p\xff\n.png"
    elements = Elements(page_in(out))
    assert r"missing\xfe.png: No such file or directory" in elements.text
    assert not elements.all("ol")


def test_errors_and_a_model_around_a_transformer(files: list[Path], tmp_path: Path) -> None:
    refused("No photograph could be read", inspect_files, model_of("token"), files[3:], tmp_path)
    plain = untrained(include_preprocessing=False)
    refused("include_preprocessing=True", inspect_files, plain, files, tmp_path)
    assert not list(tmp_path.iterdir())
    # Pixels of files are a hundred times too large where nothing normalizes them.
    around = [keras.Input((64, 24, 3)), keras.layers.Resizing(32, 12), plain]
    around.append(keras.layers.Dense(3, "softmax"))
    with pytest.raises(ValueError, match=r"values up to 2\d\d.*Rescaling\(1 / 127\.5, -1\)"):
        inspect_files(keras.Sequential(around), files, tmp_path)
    around.insert(1, keras.layers.Rescaling(1 / 127.5, -1))
    assert list(inspect_files(keras.Sequential(around), files, tmp_path, top=3)) == [files[3]]
    page = page_in(tmp_path)
    assert (page_data(page)["grid"], page_data(page)["method"]) == ([4, 3], "attribution")
    assert "width:100.000%;height:100.000%" in page
    shown = re.findall(r"class=probability>([\d.]+)%", page)
    assert sum(map(float, shown[:3])) == pytest.approx(100, abs=0.3)


@pytest.mark.usefixtures("here")
def test_the_command(files: list[Path], command: Command) -> None:
    model_of("token").save("small.keras")
    inspect, out = "inspect small.keras --out out", Path("out")
    assert "out/index.html" in command(inspect, *files, status=1)
    assert "broken.jpg cannot be read" in command.error
    assert "Where small looks" in page_in(out)
    for words, reason in (
        ("", "--overwrite"),
        ("--overwrite --for-class rose", "There is no class 'rose' to explain"),
        ("--overwrite --for-class 1 --method rollout", "Rollout is the same for every class"),
    ):
        assert reason in command(f"{inspect} {words}", files[0], status=2)
    for words, method, explained in (
        ("--for-class 3", "attribution", "3"),
        ("--method rollout", "rollout", ""),
    ):
        command(f"{inspect} --overwrite {words}", files[0])
        data = page_data(page_in(out))
        assert (data["method"], data["images"][0]["explained"]) == (method, explained)
        plots = {path.stem for path in out.glob("*.png")} & {"attribution", "rollout"}
        assert plots == {method}  # that of the other method does not stay behind


@pytest.fixture
def page(browser: Any, written: Path) -> Iterator[Any]:
    with opened(browser, written / "index.html", 1280, ("file", "data")) as page:
        yield page


def overlay(page: Any, index: int = 0) -> np.ndarray:
    data = "c.getContext('2d').getImageData(0, 0, c.width, c.height).data"
    of_canvas = f"c => [c.height, c.width, ...{data}]"
    pixels = page.eval_on_selector(f"#overlay-{index}", of_canvas)
    return np.array(pixels[2:]).reshape(*pixels[:2], 4)


@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_and_can_be_read(width: int, page: Any, tmp_path: Path) -> None:
    assert_fits_and_can_be_read(page, width)
    assert page.evaluate("innerWidth") == width
    assert page.evaluate("[...document.images].every(i => i.naturalWidth > 0)")
    photo, canvas = (page.locator(f".photo {n}").first.bounding_box() for n in ("img", "canvas"))
    assert canvas == pytest.approx(photo, abs=1)  # the overlay lies on the photograph
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    with image.open(tmp_path / "page.png") as shot:
        assert abs(shot.width - width) <= 16
        assert len(shot.convert("RGB").getcolors(1 << 24)) > 1000


def test_the_slider_changes_the_overlay_and_a_head_can_be_chosen(page: Any, written: Path) -> None:
    one, other, _ = page_data(page_in(written))["images"]
    # The keyboard alone: Tab reaches the slider first, arrows move it by a layer.
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "layer"
    shots = {}
    for key, index in (("End", 6), ("ArrowLeft", 3), ("ArrowLeft", 0)):
        page.keyboard.press(key)
        assert np.abs(overlay(page)[..., 3] - (110 + np.floor(0.3 * one["maps"][index]))).max() <= 1
        stop = page.text_content("#stop")
        shots[stop] = page.screenshot(full_page=True)
        assert stop in page.get_attribute("#overlay-0", "aria-label")
    assert list(shots) == ["attribution", "layer 2", "layer 1"]
    assert len(set(shots.values())) == 3
    assert "% per patch" in page.text_content("#peak-0")
    page.keyboard.press("ArrowRight")
    page.select_option("#head", "1")
    assert np.abs(overlay(page, 1)[..., 3] - (110 + np.floor(0.3 * other["maps"][4]))).max() <= 1
    low, _ = other["ranges"][4]
    assert page.text_content("#peak-1").startswith(f"{float(f'{100 * low:.2g}'):g} to ")
    page.evaluate("layer.value = 0; layer.dispatchEvent(new Event('input'))")
    assert page.text_content("#stop") == "photograph alone"
    assert page.is_hidden("#overlay-0")
    assert page.is_disabled("#head")


@pytest.mark.parametrize("kind", ["token", "channels_first"])
def test_every_plot_is_one_call(kind: str) -> None:
    model, images = model_of(kind), images_for(kind)
    figures = {
        "attention": (inspection.plot_attention(model, images[0]), 2 * 2),
        "attribution": (inspection.plot_attribution(model, images), 3 * 2),
        "rollout": (inspection.plot_rollout(model, images), 3 * 2),
        "distance": (inspection.plot_attention_distance(model, images), 1),
        "similarity": (inspection.plot_position_similarity(model), 4 * 3 + 1),
        "filters": (inspection.plot_embedding_filters(model), 3 * 7),
    }
    for name, (figure, axes) in figures.items():
        assert len(figure.axes) == axes, name
        figure.savefig(file := io.BytesIO(), format="png")
        width, height = image.open(file).size
        assert (width >= 600, 100 < height < 4000) == (True, True), name
    refused("8 channels", inspection.plot_embedding_filters, untrained(input_shape=(32, 12, 8)))
    axes = figures["distance"][0].axes[0]
    shown = np.array([dots.get_offsets()[:, 1] for dots in axes.collections]).T
    assert np.abs(shown - inspection.attention_distance(model, images)).max() < 1e-5
    assert "of 12" in axes.get_ylabel()


def test_patches_without_attention_are_dark(monkeypatch: pytest.MonkeyPatch) -> None:
    rollout = np.zeros((1, 4, 3))
    rollout[0, 1, 2] = 0.5
    figure = draw_maps(np.ones((1, 34, 13, 3)), rollout, (32, 12), "rollout")
    original, darkened = (axes.images[0].get_array() for axes in figure.axes)
    assert (original == 1).all()
    assert darkened[12, 11, 0] > 0.9
    assert not darkened[:, :4].any()
    assert not darkened[32:].any()  # no patch covers the last two rows
    # A hybrid's patches may extend beyond the image.
    assert len(draw_maps(np.ones((1, 30, 11, 3)), rollout, (32, 12), "rollout").axes) == 2
    # One patch far above all others does not leave the rest black.
    maps = np.ones((5, 14, 14))
    maps[:, 0, 0] = 50
    figure = draw_maps(np.ones((5, 28, 28, 3)), maps, (28, 28), "attribution")
    assert figure.axes[1].images[0].get_array().min() > 0.9
    assert all(len(axes.images) == 1 for axes in figure.axes)  # no place is left empty
    # Without matplotlib only plots fail, and name the extra.
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    model, images = model_of("token"), images_for("token")
    assert inspection.attention_rollout(model, images).shape == (3, 4, 3)
    refused(r"keras3-vit\[plots\]", inspection.plot_rollout, model, images, error=ImportError)
